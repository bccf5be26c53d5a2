"""Chat templates: Jinja in a sandbox, with limits on time and output."""

from __future__ import annotations

import json
import threading
import time
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, meta, nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from tirage.errors import ModelError, ParamsError

SECONDS = 1.0
CHARACTERS = 8_000_000


class GenerationTag(Extension):
    """The tag `{% generation %}`, which marks the assistant's text for training; here its content is rendered."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """The nodes between `{% generation %}` and `{% endgeneration %}`."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Sandbox(ImmutableSandboxedEnvironment):
    """A Jinja environment without access to Python, in which every look-up and call checks a deadline."""

    def __init__(self) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", GenerationTag])
        self._local = threading.local()
        self.globals["raise_exception"] = refuse
        self.globals["strftime_now"] = strftime_now
        self.filters["tojson"] = to_json

    def start(self) -> None:
        """Sets the deadline of this thread."""
        self._local.deadline = time.monotonic() + SECONDS

    def check(self) -> None:
        """Raises ParamsError when the deadline of this thread has passed."""
        if time.monotonic() > getattr(self._local, "deadline", float("inf")):
            raise ParamsError(f"messages must be rendered by the chat template within {SECONDS:g} s; send fewer")

    def getitem(self, obj: Any, argument: Any) -> Any:
        """The item of an object, as the sandbox allows; ParamsError after the deadline."""
        self.check()
        return super().getitem(obj, argument)

    def getattr(self, obj: Any, attribute: str) -> Any:
        """The attribute of an object, as the sandbox allows; ParamsError after the deadline."""
        self.check()
        return super().getattr(obj, attribute)

    def call(__self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - as Jinja has it
        """The result of a call, as the sandbox allows; ParamsError after the deadline."""
        __self.check()
        return super().call(__context, __obj, *args, **kwargs)


class Template:
    """A compiled chat template. Raises ModelError when the source is not valid Jinja."""

    def __init__(self, source: str) -> None:
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.from_string(source)
            names = meta.find_undeclared_variables(self._sandbox.parse(source))
        except (TemplateError, RecursionError) as error:
            raise ModelError(f"the chat template is not valid: {error}") from error
        self.variables = frozenset(names)
        """The names of the variables that the template reads and does not set itself."""

    def render(self, **given: Any) -> str:
        """The rendered text; ParamsError when the template refuses the conversation, fails or exceeds a limit."""
        self._sandbox.start()
        parts: list[str] = []
        size = 0
        try:
            for part in self._template.generate(**given):
                self._sandbox.check()
                size += len(part)
                if size > CHARACTERS:
                    raise ParamsError(f"messages must give at most {CHARACTERS} characters of prompt; send fewer")
                parts.append(part)
        except ParamsError:
            raise
        except Exception as error:  # a template may fail in any way, usually because something is missing
            raise ParamsError(
                f"messages must be such that the chat template can show them, it failed with {type(error).__name__}: "
                f"{error}; change them, their tools or the template"
            ) from error
        return "".join(parts)


def refuse(message: str) -> NoReturn:
    """Raises ParamsError; templates call it for conversations that they cannot render."""
    raise ParamsError(f"messages were refused by the chat template: {message}")


def strftime_now(form: str) -> str:
    """The current date and time in that format, which some templates show to the model."""
    return datetime.now().strftime(form)


def to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """The value as JSON, without the HTML escapes of Jinja's own filter, on which models were not trained."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)
