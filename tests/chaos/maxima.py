"""The largest permitted value of every field of a route, made from the tables of the fields themselves.

A field grows in one or several ways: a number, the length of a text, the entries of a list or an object, and for
constraints the kinds of work that they cause. `growths` says how, and `largest` finds by asking a server how far.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from field_effects import CHAT, COMPLETIONS, EFFECTS, GENERATE, MESSAGES, RESPONSES, SAMPLING, Effect
from hostile import ROUTES as TEXT_ROUTES
from hostile import fields_of as text_fields_of

from tirage.server.options import Limits
from tirage.server.routes.explain import EXPLAIN as EXPLAIN_FIELDS
from tirage.server.routes.fields import Only
from tirage.server.routes.messages_request import MESSAGES as MESSAGES_ROUTE
from tirage.server.routes.openai_request import CHAT as CHAT_ROUTE
from tirage.server.routes.openai_request import COMPLETIONS as COMPLETIONS_ROUTE
from tirage.server.routes.responses_request import RESPONSES as RESPONSES_ROUTE
from tirage.server.routes.sglang_request import FIELDS
from tirage.server.routes.sglang_request import GENERATE as SAMPLING_TABLE

EXPLAIN = "/explain"
ROUTES = (*TEXT_ROUTES, MESSAGES, EXPLAIN)
TOKENS = 48
_INNER = "sampling_params."
_CONTAINERS = {"sampling_params", "extra_body", "stream", "stream_options"}
"""Fields that hold others, or that the probe sets itself."""
_LONGEST, _MOST = 1 << 20, 1 << 14
"""Where the search for the largest text and the largest constraint begins."""
_MOST_OF: Mapping[str, int] = {"depth": 200, "true": 1, "is required": 1, "is asked for": 1}

Grow = Callable[[int], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One way in which a field grows: `make` gives its value at a size of at most `most`."""

    route: str
    field: str
    way: str
    make: Grow
    most: int

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.route} {self.field} {self.way}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Maximum:
    """A growth at the largest size that a server accepts."""

    growth: Growth
    size: int

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.growth.name}={self.size}"

    def at(self, size: int) -> Maximum:
        """The same growth at another size."""
        return Maximum(growth=self.growth, size=size)


# --- growths by name: constraints, conversations, and what has no schema -----------------------------------------


def words(count: int) -> list[str]:
    """So many texts, no two equal."""
    return [f"w{index}" for index in range(count)]


def nested(depth: int) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}, "required": ["a"]}
    return schema


_SCHEMAS: Mapping[str, Grow] = {
    "enum": lambda s: {"enum": words(s)},
    "properties": lambda s: {"type": "object", "properties": {word: {"type": "integer"} for word in words(s)}},
    "required": lambda s: {"type": "object", "properties": {word: {} for word in words(s)}, "required": words(s)},
    "depth": nested,
    "items": lambda s: {"type": "array", "items": {"type": "integer"}, "minItems": s, "maxItems": s},
    "text": lambda s: {"type": "string", "minLength": s, "maxLength": s},
    "choices": lambda s: {"anyOf": [{"const": word} for word in words(s)]},
    "multiple": lambda s: {"type": "integer", "multipleOf": s},
    "range": lambda s: {"type": "integer", "minimum": -s, "maximum": s},
    "pattern": lambda s: {"type": "string", "pattern": f"^(a|b)*a(a|b){{{s}}}$"},
    "names": lambda s: {"type": "object", "additionalProperties": {"type": "integer"}, "maxProperties": s},
    "description": lambda s: {"type": "integer", "description": "d" * s},
}
_PATTERNS: Mapping[str, Grow] = {
    "choices": lambda s: "|".join(words(s)),
    "count": lambda s: f"[a-z ]{{{s}}}",
    "range": lambda s: f"[a-z ]{{0,{s}}}",
    "doubling": lambda s: f"((a|b)*a(a|b){{{s}}}c|.*x){{1,3}}end",
    "groups": lambda s: "(" * s + "a" + ")" * s,
    "letters": lambda s: "a" * s,
    "classes": lambda s: "".join(f"[{chr(97 + index % 20)}-z]{{1,9}}" for index in range(s)),
}
_GRAMMARS: Mapping[str, Grow] = {
    "choices": lambda s: "root ::= " + " | ".join(f'"{word}"' for word in words(s)),
    "rules": lambda s: "root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(s)) + f'r{s} ::= "b"',
    "ambiguous": lambda s: f'root ::= s+\ns ::= {"s " * s}| [a-z] | [a-z ] s | s [a-z ] | "(" s ")"',
    "empty": lambda s: f'root ::= {"root " * s}| "a" | [a-z ]+ | ""',
    "letters": lambda s: f'root ::= "{"a" * s}"',
}


def tags(count: int) -> dict[str, Any]:
    """A structural tag with so many choices."""
    content = {"type": "json_schema", "json_schema": {"type": "integer"}}
    found = [{"type": "tag", "begin": f"<{word}>", "end": f"</{word}>", "content": content} for word in words(count)]
    return {"type": "structural_tag", "format": {"type": "or", "elements": found}}


Tool = Callable[[str, Any], dict[str, Any]]
"""A function that the model may call, as a route describes it, of a name and a schema of its arguments."""


def tools(tool: Tool) -> dict[str, Grow]:
    """The ways of functions that the model may call."""
    few, one = {"type": "object", "properties": {"a": {"type": "string"}}}, _SCHEMAS["properties"]
    return {"count": lambda s: [tool(word, few) for word in words(s)], "schema": lambda s: [tool("f", one(s))]}


def text_of(ways: Mapping[str, Grow]) -> dict[str, Grow]:
    """The same ways for a field that takes JSON as a text."""
    return {way: lambda s, make=make: json.dumps(make(s)) for way, make in ways.items()}


def inside(ways: Mapping[str, Grow], wrap: Callable[[Any], Any]) -> dict[str, Grow]:
    """The same ways within another value."""
    return {way: lambda s, make=make: wrap(make(s)) for way, make in ways.items()}


def as_format(schema: Any) -> dict[str, Any]:
    """A schema as OpenAI's response format."""
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}


def said(text: str, *, count: int = 1) -> list[dict[str, Any]]:
    """A conversation of so many messages."""
    return [{"role": ("user", "assistant")[index % 2], "content": text} for index in range(count)]


_PROMPTS: Mapping[str, Grow] = {"characters": lambda s: "a " * (s // 2), "count": lambda s: ["a"] * s}
_IDS: Mapping[str, Grow] = {"tokens": lambda s: [5] * s, "count": lambda s: [[5]] * s}

NAMED: Mapping[str, Mapping[str, Grow]] = {
    "text": _PROMPTS,
    "prompt": {**_PROMPTS, **_IDS},
    "input_ids": _IDS,
    "prompt_token_ids": {"tokens": lambda s: [5] * s},
    "output_ids": {"tokens": lambda s: [500] * s},
    "input_embeds": {"tokens": lambda s: [[0.1] * 64] * s},
    "messages": {"characters": lambda s: said("a " * (s // 2)), "count": lambda s: said("a", count=2 * s + 1)},
    "input": {"characters": lambda s: "a " * (s // 2), "count": lambda s: said("a", count=2 * s + 1)},
    "include": {"is asked for": lambda s: ["message.output_text.logprobs"]},
    "reasoning": {"is asked for": lambda s: {"effort": "high", "summary": "detailed"}},
    "image_data": {"count": lambda s: ["iVBORw0KGgo="] * s},
    "audio_data": {"count": lambda s: ["UklGRg=="] * s},
    "json_schema": text_of(_SCHEMAS),
    "guided_json": _SCHEMAS,
    "response_format": inside(_SCHEMAS, as_format),
    "structured_outputs": inside(_PATTERNS, lambda value: {"regex": value}),
    "regex": _PATTERNS,
    "guided_regex": _PATTERNS,
    "ebnf": _GRAMMARS,
    "guided_grammar": _GRAMMARS,
    "guided_choice": {"count": words},
    "guided_json_object": {"true": lambda s: True},
    "structural_tag": {"tags": lambda s: json.dumps(tags(s))},
    "stop_regex": {
        "letters": lambda s: "a" * s,
        "count": lambda s: f"[a-z]{{{s}}}1",
        "list": lambda s: [f"{word}[0-9]" for word in words(s)],
        "doubling": lambda s: f"(a|b)*a(a|b){{{s}}}c",
    },
    "tools": tools(lambda name, schema: {"type": "function", "function": {"name": name, "parameters": schema}}),
    "tool_choice": {"is required": lambda s: "required"},
    "parallel_tool_calls": {"true": lambda s: True},
    "top_logprobs": {"number": lambda s: s},
    "logprobs": {"number": lambda s: s, "true": lambda s: True},
    "logits_processors_args": {"entries": lambda s: {"logit_bias": {str(i): 1.0 for i in range(s)}}},
    "custom_params": {"entries": lambda s: dict.fromkeys(words(s), 1)},
    "chat_template_kwargs": {"entries": lambda s: dict.fromkeys(words(s), 1), "text": lambda s: {"a": "b" * s}},
    "logit_bias": {"entries": lambda s: {str(index): 1.0 for index in range(s)}},
    "bad_words_token_ids": {
        "count": lambda s: [[index % 1500] for index in range(s)],
        "tokens": lambda s: [[3 + index % 1000 for index in range(s)]],
    },
    "watermark": {
        "layers": lambda s: {"scheme": "synthid", "key": list(range(s))},
        "context": lambda s: {"scheme": "gumbel", "key": 7, "context_width": s},
        "is selfhash": lambda s: {"scheme": "kgw", "key": 7, "seeding_scheme": "selfhash"},
    },
    "semantics": {name: lambda s, name=name: name for name in ("canonical", "vllm", "fastdeploy-air", "easydel")},
}  # fmt: skip

NAMED_ON: Mapping[str, Mapping[str, Mapping[str, Grow]]] = {
    RESPONSES: {
        "tools": tools(lambda name, schema: {"type": "function", "name": name, "parameters": schema}),
        "text": inside(_SCHEMAS, lambda schema: {"format": {"type": "json_schema", "name": "a", "schema": schema}}),
    },
    MESSAGES: {
        "tools": tools(lambda name, schema: {"name": name, "input_schema": schema}),
        "tool_choice": {"is any": lambda s: {"type": "any"}},
        "system": {
            "characters": lambda s: "a " * (s // 2),
            "count": lambda s: [{"type": "text", "text": "a"}] * s,
        },
        "metadata": {"characters": lambda s: {"user_id": "a" * s}},
        "thinking": {"tokens": lambda s: {"type": "enabled", "budget_tokens": s}},
        "output_config": inside(_SCHEMAS, lambda schema: {"format": {"type": "json_schema", "schema": schema}}),
        "output_format": inside(_SCHEMAS, lambda schema: {"type": "json_schema", "schema": schema}),
    },
}
"""What one route takes in a form of its own."""

_CONSTRAINTS = {
    "json_schema", "regex", "ebnf", "structural_tag", "response_format", "structured_outputs", "output_config",
    "output_format",
    *(name for name in NAMED if name.startswith("guided_")),
}  # fmt: skip


# --- growths by schema -------------------------------------------------------------------------------------------


def first_kind(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value itself, null and lists with one value for each prompt left out."""
    if "anyOf" not in schema:
        return schema
    first = schema["anyOf"][0]
    # Where a text stands for a list of one, the list says more.
    lists = [each for each in first.get("anyOf", ()) if each.get("type") == "array"]
    return lists[0] if lists else first


def by_schema(schema: Mapping[str, Any]) -> Iterator[tuple[str, Grow, int]]:
    """(way, value by size, largest size) of a field, from the JSON Schema of its values."""
    found = first_kind(schema)
    if "enum" in found:
        yield from ((f"is {value}", lambda s, value=value: value, 1) for value in found["enum"])
        return
    kind = found.get("type")
    if kind == "boolean":
        yield "true", lambda s: True, 1
        yield "false", lambda s: False, 1
    elif kind == "integer":
        yield "number", lambda s: s, int(found.get("maximum", 1 << 63))
    elif kind == "number":
        yield "high", lambda s: found.get("maximum", 0.999), 1
        yield "low", lambda s: found.get("minimum", 1e-6), 1
    elif kind == "string":
        yield "characters", lambda s: "a" * s, found.get("maxLength", _LONGEST)
    elif kind == "object":
        yield "entries", lambda s: {str(index): entry(found.get("additionalProperties")) for index in range(s)}, 1 << 20
    elif kind == "array":
        yield from by_items(found.get("items", {}))


def entry(schema: Any) -> Any:
    """A member of an object of any names."""
    return "a" if isinstance(schema, Mapping) and schema.get("type") == "string" else 1.0


def by_items(schema: Mapping[str, Any]) -> Iterator[tuple[str, Grow, int]]:
    """The ways of a list: many entries, and few long ones."""
    if "string" in str(schema):
        yield "count", words, 1 << 16
        yield "characters", lambda s: ["a" * s], _LONGEST
        yield "count of long ones", lambda s: [f"{word:b<200}" for word in words(s)], 1 << 16
    elif "array" in str(schema):
        yield "count", lambda s: [[index % 1500] for index in range(s)], 1 << 20
        yield "tokens", lambda s: [[3 + index % 1000 for index in range(s)]], 1 << 20
    else:
        yield "count", lambda s: list(range(s)), 1 << 20


# --- fields of a route -------------------------------------------------------------------------------------------


def fields_of(route: str) -> tuple[str, ...]:
    """Every field that a route has a use for, those of `sampling_params` with that name before them."""
    if route == EXPLAIN:
        return (*EXPLAIN_FIELDS, *(f"{_INNER}{name}" for name in SAMPLING_TABLE.entries))
    if route == MESSAGES:
        tables = (MESSAGES_ROUTE.fields, MESSAGES_ROUTE.openai.entries, MESSAGES_ROUTE.fastdeploy.entries)
        return tuple(dict.fromkeys(name for each in tables for name in each))
    return text_fields_of(route)


def schema_of(route: str, field: str) -> Mapping[str, Any] | None:
    """The JSON Schema of a field; None for one that takes nothing that changes an answer."""
    if route in {GENERATE, EXPLAIN}:
        outer = FIELDS if route == GENERATE else EXPLAIN_FIELDS
        inner = field.startswith(_INNER)
        found = (SAMPLING_TABLE.entries if inner else outer)[field.removeprefix(_INNER)]
    else:
        asked = {CHAT: CHAT_ROUTE, RESPONSES: RESPONSES_ROUTE, MESSAGES: MESSAGES_ROUTE}.get(route, COMPLETIONS_ROUTE)
        entries = {**asked.fastdeploy.entries, **asked.openai.entries}
        found = entries[field] if field in entries else asked.fields[field]
    return None if isinstance(getattr(found, "rule", None), Only) else found.schema()


def growths(route: str) -> list[Growth]:
    """Every way in which every field of a route grows."""
    found = []
    for field in fields_of(route):
        name, schema = field.removeprefix(_INNER), schema_of(route, field)
        if schema is None or name in _CONTAINERS:
            continue
        named = NAMED_ON.get(route, NAMED).get(name, NAMED.get(name, {})).items()
        ways = [(way, make, _MOST_OF.get(way, _MOST)) for way, make in named] or list(by_schema(schema))
        found += [Growth(route=route, field=field, way=way, make=make, most=most) for way, make, most in ways]
    if route == EXPLAIN:
        found.append(Growth(route=route, field="sampling_params", way="count", make=several_params, most=_MOST))
    return found


def several_params(count: int) -> list[dict[str, Any]]:
    """So many sets of parameters to explain a draw under."""
    return [{"sampling_seed": seed, "top_p": 0.9} for seed in range(count)]


def beside(route: str, field: str) -> dict[str, Any]:
    """What a field needs beside it to have an effect."""
    place = SAMPLING if field.startswith(_INNER) else route
    effect = EFFECTS.get(place, {}).get(field.removeprefix(_INNER))
    return dict(effect.beside) if isinstance(effect, Effect) else {}


def needed(growth: Growth) -> dict[str, Any]:
    """The fields of a body that a growth needs beside it."""
    found = beside(growth.route, growth.field)
    if growth.field.startswith(_INNER):
        return {"sampling_params": found, **({} if growth.route == EXPLAIN else {"return_logprob": True})}
    return found


def value(growth: Growth, size: int) -> dict[str, Any]:
    """The field of a body that a growth sets, alone."""
    made, name = growth.make(size), growth.field.removeprefix(_INNER)
    return {name: made} if name == growth.field else {"sampling_params": {name: made}}


def is_constraint(maximum: Maximum) -> bool:
    """Whether a maximum is of a field that says what the text may be, of which a request has one."""
    growth = maximum.growth
    return growth.field.removeprefix(_INNER) in _CONSTRAINTS or (growth.route, growth.field) == (RESPONSES, "text")


def without_constraints(part: Mapping[str, Any]) -> dict[str, Any]:
    """A part of a body without the fields that say what the text may be."""
    return {
        name: without_constraints(value) if name == "sampling_params" else value
        for name, value in part.items()
        if name not in _CONSTRAINTS
    }


def body_with(*maxima: Maximum) -> dict[str, Any]:
    """The body of a request with all these, of one route: none is changed by what another needs beside it."""
    needs = [needed(each.growth) for each in maxima]
    if any(is_constraint(each) for each in maxima):
        needs = [without_constraints(each) for each in needs]
    return body_of(maxima[0].growth.route, *needs, *(value(each.growth, each.size) for each in maxima))


_PLAIN: Mapping[str, dict[str, Any]] = {
    GENERATE: {"text": "Once upon", "sampling_params": {"max_new_tokens": TOKENS, "sampling_seed": 1}},
    CHAT: {"messages": said("Once upon"), "max_tokens": TOKENS, "seed": 1},
    COMPLETIONS: {"prompt": "Once upon", "max_tokens": TOKENS, "seed": 1},
    RESPONSES: {"input": "Once upon", "max_output_tokens": TOKENS, "seed": 1},
    MESSAGES: {"messages": said("Once upon"), "max_tokens": TOKENS, "seed": 1},
    EXPLAIN: {"text": "Once upon", "sampling_params": {"max_new_tokens": TOKENS, "sampling_seed": 1}},
}
_INSTEAD: Mapping[str, set[str]] = {
    "messages": {"text"}, "input_ids": {"text"}, "input_embeds": {"text"}, "prompt_token_ids": {"messages", "prompt"},
    "max_completion_tokens": {"max_tokens"}, "seed": {"sampling_seed"},
}  # fmt: skip
WHOLE = {"best_of", "prompt_logprobs"}
"""Fields that a stream does not take."""


def names_in(part: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of a part of a body, those of its `sampling_params` too."""
    inner = part.get("sampling_params")
    return (*part, *(inner if isinstance(inner, Mapping) else ()))


def body_of(route: str, *parts: Mapping[str, Any]) -> dict[str, Any]:
    """The plain body of a route with these fields, streamed where that can be."""
    whole = any(name in WHOLE for part in parts for name in names_in(part))
    body: dict[str, Any] = {**_PLAIN[route], **({} if route == EXPLAIN else {"stream": not whole})}
    plain, inner = body.get("sampling_params", {}), dict[str, Any]()
    for part in parts:
        params = part.get("sampling_params")
        inner |= params if isinstance(params, Mapping) else {}
        body |= part
    given = {name for part in parts for name in names_in(part)}
    dropped = {other for name in given for other in _INSTEAD.get(name, ())} - given
    body, plain = ({name: v for name, v in each.items() if name not in dropped} for each in (body, plain))
    several = next((part["sampling_params"] for part in parts if isinstance(part.get("sampling_params"), list)), None)
    if several is not None:
        return {**body, "sampling_params": [{**each, **inner} for each in several]}
    return {**body, "sampling_params": {**plain, **inner}} if "sampling_params" in body else body


# --- the largest size --------------------------------------------------------------------------------------------


def ladder(most: int) -> list[int]:
    """Sizes from `most` down to 1: powers of 4, and every number of the operator's table of limits."""
    limits = {int(getattr(Limits(), name)) for name in Limits.__dataclass_fields__}
    steps = {most, *(4**power for power in range(32)), *limits}
    return sorted((size for size in steps if 0 < size <= most), reverse=True)


def largest(growth: Growth, accepts: Callable[[dict[str, Any]], bool]) -> Maximum | None:
    """The growth at the largest size that `accepts` takes, to within a quarter; None when it takes none."""
    refused = 0
    for size in ladder(growth.most):
        if accepts(body_with(Maximum(growth=growth, size=size))):
            return Maximum(growth=growth, size=closer(growth, size, refused, accepts))
        refused = size
    return None


def closer(growth: Growth, low: int, high: int, accepts: Callable[[dict[str, Any]], bool]) -> int:
    """The largest accepted size between an accepted one and a refused one, to within a quarter."""
    while high - low > max(1, low // 4):
        middle = (low + high) // 2
        if accepts(body_with(Maximum(growth=growth, size=middle))):
            low = middle
        else:
            high = middle
    return low
