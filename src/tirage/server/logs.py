"""The log on stderr: plain lines or JSON, one line per record; no record can imitate another line."""

from __future__ import annotations

import json
import logging
import re
import sys
import time

LINE_CHARS = 2000
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def escape(text: str) -> str:
    """The text on one line, without control characters and at most LINE_CHARS long."""
    clean = _CONTROL.sub(lambda found: found[0].encode("unicode_escape", "surrogatepass").decode("ascii"), text)
    return clean if len(clean) <= LINE_CHARS else clean[: LINE_CHARS - 3] + "..."


class PlainFormatter(logging.Formatter):
    """Formats `12:34:56 message`, with the level if it is above INFO."""

    def format(self, record: logging.LogRecord) -> str:
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        line = escape(f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}")
        return line if record.exc_info is None else line + self._traceback(record)

    def _traceback(self, record: logging.LogRecord) -> str:
        text = self.formatException(record.exc_info) if record.exc_info else ""
        return "".join(f"\n    {escape(line)}" for line in text.splitlines())


class JsonFormatter(logging.Formatter):
    """Formats one JSON object per line: time, level, message, and the fields of a request."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": round(record.created, 3),
            "level": record.levelname.lower(),
            "message": escape(record.getMessage()),
            **getattr(record, "fields", {}),
        }
        if record.exc_info is not None:
            entry["traceback"] = self.formatException(record.exc_info)[-LINE_CHARS:]
        return json.dumps(entry)


def set_up(form: str, level: str) -> None:
    """Configures the process to log to stderr in this form; of the web server only errors are logged."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else PlainFormatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    logging.getLogger("tirage").setLevel(level.upper())
    logging.getLogger("uvicorn").setLevel(logging.ERROR)
