"""The page docs/cli.md, written from the commands: `python -m tirage.cli.reference docs/cli.md` updates it."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import typer

from tirage.cli import app
from tirage.cli.derived import accepts_none, is_text
from tirage.cli.guided import OPTIONS as GUIDED
from tirage.cli.help import COMMON, LAST, meaning, option_groups, spelling
from tirage.cli.options import OPTIONS

_INTRO = """\
# Command line

This page is written from the commands (`make docs`). `tirage COMMAND --help` shows the common options of a command and
`--help-all` every one.

```bash
tirage generate "Once upon a time" --temperature 0.8 --top-p 0.95 --seed 7
tirage generate "Once upon a time" -n 3 --logprobs 2 --max-tokens 8
tirage generate "Once upon a time" -n 3 --output jsonl > texts.jsonl
tirage chat --system "You are a pirate."
```

Texts, JSON and tables go to stdout, but for the table of `generate --logprobs`, which goes to stderr beside its text.
Notes, bars and errors go to stderr, too, and `--quiet` leaves the notes out. To a file or pipe a text is
written as the model gives it, without colours and bars. On a terminal, control characters of a text are shown as
`\ufffd`, `tirage chat` breaks lines between words, and `NO_COLOR` turns colours off. What goes to a closed stdout or
stderr is lost; `-` for stdin, and a chat, need an open one.

| exit status | |
|---|---|
| 0 | done |
| 1 | a model or file cannot be used, a server fails, or a text ended with an error; `batch`: a row failed; \
`replay`: a token differs; `conformance`: a vector fails, or none passed; `convert --strict`: something cannot be said |
| 2 | a wrong command, option, value or constraint |
| 130 | interrupted with Ctrl-C |

In a chat, Ctrl-C stops the reply and Ctrl-D ends the chat; `/help` lists its commands. The lines typed are kept in
`tirage/chat_history` below `XDG_STATE_HOME` (`~/.local/state`), for the arrow keys of later chats; `--no-history` keeps
none.
"""
_SAMPLING = """\
## Sampling options

Of `generate`, `chat`, `batch` and `explain`; each is a field of `SamplingParams` or `GuidedDecodingParams`
([parameters](parameters.md)). `-n` and those of log-probabilities are for `generate` and `batch`. The default of
`--max-tokens` is 128, and of `chat` the context. A parameter that can be None is turned off by `none`, but for those
whose value is a text or names a file, which take the word itself and are left out instead:
"""


def page() -> str:
    """The whole page, ending in a newline."""
    commands: Mapping[str, Any] = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    parts = [_INTRO, *(section(name, command) for name, command in commands.items()), f"{_SAMPLING}{texts()}.\n"]
    sampling = {
        group: [param for param in params if is_sampling(param)]
        for group, params in option_groups(commands["generate"]).items()
    }
    return "\n".join([*parts, *tables(sampling)])


def texts() -> str:
    """The options that could be turned off by `none` and take it as a text."""
    found = [name for name, spec in {**OPTIONS, **GUIDED}.items() if accepts_none(spec) and is_text(spec)]
    return ", ".join(f"`--{name.replace('_', '-')}`" for name in found)


def section(name: str, command: Any) -> str:
    """The section of a command: what it does, and its options but those of sampling."""
    text = inspect.cleandoc(command.help or "")
    if name == "serve":
        return f"## tirage serve\n\n{text}\n\nIts options are [flags of the server](serving.md#flags).\n"
    own = {
        group: [param for param in params if not is_sampling(param)] for group, params in option_groups(command).items()
    }
    return "\n".join([f"## tirage {name}\n\n{text}\n", *tables(own, headed=False)])


def is_sampling(param: Any) -> bool:
    """Whether an option is that of a sampling parameter or of a constraint, which several commands have."""
    return param.name in OPTIONS or param.name in GUIDED


def tables(groups: Mapping[str, Iterable[Any]], *, headed: bool = True) -> Iterator[str]:
    """The options of groups in Markdown: each group under its name, or all in one table."""
    rows = {name: [row(param) for param in params] for name, params in groups.items() if name != LAST}
    if not headed:
        rows = {COMMON: [line for lines in rows.values() for line in lines]}
    for name, lines in rows.items():
        if lines:
            head = f"### {name}\n\n" if headed else ""
            yield f"{head}| option | meaning |\n|---|---|\n" + "\n".join(lines) + "\n"


def row(param: Any) -> str:
    """The line of an option in a table."""
    cells = (f"`{spelling(param)}`", meaning(param))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page(), encoding="utf-8")
