"""Closing paths, compared with every completion there is; and texts that must close whatever else is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from guided_cases import allows
from numpy.typing import NDArray
from small_tokenizers import byte_level_tokenizer

from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, SamplingParams
from tirage.guided import BYTES, ClosingPath, Compiler, CompletionFinder, Matcher, Vocabulary
from tirage.guided.closing.budgets import StepBudget
from tirage.guided.closing.path import STEPS_BEFORE_TEXT, STEPS_INSIDE_TEXT
from tirage.text import Stop

EOS = 260
# No two of them can be told apart by a prefix alone: the fewest tokens are not the longest ones first.
TOKENS = Vocabulary(tuple(
    token.encode() for token in
    ["a", "b", "c", "x", "y", "1", "0", '"', "[", "]", "{", "}", ",", ":", "ab", "bc", "abc", "bcx", "xy", '"]', '"}',
     '":', '{"', "10", "],", "11", "aa", "aaa"]
))  # fmt: skip
BY_TOKEN, BY_BYTE = Compiler(TOKENS), Compiler(BYTES)


def every_way(matcher: Matcher, unusable: frozenset[int], deepest: int) -> int | None:
    """The number of tokens in the shortest of all completions, found by trying every token after every other."""
    places = [matcher]
    for length in range(deepest + 1):
        if any(place.complete for place in places):
            return length
        following = []
        for place in places:
            for token in set(range(TOKENS.width)) - unusable:
                other = place.fork()
                if other.accept(token):
                    following.append(other)
        places = following[:4000]
        if len(following) > 4000:
            return None
    return None


OBJECT = {"type": "object", "properties": {"a": {"enum": [1, 10]}}, "required": ["a"], "additionalProperties": False}
CLOSED: list[dict[str, Any]] = [
    {"regex": "[abc]{2,5}x"},
    {"regex": "a(bc|xy)*(1|0)"},
    {"regex": "(aa|b)+c"},
    {"regex": "a{7}"},
    {"choice": ["abcxy", "abc1", "xy", "b"]},
    {"json": OBJECT, "disable_any_whitespace": True},
    {
        "json": {"type": "array", "items": {"enum": ["a", 1]}, "minItems": 1, "maxItems": 3},
        "disable_any_whitespace": True,
    },
    {"grammar": 'root ::= "[" (root ("," root)*)? "]" | "a" | "1"'},
    {"grammar": 'root ::= "a" root "b" | "x" "y"'},
]


@pytest.mark.slow
@pytest.mark.parametrize("unusable", [(), (b"]", b"a"), (b"1", b"x")], ids=str)
@pytest.mark.parametrize("mode", CLOSED, ids=str)
def test_a_way_is_found_where_there_is_one_and_it_is_valid_and_short(
    mode: dict[str, Any], unusable: Sequence[bytes]
) -> None:
    banned = frozenset(TOKENS.tokens.index(token) for token in unusable)
    asked = GuidedDecodingParams(**mode)
    grammar, by_byte = BY_TOKEN.compile(asked), BY_BYTE.compile(asked)
    rng, over = np.random.default_rng(1), []
    for _ in range(4):
        matcher = grammar.matcher()
        closing = ClosingPath(by_byte.matcher(), TOKENS, banned)
        for _ in range(6):
            closing.shorten()
            least = every_way(matcher.fork(), banned, 5)
            if closing.tokens is not None:
                assert leads_to_an_end(matcher.fork(), closing.tokens)
                assert banned.isdisjoint(closing.tokens)
            if least is not None:
                assert closing.tokens is not None or banned
                over += [] if closing.tokens is None else [len(closing.tokens) - least]
            allowed = [i for i in range(TOKENS.width) if i not in banned and allows(matcher, i)]
            if not allowed:
                break
            token = int(rng.choice(allowed))
            assert matcher.accept(token)
            closing.advance(token)
    # A quick way, not always the one of the fewest tokens (test_guided_fewest.py): so much longer it is at most here.
    assert all(0 <= extra <= 2 for extra in over)
    assert over.count(0) >= len(over) // 3


def leads_to_an_end(place: Matcher, tokens: Sequence[int]) -> bool:
    return all(place.accept(token) for token in tokens) and place.complete


def test_a_way_can_be_longer_than_the_shortest_in_tokens() -> None:
    # Few bytes are not always few tokens: the quick way is taken while it fits, then the one of the fewest tokens.
    asked = GuidedDecodingParams(regex="b1|bcxy(a|b)")
    words = Vocabulary((b"a", b"b", b"1", b"bcxya"))
    closing = ClosingPath(BY_BYTE.compile(asked).matcher(), words, finder=CompletionFinder(asked, words))
    assert closing.fits(2)
    assert closing.tokens == [1, 2]
    assert closing.fits(1)
    assert closing.tokens == [3]


@pytest.mark.parametrize(
    ("text", "unusable", "fewest"),
    [("abcx", [], 2), ("abcbc", [], 2), ("aaaa", [], 2), ("aaaa", ["aaa"], 2), ("abcxy", ["abc"], 3), ("z", [], None),
     ("", [], 0), ("aaaa", ["a", "aaa"], 2), ("aaa", ["a", "aaa"], None)],
)  # fmt: skip
def test_a_text_is_spelled_with_the_fewest_tokens(text: str, unusable: list[str], fewest: int | None) -> None:
    found = TOKENS.cover(text.encode(), frozenset(TOKENS.tokens.index(one.encode()) for one in unusable))
    assert (None if found is None else len(found)) == fewest
    assert found is None or b"".join(TOKENS.tokens[i] for i in found) == text.encode()


# --- in the engine -----------------------------------------------------------------------------------------------


class Talker:
    """A model that likes some tokens far more than others, whatever came before."""

    vocab_size, max_length = 270, 400

    def __init__(self, liked: Sequence[int]) -> None:
        self._liked = list(liked)

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        return self._logits(list(token_ids)), list(token_ids)

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        for cache, token in zip(caches, token_ids, strict=True):
            cache.append(token)
        return np.stack([self._logits(cache) for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)

    def _logits(self, tokens: list[int]) -> NDArray[np.float32]:
        logits = np.random.default_rng(tokens).normal(size=self.vocab_size)
        logits[self._liked] += 8
        return logits.astype(np.float32)


def talker(liked: Sequence[int]) -> LLM:
    return LLM(Talker(liked), tokenizer=byte_level_tokenizer(), generation_config={"eos_token_id": EOS})


def close(llm: LLM, mode: dict[str, Any], **params: Any) -> Completion:
    asked = SamplingParams(**{"seed": 1, **params}, close_grammar=True, guided_decoding=GuidedDecodingParams(**mode))
    return llm.generate("p", asked)[0]


BLOCKS: list[dict[str, Any]] = [
    {"bad_words": ["a0", "b0", "z0"], "bad_words_level": "text"},
    {"bad_words": ["0"], "bad_words_level": "text"},
    {"bad_words": ["b0", "a0", "z0"]},
    {"bad_words_token_ids": [[ord("0")]]},
    {"logit_bias": {ord("0"): float("-inf")}},
    {"allowed_token_ids": [ord(c) for c in "abz9"]},
]


@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.parametrize("temperature", [0, 1])
def test_another_way_is_taken_where_something_else_forbids_the_first(block: dict[str, Any], temperature: float) -> None:
    # Without other constraints the closing path is the cheapest byte, 0.
    llm = talker(b"abz")
    assert close(llm, {"regex": "[abz]{3,}[09]"}, max_tokens=6).text.endswith("0")
    done = close(llm, {"regex": "[abz]{3,}[09]"}, max_tokens=6, temperature=temperature, **block)
    assert re.fullmatch("[abz]{3,5}9", done.text)
    assert (done.finish_reason, done.stop) == ("stop", Stop(kind="grammar", matched="close_grammar"))
    assert done.grammar_complete


@pytest.mark.parametrize("level", ["text", "sequence"])
def test_where_every_way_is_forbidden_the_text_goes_on_and_does_not_fail(level: str) -> None:
    banned = {"bad_words": [a + b for a in "abz" for b in "09"], "bad_words_level": level}
    done = close(talker(b"abz"), {"regex": "[abz]{3,}[09]"}, max_tokens=6, **banned)
    assert (done.finish_reason, done.stop, done.grammar_complete) == ("length", Stop(kind="max_tokens"), False)
    assert re.fullmatch("[abz]{6}", done.text)


def test_beams_take_another_way_too() -> None:
    sampling = SamplingParams(
        close_grammar=True,
        guided_decoding=GuidedDecodingParams(regex="[abz]{3,}[09]"),
        bad_words=[a + b for a in "abz" for b in "09"],
        bad_words_level="text",
    )
    found = talker(b"abz").beam_search("p", BeamSearchParams(beam_width=2, max_tokens=5), sampling=sampling)[0]
    assert [(s.finish_reason, s.grammar_complete, len(s.text)) for s in found.samples] == [("length", False, 5)] * 2


TAGGED = {
    "type": "sequence",
    "elements": [{"type": "const_string", "value": "aaaaaaa"}, {"type": "regex", "pattern": "b{3}"}],
}
AFTER_REASONING: list[dict[str, Any]] = [
    {"grammar": 'start: "aaaaaaaaaa"'},
    {"structural_tag": json.dumps({"type": "structural_tag", "format": TAGGED})},
    {"regex": "[ab]{10}"},
]


@pytest.mark.parametrize("mode", AFTER_REASONING, ids=lambda mode: next(iter(mode)))
@pytest.mark.parametrize("liked", [b"a", b"<think>", b" "], ids=str)
def test_an_answer_that_may_follow_reasoning_closes_exactly_where_its_way_fits(
    mode: dict[str, Any], liked: bytes
) -> None:
    # The way takes ten tokens, and the tags would take fifteen more.
    llm = talker(liked)
    for limit in (1, 4, 9, 10, 11, 17, 24, 25, 27, 40):
        done = close(llm, mode, max_tokens=limit, reasoning_parser="think")
        ends = ("stop", "grammar", True) if limit >= 10 else ("length", "max_tokens", False)
        assert (done.finish_reason, done.stop and done.stop.kind, done.grammar_complete) == ends
        assert limit >= 25 or not done.text.startswith("<think>") or limit < 10


@pytest.mark.slow
@pytest.mark.parametrize("liked", [b'{["a,:', b"a", b'"}]', b"0123456789", b" \n\t"], ids=str)
def test_a_text_whose_way_fits_at_the_start_always_closes(liked: bytes) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string"},
            "tags": {"type": "array", "items": {"anyOf": [{"type": "number"}, {"type": "object"}]}},
        },
        "required": ["name", "tags"],
    }
    llm = talker(liked)
    for seed in range(3):
        for limit in (24, 25, 26, 33, 47):
            done = close(llm, {"json": schema}, max_tokens=limit, seed=seed)
            assert (done.finish_reason, done.grammar_complete) == ("stop", True)
            assert set(json.loads(done.text)) >= {"name", "tags"}
            assert len(done.token_ids) <= limit
            free = llm.generate("p", SamplingParams(
                seed=seed, max_tokens=limit, guided_decoding=GuidedDecodingParams(json=schema)))[0]  # fmt: skip
            closed = done.stop == Stop(kind="grammar", matched="close_grammar")
            assert closed or (done.token_ids, free.finish_reason) == (free.token_ids, "stop")
            assert not closed or free.finish_reason == "length" or len(free.token_ids) == limit


HARD: list[dict[str, Any]] = [
    {"regex": ".*x{5}"},
    {"regex": "(?i)" + "abcdefgh" * 2000},
    {"grammar": 'r0 ::= "x"\n' + "\n".join(f"r{i} ::= r{i - 1} r{i - 1} root?" for i in range(1, 400))
                + "\nroot ::= r399"},
    {"grammar": "root ::= " + " ".join(f'("{i}" root?)?' for i in range(500)) + ' "!"'},
]  # fmt: skip


def counted_steps(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Gets an entry for each step that a search takes from now on."""
    steps, check = list[None](), StepBudget.check

    def counted(budget: StepBudget) -> None:
        steps.append(None)
        check(budget)

    monkeypatch.setattr(StepBudget, "check", counted)
    return steps


@pytest.mark.slow
@pytest.mark.parametrize("mode", HARD, ids=lambda mode: str(mode)[:40])
def test_a_way_that_is_hard_to_find_costs_little(mode: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    matcher = BY_BYTE.compile(GuidedDecodingParams(**mode)).matcher()
    rng = np.random.default_rng(1)
    steps = counted_steps(monkeypatch)
    closing = ClosingPath(matcher.fork(), BYTES)
    for _ in range(60):
        allowed = [byte for byte in range(256) if allows(matcher, byte)]
        if not allowed:
            break
        byte = int(rng.choice(allowed))
        matcher.accept(byte)
        closing.advance(byte)
    # One search is given up, others are few; a search at every token would take 300,000 steps.
    assert 0 < len(steps) <= STEPS_BEFORE_TEXT + STEPS_INSIDE_TEXT
