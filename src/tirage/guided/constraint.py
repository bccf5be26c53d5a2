"""One constraint, read from the parameters and validated, in a form that every backend understands."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Literal

from tirage.errors import GrammarError
from tirage.guided.gbnf import Rules, read_gbnf
from tirage.guided.json_schema import SchemaGrammar, as_text, compile_schema, read_schema
from tirage.guided.regular.expression import EMPTY, Alternatives, Expression, LiteralText
from tirage.guided.regular.python_regex import read_pattern
from tirage.guided.structural_tag import read_tags
from tirage.params import GuidedDecodingParams

WHITESPACE = r"[ \n\t]{0,8}"
"""Optional whitespace between JSON tokens. It is bounded because models can write newlines forever."""

Kind = Literal["json", "regex", "gbnf", "lark", "tags"]
_SPACES = re.compile(r"(?:[ \t\n\r]|\\[ntr]|\\x(?:20|09|0[aAdD])|[\[\]()|*+?]|\{\d+(?:,\d*)?\})*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """What the text of a request must be.

    `text` is a schema as written or a structural tag, as JSON, or a grammar; `schema` is the grammar of the schema,
    `rules` are those of a grammar in GBNF, `expression` is the parsed pattern or choice. `whitespace` is the pattern of
    the whitespace between JSON tokens, "" for none.
    """

    kind: Kind
    text: str = ""
    schema: SchemaGrammar | None = None
    rules: Rules = field(default_factory=dict)
    expression: Expression = EMPTY
    whitespace: str = WHITESPACE


def read_constraint(guided: GuidedDecodingParams) -> Constraint:
    """The constraint that the parameters describe; GrammarError with the place of whatever is wrong with it."""
    whitespace = read_whitespace(guided)
    closed = guided.disable_additional_properties
    if guided.json is not None:
        return read_json(as_text(guided.json), guided, whitespace)
    match guided.mode:
        case "json_object":
            return read_json('{"type":"object"}', guided, whitespace)
        case "regex":
            return Constraint(kind="regex", expression=some_text(read_pattern(guided.regex or "")))
        case "choice":
            parts = tuple(LiteralText(text) for text in dict.fromkeys(guided.choice or ()))
            return Constraint(kind="regex", expression=Alternatives(parts))
        case "grammar":
            return read_grammar(guided.grammar or "")
    text = read_tags(guided.structural_tag or "", closed=closed)
    return Constraint(kind="tags", text=text, whitespace=whitespace)


def read_json(text: str, guided: GuidedDecodingParams, whitespace: str) -> Constraint:
    """A schema as a constraint; raises GrammarError as `compile_schema` does."""
    if guided.disable_additional_properties:
        text = read_schema(text, closed=True)
    schema = compile_schema(text, whitespace, strict=guided.strict_schema)
    return Constraint(kind="json", text=text, schema=schema, whitespace=whitespace)


def read_grammar(text: str) -> Constraint:
    """A grammar in GBNF (`root ::= ...`) or Lark (`start: ...`), recognised by the way it defines a rule.

    Raises GrammarError for invalid GBNF; Lark is checked by the compiler.
    """
    if re.search(r"(?m)^\s*[?!]?start(?:\[[^\]]*\])?(?:\.-?\d+)?\s*:(?!:=)", text):
        return Constraint(kind="lark", text=text)
    return Constraint(kind="gbnf", text=text, rules=read_gbnf(text))


def read_whitespace(guided: GuidedDecodingParams) -> str:
    """The pattern of optional whitespace; GrammarError for one that could match anything else."""
    if guided.disable_any_whitespace:
        return ""
    if guided.whitespace_pattern is None:
        return WHITESPACE
    if not _SPACES.fullmatch(guided.whitespace_pattern):
        raise GrammarError(
            "whitespace_pattern must match nothing but space, tab, newline and return, got "
            f"{guided.whitespace_pattern!r:.60}; write it with these four, like [ \\n]{{0,4}}"
        )
    read_pattern(guided.whitespace_pattern)
    return guided.whitespace_pattern


def some_text(expression: Expression) -> Expression:
    """The expression itself; GrammarError when it matches only the empty text."""
    if expression == EMPTY:
        raise GrammarError("regex must match some text, got one that only the empty text matches")
    return expression
