"""A child process that renders chat templates, which come with models and may be hostile.

It reads one JSON object per line and answers each with another. A template that takes too long ends the process by an
alarm, one that needs too much memory by a resource limit, wherever it is: in a power, a product or a filter, or while
constants are folded as it is compiled. The file runs as a script.
"""

from __future__ import annotations

import json
import signal
from collections import OrderedDict
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.environment import Template
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tirage.workers.child_script import Answer, answer_lines, drop_rights

_GROWTH = 512 << 20
_KEPT = 8
"""Compiled templates that are kept."""


class RaisedByTemplate(Exception):  # noqa: N818  (an answer, not only an error)
    """A template's own refusal of a conversation."""


class GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's text for training; here its content is rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between `{% generation %}` and `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment without access to Python, with what chat templates of the convention use."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag])
        self.globals["raise_exception"] = refuse
        self.globals["strftime_now"] = strftime_now
        self.filters["tojson"] = to_json


class TemplateWorker:
    """Compiles and renders templates."""

    def __init__(self) -> None:
        self._sandbox = Sandbox()
        self._compiled: OrderedDict[str, Template] = OrderedDict()

    def answer(self, task: Answer) -> Answer:
        """The answer to a task: `variables` or `text`, else `invalid`, `refused`, `failed` or `size`."""
        # Processor time, so that a busy machine refuses no conversation that a quiet one renders.
        signal.setitimer(signal.ITIMER_PROF, task["seconds"])
        try:
            if task["task"] == "variables":
                self._compile(task["source"])
                return {"variables": sorted(meta.find_undeclared_variables(self._sandbox.parse(task["source"])))}
            return self._render(task)
        except TemplateError as error:
            return {"invalid" if task["task"] == "variables" else "failed": f"{type(error).__name__}: {error}"}
        except RaisedByTemplate as refusal:
            return {"refused": str(refusal)}
        except Exception as error:  # a template may fail in any way, usually because something is missing
            return {"invalid" if task["task"] == "variables" else "failed": f"{type(error).__name__}: {error}"}
        finally:
            signal.setitimer(signal.ITIMER_PROF, 0)

    def _compile(self, source: str) -> Template:
        if source not in self._compiled:
            self._compiled[source] = self._sandbox.from_string(source)
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return self._compiled[source]

    def _render(self, task: Answer) -> Answer:
        parts: list[str] = []
        size = 0
        for part in self._compile(task["source"]).generate(**task["given"]):
            size += len(part)
            if size > task["characters"]:
                return {"size": size}
            parts.append(part)
        return {"text": "".join(parts)}


def refuse(message: str) -> NoReturn:
    """Raises RaisedByTemplate; templates call it for conversations that they cannot render."""
    raise RaisedByTemplate(str(message))


def strftime_now(form: str) -> str:
    """The current date and time in that format, which some templates show to the model."""
    return datetime.now().strftime(form)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """The value as JSON, without the HTML escapes of Jinja's own filter, on which models were not trained."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def main() -> None:
    """Answers tasks until the input ends."""
    worker = TemplateWorker()
    # Jinja and the date import some of their parts only now.
    for source in ("{{ missing.field }}", "{{ strftime_now('%Y') }}{{ lipsum(1) }}"):
        worker.answer({"task": "render", "source": source, "given": {}, "seconds": 60, "characters": 10_000})
    drop_rights(_GROWTH)
    answer_lines(worker.answer)


if __name__ == "__main__":
    main()
