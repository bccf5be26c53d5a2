"""The schemas that people have: of pydantic with every kind of field, OpenAPI, JSON Resume and package.json: all taken.

Each is held twice: the text that is quickest to write satisfies it, and examples that it allows or forbids are told
apart. Those of zod and of MCP servers are in test_openai_tool_schemas.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import ipaddress
import json
import pathlib
import uuid
from typing import Annotated, Any, Literal

import jsonschema
import pydantic
import pytest
from pydantic import BaseModel, Field
from schema_outcomes import takes, written

from tirage import GrammarError, GuidedDecodingParams
from tirage.guided import BYTES, Compiler, Grammar
from tirage.guided.closing.budgets import StepBudget
from tirage.guided.closing.byte_search import completes, straight

COMPILER = Compiler(BYTES)


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


class Cat(BaseModel):
    kind: Literal["cat"]
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog", "puppy"]
    name: Annotated[str, Field(min_length=1, max_length=20)]


class Tree(BaseModel):
    value: int
    children: list[Tree] = []


class Person(BaseModel):
    model_config = pydantic.ConfigDict(extra="forbid")
    name: Annotated[str, Field(pattern=r"^[A-Z][a-z]+$")]
    age: Annotated[int, Field(ge=0, le=150)]
    email: Annotated[str, Field(json_schema_extra={"format": "email"})] | None = None
    friends: list[Person] = Field(default=[], max_length=3)


class Shapes(BaseModel):
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    others: list[Annotated[Cat | Dog, Field(discriminator="kind")]] = []
    any_of: Cat | Dog | None = None
    point: tuple[float, float] = (0, 0)


FIELDS: dict[str, tuple[Any, Any, Any]] = {
    "str": (str, "a", 1),
    "int": (int, 1, 1.5),
    "float": (float, 1.5, "a"),
    "bool": (bool, True, "a"),
    "none": (None, None, 1),
    "bytes": (bytes, "a", 1),
    "any": (Any, {"a": [1]}, ...),
    "optional": (int | None, None, "a"),
    "literal": (Literal["a", 1, True, None], 1, 2),
    "enum": (Colour, "red", "green"),
    "int_enum": (Level, 2, 3),
    "list": (list[int], [1], ["a"]),
    "set": (set[Literal["a", "b"]], ["b", "a"], ["a", "a"]),
    "frozenset": (frozenset[Colour], ["blue"], ["blue", "blue"]),
    "tuple": (tuple[int, str], [1, "a"], ["a", 1]),
    "open_tuple": (tuple[int, ...], [1, 2], ["a"]),
    "dict": (dict[str, int], {"a": 1}, {"a": "b"}),
    "int_dict": (dict[int, str], {"1": "a"}, {"1": 2}),
    "literal_dict": (dict[Literal["x", "y"], int], {"x": 1}, {"z": 1}),
    "date": (datetime.date, "2024-02-29", "2023-02-29"),
    "datetime": (datetime.datetime, "2024-02-29T10:00:00Z", "2024-02-29"),
    "time": (datetime.time, "10:00:00Z", "25:00:00Z"),
    "timedelta": (datetime.timedelta, "PT1H", "1h"),
    "uuid": (uuid.UUID, "123e4567-e89b-42d3-a456-426614174000", "123"),
    "path": (pathlib.Path, "/a/b", 1),
    "decimal": (decimal.Decimal, "1.5", None),
    "ipv4": (ipaddress.IPv4Address, "127.0.0.1", "127.0.0.256"),
    "ipv6": (ipaddress.IPv6Address, "::1", "1"),
    "any_ip": (ipaddress.IPv4Address | ipaddress.IPv6Address, "::1", "x"),
    "secret": (pydantic.SecretStr, "a", 1),
    "url": (pydantic.AnyUrl, "http://example.com/a", 1),
    "http_url": (pydantic.HttpUrl, "http://example.com/", 1),
    "json": (pydantic.Json, "{}", 1),
    "positive": (pydantic.PositiveInt, 1, 0),
    "negative": (pydantic.NegativeFloat, -0.5, 0.0),
    "multiple": (Annotated[int, Field(multiple_of=5)], 10, 7),
    "cents": (Annotated[float, Field(multiple_of=0.01, ge=0, lt=100)], 99.99, 99.999),
    "bounded_str": (Annotated[str, Field(min_length=2, max_length=3)], "ab", "a"),
    "pattern": (Annotated[str, Field(pattern=r'^[^<>:"/\\|?*]+$')], "a b", 'a"b'),
    "bounded_list": (Annotated[list[int], Field(min_length=1, max_length=2)], [1], []),
    "model": (Cat, {"kind": "cat"}, {"kind": "dog"}),
    "nested": (list[dict[str, Cat | None]], [{"a": None}], [{"a": 1}]),
}


def grammar_of(schema: Any, **options: Any) -> Grammar:
    return COMPILER.compile(GuidedDecodingParams(json=json.dumps(schema), **options))


def quickest(grammar: Grammar) -> Any:
    """The value whose text takes the fewest bytes, optional members left out, as far as a quick search finds it."""
    matcher = grammar.matcher()
    text = straight(matcher, StepBudget(20_000))
    assert text is not None
    assert completes(matcher, text)
    return json.loads(text)


@pytest.mark.parametrize("name", FIELDS)
def test_every_kind_of_field_of_pydantic_is_taken(name: str) -> None:
    kind, right, wrong = FIELDS[name]
    model = pydantic.create_model("Model", value=(kind, ...))
    schema = model.model_json_schema()
    grammar = grammar_of(schema)
    assert takes(grammar, written({"value": right}))
    assert wrong is ... or not takes(grammar, written({"value": wrong}))
    assert not takes(grammar, b"{}")


@pytest.mark.parametrize("model", [Cat, Dog, Tree, Person, Shapes])
def test_models_of_pydantic_are_taken_and_their_texts_are_valid(model: type[BaseModel]) -> None:
    grammar = grammar_of(model.model_json_schema(), strict_schema=True)
    model.model_validate(quickest(grammar))


def test_discriminated_unions_and_recursive_models_are_held() -> None:
    shapes, tree = grammar_of(Shapes.model_json_schema()), grammar_of(Tree.model_json_schema())
    assert takes(shapes, written({"pet": {"kind": "dog", "name": "Rex"}, "others": [{"kind": "cat", "lives": 1}]}))
    assert takes(shapes, written({"pet": {"kind": "puppy", "name": "Rex"}}))
    assert not takes(shapes, written({"pet": {"kind": "dog"}}))
    assert not takes(shapes, written({"pet": {"kind": "bird", "name": "Rex"}}))
    assert takes(tree, written({"value": 1, "children": [{"value": 2, "children": [{"value": 3}]}]}))
    assert not takes(tree, written({"value": 1, "children": [{"value": "2"}]}))


OPENAPI = {
    "openapi": "3.0.3",
    "components": {
        "schemas": {
            "Pet": {
                "type": "object",
                "required": ["id", "petType"],
                "discriminator": {"propertyName": "petType", "mapping": {"dog": "#/components/schemas/Dog"}},
                "properties": {
                    "id": {"type": "integer", "format": "int64", "example": 10},
                    "petType": {"type": "string"},
                    "tag": {"type": "string", "nullable": True, "xml": {"name": "tag"}},
                    "secret": {"type": "string", "format": "password", "writeOnly": True},
                },
            },
            "Dog": {
                "allOf": [
                    {"$ref": "#/components/schemas/Pet"},
                    {
                        "type": "object",
                        "properties": {"packSize": {"type": "integer", "format": "int32", "minimum": 0}},
                    },
                ],
                "externalDocs": {"url": "http://example.com"},
            },
        }
    },
    "$ref": "#/components/schemas/Dog",
}
RESUME = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "additionalProperties": False,
    "definitions": {
        "iso8601": {
            "type": "string",
            "pattern": "^([1-2][0-9]{3}-[0-1][0-9]-[0-3][0-9]|[1-2][0-9]{3}-[0-1][0-9]|[1-2][0-9]{3})$",
        }
    },
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "basics": {
            "type": "object",
            "additionalProperties": True,
            "properties": {
                "name": {"type": "string"},
                "email": {"type": "string", "format": "email"},
                "url": {"type": "string", "format": "uri"},
                "profiles": {
                    "type": "array",
                    "additionalItems": False,
                    "items": {"type": "object", "properties": {"network": {"type": "string"}}},
                },
            },
        },
        "work": {
            "type": "array",
            "additionalItems": False,
            "items": {"type": "object", "properties": {"startDate": {"$ref": "#/definitions/iso8601"}}},
        },
    },
    "title": "Resume Schema",
    "type": "object",
}
PACKAGE = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "person": {
            "required": ["name"],
            "properties": {"name": {"type": "string"}, "email": {"type": "string", "format": "email"}},
            "type": ["object", "string"],
        },
        "dependency": {"type": "object", "additionalProperties": {"type": "string"}},
        "packageExportsFallback": {
            "type": "array", "items": {"$ref": "#/definitions/packageExportsEntry"}
        },
        "packageExportsEntry": {
            "oneOf": [{"type": ["string", "null"], "pattern": "^\\./"}, {"$ref": "#/definitions/packageExportsObject"}]
        },
        "packageExportsObject": {
            "type": "object",
            "properties": {"import": {"$ref": "#/definitions/packageExportsEntry"}},
            "patternProperties": {"^[^.0-9]+$": {"$ref": "#/definitions/packageExportsEntry"}},
            "additionalProperties": False,
        },
    },
    "type": "object",
    "patternProperties": {"^_": {"description": "anything", "tsType": "any"}},
    "properties": {
        "name": {"type": "string", "maxLength": 214, "minLength": 1,
                 "pattern": "^(?:(?:@(?:[a-z0-9-*~][a-z0-9-*._~]*)?/[a-z0-9-._~])|[a-z0-9-~])[a-z0-9-._~]*$"},
        "version": {"type": "string"},
        "author": {"$ref": "#/definitions/person"},
        "exports": {"oneOf": [
            {"$ref": "#/definitions/packageExportsEntry"}, {"$ref": "#/definitions/packageExportsFallback"}
        ]},
        "dependencies": {"$ref": "#/definitions/dependency"},
    },
    "anyOf": [{"type": "object", "not": {"required": ["bundledDependencies", "bundleDependencies"]}},
              {"type": "object", "not": {"required": ["bundleDependencies"]}, "required": ["bundledDependencies"]}],
}  # fmt: skip
DOG = {"id": 1, "petType": "dog", "packSize": 1}
EXAMPLES: list[tuple[Any, list[Any], list[Any]]] = [
    (OPENAPI, [DOG, DOG | {"more": 1}], [{"id": 1}, DOG | {"packSize": -1}, {"id": "1", "petType": "dog"}]),
    (
        RESUME,
        [{}, {"basics": {"name": "a", "more": 1}, "work": [{"startDate": "2014-01"}]}],
        [{"other": 1}, {"work": [{"startDate": "last year"}]}, {"basics": {"email": "a"}}],
    ),
    (
        PACKAGE,
        [{"name": "a", "author": "me", "exports": {"import": "./a.js"}}, {"_x": [1]}, {"exports": ["./a", None]}],
        [{"name": "A b"}, {"exports": {"1": "./a"}}, {"author": {"email": "a@b.cc"}}, {"dependencies": {"a": 1}}],
    ),
]


@pytest.mark.parametrize(("schema", "right", "wrong"), EXAMPLES, ids=["OpenAPI", "JSON Resume", "package.json"])
def test_schemas_that_tools_publish_are_taken(schema: Any, right: list[Any], wrong: list[Any]) -> None:
    grammar = grammar_of(schema)
    assert [value for value in right if not takes(grammar, written(value))] == []
    assert [value for value in wrong if takes(grammar, written(value))] == []
    jsonschema.validate(quickest(grammar), schema)


COMPONENTS: dict[str, Any] = {
    "Order": {
        "type": "object",
        "properties": {
            "id": {"type": "integer", "format": "int64"},
            "quantity": {"type": "integer", "format": "int32", "default": 1},
            "shipDate": {"type": "string", "format": "date-time"},
            "status": {"type": "string", "enum": ["placed", "approved", "delivered"], "description": "Order Status"},
            "complete": {"type": "boolean"},
        },
        "xml": {"name": "order"},
    },
    "Error": {
        "type": "object",
        "required": ["code", "message"],
        "properties": {
            "code": {"type": "integer", "minimum": 100, "exclusiveMaximum": 600},
            "message": {"type": "string"},
        },
    },
    "Labels": {"type": "object", "additionalProperties": {"type": "string"}, "maxProperties": 3},
    "Page": {
        "type": "object",
        "required": ["items"],
        "properties": {
            "items": {"type": "array", "items": {"$ref": "#/components/schemas/Order"}, "uniqueItems": False},
            "next": {"type": ["string", "null"], "format": "uri-reference"},
        },
    },
    "Payment": {
        "oneOf": [{"$ref": "#/components/schemas/Card"}, {"$ref": "#/components/schemas/Transfer"}],
        "discriminator": {"propertyName": "method"},
    },
    "Card": {
        "type": "object",
        "required": ["method", "number"],
        "properties": {"method": {"const": "card"}, "number": {"type": "string", "pattern": "^[0-9]{12,19}$"}},
    },
    "Transfer": {
        "allOf": [
            {"type": "object", "required": ["method"], "properties": {"method": {"enum": ["transfer"]}}},
            {"type": "object", "properties": {"iban": {"type": "string", "minLength": 15, "maxLength": 34}}},
        ]
    },
}


def schemas_of_people() -> dict[str, Any]:
    """By a name, the schemas of all these kinds; those of MCP servers and zod are data."""
    found = {f"pydantic/{name}": pydantic.create_model("Model", value=(kind, ...)).model_json_schema()
             for name, (kind, _, _) in FIELDS.items()}  # fmt: skip
    found |= {f"pydantic/{model.__name__}": model.model_json_schema() for model in (Cat, Dog, Tree, Person, Shapes)}
    found |= {f"openapi/{name}": {"components": {"schemas": COMPONENTS}, "$ref": f"#/components/schemas/{name}"}
              for name in COMPONENTS}  # fmt: skip
    found |= {"openapi/Dog": OPENAPI, "json resume": RESUME, "package.json": PACKAGE}
    for path in sorted((pathlib.Path(__file__).parent / "data" / "tool_schemas").glob("*.json")):
        given = json.loads(path.read_text(encoding="utf-8"))
        found |= {f"{path.stem}/{tool['name']}": tool["inputSchema"] for tool in given["tools"]}
    return found


@pytest.mark.slow
def test_the_schemas_that_people_have_are_all_taken() -> None:
    schemas, refused = schemas_of_people(), {}
    sources = {name.split("/")[0] for name in schemas} - {"pydantic", "openapi", "json resume", "package.json", "zod"}
    for name, schema in schemas.items():
        try:
            grammar_of(schema)
        except GrammarError as error:
            refused[name] = str(error)
    assert len(schemas) >= 89
    assert len(sources) >= 10
    assert refused == {}
