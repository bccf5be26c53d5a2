"""Chat templates: Jinja in a sandbox, compiled and rendered in a child process with limits on time and memory."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tirage.errors import ModelError, ParamsError
from tirage.workers.children import Child, Children

SECONDS = 1.0
"""Processor time of a rendering, and of reading a template."""
_PATIENCE = 10.0
"""Wall-clock time of a task, as a multiple of its processor time: the machine may be busy."""
_STARTUP_S = 60.0
CHARACTERS = 8_000_000
MEGABYTES = 512
_WORKERS = 2
_ALARM = signal.SIGPROF


class TemplateLimitError(Exception):
    """Why a template has no answer: it took too much time or memory."""


class TemplateProcess(Child):
    """A running `template_worker`."""

    def __init__(self) -> None:
        super().__init__(Path(__file__).with_name("template_worker.py"), environment=os.environ)
        self._started = False

    def ask(self, task: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a task; TemplateLimitError, and the child is dead, when there is none."""
        seconds = SECONDS * _PATIENCE + _STARTUP_S * (not self._started)
        self._started = True
        try:
            self.input.write(json.dumps({**task, "seconds": SECONDS}, default=as_object).encode() + b"\n")
            self.input.flush()
        except OSError:
            raise TemplateLimitError(f"{MEGABYTES} MB") from None
        line = self.line(time.monotonic() + seconds)
        if line is not None and line.endswith(b"\n"):
            return json.loads(line)
        self.kill()
        late = line is None or -self.process.returncode == _ALARM
        raise TemplateLimitError(f"{SECONDS:g} s" if late else f"{MEGABYTES} MB")


def as_object(value: Any) -> dict[Any, Any]:
    """A mapping of another type as a JSON object; TypeError for anything else."""
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} {value!r:.40}")


_PROCESSES = Children(lambda _: TemplateProcess(), limit=_WORKERS)


class Template:
    """A chat template. Raises ModelError when the source is not valid Jinja, or takes too long to read."""

    def __init__(self, source: str) -> None:
        self._source = source
        try:
            answer = ask({"task": "variables", "source": source})
        except TemplateLimitError as limit:
            raise ModelError(f"the chat template must be readable within {limit}, got one that is not") from None
        if "invalid" in answer:
            raise ModelError(f"the chat template is not valid: {answer['invalid']}")
        self.variables = frozenset(answer["variables"])
        """The names of the variables that the template reads and does not set itself."""

    def render(self, **given: Any) -> str:
        """The rendered text; ParamsError when the template refuses the conversation, fails or exceeds a limit."""
        task = {"task": "render", "source": self._source, "characters": CHARACTERS, "given": given}
        try:
            answer = ask(task)
        except TemplateLimitError as limit:
            raise ParamsError(f"messages must be rendered by the chat template within {limit}; send fewer") from None
        except (TypeError, ValueError, RecursionError) as error:
            raise ParamsError(f"messages and tools must be JSON values, got {error}") from None
        if "refused" in answer:
            raise ParamsError(f"messages were refused by the chat template: {answer['refused']}")
        if "size" in answer:
            raise ParamsError(f"messages must give at most {CHARACTERS} characters of prompt; send fewer")
        if "failed" in answer:
            raise ParamsError(
                f"messages must be such that the chat template can show them, it failed with {answer['failed']}; "
                "change them, their tools or the template"
            )
        return answer["text"]


def ask(task: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of a child process to a task; TemplateLimitError when it takes too much time or memory."""
    with _PROCESSES.one("") as child:
        return child.ask(task)
