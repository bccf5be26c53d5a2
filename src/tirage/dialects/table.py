"""A dialect: another engine's request fields as a table, read into SamplingParams and written from them.

An `FieldMapping` knows one field of theirs: its name, the values it takes, what its absence means, and both directions.
`Dialect.read` and `Dialect.write` are all that runs; a dialect's own file holds its table. Errors speak of
their field names, because that is what the sender of a request knows.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

from tirage.dialects.schema import nullable, schema_of
from tirage.dialects.unsupported import Unsupported
from tirage.errors import ParamsError, nearest
from tirage.fields.rules import BrokenRuleError, Rule, shown
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import FILTERS

Fields = dict[str, Any]
"""Fields of SamplingParams, by our names."""


class DialectError(ParamsError):
    """A request field that breaks its rule; `param` says which, as a path into the request."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Inexpressible(Exception):  # noqa: N818 - caught by Dialect.write, never seen by a caller
    """Raised by `FieldMapping.out_of` for parameters that the field cannot express; the message, if any, says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldMapping:
    """One field of another engine's requests.

    `rule` checks and stores its value, `default` is what that engine takes when the field is absent, `null` what it
    takes for an explicit null (as absent, unless given). `into` turns a checked value into our fields; `out_of` gives
    the plain JSON value that expresses our parameters, or raises Inexpressible. `ours` names the fields of ours that
    error messages translate.
    """

    name: str
    rule: Rule
    default: Any
    into: Callable[[Any], Fields]
    out_of: Callable[[SamplingParams], Any]
    null: Any = field(default=...)
    ours: tuple[str, ...] = ()
    meaning: str = ""

    def check(self, value: Any, where: str) -> Any:
        """`value` as it is stored; raises DialectError with the engine's name of the field when it breaks the rule."""
        if value is None and self.null is not ...:
            return self.null
        if value is None:
            return self.default
        try:
            return self.rule.check(self.rule.load(value))
        except BrokenRuleError as broken:
            message = f"{self.name}{broken.where} must be {broken.rule}, got {shown(broken.value)}"
            place = broken.where if broken.where.startswith(("[", ".")) else ""
            raise DialectError(f"{message}; {broken.remedy or self._remedy()}", f"{where}{self.name}{place}") from None

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the field's values."""
        return {**nullable(schema_of(self.rule)), "description": self.meaning, "default": self.default}

    def _remedy(self) -> str:
        return "leave it out" if self.default is None else f"leave it out for the default, {self.default!r}"


def same(
    name: str,
    ours: str | None = None,
    *,
    default: Any = ...,
    rule: Rule | None = None,
    null: Any = ...,
    read: Callable[[Any], Any] = lambda value: value,
    write: Callable[[Any], Any] | None = None,
    meaning: str = "",
) -> FieldMapping:
    """The entry of a field that is one of ours under another name, default or range.

    `default` is in their terms. `read` and `write` turn their values into ours and back where they differ.
    """
    spec = FIELDS[ours or name]
    rule_ = spec.rule if rule is None else rule
    to_plain = rule_.dump if write is None else write
    return FieldMapping(
        name=name,
        rule=rule_,
        default=spec.rule.dump(spec.default) if default is ... else default,
        into=lambda value: {spec.name: read(value)},
        out_of=lambda params: to_plain(getattr(params, spec.name)),
        null=null,
        ours=(spec.name,),
        meaning=meaning or spec.meaning,
    )


def listed(name: str, ours: str | None = None, *, rule: Rule | None = None) -> FieldMapping:
    """The entry of a list that is null when it is empty."""
    dump = FIELDS[ours or name].rule.dump
    return same(name, ours, default=None, rule=rule, read=lambda value: value or (), write=lambda v: dump(v) or None)


def read_only(entry: FieldMapping) -> FieldMapping:
    """The entry of another spelling of a field, which is read and never written."""
    return replace(entry, default=None, out_of=lambda params: None)


def check_unsupported(table: Mapping[str, Unsupported], name: str, value: Any, where: str = "") -> None:
    """Raises DialectError for a field of the table whose value would change something."""
    if not table[name].takes(value):
        raise DialectError(table[name].refusal(name, value), where + name)


Adjust = Callable[[Mapping[str, Any], Fields], Fields]
"""Last word of a dialect on our fields, given the fields of theirs that the request holds; may raise DialectError."""


def unchanged(given: Mapping[str, Any], ours: Fields) -> Fields:
    """The `Adjust` of a dialect whose fields do not depend on each other."""
    return ours


@dataclass(frozen=True, slots=True)
class ParsedParams:
    """A request as it was read: the parameters, the fields that were given, and the names that were ignored."""

    params: SamplingParams
    given: Mapping[str, Any]
    ignored: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The request fields of one engine. `preset` is the semantics in which that engine reads them.

    `unsupported` are fields the engine has and we take in this place only where they change nothing.
    """

    name: str
    preset: str
    entries: Mapping[str, FieldMapping]
    adjust: Adjust = unchanged
    unsupported: Mapping[str, Unsupported] = field(default_factory=dict)
    # What the default of each entry means, the last entry first: of two that give one field the first has its way.
    _defaults_of: tuple[tuple[str, Fields], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        found = [(entry.name, entry.into(entry.default)) for entry in self.entries.values()]
        object.__setattr__(self, "_defaults_of", tuple(reversed(found)))

    @classmethod
    def of(cls, name: str, preset: str, entries: Iterable[FieldMapping], **options: Any) -> Dialect:
        """A dialect from a list of entries."""
        return cls(name=name, preset=preset, entries={entry.name: entry for entry in entries}, **options)

    @property
    def names(self) -> frozenset[str]:
        """Every field name it knows, the unsupported included."""
        return frozenset(self.entries) | frozenset(self.unsupported)

    def schema(self) -> dict[str, Any]:
        """JSON Schema of an object with these fields, each with its meaning and default."""
        return {
            "type": "object",
            "properties": {entry.name: entry.schema() for entry in self.entries.values()},
            "additionalProperties": False,
        }

    def without(self, *names: str) -> Dialect:
        """This dialect with fewer fields, which it then refuses as unknown."""
        return replace(self, entries={name: entry for name, entry in self.entries.items() if name not in names})

    def read(
        self,
        data: Mapping[str, Any],
        *,
        where: str = "",
        defaults: Mapping[str, Any] | None = None,
        known: Collection[str] = (),
        lenient: bool = False,
    ) -> ParsedParams:
        """The parameters that `data` describes, with this engine's defaults and meaning.

        `defaults` are fields of ours that replace this engine's defaults where the request is silent. `where` is put
        before the name of a field in `DialectError.param` ("sampling_params."). Names outside the table raise
        DialectError with the nearest name; `known` are further names that the hint may suggest. With `lenient` they
        are reported in `ParsedParams.ignored` instead.
        """
        if not isinstance(data, Mapping):
            place = where.rstrip(".")
            raise DialectError(f"{place or self.name} must be a mapping of fields, got {shown(data)}", place or None)
        ignored = self._refuse_unknown(data, where, known, lenient=lenient)
        given = {
            name: self.entries[name].check(value, where)
            for name, value in data.items()
            if name in self.entries and not (value is None and self.entries[name].null is ...)
        }
        ours = self._defaults(given) | dict(defaults or {}) | self._merge(given, where)
        try:
            return ParsedParams(SamplingParams(**self.adjust(given, ours)), given, ignored)
        except DialectError as error:
            raise DialectError(str(error), f"{where}{error.param}" if error.param else None) from None
        except ParamsError as error:
            raise self.translated(error, where) from None

    def write(
        self, params: SamplingParams, *, lossy: bool = False
    ) -> dict[str, Any] | tuple[dict[str, Any], list[str]]:
        """The request fields that say what `params` say; values equal to this engine's defaults are left out.

        What the engine cannot express raises ParamsError, which names our field; with `lossy` the result is a pair,
        the fields and a list of the names that were lost. `semantics` is not a field of other engines: the result
        means what this engine makes of it.
        """
        plain, lost = self.written(params)
        if lossy:
            return plain, lost
        params = params.unwrapped
        if lost:
            value, more = shown(getattr(params, lost[0])), f" (nor {', '.join(lost[1:])})" if lost[1:] else ""
            raise ParamsError(
                f"{lost[0]} must be a value that {self.name} can express, got {value}{more}; "
                "leave it out or use lossy=True"
            )
        return plain

    def written(self, params: SamplingParams, *, explicit: bool = False) -> tuple[dict[str, Any], list[str]]:
        """The request fields that say what `params` say, and the names of our fields that were lost.

        With `explicit`, fields at this engine's defaults are written too: a server may have been given others.
        Raises ParamsError for what is no SamplingParams.
        """
        if not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        params = params.unwrapped
        plain = self._write(params, explicit=explicit)
        return plain, lost_fields(params, self.read(plain).params)

    def _refuse_unknown(
        self, data: Mapping[str, Any], where: str, known: Collection[str], *, lenient: bool
    ) -> tuple[str, ...]:
        ignored = []
        for name in data:
            if name in self.entries:
                continue
            if name in self.unsupported:
                check_unsupported(self.unsupported, name, data[name], where)
                continue
            if not lenient:
                hint = nearest(name, {*self.entries, *known}) if isinstance(name, str) else ""
                hint = hint or "; leave it out"
                raise DialectError(f"{self.name} field must be a known name, got {shown(name)}{hint}", f"{where}{name}")
            ignored.append(name)
        return tuple(ignored)

    def _defaults(self, given: Mapping[str, Any]) -> Fields:
        ours: Fields = {}
        for name, fields in self._defaults_of:
            if name not in given:
                ours.update(fields)
        return ours | {"semantics": self.preset}

    def _merge(self, given: Mapping[str, Any], where: str) -> Fields:
        ours: Fields = {}
        setter: dict[str, str] = {}
        for name, value in given.items():
            found = self._into(self.entries[name], value, where)
            for key in found:
                if key in ours and found[key] != ours[key]:
                    raise DialectError(
                        f"{name} must not be given together with {setter[key]}, got both; give one", where + name
                    )
                setter[key] = name
            ours |= found
        return ours

    def _into(self, entry: FieldMapping, value: Any, where: str) -> Fields:
        try:
            return entry.into(value)
        except DialectError as error:
            raise DialectError(str(error), where + (error.param or entry.name)) from None
        except ParamsError as error:
            head, space, rest = str(error).partition(" ")
            message = f"{entry.name}{space}{rest}" if head.isidentifier() else f"{entry.name}: {error}"
            raise DialectError(message, where + entry.name) from None

    def _write(self, params: SamplingParams, *, explicit: bool) -> dict[str, Any]:
        plain = {}
        for entry in self.entries.values():
            try:
                value = entry.out_of(params)
                if value is not None or entry.null is not ...:
                    entry.check(value, "")
            except (Inexpressible, DialectError):
                continue
            if explicit or value != entry.default or type(value) is not type(entry.default):
                plain[entry.name] = value
        return {name: value for name, value in plain.items() if value is not None or self.entries[name].null is not ...}

    def translated(self, error: ParamsError, where: str) -> DialectError:
        """The error with our field names replaced by the engine's."""
        theirs = {entry.ours[0]: entry.name for entry in reversed([*self.entries.values()]) if len(entry.ours) == 1}
        words = re.split(r"\b([a-z_]+)\b", str(error))
        # Only a leading word and words with an underscore are names; `stop` may be a verb.
        renamed = [theirs.get(word, word) if index == 1 or "_" in word else word for index, word in enumerate(words)]
        param = renamed[1] if len(renamed) > 1 and renamed[1] in self.entries else None
        return DialectError("".join(renamed), where + param if param else None)


def join(name: str, *dialects: Dialect) -> Dialect:
    """One dialect with the fields of several; of two fields of one name, the first counts. The preset is the first's.

    A field of ours that several fields of theirs could set is set by those that the request holds.
    """
    entries: dict[str, FieldMapping] = {}
    unsupported: dict[str, Unsupported] = {}
    for one in dialects:
        entries |= {name: entry for name, entry in one.entries.items() if name not in entries}
        unsupported = {**one.unsupported, **unsupported}
    adjusts = [one.adjust for one in dialects]
    return Dialect(
        name=name,
        preset=dialects[0].preset,
        entries=entries,
        adjust=lambda given, ours: reduce(lambda found, adjust: adjust(given, found), adjusts, ours),
        unsupported={name: each for name, each in unsupported.items() if name not in entries},
    )


_DERIVED = {"semantics", "eos_token_ids", "tokenized", "output_kind"}
"""Fields that a request in another engine's words does not carry: the preset, the model's EOS, how output arrives."""


def lost_fields(params: SamplingParams, back: SamplingParams) -> list[str]:
    """The names of the fields in which `back` differs from `params`; a greedy row has no use for filters."""
    greedy = params.temperature == back.temperature == 0.0
    idle = {name for name, spec in FIELDS.items() if greedy and spec.stage in FILTERS}
    names = [name for name in FIELDS if name not in _DERIVED and name not in idle]
    return [name for name in names if _meaning(params, name) != _meaning(back, name)]


def _meaning(params: SamplingParams, name: str) -> Any:
    value = getattr(params, name)
    if name != "guided_decoding" or value is None:
        return value
    # The text that a schema allows does not depend on whether it came as text or on the library that compiles it.
    plain = {key: item for key, item in value.to_dict().items() if key not in _COMPILATION}
    return {**plain, "json": _parsed(plain["json"])}


_COMPILATION = {"backend", "backend_was_auto", "disable_fallback"}


def _parsed(schema: Any) -> Any:
    try:
        return json.loads(schema) if isinstance(schema, str) else schema
    except ValueError:
        return schema
