"""Processors that are always there: each is a plain rule on token ids, so a request may name it anywhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirage.errors import ParamsError
from tirage.processors.registry import PAST, Past, ProcessorFunction, register_processor

_MOST_IDS = 4096
_LARGEST_ID = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltIn:
    """One of them: its function, the arguments it must have, those it may have, and those that may be text."""

    fn: ProcessorFunction
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()

    def check(self, name: str, args: Mapping[str, Any]) -> None:
        """Raises ParamsError for an argument that is missing or no token id, list of them or number."""
        for key in self.required:
            if args.get(key) is None:
                raise ParamsError(f"argument {key} of processor {name!r} must be given, got none")
        for key, value in args.items():
            if value is not None and not (key in self.spelled and isinstance(value, str) and value):
                _CHECKS[key](name, key, value)


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value < high


def _token(name: str, key: str, value: Any) -> None:
    if not _is_int(value, 0, _LARGEST_ID):
        raise ParamsError(f"argument {key} of processor {name!r} must be a token id, got {value!r:.60}")


def _tokens(name: str, key: str, value: Any) -> None:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= _MOST_IDS:
        raise ParamsError(f"argument {key} of processor {name!r} must be a list of 1 to {_MOST_IDS} token ids")
    for token in value:
        _token(name, key, token)


def _count(name: str, key: str, value: Any) -> None:
    if not _is_int(value, 0, 2**31):
        raise ParamsError(f"argument {key} of processor {name!r} must be a number of tokens, got {value!r:.60}")


_CHECKS: dict[str, Callable[[str, str, Any], None]] = {
    "token_id": _token,
    "token_ids": _tokens,
    "thinking_budget": _count,
    "think_start_id": _token,
    "think_end_id": _token,
    "newline_id": _token,
}


def only(logits: np.ndarray, row: int, token_ids: Any) -> None:
    """Leaves the row nothing but these tokens; ids outside the vocabulary leave nothing."""
    known = [token for token in token_ids if token < logits.shape[1]]
    kept = logits[row, known]
    logits[row] = -np.inf
    logits[row, known] = kept


def force(logits: np.ndarray, row: int, token_id: int) -> None:
    """Makes one token certain."""
    logits[row] = -np.inf
    if token_id < logits.shape[1]:
        logits[row, token_id] = 0.0


def forced_token(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Every token drawn is `token_id`."""
    for row, given in enumerate(args):
        force(logits, row, given["token_id"])
    return logits


def allowed_tokens(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Only `token_ids` can be drawn."""
    for row, given in enumerate(args):
        only(logits, row, given["token_ids"])
    return logits


def disallowed_tokens(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """None of `token_ids` can be drawn."""
    for row, given in enumerate(args):
        logits[row, [token for token in given["token_ids"] if token < logits.shape[1]]] = -np.inf
    return logits


def thinking_budget(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Ends a section that `think_start_id` began after `thinking_budget` tokens, with `think_end_id`.

    With `newline_id` that token comes first, as SGLang has it. The last section that is open counts. An id may be
    given as the token's text, such as "<think>".
    """
    for row, given in enumerate(args):
        past: Past = given[PAST]
        tokens = [*past.origin_input_ids, *past.output_ids]
        spent = length_of_thought(tokens, given["think_start_id"], given["think_end_id"])
        if spent is None or spent < given["thinking_budget"]:
            continue
        end, newline = given["think_end_id"], given.get("newline_id")
        breaks = newline is not None and not (spent and tokens[-1] == newline)
        force(logits, row, newline if breaks and newline is not None else end)
    return logits


thinking_budget.wants_past = True  # type: ignore[attr-defined]


def length_of_thought(tokens: list[int], start: int, end: int) -> int | None:
    """The number of tokens since the last start of a section that has not ended; None outside of one."""
    for back, token in enumerate(reversed(tokens)):
        if token == end:
            return None
        if token == start:
            return back
    return None


BUILT_IN: Mapping[str, BuiltIn] = {
    "forced_token": BuiltIn(fn=forced_token, required=("token_id",)),
    "allowed_tokens": BuiltIn(fn=allowed_tokens, required=("token_ids",)),
    "disallowed_tokens": BuiltIn(fn=disallowed_tokens, required=("token_ids",)),
    "thinking_budget": BuiltIn(
        fn=thinking_budget,
        required=("thinking_budget", "think_start_id", "think_end_id"),
        optional=("newline_id",),
        spelled=("think_start_id", "think_end_id", "newline_id"),
    ),
}
"""By name. Repeated sequences have parameters instead: `no_repeat_ngram_size` and `dry_multiplier`."""


def register_built_in() -> None:
    """Makes them known."""
    for name, one in BUILT_IN.items():
        register_processor(
            name,
            one.fn,
            arg_names=(*one.required, *one.optional),
            check=lambda args, name=name, one=one: one.check(name, args),
            replace=True,
            token_args=one.spelled,
        )
