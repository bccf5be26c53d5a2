"""Which constraint the text must satisfy, and options of its compilation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from tirage.errors import ParamsError
from tirage.fields.record import Record, check_fields, param, specs
from tirage.fields.rules import Bool, Json, OneOf, Text, Texts

PATTERN_BYTES = 16 * 1024
SCHEMA_BYTES = 256 * 1024
MODES = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")
BACKENDS = ("auto", "llguidance", "xgrammar")


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class _Choices(Texts):
    """A non-empty tuple of alternatives, bounded in number and size."""

    text: str = "a list of 1 to 4096 non-empty strings, or None"
    empty: bool = False
    optional: bool = True
    single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class GuidedDecodingParams(Record):
    """One constraint on the generated text: exactly one of the six modes is given.

    `json` takes a schema as a mapping or as JSON text; `{}` is a schema too (any JSON value). Lengths are
    bounded here (patterns and grammars 16 KiB, schemas 256 KiB); whether a pattern or schema makes sense is
    found out when it is compiled. Options that the chosen mode cannot use are refused by name.
    """

    json: Mapping[str, Any] | str | None = param(
        None,
        Json(max_bytes=SCHEMA_BYTES, sort=False, as_text=Text(max_bytes=SCHEMA_BYTES, nul=False)),
        "JSON schema of the output; the order of its properties is kept",
        source="EasyDeL, vLLM",
        off=None,
    )
    regex: str | None = param(
        None,
        Text(max_bytes=PATTERN_BYTES, nul=False),
        "regular expression that the whole output matches, as Python's `re` with ASCII classes reads it",
        source="EasyDeL, vLLM",
        off=None,
    )
    choice: Sequence[str] | None = param(
        None, _Choices(), "the output is one of these strings", source="EasyDeL, vLLM", off=None
    )
    grammar: str | None = param(
        None,
        Text(max_bytes=PATTERN_BYTES, nul=False),
        "context-free grammar of the output, in GBNF (`root ::= ...`) or Lark (`start: ...`)",
        source="EasyDeL, vLLM",
        off=None,
    )
    json_object: bool | None = param(
        None,
        OneOf((True, None)),
        "the output is some JSON object",
        source="EasyDeL, OpenAI",
        off=None,
    )
    backend: str | None = param(
        None,
        OneOf((None, *BACKENDS)),
        "which compiler is used; None and 'auto' leave the choice to tirage",
        source="EasyDeL",
    )
    backend_was_auto: bool = param(
        False,
        Bool(),
        "reports whether the backend was left to tirage; derived from `backend`, whatever is passed",
        source="EasyDeL",
    )
    disable_fallback: bool = param(
        False,
        Bool(),
        "forbid another backend than the one named; unconstrained output is never a fallback",
        source="EasyDeL",
    )
    disable_any_whitespace: bool = param(
        False, Bool(), "compact JSON without optional whitespace", source="EasyDeL", off=False
    )
    disable_additional_properties: bool = param(
        False, Bool(), "objects hold only the properties that the schema names", source="EasyDeL", off=False
    )
    whitespace_pattern: str | None = param(
        None,
        Text(max_bytes=PATTERN_BYTES, nul=False),
        "regular expression of the whitespace between JSON tokens",
        source="EasyDeL",
        off=None,
    )
    strict_schema: bool = param(
        False,
        Bool(),
        "refuse keywords and formats that decide nothing because they are unknown, instead of listing them",
        source="tirage",
        off=False,
    )
    structural_tag: str | None = param(
        None,
        Text(max_bytes=SCHEMA_BYTES, nul=False),
        "JSON text that describes tagged parts of the output, each with its own constraint",
        source="EasyDeL, SGLang",
        off=None,
    )
    enable_in_reasoning: bool = param(
        False,
        Bool(),
        "the constraint holds from the first character, also where reasoning would come before the answer",
        source="vLLM",
        off=False,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        object.__setattr__(self, "backend_was_auto", self.backend in (None, "auto"))
        if self.choice is not None:
            _check_choices(self.choice)
        _check_options(self)

    def __hash__(self) -> int:
        """The hash of all fields, worked out once: grammars are cached by their constraints."""
        try:
            return self.memo
        except AttributeError:
            found = hash(_values(self))
            object.__setattr__(self, "memo", found)
            return found

    @property
    def mode(self) -> str:
        """The name of the one mode that is given."""
        return _modes(self)[0]


_values = attrgetter(*specs(GuidedDecodingParams))


def _modes(guided: GuidedDecodingParams) -> list[str]:
    found: list[str] = []
    for mode in MODES:
        if getattr(guided, mode) is not None:
            found.append(mode)
    return found


def _check_choices(choice: Sequence[str]) -> None:
    if len(choice) > 4096:
        raise ParamsError(f"choice must be a list of at most 4096 strings, got {len(choice)}; use a grammar")
    size = sum(len(text.encode()) for text in choice)
    if size > SCHEMA_BYTES:
        raise ParamsError(f"choice must be at most {SCHEMA_BYTES} bytes in all, got {size}; use a grammar")


def _check_options(guided: GuidedDecodingParams) -> None:
    modes = _modes(guided)
    if len(modes) != 1:
        got = " and ".join(modes) or "none"
        raise ParamsError(f"guided decoding must have exactly one of {', '.join(MODES)}, got {got}; give one")
    spaced = guided.disable_any_whitespace or guided.whitespace_pattern is not None
    if spaced and modes[0] not in {"json", "json_object", "structural_tag"}:
        name = "disable_any_whitespace" if guided.disable_any_whitespace else "whitespace_pattern"
        raise ParamsError(f"{name} must go with a JSON mode, got {modes[0]}; leave it out")
    if guided.disable_any_whitespace and guided.whitespace_pattern is not None:
        raise ParamsError(
            "whitespace_pattern must be None with disable_any_whitespace=True, "
            f"got {guided.whitespace_pattern!r}; give one of the two"
        )
    if guided.strict_schema and modes[0] != "json":
        raise ParamsError(f"strict_schema must go with a schema, got {modes[0]}; leave it out")
    if guided.disable_additional_properties and modes[0] not in {"json", "structural_tag"}:
        raise ParamsError(f"disable_additional_properties must go with a schema, got {modes[0]}; leave it out")
