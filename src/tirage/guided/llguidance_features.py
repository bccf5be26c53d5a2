"""What the installed llguidance can do, found out by trying it, and schemas written for what it cannot.

Releases before 1.8 let a property that a schema does not name be spelled with `\\u0061` or `\\/`, so that it passes for
another one, take no negative multiples, and let optional whitespace between JSON tokens repeat.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from tirage.errors import GrammarError
from tirage.guided.charset import EVERY, complement
from tirage.guided.expression import EMPTY, Alternatives, Chars, Expression, LiteralText, Repeat, sequence, to_regex
from tirage.guided.schema import Path, fail, show, walk
from tirage.guided.trial_worker import ByteTokenizer

# With these escapes alone every string has one spelling. With \u and \/ a property could be written so that the
# compiler takes it for one that the schema does not name.
ESCAPES = '"\\bfnrt'
_LONGEST_NAME, _MOST_NAMES = 100, 1000
REMEDY = "; install llguidance 1.8.0 or newer"
_ANY_TEXT = Repeat(Chars(EVERY), 0, None)
_COMBINING = {"allOf", "anyOf", "oneOf", "$ref"}
_DESCRIBING = {"properties", "patternProperties", "required", "additionalProperties"}


@dataclass(frozen=True, slots=True, kw_only=True)
class LlguidanceFeatures:
    """What a release of llguidance does; `version` is its name, for errors.

    `exact_keys`: properties that a schema does not name are written with the allowed escapes only.
    `negative_multiples`: `multipleOf` takes negative numbers. `bounded_whitespace`: the whitespace pattern applies once
    between two JSON tokens, instead of any number of times.
    """

    version: str
    exact_keys: bool = True
    negative_multiples: bool = True
    bounded_whitespace: bool = True


@cache
def installed_features() -> LlguidanceFeatures:
    """What the installed llguidance can do; GrammarError if it cannot restrict the escapes of strings."""
    import llguidance

    try:
        name = version("llguidance")
    except PackageNotFoundError:
        name = "of an unknown version"
    return features_of(llguidance, name)


def features_of(library: Any, name: str) -> LlguidanceFeatures:
    """What a module with llguidance's interface can do, found by following short texts through small grammars.

    `name` is its version. Raises GrammarError for a release that cannot restrict the escapes of strings.
    """
    tokenizer = library.LLTokenizer(library.TokenizerWrapper(ByteTokenizer()), n_vocab=257, slices=[])

    def accepts(schema: dict[str, Any], text: str, whitespace: str = "") -> bool:
        matcher = library.LLMatcher(tokenizer, f"start: {schema_rule(schema, whitespace)}\n", log_level=0)
        return not matcher.is_error() and matcher.try_consume_tokens(list(text.encode())) == len(text)

    if accepts({"type": "string"}, r'"\u0001"') or not accepts({"type": "string"}, r'"\n"'):
        raise GrammarError(f"llguidance {name} does not restrict the escapes of strings; install 1.7.0 or newer")
    return LlguidanceFeatures(
        version=name,
        exact_keys=not accepts({"type": "object", "properties": {"a": {"type": "null"}}}, r'{"\u0061"'),
        negative_multiples=accepts({"type": "integer", "multipleOf": 3}, "-6"),
        bounded_whitespace=not accepts({"type": "array"}, "[   ", whitespace=" {0,2}"),
    )


def schema_rule(schema: dict[str, Any], whitespace: str) -> str:
    """A schema, as it stands, as part of a Lark rule; `whitespace` may stand between JSON tokens, "" for none."""
    spaces = {"whitespace_pattern": whitespace} if whitespace else {"whitespace_flexible": False}
    return "%json " + json.dumps({"x-guidance": spaces | {"json_allowed_escapes": ESCAPES}} | schema)


def adapted(schema: dict[str, Any], features: LlguidanceFeatures) -> dict[str, Any]:
    """The schema as this release of llguidance has to be given it, to allow the same texts as the newest.

    Raises GrammarError, with the place, for what it would not enforce.
    """
    if features.exact_keys and features.negative_multiples:
        return schema
    schema = json.loads(json.dumps(schema))
    places = [(path, inner) for path, inner in walk(schema, ()) if isinstance(inner, dict)]
    if not features.negative_multiples:
        for path, inner in places:
            _check_multiple(inner, path, features.version)
    if not features.exact_keys:
        opened = [(path, inner) for path, inner in places if _is_open(inner)]
        for path, inner in places if opened else ():
            _check_combined(inner, path, features.version)
        for path, inner in opened:
            _name_the_others(inner, path, features.version)
    return schema


def _check_multiple(schema: dict[str, Any], path: Path, name: str) -> None:
    """Raises GrammarError for a `multipleOf` of numbers that may be negative."""
    types = schema.get("type", "number")
    numeric = {"integer", "number"} & set(types if isinstance(types, list) else [types])
    least = max(schema.get("minimum", -1), schema.get("exclusiveMinimum", -1))
    if "multipleOf" in schema and numeric and least < 0:
        fail((*path, "multipleOf"), f"must go with a minimum of 0 or more in llguidance {name}{REMEDY}")


def _is_open(schema: dict[str, Any]) -> bool:
    """Whether a schema names some properties and allows others."""
    names = any(schema.get(key) for key in ("properties", "patternProperties", "required"))
    return names and schema.get("additionalProperties") is not False


def _check_combined(schema: dict[str, Any], path: Path, name: str) -> None:
    """Raises GrammarError for an object that several schemas describe together."""
    combining = sorted(_COMBINING & set(schema))
    if combining and (combining[0] == "allOf" or _DESCRIBING & set(schema)):
        fail((*path, combining[0]), f"must not go with properties that are not named in llguidance {name}{REMEDY}")


def _name_the_others(schema: dict[str, Any], path: Path, name: str) -> None:
    """Replaces `additionalProperties` by a pattern of all names but those of the schema, in place."""
    if schema.get("patternProperties"):
        rule = f"must go with additionalProperties: false in llguidance {name}"
        fail((*path, "patternProperties"), rule + REMEDY)
    values = schema.get("additionalProperties", True)
    named = schema.get("properties", {})
    named |= {each: values for each in schema.get("required", ()) if each not in named}
    if len(named) > _MOST_NAMES:  # half of them are more than such a release takes in any form
        rule = f"must name at most {_MOST_NAMES} besides others in llguidance {name}, got {len(named)}"
        fail((*path, "properties"), rule + REMEDY)
    for each in named:
        if len(each) > _LONGEST_NAME or set(each) & {'"', "\\"}:
            rule = f"must go with additionalProperties: false in llguidance {name}, as it names {show(each)}"
            fail((*path, "properties"), rule + REMEDY)
    schema["properties"], schema["additionalProperties"] = named, False
    schema["patternProperties"] = {f"^(?:{to_regex(other_texts(set(named)))})$": values}


def other_texts(texts: set[str]) -> Expression:
    """The expression that matches every text but these."""
    following: dict[str, set[str]] = {}
    for text in sorted(texts):
        if text:
            following.setdefault(text[0], set()).add(text[1:])
    others = sequence([_any_but("".join(following)), _ANY_TEXT])
    longer = [sequence([LiteralText(char), other_texts(rest)]) for char, rest in following.items()]
    # Not `choice`, which hashes all that is below at each level to find duplicates: here there are none.
    parts = (*(() if "" in texts else (EMPTY,)), others, *longer)
    return parts[0] if len(parts) == 1 else Alternatives(parts)


@lru_cache(maxsize=4096)
def _any_but(chars: str) -> Chars:
    """Every character but these; kept, as long names follow each other in few ways."""
    return Chars(complement(tuple((ord(char), ord(char)) for char in chars)))
