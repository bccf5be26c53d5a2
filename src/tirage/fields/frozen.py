"""JSON values that cannot change: what lets a parameter object be hashed, compared and shared."""

from __future__ import annotations

import math
import numbers
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np

MAX_DEPTH = 64
MAX_INTEGER_BITS = 1024
_TOO_DEEP = f"nested at most {MAX_DEPTH} deep"


class NotPlainError(ValueError):
    """A value that JSON cannot hold; `args` are the path to it, the rule and the value."""


_AS_JSON = object()
"""In place of the key of a dict whose JSON text has not been asked for."""


def _refuse(self: object, *_: object, **__: object) -> NoReturn:
    raise TypeError(f"{type(self).__name__} cannot be changed; build a new one with dict(...) or list(...)")


class FrozenDict(dict[Any, Any]):
    """A dict that never changes and can be hashed; equal to a plain dict with the same items.

    Two FrozenDicts are equal only when their values also have the same types, so that `{"a": 1}` and
    `{"a": True}` are two cache keys: `key` is what is compared and hashed. JSON encoders and
    `isinstance(x, dict)` see an ordinary dict.
    """

    __slots__ = ("_key",)

    def __init__(self, items: Mapping[Any, Any] | Iterable[tuple[Any, Any]], key: Hashable = None) -> None:
        super().__init__(items)
        # dataclasses.asdict rebuilds mappings from pairs alone.
        self._key = repr(self) if key is None else key

    @property
    def key(self) -> Hashable:
        """What the dict is compared and hashed by; that of one inside another is made when it is asked for."""
        if self._key is _AS_JSON:
            self._key = json_text(self)
        return self._key

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
    try:
        items = _frozen_items(value, 0, sort)
    except NotPlainError as error:
        where, rule, part = error.args
        raise NotPlainError(where[:40] if rule == _TOO_DEEP else where, rule, part) from None
    return FrozenDict(items, json_text(items))


def thaw(value: Any) -> Any:
    """Ordinary dicts and lists, new at every level, with the content of a frozen value."""
    if isinstance(value, dict):
        return {key: thaw(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [thaw(item) for item in value]
    return value


def json_text(value: Any) -> str:
    """A JSON value as text."""
    # Few requests hold any, and `import tirage` is awaited.
    import json

    return json.dumps(value, allow_nan=False)


def _freeze(value: Any, depth: int, sort: bool) -> Any:
    if depth > MAX_DEPTH:
        raise NotPlainError("", _TOO_DEEP, "deeper nesting")
    # Most are of exactly these types, and looking for a mapping of any kind takes long.
    if type(value) is str or value is None:
        return _freeze_scalar(value)
    if isinstance(value, (dict, Mapping)):
        return FrozenDict(_frozen_items(value, depth, sort), _AS_JSON)
    if isinstance(value, (list, tuple)):
        return FrozenList(_frozen_list(value, depth, sort))
    return _freeze_scalar(value)


def _frozen_items(value: Mapping[Any, Any], depth: int, sort: bool) -> dict[str, Any]:
    for key in value:
        if not isinstance(key, str):
            raise NotPlainError("", "a mapping with string keys", key)
        _freeze_scalar(key)
    items: dict[str, Any] = {}
    for key in sorted(value) if sort else value:
        try:
            items[str(key)] = _freeze(value[key], depth + 1, sort)
        except NotPlainError as error:
            raise _inside(f"[{key!r}]", error) from None
    return items


def _frozen_list(value: Sequence[Any], depth: int, sort: bool) -> Iterator[Any]:
    for i, item in enumerate(value):
        try:
            yield _freeze(item, depth + 1, sort)
        except NotPlainError as error:
            raise _inside(f"[{i}]", error) from None


def _inside(step: str, error: NotPlainError) -> NotPlainError:
    """The error of a part, with one more step before its path."""
    where, *rest = error.args
    return NotPlainError(step + where, *rest)


def _freeze_scalar(value: Any) -> Any:
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        if not is_utf8(value):
            raise NotPlainError("", "text that UTF-8 can hold", value)
        return str(value)
    if isinstance(value, numbers.Integral):
        if int(value).bit_length() > MAX_INTEGER_BITS:
            raise NotPlainError("", f"an integer of at most {MAX_INTEGER_BITS} bits", value)
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    raise NotPlainError("", "a JSON value (finite numbers, strings, lists, mappings)", value)


def is_utf8(text: str) -> bool:
    """Whether `text` has no lone surrogate, so that it can be sent, stored and tokenised."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
