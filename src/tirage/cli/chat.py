"""`tirage chat`: a conversation on the terminal."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.derived import accepts_none
from tirage.cli.given import stdin_for
from tirage.cli.line_editing import history_file, line_editing
from tirage.cli.model import (
    BackendOption,
    DeviceOption,
    DraftOption,
    DtypeOption,
    EngineArgOption,
    ModelOption,
    SpeculativeConfigOption,
    open_model,
)
from tirage.cli.options import OF_TEXTS, OPTIONS, checked, parse_options, sampling_options, with_default
from tirage.cli.output import QuietOption, note, print_rich, show, summary
from tirage.errors import GrammarError, ParamsError, nearest
from tirage.fields.rules import Bool, Ids, Texts
from tirage.params import SamplingParams

if TYPE_CHECKING:
    from tirage.llm import LLM, Completion, Delta

COMMANDS = {
    "/set": "/set NAME VALUE   change a parameter, such as /set temperature 0.7; /set alone lists them",
    "/seed": "/seed N           make the replies repeatable; /seed none for fresh ones",
    "/explain": "/explain          how the first token of the last reply was drawn",
    "/reset": "/reset            forget the conversation",
    "/help": "/help             this list",
    "/quit": "/quit             end the chat",
}
"""The commands of a chat and their lines of help."""
PARAMETERS = {name: spec for name, spec in OPTIONS.items() if name not in OF_TEXTS} | {
    "max_tokens": with_default(OPTIONS["max_tokens"], None)
}
"""The parameters that `/set` changes."""


@sampling_options(max_tokens=None)
def chat(
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    draft: DraftOption = None,
    speculative_config: SpeculativeConfigOption = None,
    system: Annotated[str | None, typer.Option(metavar="TEXT", help="a system message to begin with")] = None,
    chat_template: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Jinja file instead of the model's template", rich_help_panel="Model"),
    ] = None,
    no_history: Annotated[
        bool, typer.Option("--no-history", help="neither read nor keep the lines typed", rich_help_panel="Output")
    ] = False,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Talk with a model. /help lists the commands; Ctrl-C stops a reply, Ctrl-D ends the chat.

    A reply ends where the model ends it, or where the context is full.
    """
    params = parse_options(options, max_tokens=None)
    typed = stdin_for("a chat")
    llm = open_model(
        model,
        chat_template=chat_template,
        backend=backend,
        dtype=dtype,
        device=device,
        engine_arg=engine_arg,
        draft=draft,
        speculative_config=speculative_config,
    )
    conversation = Conversation(llm, params, system=system, quiet=quiet)
    kept = None if no_history else history_file()
    with line_editing([*COMMANDS, *PARAMETERS], history=kept) if typed.isatty() else contextlib.nullcontext():
        while conversation.turn():
            pass


class Conversation:
    """The messages and parameters of a chat on the terminal, and its last reply."""

    def __init__(self, llm: LLM, params: SamplingParams, *, system: str | None, quiet: bool) -> None:
        self._llm, self._params, self._quiet = llm, params, quiet
        self._start = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._start)
        self._last: Completion | None = None
        if llm.chat_template.is_plain and not quiet:
            note("the model has no chat template; using plain `role: content` lines")

    def turn(self) -> bool:
        """Reads a line and answers it; False at the end of the chat. An interrupt ends the reply, not the chat."""
        try:
            return self._turn()
        except EOFError:
            return False
        except KeyboardInterrupt:
            note("")
            return True

    def _turn(self) -> bool:
        line = input("> " if sys.stdin.isatty() else "").strip()
        if line.startswith("/"):
            return self._command(line)
        if line:
            self._reply(line)
        return True

    def _reply(self, line: str) -> None:
        messages = [*self._messages, {"role": "user", "content": line}]
        partial = PartialReply()
        try:
            completion = show(partial.collect(self._llm.chat_stream(messages, self._params)), wrap=True)
        except (ParamsError, GrammarError) as error:
            hint = "; /reset forgets the conversation" if self._messages != self._start else ""
            note(f"error: {error}{hint}")
            return
        except KeyboardInterrupt:
            self._messages = [*messages, {"role": "assistant", "content": partial.text}]
            return
        self._last = completion
        self._messages = [*messages, {"role": "assistant", "content": completion.text}]
        if not self._quiet:
            note(summary(completion))

    def _command(self, line: str) -> bool:
        name, _, rest = line.partition(" ")
        if name == "/quit":
            return False
        if name not in COMMANDS:
            note(f"error: {name} is no command{nearest(name, COMMANDS)}; /help lists them")
            return True
        actions: dict[str, Callable[[str], None]] = {
            "/set": self._set,
            "/seed": lambda text: self._set(f"seed {text}"),
            "/reset": self._reset,
            "/explain": self._explain,
            "/help": show_help,
        }
        try:
            actions[name](rest.strip())
        except ParamsError as error:
            note(f"error: {error}")
        return True

    def _set(self, text: str) -> None:
        name, _, value = text.replace("=", " ", 1).partition(" ")
        name = name.replace("-", "_")
        if not name:
            note(f"{self._params}\nnames: {', '.join(PARAMETERS)}")
            return
        if name not in PARAMETERS:
            raise ParamsError(f"parameter must be a known name, got {name!r}{nearest(name, PARAMETERS)}")
        spec = PARAMETERS[name]
        words: Any = value.strip()
        if isinstance(spec.rule, Bool):
            words = {"true": True, "false": False}.get(words.lower(), words)
        elif isinstance(spec.rule, (Texts, Ids)):
            words = words.split()
        # What may be left out in a command line is set to nothing here.
        chosen = None if not value.strip() and accepts_none(spec) else checked(spec, words)
        self._params = self._params.replace(**{name: chosen})
        note(f"{name} = {getattr(self._params, name)!r}")

    def _reset(self, _: str) -> None:
        self._messages, self._last = list(self._start), None
        note("the conversation starts anew")

    def _explain(self, _: str) -> None:
        if self._last is None:
            raise ParamsError("explain must follow a reply, got none yet")
        from tirage.llm import Prompt

        prompt = Prompt(token_ids=self._last.prompt_token_ids)
        note("the first token of the last reply:")
        print_rich(self._llm.explain(prompt, self._params.replace(seed=self._last.seed)))


class PartialReply:
    """The text of a reply so far, for one that is interrupted."""

    def __init__(self) -> None:
        self.text = ""

    def collect(self, deltas: Iterator[Delta]) -> Iterator[Delta]:
        """The same deltas; their text is added to `text`."""
        for delta in deltas:
            self.text += delta.text
            yield delta


def show_help(_: str) -> None:
    """Writes the list of commands to stderr."""
    note("\n".join(COMMANDS.values()))
