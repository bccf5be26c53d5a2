"""What a parameter may be: one small rule per kind of value.

A rule knows four things: whether a value is legal and what it is stored as (`check`), how it reads in
prose (`text`), how it is written to JSON (`dump`) and read back (`load`). Rules are never compared: each dataclass
method that is left out makes the first import shorter.
"""

from __future__ import annotations

import contextlib
import enum
import math
import numbers
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from tirage.fields.frozen import FrozenDict, NotPlainError, freeze_mapping, is_utf8, thaw
from tirage.fields.shown import shown

TOKEN_ID_LIMIT = 1 << 20
MOST_IDS = 1 << 18
"""Token ids of one list: as many as the widest vocabularies have."""
MOST_WORDS = 1 << 16
INT32_MAX = 2**31 - 1
LARGEST = 1e30
"""Largest size of a bias, penalty or factor: its square and its reciprocal stay far from binary32's ends."""


class BrokenRuleError(Exception):
    """A value that breaks a rule: where inside the parameter, the rule in words, the value, what would mend it."""

    def __init__(self, rule: str, value: object, where: str = "", *, remedy: str = "") -> None:
        super().__init__(rule)
        self.rule = rule
        self.value = value
        self.where = where
        self.remedy = remedy


class Rule(Protocol):
    """What every kind of parameter provides."""

    @property
    def text(self) -> str: ...

    def check(self, value: Any, /) -> Any:
        """The value as it is stored; raises BrokenRuleError for one that breaks the rule."""
        ...

    def dump(self, value: Any, /) -> Any: ...

    def load(self, plain: Any, /) -> Any:
        """The value of its JSON form, to be checked; raises BrokenRuleError for a form that no value has."""
        ...

    def highest_id(self, value: Any, /) -> int: ...


class Scalar:
    """A rule whose values hold no token ids."""

    __slots__ = ()

    def highest_id(self, value: Any) -> int:
        """The highest token id that a stored value names; -1 for none."""
        return -1


class Plain(Scalar):
    """A rule whose stored value is already what JSON holds."""

    __slots__ = ()

    def dump(self, value: Any) -> Any:
        return thaw(value)

    def load(self, plain: Any) -> Any:
        return plain


def binary32(value: float) -> float:
    """`value` rounded to the nearest binary32 number, ties to even; `value` must be below 3.4e38."""
    return struct.unpack("f", struct.pack("f", value))[0]


def integer(value: object, rule: str) -> int:
    """`value` as an int; raises BrokenRuleError, with `rule`, for what is no integer."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Integral):
        raise BrokenRuleError(rule, value)
    return int(value)


def number(value: object, rule: str) -> float:
    """`value` as a float; raises BrokenRuleError, with `rule`, for what is no number, or beyond float64."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, numbers.Real):
        raise BrokenRuleError(rule, value)
    try:
        return float(value) + 0.0  # -0.0 becomes 0.0: they mean the same and should look the same
    except OverflowError:
        raise BrokenRuleError(rule, value) from None


def items(value: object, rule: str) -> list[Any]:
    """The elements of a list, tuple, set, range or one-dimensional array; BrokenRuleError, with `rule`, otherwise."""
    if isinstance(value, (list, tuple, range)):
        return list(value)
    if isinstance(value, (set, frozenset)):
        try:
            return sorted(value)
        except TypeError:
            raise BrokenRuleError(rule, value) from None
    if isinstance(value, np.ndarray) and value.ndim == 1:
        return value.tolist()
    raise BrokenRuleError(rule, value)


def unique(values: Iterable[Any]) -> tuple[Any, ...]:
    """The values in their order, each once."""
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bool(Plain):
    """True or False; nothing else counts as a truth value."""

    text: str = "True or False"

    def check(self, value: Any) -> bool:
        if isinstance(value, (bool, np.bool_)):
            return bool(value)
        raise BrokenRuleError(self.text, value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Int(Plain):
    """An integer within bounds. `optional` admits None, stored as `none`; `alias` is stored as `low`."""

    low: int
    high: int = INT32_MAX
    optional: bool = False
    none: int | None = None
    alias: int | None = None

    @property
    def bounds(self) -> str:
        return f"in [{self.low}, {self.high}]" if self.high < INT32_MAX or self.low < 0 else f">= {self.low}"

    @property
    def text(self) -> str:
        extra = [] if self.alias is None else [str(self.alias)]
        return " or ".join([f"an integer {self.bounds}", *extra, *(["None"] if self.optional else [])])

    def check(self, value: Any) -> int | None:
        if value is None and self.optional:
            return self.none
        checked = integer(value, self.text)
        if checked == self.alias:
            return self.low
        if not self.low <= checked <= self.high:
            bound = f"at most {self.high}" if checked > self.high else self.text
            raise BrokenRuleError(bound, value)
        return checked


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Float(Plain):
    """A finite number within bounds, which must also hold after rounding to binary32 (rule S-N1).

    The stored value is what the user gave, unrounded. `zero` admits exactly 0.0 besides the interval, and
    `none` is what None stands for.
    """

    low: float
    high: float
    open_low: bool = False
    open_high: bool = False
    zero: bool = False
    none: float | None = None

    @property
    def bounds(self) -> str:
        return f"{'0 or ' if self.zero else ''}in {self._interval}"

    @property
    def text(self) -> str:
        return f"{'0 or ' if self.zero else ''}a number in {self._interval}" + (
            " or None" if self.none is not None else ""
        )

    @property
    def _interval(self) -> str:
        left, right = "(" if self.open_low else "[", ")" if self.open_high else "]"
        return f"{left}{self.low:g}, {self.high:g}{right}"

    def check(self, value: Any) -> float:
        if value is None and self.none is not None:
            return self.none
        checked = number(value, self.text)
        if self.zero and checked == 0.0:
            return checked
        if not (self.low <= checked <= self.high and self._inside(checked)):
            raise BrokenRuleError(self.bounds, value)
        return checked

    def _inside(self, value: float) -> bool:
        rounded = binary32(value)
        above = rounded > self.low if self.open_low else True
        return above and (rounded < self.high if self.open_high else True)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Text(Plain):
    """A string that UTF-8 can hold, or None; `nul` says whether it may hold NUL characters."""

    max_bytes: int
    optional: bool = True
    nul: bool = True

    @property
    def text(self) -> str:
        kind = f"a non-empty string of at most {self.max_bytes} bytes"
        return kind + ("" if self.nul else " without NUL") + (" or None" if self.optional else "")

    def check(self, value: Any) -> str | None:
        if value is None and self.optional:
            return None
        if not isinstance(value, str):
            raise BrokenRuleError(self.text, value)
        # Most text is ASCII, which takes as many bytes.
        is_plain = type(value) is str and value.isascii() and value != ""
        checked = value if is_plain else string(value)
        if not self.nul and "\0" in checked:
            raise BrokenRuleError("free of NUL characters", value)
        if len(checked if is_plain else checked.encode()) > self.max_bytes:
            raise BrokenRuleError(f"at most {self.max_bytes} bytes", value)
        return checked


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class PatternRule(Plain):
    """A regular expression that `tirage.patterns` can run, or None."""

    max_chars: int = 16 * 1024

    @property
    def text(self) -> str:
        return f"a regular expression of at most {self.max_chars} characters or None"

    def check(self, value: Any) -> str | None:
        if value is None:
            return None
        if not isinstance(value, str):
            raise BrokenRuleError(self.text, value)
        checked = string(value)
        if len(checked) > self.max_chars:
            raise BrokenRuleError(f"at most {self.max_chars} characters", value)
        # The first draw needs no automata.
        from tirage.patterns import PatternError, compile_pattern

        try:
            compile_pattern(checked)
        except PatternError as error:
            raise BrokenRuleError(str(error), value) from None
        return checked


def string(value: str, where: str = "") -> str:
    """`value` as a plain str; raises BrokenRuleError for an empty one and for one that UTF-8 cannot hold."""
    if not value:
        raise BrokenRuleError("a non-empty string", value, where)
    if not is_utf8(value):
        raise BrokenRuleError("text that UTF-8 can hold", value, where)
    return str(value)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Texts(Plain):
    """A tuple of non-empty strings, each once, in their order; one string stands for itself."""

    text: str = "a string or a list of non-empty strings"
    empty: bool = True
    optional: bool = False
    single: bool = True

    def check(self, value: Any) -> tuple[str, ...] | None:
        if value is None and self.optional:
            return None
        if isinstance(value, str) and self.single:
            return (string(value),)
        checked = items(value, self.text)
        for index, item in enumerate(checked):
            if not isinstance(item, str):
                raise BrokenRuleError("a string", item, f"[{index}]")
            string(item, f"[{index}]")
        if not checked and not self.empty:
            raise BrokenRuleError(self.text, value)
        return unique(str(item) for item in checked)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Ids(Plain):
    """A tuple of token ids, each once, in their order."""

    optional: bool = False
    empty: bool = True

    @property
    def text(self) -> str:
        kind = "a list of token ids" if self.empty else "a list of at least one token id"
        return kind + (" or None" if self.optional else "")

    def check(self, value: Any) -> tuple[int, ...] | None:
        if value is None and self.optional:
            return None
        listed = items(value, self.text)
        if len(listed) > MOST_IDS:
            raise BrokenRuleError(f"a list of at most {MOST_IDS} token ids", value)
        if all(type(item) is int and 0 <= item < TOKEN_ID_LIMIT for item in listed):
            checked = unique(listed)
        else:
            checked = unique(token_id(item, f"[{i}]") for i, item in enumerate(listed))
        if not checked and not self.empty:
            raise BrokenRuleError(self.text, value)
        return checked

    def highest_id(self, value: tuple[int, ...] | None) -> int:
        return max(value or (), default=-1)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class IdWords(Plain):
    """A tuple of words, each a tuple of one or more token ids; a bare id is a word of one token."""

    text: str = "a list of token id lists"

    def check(self, value: Any) -> tuple[tuple[int, ...], ...]:
        listed = items(value, self.text)
        if len(listed) > MOST_WORDS:
            raise BrokenRuleError(f"a list of at most {MOST_WORDS} words", value)
        return unique(self._word(word, f"[{i}]") for i, word in enumerate(listed))

    def _word(self, word: Any, where: str) -> tuple[int, ...]:
        if isinstance(word, numbers.Integral):
            return (token_id(word, where),)
        try:
            ids = items(word, "a token id or a list of token ids")
        except BrokenRuleError as broken:
            raise BrokenRuleError(broken.rule, word, where) from None
        if not 0 < len(ids) <= MOST_WORDS:
            raise BrokenRuleError(f"a word of at least one token and at most {MOST_WORDS}", word, where)
        return tuple(token_id(item, f"{where}[{i}]") for i, item in enumerate(ids))

    def highest_id(self, value: tuple[tuple[int, ...], ...]) -> int:
        return max((max(word) for word in value), default=-1)


def token_id(value: Any, where: str) -> int:
    """`value` as a token id; BrokenRuleError for anything else. The model's vocabulary is checked with the logits."""
    rule = f"a token id in [0, {TOKEN_ID_LIMIT})"
    try:
        checked = integer(value, rule)
    except BrokenRuleError:
        raise BrokenRuleError(rule, value, where) from None
    if not 0 <= checked < TOKEN_ID_LIMIT:
        raise BrokenRuleError(rule, value, where)
    return checked


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class OneOf(Plain):
    """One of a few fixed values, of the same type too: 1 is not True."""

    values: tuple[Any, ...]

    @property
    def text(self) -> str:
        return "one of " + ", ".join(repr(value) for value in self.values)

    def check(self, value: Any) -> Any:
        for known in self.values:
            if type(value) is type(known) and value == known:
                return known
        raise BrokenRuleError(self.text, value)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class EnumMember(Scalar):
    """A member of `kind`, or its name."""

    kind: type[enum.Enum]

    @property
    def text(self) -> str:
        return f"a {self.kind.__name__} or its name ({', '.join(self.kind.__members__)})"

    def check(self, value: Any) -> enum.Enum:
        if isinstance(value, self.kind):
            return value
        if isinstance(value, str) and value in self.kind.__members__:
            return self.kind[value]
        raise BrokenRuleError(self.text, value)

    def dump(self, value: enum.Enum) -> str:
        return value.name

    def load(self, plain: Any) -> Any:
        return plain


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Bias(Scalar):
    """A mapping from token id to a finite number or -inf, ordered by id, or None."""

    text: str = "a mapping from token id to a number, or None"

    def check(self, value: Any) -> FrozenDict | None:
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise BrokenRuleError(self.text, value)
        pairs = [(token_id(key, f" key {shown(key)}"), self._number(key, value[key])) for key in value]
        pairs.sort()
        if len({key for key, _ in pairs}) < len(pairs):
            raise BrokenRuleError("a mapping with each token id once", value)
        return FrozenDict(dict(pairs), tuple(pairs))

    def _number(self, key: Any, value: Any) -> float:
        return bias_number(value, f"[{shown(key)}]")

    def dump(self, value: FrozenDict | None) -> dict[str, float | str] | None:
        if value is None:
            return None
        return {str(key): "-inf" if bias == -math.inf else bias for key, bias in value.items()}

    def load(self, plain: Any) -> Any:
        if not isinstance(plain, Mapping):
            return plain
        loaded = {_json_id(key): -math.inf if bias == "-inf" else bias for key, bias in plain.items()}
        if len(loaded) < len(plain):
            raise BrokenRuleError("a mapping with each token id once", plain)
        return loaded

    def highest_id(self, value: FrozenDict | None) -> int:
        return max(value or (), default=-1)


def bias_number(value: Any, where: str) -> float:
    """`value` as a bias; BrokenRuleError for what is no finite number of some size and not -inf."""
    rule = f"a number in [-{LARGEST:g}, {LARGEST:g}] or -inf"
    with contextlib.suppress(BrokenRuleError):
        checked = number(value, rule)
        if checked == -math.inf or abs(checked) <= LARGEST:
            return checked
    raise BrokenRuleError(rule, value, where)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class SequenceBias(Scalar):
    """Pairs of a tuple of token ids and a finite number or -inf, ordered by their ids, or None; no pairs are None."""

    text: str = "a mapping from tuples of token ids to numbers, a list of [ids, number], or None"

    def check(self, value: Any) -> tuple[tuple[tuple[int, ...], float], ...] | None:
        if value is None:
            return None
        pairs = list(value.items()) if isinstance(value, Mapping) else items(value, self.text)
        if len(pairs) > MOST_WORDS:
            raise BrokenRuleError(f"at most {MOST_WORDS} sequences", value)
        checked = sorted(self._pair(pair, f"[{i}]") for i, pair in enumerate(pairs))
        if len({ids for ids, _ in checked}) < len(checked):
            raise BrokenRuleError("a bias with each sequence once", value)
        return tuple(checked) or None

    def _pair(self, pair: Any, where: str) -> tuple[tuple[int, ...], float]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise BrokenRuleError("a pair of token ids and a number", pair, where)
        word = IdWords().check([pair[0]]) if isinstance(pair[0], (list, tuple)) else ()
        if not word:
            raise BrokenRuleError("a list of at least one token id", pair[0], f"{where}[0]")
        return word[0], bias_number(pair[1], f"{where}[1]")

    def dump(self, value: Any) -> list[Any] | None:
        return value and [[list(ids), "-inf" if bias == -math.inf else bias] for ids, bias in value]

    def load(self, plain: Any) -> Any:
        if not isinstance(plain, (list, tuple)):
            return plain
        return [
            [pair[0], -math.inf] if isinstance(pair, (list, tuple)) and len(pair) == 2 and pair[1] == "-inf" else pair
            for pair in plain
        ]

    def highest_id(self, value: Any) -> int:
        return max((max(ids) for ids, _ in value or ()), default=-1)


def _json_id(key: Any) -> Any:
    canonical = isinstance(key, str) and len(key) <= 7 and key.isascii() and key.isdigit()
    return int(key) if canonical and key == str(int(key)) else key


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class Json(Plain):
    """A mapping of JSON values, or None; with `as_text`, JSON text of that rule is accepted too and kept as it is."""

    max_bytes: int = 256 * 1024
    sort: bool = True
    as_text: Text | None = None

    @property
    def text(self) -> str:
        return f"a mapping of JSON values{', JSON text' if self.as_text else ''} or None"

    def check(self, value: Any) -> FrozenDict | str | None:
        if value is None:
            return None
        if self.as_text is not None and isinstance(value, str):
            return self.as_text.check(value)
        if not isinstance(value, Mapping):
            raise BrokenRuleError(self.text, value)
        checked = frozen(value, sort=self.sort)
        if len(str(checked.key)) > self.max_bytes:
            raise BrokenRuleError(f"at most {self.max_bytes} bytes as JSON", value)
        return checked


def frozen(value: Mapping[str, Any], *, sort: bool = True, where: str = "") -> FrozenDict:
    """`freeze_mapping`, with its error turned into a BrokenRuleError."""
    try:
        return freeze_mapping(value, sort=sort)
    except NotPlainError as error:
        inner, rule, part = error.args
        raise BrokenRuleError(rule, part, where + inner) from None


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Processors(Plain):
    """A tuple of `(name, arguments)` pairs; whether the names exist is checked with the whole request."""

    text: str = "a list of (name, arguments) pairs"

    def check(self, value: Any) -> tuple[tuple[str, FrozenDict], ...]:
        return tuple(self._pair(pair, f"[{i}]") for i, pair in enumerate(items(value, self.text)))

    def _pair(self, pair: Any, where: str) -> tuple[str, FrozenDict]:
        if not isinstance(pair, (list, tuple)) or len(pair) != 2:
            raise BrokenRuleError("a pair (name, arguments)", pair, where)
        name, arguments = pair
        if not isinstance(name, str):
            raise BrokenRuleError("a registered name", name, f"{where}[0]")
        if not isinstance(arguments, Mapping):
            raise BrokenRuleError("a mapping of arguments", arguments, f"{where}[1]")
        return string(name, f"{where}[0]"), frozen(arguments, where=f"{where}[1]")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Custom(Scalar):
    """A rule made of three functions, for a parameter that is a class of its own."""

    text: str
    check: Callable[[Any], Any]
    dump: Callable[[Any], Any]
    load: Callable[[Any], Any]
