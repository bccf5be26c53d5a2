"""What the parameter classes share: the table of their fields, and all that is derived from it.

A field is declared once, in its class, with `param(...)`: default, rule, off value, meaning. Validation,
JSON, `replace` and the reference page read that declaration.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields, replace
from functools import cache
from types import MappingProxyType
from typing import Any, ClassVar, Self

from tirage.errors import ParamsError, closest
from tirage.fields.rules import BrokenRuleError, Rule, shown

SCHEMA = 1
"""Version of the JSON form. A reader refuses any other number instead of guessing."""

_NO_OFF = object()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class FieldSpec:
    """All that is known about one parameter: rule, default, off value, stage, meaning and origin.

    `needs_history` says of a value that is on whether its effect depends on the tokens so far; None: never.
    """

    rule: Rule
    meaning: str
    source: str
    name: str = ""
    default: Any = None
    off: Any = _NO_OFF
    stage: str | None = None
    remedy: str = ""
    public: bool = True
    needs_history: Callable[[Any], bool] | None = None

    @property
    def has_off(self) -> bool:
        """Whether some value turns this parameter off."""
        return self.off is not _NO_OFF

    def is_off(self, value: object) -> bool:
        """Whether `value` asks for nothing."""
        empty = value is None or (isinstance(value, (tuple, dict)) and not value)
        return empty or (self.has_off and value == self.off)

    def reads_history(self, value: Any) -> bool:
        """Whether what `value` does depends on the tokens so far."""
        return self.needs_history is not None and not self.is_off(value) and self.needs_history(value)

    def check(self, value: Any) -> Any:
        """`value` as it is stored; ParamsError when it breaks the rule."""
        try:
            return self.rule.check(value)
        except BrokenRuleError as broken:
            raise self.error(broken) from None

    def load(self, plain: Any) -> Any:
        """The constructor's argument for a value read from JSON."""
        try:
            return self.rule.load(plain)
        except BrokenRuleError as broken:
            raise self.error(broken) from None

    def error(self, broken: BrokenRuleError) -> ParamsError:
        got = f"{self.name}{broken.where} must be {broken.rule}, got {shown(broken.value)}"
        return ParamsError(f"{got}; {self._advice()}")

    def _advice(self) -> str:
        if self.remedy:
            return self.remedy
        if self.has_off:
            return f"use {self.off!r} to turn it off"
        return f"leave it out for the default, {self.default!r}"


def param(
    default: Any,
    rule: Rule,
    meaning: str,
    *,
    source: str,
    off: Any = _NO_OFF,
    stage: str | None = None,
    remedy: str = "",
    public: bool = True,
    needs_history: Callable[[Any], bool] | None = None,
) -> Any:
    """A dataclass field that carries its FieldSpec; `MISSING` as default makes it required."""
    spec = FieldSpec(
        rule=rule,
        meaning=meaning,
        source=source,
        off=off,
        stage=stage,
        remedy=remedy,
        public=public,
        needs_history=needs_history,
    )
    if default is MISSING:
        return field(metadata={"spec": spec})
    return field(default=default, metadata={"spec": spec})


@cache
def specs(kind: type[Any]) -> Mapping[str, FieldSpec]:
    """The fields of a parameter class by name, in their order, read from the class itself."""
    return {item.name: _spec(item) for item in fields(kind)}


def _spec(item: Field[Any]) -> FieldSpec:
    return replace(item.metadata["spec"], name=item.name, default=item.default)


@cache
def _checks(kind: type[Any]) -> tuple[tuple[str, Any, FieldSpec], ...]:
    return tuple((name, spec.default, spec) for name, spec in specs(kind).items())


@cache
def _required(kind: type[Any]) -> tuple[str, ...]:
    return tuple(name for name, default, _ in _checks(kind) if default is MISSING)


def check_fields(record: object) -> None:
    """Replaces each field of a new record by its checked form; the first broken rule raises ParamsError."""
    for name, default, spec in _checks(type(record)):
        value = getattr(record, name)
        # Identity with the default means "not given": defaults are legal, and most fields are not given.
        if value is not default:
            object.__setattr__(record, name, spec.check(value))


class Record:
    """Frozen parameters: JSON both ways, `replace`, and refusal of unknown names, with hints for `other_names`.

    `memo` keeps what the library derives from an object, which never changes; it is no part of its value.
    """

    __slots__ = ("memo",)

    memo: Any
    other_names: ClassVar[Mapping[str, str]] = MappingProxyType({})

    def __new__(cls, *values: Any, **options: Any) -> Self:
        """A new object; an unknown option raises ParamsError with the nearest known name."""
        if values:
            raise ParamsError(f"{cls.__name__} must be given options by name, got {shown(values[0])}")
        if not specs(cls).keys() >= options.keys():
            refuse_unknown(cls, options)
        for name in _required(cls):
            if name not in options:
                raise ParamsError(f"{cls.__name__} must be given {name}, got no value; there is no default")
        if cls not in _PYTREES and "jax" in sys.modules:
            register_pytree(cls)
        return object.__new__(cls)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), {name: getattr(self, name) for name in specs(type(self))})

    def __repr__(self) -> str:
        given = [f"{s.name}={getattr(self, s.name)!r}" for s in specs(type(self)).values() if _given(self, s)]
        return f"{type(self).__name__}({', '.join(given)})"

    def replace(self, **changes: Any) -> Self:
        """A new object with some fields changed, checked again as a whole."""
        refuse_unknown(type(self), changes)
        kept = {name: getattr(self, name) for name in specs(type(self)) if name not in changes}
        return type(self)(**kept, **changes)

    def replace_unchecked(self, **values: Any) -> Self:
        """A new object with some fields set to values in their checked form: nothing is checked again.

        For values that the library itself has made and that no rule relates to other fields, such as a seed.
        """
        other = object.__new__(type(self))
        for name in specs(type(self)):
            object.__setattr__(other, name, values[name] if name in values else getattr(self, name))
        return other

    def to_dict(self) -> dict[str, Any]:
        """Every field as a plain JSON value, in new dicts and lists, with the `schema` version first.

        Numbers are what the user gave, not their binary32 form. -inf in `logit_bias` is the string "-inf".
        """
        plain = {s.name: s.rule.dump(getattr(self, s.name)) for s in specs(type(self)).values()}
        return {"schema": SCHEMA, **plain}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The object that `to_dict` described; absent fields take their defaults.

        Unknown keys, another schema version and values that break a rule raise ParamsError.
        """
        if not isinstance(data, Mapping):
            raise ParamsError(f"{cls.__name__} must be read from a mapping, got {shown(data)}")
        options = {key: value for key, value in data.items() if key != "schema"}
        _check_schema(data.get("schema", SCHEMA))
        refuse_unknown(cls, options)
        table = specs(cls)
        return cls(**{name: table[name].load(value) for name, value in options.items()})

    def to_json(self, **options: Any) -> str:
        """Strict JSON text of `to_dict`; `options` go to `json.dumps` (indent, sort_keys, ...)."""
        import json

        return json.dumps(self.to_dict(), allow_nan=False, **options)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        """The object that `to_json` wrote; text that is not strict JSON raises ParamsError.

        NaN, Infinity and a key given twice are refused: strict JSON has no meaning for them.
        """
        return cls.from_dict(_parse(cls.__name__, text))


_PYTREES: set[type[Any]] = set()
_REGISTERING = threading.Lock()


def register_pytree(kind: type[Any]) -> None:
    """Makes a parameter class a pytree without leaves: a compiled program is compiled for its values.

    Called when an object is made while JAX is in use, and by the modules that import JAX; nothing here imports it.
    """
    with _REGISTERING:
        # Another thread may be in the middle of importing it.
        register = getattr(getattr(sys.modules["jax"], "tree_util", None), "register_static", None)
        if kind not in _PYTREES and register is not None:
            register(kind)
            _PYTREES.add(kind)


def _rebuild(kind: type[Any], options: dict[str, Any]) -> Any:
    return kind(**options)


def _given(record: object, spec: FieldSpec) -> bool:
    return spec.default is MISSING or getattr(record, spec.name) != spec.default


def refuse_unknown(kind: type[Any], names: Iterable[Any]) -> None:
    """Raises ParamsError for the first name that is no field of `kind`."""
    table = specs(kind)
    for name in names:
        if name not in table:
            hint = _hint(kind, name) if isinstance(name, str) else ""
            raise ParamsError(f"{kind.__name__} option must be a known name, got {shown(name)}{hint}")


def _hint(kind: type[Any], name: str) -> str:
    """What to use instead of a name that is no field of `kind`; an empty string where no name is close."""
    others = kind.other_names
    close = name if name in others else closest(name, (s.name for s in specs(kind).values() if s.public), others)
    if close is None:
        return ""
    return f"; {others[close]}" if close in others else f"; did you mean {close!r}?"


def _check_schema(version: object) -> None:
    if type(version) is not int or version != SCHEMA:
        raise ParamsError(f"schema must be {SCHEMA}, got {shown(version)}; write it again with this version")


def _parse(name: str, text: str | bytes) -> Any:
    if not isinstance(text, (str, bytes)):
        raise ParamsError(f"{name} must be read from JSON text, got {shown(text)}")
    import json

    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_no_twice)
    except (ValueError, RecursionError) as error:
        raise ParamsError(f"{name} must be read from strict JSON, got text that is not ({error})") from None


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not a JSON number")


def _no_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has the same key twice")
    return found
