"""What is found out about the installed llguidance, and how schemas are written for a release that can do less."""

from __future__ import annotations

import json
import re
from typing import Any

import llguidance
import pytest

from tirage import GrammarError
from tirage.guided.expression import to_regex
from tirage.guided.llguidance_features import (
    LlguidanceFeatures,
    adapted,
    features_of,
    installed_features,
    other_texts,
    schema_rule,
)
from tirage.guided.trial_worker import ByteTokenizer

OLD = LlguidanceFeatures(version="1.7.6", exact_keys=False, negative_multiples=False, bounded_whitespace=False)
INTEGER, TEXT = {"type": "integer"}, {"type": "string"}


class StandIn:
    """A module with llguidance's interface that accepts every text but those that it is told to refuse."""

    def __init__(self, *refused: str) -> None:
        self.refused = refused
        self.TokenizerWrapper = self.LLTokenizer = lambda *args, **kwargs: None

    def LLMatcher(self, tokenizer: Any, grammar: str, log_level: int) -> StandIn:  # noqa: N802
        assert grammar.startswith("start: %json {")
        return self

    def is_error(self) -> bool:
        return False

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return 0 if bytes(tokens).decode() in self.refused else len(tokens)


CONTROL, KEY, NEGATIVE, SPACES = r'"\u0001"', r'{"\u0061"', "-6", "[   "


def test_a_release_that_does_all_is_found_to_do_all() -> None:
    assert features_of(StandIn(CONTROL, KEY, SPACES), "2.0") == LlguidanceFeatures(version="2.0")


@pytest.mark.parametrize(
    ("refused", "lacking"),
    [
        ((CONTROL, SPACES), "exact_keys"),
        ((CONTROL, KEY, SPACES, NEGATIVE), "negative_multiples"),
        ((CONTROL, KEY), "bounded_whitespace"),
    ],
)
def test_what_a_release_lacks_is_found_out(refused: tuple[str, ...], lacking: str) -> None:
    assert features_of(StandIn(*refused), "1.7") == LlguidanceFeatures(version="1.7", **{lacking: False})


@pytest.mark.parametrize("refused", [(), (CONTROL, r'"\n"')])
def test_a_release_that_ignores_the_escapes_is_refused_by_name(refused: tuple[str, ...]) -> None:
    told = "^llguidance 1.6.0 does not restrict the escapes of strings; install 1.7.0 or newer$"
    with pytest.raises(GrammarError, match=told):
        features_of(StandIn(*refused), "1.6.0")


def test_the_installed_release_is_tried_once() -> None:
    assert installed_features() is installed_features()
    assert installed_features().version == getattr(llguidance, "__version__", installed_features().version)


def test_for_a_release_that_does_all_a_schema_stays_as_it_is() -> None:
    schema = {"properties": {"a": INTEGER}, "multipleOf": 3}
    assert adapted(schema, LlguidanceFeatures(version="1.9")) is schema


def takes(schema: dict[str, Any], text: str) -> bool:
    """Whether the installed llguidance allows the text for a schema as it stands."""
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(ByteTokenizer()), n_vocab=257, slices=[])
    matcher = llguidance.LLMatcher(tokenizer, f"start: {schema_rule(schema, '')}\n", log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    return matcher.try_consume_tokens(list(text.encode())) == len(text.encode()) and matcher.is_accepting()


OPEN = {"type": "object", "properties": {"a": INTEGER, "ab": INTEGER}, "additionalProperties": TEXT}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a":1}', True),
        ('{"a":1,"ab":2,"b":"x","é":"x","abc":"x"}', True),
        ('{"":"x","aa":"x","\\n":"x","\\"":"x","\\\\u0061":"x"}', True),
        ('{"a":"x"}', False),
        ('{"ab":"x"}', False),
        ('{"b":1}', False),
        ('{"\\u0061":"x"}', False),
        ('{"\\/":"x"}', False),
    ],
)
def test_properties_that_are_not_named_are_written_with_the_allowed_escapes(text: str, expected: bool) -> None:
    assert takes(adapted(OPEN, OLD), text) == expected


def test_a_required_property_without_a_schema_takes_that_of_the_others() -> None:
    schema = adapted({"type": "object", "required": ["z"], "additionalProperties": TEXT}, OLD)
    assert [takes(schema, text) for text in ("{}", '{"z":"x"}', '{"z":1}', '{"y":"x"}', '{"z":"x","y":"x"}')] == [
        False, True, False, False, True,
    ]  # fmt: skip


def test_the_schema_that_was_given_is_not_changed() -> None:
    before = json.dumps(OPEN)
    adapted(OPEN, OLD)
    assert json.dumps(OPEN) == before


@pytest.mark.parametrize("schema", [{"properties": {"a": INTEGER}, "additionalProperties": False}, {"type": "object"}])
def test_closed_objects_and_those_that_name_nothing_stay_as_they_are(schema: dict[str, Any]) -> None:
    assert adapted(schema, OLD) == schema


REFUSED = [
    ({"multipleOf": 3}, "#/multipleOf must go with a minimum of 0 or more"),
    ({"items": {"type": ["integer", "null"], "multipleOf": 2, "minimum": -4}}, "#/items/multipleOf must go with"),
    ({"patternProperties": {"^a": TEXT}}, "#/patternProperties must go with additionalProperties: false"),
    ({"properties": {'a"': TEXT}}, r"#/properties must go with additionalProperties: false .*, as it names"),
    ({"properties": {"a" * 101: TEXT}}, "#/properties must go with additionalProperties: false"),
    ({"properties": dict.fromkeys(map(str, range(1001)), TEXT)}, "#/properties must name at most 1000 besides others"),
    ({"allOf": [OPEN, {}]}, "#/allOf must not go with properties that are not named"),
    (OPEN | {"anyOf": [{"required": ["a"]}]}, "#/anyOf must not go with properties that are not named"),
]


@pytest.mark.parametrize(("schema", "told"), REFUSED, ids=[told[:30] for _, told in REFUSED])
def test_what_it_would_not_enforce_is_refused_with_its_place(schema: dict[str, Any], told: str) -> None:
    with pytest.raises(GrammarError, match=f"^schema at {told}") as refused:
        adapted(schema, OLD)
    assert "in llguidance 1.7.6" in str(refused.value)
    assert str(refused.value).endswith("; install llguidance 1.8.0 or newer")


@pytest.mark.parametrize("bound", [{"minimum": 0}, {"exclusiveMinimum": 0}, {"type": "string"}])
def test_multiples_that_cannot_be_negative_are_taken(bound: dict[str, Any]) -> None:
    assert adapted({"multipleOf": 3} | bound, OLD) == {"multipleOf": 3} | bound


@pytest.mark.parametrize("names", [{"a"}, {"a", "ab", "abc"}, {"", "x"}, {"été", "été!"}, {"a.b", "a-b"}])
def test_other_texts_are_all_but_the_names(names: set[str]) -> None:
    pattern = re.compile(to_regex(other_texts(names)))
    near = {
        name[:cut] + more for name in names for cut in range(len(name) + 1) for more in ("", "a", "b", "\n", "é", ".")
    }
    assert {text for text in near | names if not pattern.fullmatch(text)} == names
