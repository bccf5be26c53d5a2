"""What can go wrong, as one small tree.

TirageError
├── ParamsError (ValueError)    a request that breaks a rule: name, rule, value, remedy
├── GrammarError (ValueError)   a constraint that cannot be compiled or enforced
├── ModelError                  a model folder that cannot be loaded or run
├── RowError                    one row of a running batch that cannot go on
├── UnavailableError            an engine that takes no requests now
└── RemoteError                 a server that cannot be reached, fails, or answers what cannot be read
"""

from __future__ import annotations

from collections.abc import Iterable

# Comparing takes time in proportion to a name, and a name may come from anyone.
_LONGEST_NAME = 100


class TirageError(Exception):
    """Base of every error that tirage raises on purpose."""


class ParamsError(TirageError, ValueError):
    """A parameter, array or option that breaks its rule; raised before any work is done."""


class GrammarError(TirageError, ValueError):
    """A guided-decoding constraint that is invalid or cannot be enforced.

    `place` says where in it, as the message does: a JSON pointer such as `#/properties/a`, `line 2, column 5`, or
    `character 7`; "" when the whole is to blame.
    """

    def __init__(self, message: str, *, place: str = "") -> None:
        super().__init__(message)
        self.place = place


class ModelError(TirageError):
    """A model or tokenizer that is missing, malformed or not supported."""


class RowError(TirageError):
    """One request of a running batch that ended because its logits left no legal token."""


class UnavailableError(TirageError):
    """An engine that takes no more requests now: its queue is full, or it is `closing` for good."""

    def __init__(self, message: str, *, closing: bool = False) -> None:
        super().__init__(message)
        self.closing = closing


class RemoteError(TirageError):
    """A server that cannot be reached, takes too long, fails, or answers what cannot be read.

    `status` is that of its answer, None where there was none or where the answer itself was wrong.
    """

    def __init__(self, message: str, *, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint such as `; did you mean 'top_p'?`, or an empty string when nothing is close."""
    if len(name) > _LONGEST_NAME:
        return ""
    # Needed for an error alone.
    import difflib

    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
