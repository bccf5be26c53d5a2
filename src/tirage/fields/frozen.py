"""JSON values that cannot change: what lets a parameter object be hashed, compared and shared."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NoReturn, Self

import numpy as np

MAX_DEPTH = 64
MAX_INTEGER_BITS = 1024


class NotPlainError(ValueError):
    """A value that JSON cannot hold; `args` are the path to it, the rule and the value."""


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} cannot be changed; build a new one with dict(...) or list(...)")


class FrozenDict(dict[Any, Any]):
    """A dict that never changes and can be hashed; equal to a plain dict with the same items.

    Two FrozenDicts are equal only when their values also have the same types, so that `{"a": 1}` and
    `{"a": True}` are two cache keys: `key` is what is compared and hashed. JSON encoders and
    `isinstance(x, dict)` see an ordinary dict.
    """

    __slots__ = ("key",)
    key: Hashable

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]], key: Hashable = None) -> None:
        super().__init__(items)
        # dataclasses.asdict rebuilds mappings from pairs alone.
        self.key = repr(self) if key is None else key

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return self.key == other.key if isinstance(other, FrozenDict) else dict.__eq__(self, other)

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __reduce__(self) -> tuple[Any, ...]:
        return FrozenDict, (dict(self), self.key)

    def __copy__(self) -> FrozenDict:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> FrozenDict:
        return self

    __setitem__ = __delitem__ = __ior__ = _refuse  # type: ignore[assignment]
    clear = pop = popitem = setdefault = update = _refuse  # type: ignore[assignment]


class FrozenList(list[Any]):
    """A list that never changes; it lives inside a FrozenDict, which carries the hash of the whole."""

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (list(self),)

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    __setitem__ = __delitem__ = __iadd__ = __imul__ = _refuse  # type: ignore[assignment]
    append = extend = insert = remove = pop = clear = sort = reverse = _refuse  # type: ignore[assignment]


def freeze_mapping(value: Mapping[str, Any], *, sort: bool) -> FrozenDict:
    """A FrozenDict of JSON values equal to `value`; NotPlainError names the first part that is not JSON.

    `sort` orders the keys at every level, for mappings whose order means nothing. A JSON schema keeps its
    order: it decides the order in which an object's properties are generated.
    """
    return _freeze_items(value, "", 0, sort)


def thaw(value: Any) -> Any:
    """Ordinary dicts and lists, new at every level, with the content of a frozen value."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


def _freeze(value: Any, where: str, depth: int, sort: bool) -> Any:
    if depth > MAX_DEPTH:
        raise NotPlainError(where[:40], f"nested at most {MAX_DEPTH} deep", "deeper nesting")
    if isinstance(value, Mapping):
        return _freeze_items(value, where, depth, sort)
    if isinstance(value, (list, tuple)):
        return FrozenList(_freeze(item, f"{where}[{i}]", depth + 1, sort) for i, item in enumerate(value))
    return _freeze_scalar(value, where)


def _freeze_items(value: Mapping[Any, Any], where: str, depth: int, sort: bool) -> FrozenDict:
    for key in value:
        if not isinstance(key, str):
            raise NotPlainError(where, "a mapping with string keys", key)
        _freeze_scalar(key, where)
    keys = sorted(value) if sort else value
    items = {str(key): _freeze(value[key], f"{where}[{key!r}]", depth + 1, sort) for key in keys}
    # Few requests hold any, and `import tirage` is awaited.
    import json

    return FrozenDict(items, json.dumps(items, allow_nan=False))


def _freeze_scalar(value: Any, where: str) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_utf8(value):
            raise NotPlainError(where, "text that UTF-8 can hold", value)
        return str(value)
    if isinstance(value, numbers.Integral):
        if int(value).bit_length() > MAX_INTEGER_BITS:
            raise NotPlainError(where, f"an integer of at most {MAX_INTEGER_BITS} bits", value)
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise NotPlainError(where, "a JSON value (finite numbers, strings, lists, mappings)", value)


def is_utf8(text: str) -> bool:
    """Whether `text` has no lone surrogate, so that it can be sent, stored and tokenised."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
