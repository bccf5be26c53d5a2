"""What can go wrong, as one small tree.

TirageError
├── ParamsError (ValueError)    a request that breaks a rule: name, rule, value, remedy
│   └── OnlyValueError          a parameter that can have a single value here
├── GrammarError (ValueError)   a constraint that cannot be compiled or enforced
├── ModelError                  a model folder that cannot be loaded or run
├── RowError                    one row of a running batch that cannot go on
├── UnavailableError            an engine that takes no requests now
└── RemoteError                 a server that cannot be reached, fails, or answers what cannot be read
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# Comparing takes time in proportion to a name, and a name may come from anyone.
_LONGEST_NAME = 100
_NEARLY = 0.85
"""How alike two names are, from 0 to 1, of which one is the other mistyped."""


class TirageError(Exception):
    """Base of every error that tirage raises on purpose."""


class ParamsError(TirageError, ValueError):
    """A parameter, array or option that breaks its rule; raised before any work is done."""


class OnlyValueError(ParamsError):
    """A field of SamplingParams that can have a single value here, `only`; `broken` is the message but its remedy."""

    def __init__(self, broken: str, *, name: str, only: Any) -> None:
        super().__init__(f"{broken}; use params.replace({name}={only!r})")
        self.broken, self.name, self.only = broken, name, only


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
    close = closest(name, known)
    return f"; did you mean {close!r}?" if close else ""


def closest(name: str, known: Iterable[str], others: Iterable[str] = ()) -> str | None:
    """The name that differs from `name` in case and separators alone, else the most alike one; None without one.

    One of the `others` must be nearly the same, one of the `known` only alike.
    """
    if len(name) > _LONGEST_NAME:
        return None
    known = sorted(known, reverse=True)
    names = [*others, *known]
    if same := {_letters(each): each for each in names}.get(_letters(name)):
        return same
    # Needed for an error alone.
    from difflib import get_close_matches as alike

    wanted, folded = name.casefold(), {each.casefold(): each for each in names}
    close = alike(wanted, folded, n=1, cutoff=_NEARLY) or alike(wanted, map(str.casefold, known), n=1)
    return folded[close[0]] if close else None


def _letters(name: str) -> str:
    """A name as it is compared first: `maxOutputTokens` and `MAX-OUTPUT-TOKENS` are `max_output_tokens`."""
    return name.casefold().replace("_", "").replace("-", "")
