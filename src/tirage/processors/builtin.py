"""Processors that are always there: each is a plain rule on token ids, so a request may name it anywhere."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirage.errors import ParamsError
from tirage.processors.registry import PAST, Past, ProcessorFunction, find_processor, register_processor

_MOST_IDS = 4096
_LARGEST_ID = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class BuiltIn:
    """A built-in processor: its function, its required and optional arguments, and those that may be a token's text."""

    fn: ProcessorFunction
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    spelled: tuple[str, ...] = ()

    def check(self, name: str, args: Mapping[str, Any]) -> None:
        """Raises ParamsError for a required argument that is missing and for one of the wrong type or range."""
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


def keep_only(logits: np.ndarray, row: int, token_ids: Any) -> None:
    """Makes every other token of one row of `logits` [rows, V] -inf, in place; ids outside the vocabulary are none."""
    known = [token for token in token_ids if token < logits.shape[1]]
    kept = logits[row, known]
    logits[row] = -np.inf
    logits[row, known] = kept


def force(logits: np.ndarray, row: int, token_id: int) -> None:
    """Makes one token certain in one row of `logits` [rows, V], in place; one outside the vocabulary leaves nothing."""
    logits[row] = -np.inf
    if token_id < logits.shape[1]:
        logits[row, token_id] = 0.0


def forced_token(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Logits [rows, V] with which every row draws its `token_id`."""
    for row, given in enumerate(args):
        force(logits, row, given["token_id"])
    return logits


def allowed_tokens(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Logits [rows, V] with which each row draws one of its `token_ids`."""
    for row, given in enumerate(args):
        keep_only(logits, row, given["token_ids"])
    return logits


def disallowed_tokens(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Logits [rows, V] with which no row draws any of its `token_ids`."""
    for row, given in enumerate(args):
        logits[row, [token for token in given["token_ids"] if token < logits.shape[1]]] = -np.inf
    return logits


def thinking_budget(logits: np.ndarray, args: list[dict[str, Any]]) -> np.ndarray:
    """Logits [rows, V] that end a section of reasoning after `thinking_budget` tokens, by forcing `think_end_id`.

    The section began with the last `think_start_id` that no `think_end_id` follows. With `newline_id` that token comes
    first, as in SGLang. An id may be given as the token's text, such as "<think>".
    """
    for row, given in enumerate(args):
        past: Past = given[PAST]
        tokens = [*past.origin_input_ids, *past.output_ids]
        spent = reasoning_length(tokens, given["think_start_id"], given["think_end_id"])
        if spent is None or spent < given["thinking_budget"]:
            continue
        end, newline = given["think_end_id"], given.get("newline_id")
        breaks = newline is not None and not (spent and tokens[-1] == newline)
        force(logits, row, newline if breaks and newline is not None else end)
    return logits


thinking_budget.wants_past = True  # type: ignore[attr-defined]


def reasoning_length(tokens: list[int], start: int, end: int) -> int | None:
    """The number of tokens since the start of the section that is open; None outside of one."""
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
"""The built-in processors by name. `no_repeat_ngram_size` and `dry_multiplier` are parameters, not processors."""
_FORCED: Mapping[str, tuple[str, ...]] = {
    "forced_token": ("token_id",),
    "allowed_tokens": ("token_ids",),
    "thinking_budget": ("think_end_id", "newline_id"),
}
"""The arguments that leave nothing to draw where the vocabulary does not have their tokens: of a list, any of them."""


def register_built_in() -> None:
    """Registers every built-in processor under its name."""
    for name, one in BUILT_IN.items():
        register_processor(
            name,
            one.fn,
            arg_names=(*one.required, *one.optional),
            check=lambda args, name=name, one=one: one.check(name, args),
            replace=True,
            token_args=one.spelled,
        )


def check_ids(processors: Iterable[tuple[str, Mapping[str, Any]]], vocab_size: int) -> None:
    """Raises ParamsError for a token that a built-in processor would force and the vocabulary does not have."""
    for name, args in processors:
        for key in _FORCED.get(name, ()) if is_built_in(name) else ():
            value = args.get(key)
            ids = value if isinstance(value, (list, tuple)) else (value,)
            known = [token for token in ids if isinstance(token, int)]
            if known and min(known) >= vocab_size:
                raise ParamsError(
                    f"logits_processors argument {key} of {name!r} must lie in [0, {vocab_size}), got {min(known)}; "
                    "the vocabulary has no such token"
                )


def is_built_in(name: str) -> bool:
    """Whether a registered name is a built-in processor, and not another one in its place; ParamsError if unknown."""
    return name in BUILT_IN and find_processor(name).fn is BUILT_IN[name].fn
