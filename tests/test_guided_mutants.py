"""The checks of guided decoding bite: each planted mistake is caught by a test of what it breaks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import le
from typing import Any

import guided_cases
import numpy as np
import pytest
import test_guided
import test_guided_budget
import test_guided_closing
import test_guided_fewest
import test_guided_grammar
import test_guided_schema
from guided_cases import GRAMMARS, VOCABULARY, compiled, texts
from test_guided_grammar import CHECKS

from tirage.engine.grammar_state import GrammarState
from tirage.guided import BYTES, ClosingPath, Compiler, Matcher, json_schema
from tirage.guided.closing.recognizer import Recognizer
from tirage.guided.closing.token_search import CompletionSearch, UsableTokens
from tirage.guided.json_schema.keywords import ENFORCED
from tirage.guided.llguidance_backend import LlguidanceCursor
from tirage.guided.vocabulary import Vocabulary

Patch = pytest.MonkeyPatch
ANY_TEXT = {"regex": "[a-z]+"}


def invalid_texts() -> None:
    """The check of the 20,000 texts, on fewer of them."""
    for number, (guided, check) in enumerate(CHECKS[:12]):
        for text, complete in texts(compiled(**guided), 12, limit=60, seed=number):
            assert not complete or check(text)


def exact_masks() -> None:
    for guided in test_guided.CASES[:6]:
        test_guided.compare(guided, walks=2, steps=8, seed=1)


def draft_cases() -> None:
    for schema, text in test_guided_schema.CASES:
        test_guided_schema.test_a_text_is_allowed_only_if_the_standard_allows_it(schema, text)


def grammars_mean_what_they_derive() -> None:
    for cfg in GRAMMARS:
        test_guided_grammar.test_a_grammar_takes_the_texts_that_its_rules_derive(cfg)


def closes_in_time() -> None:
    test_guided_closing.test_a_text_whose_way_fits_at_the_start_always_closes(b"a")


def takes_another_way() -> None:
    for block in test_guided_closing.BLOCKS:
        test_guided_closing.test_another_way_is_taken_where_something_else_forbids_the_first(block, 0)


def finds_what_fits() -> None:
    for kind in test_guided_fewest.TASKS:
        for _ in test_guided_fewest.some_tasks(kind, 99, 4):
            pass


def counts_repetitions() -> None:
    test_guided_fewest.test_repetitions_are_counted("[ab]{4,}x", "a aa x", 3)


def closes_when_it_can() -> None:
    test_guided_budget.test_the_completion_of_fewest_tokens_is_taken_where_fewer_bytes_take_more()


def mask_is_one_token_off(patch: Patch) -> None:
    fill = LlguidanceCursor.fill

    def shifted(self: LlguidanceCursor, mask: Any) -> None:
        fill(self, mask)
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        mask[:] = np.packbits(np.roll(bits, 1), bitorder="little").view(np.int32)

    patch.setattr(LlguidanceCursor, "fill", shifted)


def tokens_are_taken_after_the_end(patch: Patch) -> None:
    accept = Matcher.accept

    def goes_on(self: Matcher, token_id: int) -> bool:
        self._closed = False
        return accept(self, token_id)

    patch.setattr(Matcher, "accept", goes_on)


def the_end_is_always_allowed(patch: Patch) -> None:
    patch.setattr(Matcher, "complete", property(lambda self: True))


def whitespace_has_no_bound(patch: Patch) -> None:
    patch.setattr("tirage.guided.constraint.WHITESPACE", r"[ \n\t]*")


def tokens_are_cut_as_a_tokenizer_would(patch: Patch) -> None:
    patch.setattr("tirage.guided.llguidance_backend._EXACT", "%llguidance {}\n")
    patch.setattr(Vocabulary, "cover", lambda self, text, _=frozenset(): longest_first(self, text))


def longest_first(vocabulary: Vocabulary, text: bytes) -> list[int]:
    found, at = [], 0
    while at < len(text):
        size = max(n for n in range(1, 9) if text[at : at + n] in vocabulary._ids)
        found.append(vocabulary._ids[text[at : at + size]])
        at += size
    return found


def padding_is_allowed(patch: Patch) -> None:
    fill = Matcher.fill_mask

    def filled(self: Matcher, mask: Any) -> None:
        fill(self, mask)
        for i, token in enumerate(self.vocabulary.tokens):
            if not token and mask.any():
                mask.view(np.uint32)[i // 32] |= np.uint32(1 << i % 32)

    patch.setattr(Matcher, "fill_mask", filled)


def rollback_forgets_one(patch: Patch) -> None:
    rollback = LlguidanceCursor.rollback
    patch.setattr(LlguidanceCursor, "rollback", lambda self, count: rollback(self, max(0, count - 1)))


def a_keyword_is_passed_over(patch: Patch) -> None:
    known = {keyword: form for keyword, form in ENFORCED.items() if keyword != "maxLength"}
    patch.setattr("tirage.guided.json_schema.document.ENFORCED", known)


def lexemes_are_never_cut(patch: Patch) -> None:
    patch.setattr(
        "tirage.guided.gbnf_to_lark.LexemeSplitter._conflicts", lambda self, lexemes, follow, budget: (set(), budget)
    )


def every_token_is_said_to_leave_room(patch: Patch) -> None:
    patch.setattr(GrammarState, "can_close_after", lambda self, token_id: True)


def only_few_bytes_are_looked_for(patch: Patch) -> None:
    patch.setattr(ClosingPath, "_fewest", lambda self, most: None)


def bounds_are_one_too_high(patch: Patch) -> None:
    needs = CompletionSearch._needs
    patch.setattr(
        CompletionSearch, "_needs", lambda self, state: needs(self, state) + (not self._recognizer.complete(state))
    )


def counts_do_not_matter(patch: Patch) -> None:
    shape = Recognizer.shape
    patch.setattr(Recognizer, "shape", lambda self, state: (shape(self, state)[0], ()))


def more_room_is_worse(patch: Patch) -> None:
    patch.setattr("tirage.guided.closing.token_search.ge", le)


def tokens_may_not_cross_parts(patch: Patch) -> None:
    longest = UsableTokens.of
    patch.setattr(
        UsableTokens,
        "of",
        classmethod(lambda cls, trie, tokens, unusable: longest(trie, tokens, unusable | long(tokens))),
    )


def long(tokens: Sequence[bytes]) -> frozenset[int]:
    return frozenset(i for i, token in enumerate(tokens) if len(token) > 1)


def no_other_way_is_looked_for(patch: Patch) -> None:
    patch.setattr("tirage.engine.runner.MAX_CLOSING_PATHS", 0)


CAUGHT: list[tuple[Callable[[Patch], None], Callable[[], object]]] = [
    (mask_is_one_token_off, exact_masks),
    (mask_is_one_token_off, invalid_texts),
    (tokens_are_taken_after_the_end, test_guided.test_an_end_token_is_allowed_exactly_when_the_text_is_complete),
    (the_end_is_always_allowed, invalid_texts),
    (whitespace_has_no_bound, test_guided.test_more_options_mean_another_grammar),
    (tokens_are_cut_as_a_tokenizer_would, test_guided.test_the_tokens_of_one_text_are_not_cut_for_it),
    (padding_is_allowed, test_guided.test_padding_and_special_tokens_are_never_allowed),
    (rollback_forgets_one, lambda: test_guided.test_rollback_returns_to_the_same_masks(test_guided.CASES[0])),
    (a_keyword_is_passed_over, draft_cases),
    (lexemes_are_never_cut, grammars_mean_what_they_derive),
    (every_token_is_said_to_leave_room, closes_in_time),
    (no_other_way_is_looked_for, takes_another_way),
    (only_few_bytes_are_looked_for, closes_when_it_can),
    (only_few_bytes_are_looked_for, finds_what_fits),
    (bounds_are_one_too_high, finds_what_fits),
    (counts_do_not_matter, counts_repetitions),
    (more_room_is_worse, counts_repetitions),
    (tokens_may_not_cross_parts, finds_what_fits),
]  # fmt: skip


@pytest.fixture(autouse=True)
def fresh_grammars(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled grammars are kept; a mistake must neither outlive its test nor be hidden by older ones."""
    monkeypatch.setattr(test_guided, "BYTE_COMPILER", Compiler(BYTES))
    monkeypatch.setattr(guided_cases, "COMPILER", Compiler(VOCABULARY))
    json_schema.forget_schemas()


@pytest.mark.parametrize(("plant", "check"), CAUGHT, ids=lambda each: each.__name__)
def test_a_planted_mistake_is_caught(
    plant: Callable[[Patch], None], check: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    # Text that is no JSON shows in the parser of the check.
    with pytest.raises((AssertionError, ValueError)):
        check()


@pytest.mark.slow
@pytest.mark.parametrize("check", dict.fromkeys(check for _, check in CAUGHT), ids=lambda each: each.__name__)
def test_without_one_the_same_checks_pass(check: Callable[[], object]) -> None:
    check()
