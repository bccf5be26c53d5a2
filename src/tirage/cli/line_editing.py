"""Reading lines on a terminal: editing, Tab completion, and a history that stays."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

_MOST_LINES = 1000


def history_file(environ: Mapping[str, str] = os.environ) -> Path:
    """The file of the lines typed in chats: `tirage/chat_history` below XDG_STATE_HOME, or `~/.local/state`."""
    state = environ.get("XDG_STATE_HOME") or "~/.local/state"
    return Path(state).expanduser() / "tirage" / "chat_history"


@contextlib.contextmanager
def line_editing(words: Iterable[str], *, history: Path | None) -> Iterator[None]:
    """A block in which `input` edits lines, completes the words with Tab, and knows the lines of earlier chats.

    Their file, which only its owner can read, is written at the end; with None nothing is read or written.
    """
    try:
        import readline
    except ImportError:  # not on every system
        yield
        return
    readline.set_completer(Completer(words))
    readline.set_completer_delims(" ")
    # Python on macOS comes with libedit instead, which has commands of its own.
    libedit = "libedit" in (readline.__doc__ or "")
    readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")
    if history is None:
        yield
        return
    with contextlib.suppress(OSError):
        readline.read_history_file(history)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            history.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(history, os.O_CREAT | os.O_WRONLY, 0o600))
            readline.set_history_length(_MOST_LINES)
            readline.write_history_file(history)


class Completer:
    """Completes a word that was begun with one of the words."""

    def __init__(self, words: Iterable[str]) -> None:
        self._words = list(words)

    def __call__(self, begun: str, index: int) -> str | None:
        """The completion number `index`, None after the last one, as readline asks for it."""
        found = [f"{word} " for word in self._words if word.startswith(begun)]
        return found[index] if index < len(found) else None
