"""tirage.explain: it tells the truth about the draw, its numbers add up, and its views are safe to show."""

from __future__ import annotations

import doctest
import itertools
import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from strategies import VALUES
from tokenizers import Tokenizer, decoders, models
from tries import tries

import tirage
from tirage.params import FIELDS
from tirage.processors import register_processor, unregister_processor
from tirage.semantics import PRESETS
from tirage.tracing.texts import visible

V = 40
HOSTILE = '<script>alert("x")</script>\x1b[31m&\u202e'
WORDS = ["the", " the", "\n", "\t", HOSTILE, "é", " cat", "\\"]


class Words:
    """A user's own tokenizer: the least that is accepted."""

    def encode(self, text: str) -> list[int]:
        return [WORDS.index(text)]

    def decode(self, ids: list[int]) -> str:
        return "".join(WORDS[i] for i in ids)


def bitmask(allowed: np.ndarray) -> np.ndarray:
    padded = np.zeros(-(-allowed.size // 32) * 32, bool)
    padded[: allowed.size] = allowed
    return np.packbits(padded, bitorder="little").view(np.int32)


OPTIONS = {name: [*values[:1] * 2, *values[1:4]] for name, values in VALUES.items()} | {
    "logit_bias": [None, {3: 2.0, 4: -np.inf}],
    "temperature": [0.0, 0.3, 1.0, 1.7],
    "xtc_probability": [0.0, 0.5, 1.0],
}
ANYWHERE = {
    "allowed_token_ids": [None, range(0, V, 2)],
    "bad_words_token_ids": [(), [[5], [2, 6]]],
    "min_tokens": [0, 9],
    "stop_token_ids": [(), (7, 8)],
}


def fitting(preset: str, options: dict) -> tirage.SamplingParams:
    """SamplingParams of the options that the preset has a stage for."""
    semantics = PRESETS[preset]
    known = {k: v for k, v in options.items() if FIELDS[k].stage is None or FIELDS[k].stage in semantics.stages}
    if "scale" in semantics.stages and "temperature" in options:
        known["temperature"] = options["temperature"]
    if semantics.greedy == "refused" and known.get("temperature") == 0:
        known["temperature"] = 0.5
    if known.get("mirostat"):
        known.pop("adaptive_target", None)  # a row carries one state
    if known.get("temperature", 1.0) <= known.get("dynatemp_range", 0.0):
        known.pop("dynatemp_range", None)
    return tirage.SamplingParams(semantics=preset, xtc_threshold=0.05, **known)


@st.composite
def cases(draw: st.DrawFn) -> dict:
    preset = draw(st.sampled_from(sorted(PRESETS)))
    table = OPTIONS | ANYWHERE
    options = {name: draw(st.sampled_from(values)) for name, values in table.items()}
    rng = np.random.default_rng(draw(st.integers(0, 10_000)))
    logits = (rng.normal(0, 2, V).round(draw(st.sampled_from([0, 3])))).astype(np.float32)
    logits[rng.random(V) < 0.1] = -np.inf
    history = (rng.integers(0, V, 5).tolist(), rng.integers(0, V, 4).tolist())
    return {
        "logits": logits,
        "params": fitting(preset, options).replace(seed=draw(st.integers(-(2**63), 2**63 - 1))),
        "history": [history],
        "mask": draw(st.sampled_from([None, bitmask(rng.random(V) < 0.6)])),
        "step": draw(st.sampled_from([None, 20])),
        "state": draw(st.sampled_from([2.5, 60.0])),
    }


@pytest.mark.slow
@tries(150)
@given(cases(), st.integers(0, 3))
def test_explained_token_is_the_sampled_one_under_every_preset(case: dict, sample_index: int) -> None:
    explained = tirage.explain(**case, sample_index=sample_index)
    drawn = tirage.sample(**case, sample_index=sample_index)
    assert int(drawn.token_ids[0]) == explained.token_id
    assert int(drawn.status[0]) == explained.status
    assert int(drawn.support_sizes[0]) == explained.support_size
    assert np.array_equal(drawn.sampled_logprobs[0], np.float32(explained.logprob), equal_nan=True)


@pytest.mark.slow
@tries(80)
@given(cases())
def test_probabilities_after_the_last_stage_are_the_law(case: dict) -> None:
    explained = tirage.explain(**case, top=V)
    law = tirage.law(**case)[0]
    for trace in explained.tokens:
        assert np.array_equal(law[trace.token.token_id], trace.probability, equal_nan=True)
        if explained.token is not None and not explained.mixed:
            assert law[trace.token.token_id] == trace.steps[-1].probability_after


@pytest.mark.slow
@tries(80)
@given(cases())
def test_stage_effects_add_up(case: dict) -> None:
    explained = tirage.explain(**case, top=V)
    assert len(explained.tokens) == V
    stages = explained.all_stages
    assert stages[0].candidates_before == V
    for before, after in itertools.pairwise(stages):
        assert before.candidates_after == after.candidates_before
    for stage in stages:
        assert stage.candidates_before - stage.removed_count + stage.added_count == stage.candidates_after
        assert not (stage.off or not stage.reached) or stage.candidates_before == stage.candidates_after
    for i, stage in enumerate(explained.stages):
        assert stage.candidates_after == sum(trace.steps[i].kept for trace in explained.tokens)
        gone = [t.steps[i].probability_before for t in explained.tokens if t.removed_by == stage.label]
        assert pytest.approx(stage.removed_mass, abs=1e-12) == sum(gone)


@pytest.mark.slow
@tries(80)
@given(cases())
def test_throw_falls_into_the_interval_of_its_token(case: dict) -> None:
    explained = tirage.explain(**case)
    for throw in explained.throws:
        assert throw.uniform * throw.total >> 64 == throw.target
        assert throw.hit.start <= throw.target < throw.hit.end <= throw.total
        assert throw.hit in throw.neighbours
        ids = [interval.token.token_id for interval in throw.neighbours]
        assert sorted(ids) == ids
        ends = [interval.end for interval in throw.neighbours[:-1]]
        assert [interval.start for interval in throw.neighbours[1:]] == ends
    assert [throw.accepted for throw in explained.throws] in ([], [True], [False, True])


@pytest.mark.slow
@tries(30)
@given(cases())
def test_every_view_of_every_explanation_can_be_made(case: dict) -> None:
    explained = tirage.explain(**case)
    loaded = json.loads(json.dumps(explained.to_dict(), allow_nan=False))
    assert explained.token_id == loaded["token_id"]
    assert tirage.SamplingParams.from_dict(loaded["params"]) == explained.params
    assert_well_formed(explained.to_html())
    assert str(explained).count("\n") > len(explained.stages)


# --- what the stages say --------------------------------------------------------------------------------------------

HALVES = np.log(np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])).astype(np.float32)


def stage(explained: tirage.Explanation, label: str):
    return next(stage for stage in explained.all_stages if stage.label == label)


def trace(explained: tirage.Explanation, token_id: int):
    return next(trace for trace in explained.tokens if trace.token.token_id == token_id)


def test_top_p_shows_what_it_removed() -> None:
    explained = tirage.explain(HALVES, tirage.SamplingParams(top_p=0.7, seed=1))
    top_p = stage(explained, "top_p")
    assert (top_p.candidates_before, top_p.candidates_after, top_p.removed_count) == (5, 2, 3)
    assert pytest.approx(0.25) == top_p.removed_mass
    assert [removed.token.token_id for removed in top_p.examples] == [2, 3, 4]
    assert dict(top_p.params) == {"top_p": 0.7}
    assert dict(top_p.options) == {"top_p_rule": "lt", "top_p_scope": "sequential", "top_p_ties": "index"}
    assert trace(explained, 2).removed_by == "top_p"
    step = trace(explained, 1).steps[-1]
    assert pytest.approx((0.25, 1 / 3, 0.75)) == (step.probability_before, step.probability_after, step.cumulative)


def test_stages_that_ask_for_nothing_are_off_and_hidden() -> None:
    explained = tirage.explain(HALVES, tirage.SamplingParams(top_k=2, seed=1))
    assert [stage.label for stage in explained.stages] == ["input", "top_k"]
    assert stage(explained, "top_p").off
    assert "top_p" in explained.to_dict()["off"]
    assert "Off: " in explained.to_html()


def test_stages_follow_the_order_of_the_semantics() -> None:
    params = tirage.SamplingParams(temperature=0.5, top_k=3, top_p=0.9, seed=1)
    canonical = tirage.explain(HALVES, params)
    llamacpp = tirage.explain(HALVES, params.replace(semantics="llamacpp"))
    assert [stage.label for stage in canonical.stages] == ["input", "temperature", "top_k", "top_p"]
    assert [stage.label for stage in llamacpp.stages] == ["input", "top_k", "top_p", "temperature"]


def test_each_mask_owns_the_tokens_that_it_banned() -> None:
    params = tirage.SamplingParams(
        seed=1,
        allowed_token_ids=[0, 1, 2, 3, 4, 5, 6],
        logit_bias={1: -np.inf, 6: 1.0},
        bad_words_token_ids=[[2], [9, 3], [0, 5]],
        no_repeat_ngram_size=2,
        min_tokens=5,
        stop_token_ids=[4],
    )
    forbidden = bitmask(np.arange(10) != 0)
    explained = tirage.explain(np.zeros(10), params, history=[([6, 5], [9, 6])], mask=forbidden, top=10)
    banned = {stage.label: [r.token.token_id for r in stage.examples] for stage in explained.stages}
    assert banned["mask"] == [0]
    assert banned["allowed_token_ids"] == [7, 8, 9]
    assert banned["logit_bias -inf"] == [1]
    assert banned["bad_words"] == [2]
    assert banned["no_repeat_ngram"] == [5]
    assert banned["min_tokens"] == [4]
    assert {3, 6} == {t.token.token_id for t in explained.tokens if t.removed_by is None}
    assert stage(explained, "min_tokens").note == "step 2 < 5: the stop tokens have to wait"


def test_a_mask_without_work_says_so() -> None:
    params = tirage.SamplingParams(seed=1, bad_words_token_ids=[[3, 4]])
    explained = tirage.explain(HALVES, params, history=[([], [1])])
    bad_words = stage(explained, "bad_words")
    assert (bad_words.off, bad_words.reached, bad_words.removed_count) == (False, True, 0)
    assert bad_words.note == "nothing to do for this row at this step"


def test_edits_show_logits_before_and_after() -> None:
    params = tirage.SamplingParams(seed=1, presence_penalty=1.5, logit_bias={4: 2.0})
    explained = tirage.explain(HALVES, params, history=[([0], [1, 1])])
    bias, presence = trace(explained, 4).steps[1], trace(explained, 1).steps[2]
    assert float(HALVES[4] + np.float32(2)) == bias.logit_after
    assert (float(HALVES[1]), float(HALVES[1] - np.float32(1.5))) == (presence.logit_before, presence.logit_after)
    assert stage(explained, "presence").changed_count == 1
    assert stage(explained, "presence").note == "acts on the 1 distinct token of the output"


def test_greedy_names_the_largest_logit_and_ties() -> None:
    params = tirage.SamplingParams(temperature=0, top_p=0.5, seed=1)
    explained = tirage.explain(HALVES, params)
    assert explained.reason == "Token 0 has the largest logit, -0.693147; temperature=0 takes it without a draw."
    assert (stage(explained, "top_p").off, stage(explained, "top_p").reached) == (False, False)
    tied = tirage.explain(np.array([1.0, 3.0, 3.0]), params)
    assert tied.reason == "Token 1 is the lowest id of the 2 tokens with the largest logit, 3; temperature=0 takes it."


def test_the_reason_names_the_interval_that_was_hit() -> None:
    explained = tirage.explain(np.zeros(4), tirage.SamplingParams(seed=0))
    total, target = 4 << 40, 0x6627E8D5E169C58D * (4 << 40) >> 64
    assert (total, target) == (explained.throws[0].total, explained.throws[0].target)
    assert (
        "Token 1 owns [1,099,511,627,776, 2,199,023,255,552) of 4,398,046,511,104, 25.00% of the mass of 4 tokens, "
        f"and R = {target:,} fell there." == explained.reason
    )


def test_a_single_survivor_is_named_with_the_stage_that_left_it() -> None:
    explained = tirage.explain(HALVES, tirage.SamplingParams(top_k=1, seed=1))
    assert explained.reason == "Token 0 was the only token left after top_k."


@pytest.mark.parametrize(
    ("logits", "given", "expected"),
    [
        ([60, 0, 0], {}, "of the 3 tokens left after all stages; those of the others round to 0."),
        ([3.4e38, -3.4e38, -3.4e38], {}, "of the 3 tokens left after all stages; those of the others round to 0."),
        ([60, 0, 0], {"top_k": 2}, "of the 2 tokens left after top_k; that of the other rounds to 0."),
        ([60, 0, -np.inf], {}, "of the 2 tokens left after input; that of the other rounds to 0."),
    ],
)
def test_tokens_without_weight_are_left_all_the_same(logits: Any, given: Any, expected: str) -> None:
    explained = tirage.explain(np.array(logits, np.float32), tirage.SamplingParams(seed=7, **given))
    assert explained.reason == f"Token 0 was the only one with a weight {expected}"


@pytest.mark.parametrize(("probability", "note"), [(1.0, "said yes"), (1e-9, "said no")])
def test_xtc_shows_its_coin(probability: float, note: str) -> None:
    explained = tirage.explain(HALVES, tirage.SamplingParams(seed=1, xtc_probability=probability, xtc_threshold=0.2))
    assert explained.coin is not None
    assert (note == "said yes") == explained.coin.on
    assert explained.coin.on == (explained.coin.value < explained.coin.threshold)
    assert note in stage(explained, "xtc").note
    assert explained.mixed


def test_a_refused_token_is_shown_with_both_throws() -> None:
    logits, forbidden = np.array([9.0, 0.0, 0.0]), bitmask(np.array([False, True, True]))
    explained = tirage.explain(logits, tirage.SamplingParams(seed=1, semantics="llamacpp"), mask=forbidden)
    assert [(0, "draw", False), (explained.token_id, "resample", True)] == [
        (throw.hit.token.token_id, throw.domain, throw.accepted) for throw in explained.throws
    ]
    assert explained.reason.startswith("Token 0 came first, but the mask forbids it. With the mask applied, token ")
    assert stage(explained, "mask").removed_count == 1


def test_a_mask_that_only_checks_is_not_reached_when_the_token_passes() -> None:
    logits, forbidden = np.array([9.0, -9.0]), bitmask(np.array([True, False]))
    explained = tirage.explain(logits, tirage.SamplingParams(seed=1, semantics="llamacpp"), mask=forbidden)
    assert (explained.token_id, stage(explained, "mask").reached) == (0, False)
    assert len(explained.throws) == 1


def test_a_truncated_top_p_tells_of_the_cut_token() -> None:
    explained = tirage.explain(HALVES, tirage.SamplingParams(seed=1, top_p=0.6, semantics="fastdeploy"))
    assert stage(explained, "top_p").note.endswith("the last keeps only its share below 0.6")
    assert pytest.approx(1 / 6, abs=1e-6) == trace(explained, 1).probability


# --- rows without a token -------------------------------------------------------------------------------------------


def test_nan_is_explained_with_the_token_that_has_it() -> None:
    logits = np.array([1.0, np.nan, 0.0, np.inf])
    explained = tirage.explain(logits, tirage.SamplingParams(seed=1, top_k=2), tokenizer=Words())
    assert (-1, tirage.Status.non_finite_logits, ()) == (explained.token_id, explained.status, explained.throws)
    assert (
        explained.reason == 'The logit of token 1 "␣the" is NaN and no mask hides it (2 logits in all are not finite), '
        "so nothing can be drawn."
    )
    assert not stage(explained, "top_k").reached
    assert {"nan", "inf", 0.0, 1.0} == {token["logit"] for token in explained.to_dict()["tokens"]}


def test_a_masked_nan_is_harmless() -> None:
    explained = tirage.explain(np.array([1.0, np.nan]), tirage.SamplingParams(seed=1, logit_bias={1: -np.inf}))
    assert (0, tirage.Status.ok) == (explained.token_id, explained.status)


def test_nothing_allowed_is_explained_by_who_took_what() -> None:
    params = tirage.SamplingParams(seed=1, allowed_token_ids=[0, 1], logit_bias={1: -np.inf}, temperature=0.5)
    explained = tirage.explain(np.array([-np.inf, 1.0, 2.0]), params)
    assert tirage.Status.no_allowed_token == explained.status
    assert (
        explained.reason
        == "No token is allowed: the model (-inf) took 1, allowed_token_ids took 1, logit_bias -inf took 1."
    )
    assert np.isnan(explained.logprob)


# --- seeds, arguments, processors -----------------------------------------------------------------------------------


def test_an_unseeded_draw_can_be_repeated_from_its_report() -> None:
    params = tirage.SamplingParams(temperature=3.0)
    logits = np.linspace(0, 1, 500)
    first = tirage.explain(logits, params, step=4)
    again = tirage.explain(logits, params.replace(seed=first.seed), step=4)
    assert first.fresh_seed
    assert not again.fresh_seed
    assert first.throws == again.throws


@pytest.mark.parametrize(
    ("logits", "top", "message"),
    [
        (np.zeros((2, 3)), 10, "logits must be one row, [V] or [1, V], got [2, 3]; explain rows one by one"),
        (np.zeros(3), -1, "top must be an integer >= 0, got -1; 0 follows the drawn token alone"),
        (np.zeros(3), True, "top must be an integer >= 0, got True; 0 follows the drawn token alone"),
    ],
)
def test_wrong_arguments_are_refused(logits: np.ndarray, top: int, message: str) -> None:
    with pytest.raises(tirage.ParamsError) as caught:
        tirage.explain(logits, tirage.SamplingParams(), top=top)
    assert message == str(caught.value)


@pytest.mark.parametrize("follow", [3, None, np.array(1)], ids=repr)
def test_ids_to_follow_are_a_sequence(follow: Any) -> None:
    with pytest.raises(tirage.ParamsError, match=r"^follow must be a sequence of token ids"):
        tirage.explain(np.zeros(5), tirage.SamplingParams(), follow=follow)


def test_logits_are_left_alone() -> None:
    logits = np.arange(6, dtype=np.float32)
    logits.flags.writeable = False
    tirage.explain(logits, tirage.SamplingParams(seed=1, logit_bias={1: -np.inf, 2: 3.0}))
    assert logits.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_processor_runs_once_however_often_the_row_is_watched() -> None:
    calls = []

    def revive(logits: np.ndarray, args: list) -> np.ndarray:
        calls.append(args)
        logits[:, 1] = 8.0
        return logits

    register_processor("test-explain-revive", revive)
    try:
        params = tirage.SamplingParams(seed=1, logits_processors=(("test-explain-revive", {}),))
        explained = tirage.explain(np.array([0.0, -np.inf, -np.inf]), params)
    finally:
        unregister_processor("test-explain-revive")
    assert len(calls) == 1
    processors = stage(explained, "processors")
    assert (processors.candidates_before, processors.candidates_after, processors.added_count) == (1, 2, 1)
    assert processors.note == "ran test-explain-revive"
    assert trace(explained, 1).removed_by is None


def test_top_limits_the_followed_tokens_but_never_loses_the_drawn_one() -> None:
    logits = np.linspace(0, 1, 300)
    explained = tirage.explain(logits, tirage.SamplingParams(seed=5), top=3)
    followed = [trace.token.token_id for trace in explained.tokens]
    assert sorted({299, 298, 297, explained.token_id}, reverse=True) == followed
    alone = tirage.explain(logits, tirage.SamplingParams(seed=5), top=0)
    assert [explained.token_id] == [trace.token.token_id for trace in alone.tokens]


# --- how tokens are shown -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b" the", '"␣the"'),
        (b"\n\t", r'"\n\t"'),
        (b"\xe2\x80", r'"\xe2\x80"'),
        (b"a\\n", r'"a\\n"'),
        ("é한🙂".encode(), '"é한🙂"'),
        (b"\x1b[31m", r'"\x1b[31m"'),
        ("\u202eabc\u200b".encode(), r'"\u202eabc\u200b"'),
        (b"x" * 60, '"' + "x" * 48 + '…"'),
    ],
)
def test_shown_text_hides_nothing(raw: bytes, shown: str) -> None:
    assert shown == visible(raw)


def test_tokens_of_a_byte_level_tokenizer_are_shown_with_their_spaces() -> None:
    raw = Tokenizer(models.BPE(vocab={"Ġcat": 0, "Ã": 1, "dog": 2}, merges=[]))
    raw.decoder = decoders.ByteLevel()
    explained = tirage.explain(np.zeros(4), tirage.SamplingParams(seed=1), tokenizer=raw)
    assert [t.token.shown for t in explained.tokens] == ['"␣cat"', r'"\xc3"', '"dog"', "#3"]
    assert [t.token.text for t in explained.tokens] == [" cat", "\ufffd", "dog", None]


def test_ids_beyond_the_tokenizer_keep_their_number() -> None:
    explained = tirage.explain(np.arange(12.0), tirage.SamplingParams(seed=1, top_k=1), tokenizer=Words())
    assert explained.token is not None
    assert (explained.token.token_id, explained.token.text, explained.token.shown) == (11, None, "#11")


# --- the views ------------------------------------------------------------------------------------------------------

VOID = {"meta", "br"}


class Checker(HTMLParser):
    """Collects what a page holds and fails on tags that do not match."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.cells: list[str] = []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.cells.append(data)


def assert_well_formed(page: str) -> Checker:
    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert checker.tags.isdisjoint({"script", "link", "img", "iframe", "object", "base", "form"})
    assert checker.attributes <= {"class", "style", "title", "lang", "charset", "name", "content", "scope"}
    return checker


def hostile() -> tirage.Explanation:
    logits = np.array([0.0, 1.0, 0.5, 0.2, 9.0, 0.1, 0.3, 0.4])
    params = tirage.SamplingParams(seed=1, top_k=3, xtc_probability=1e-9, min_p=0.1)
    return tirage.explain(logits, params, tokenizer=Words())


def test_html_escapes_hostile_token_text() -> None:
    page = hostile().to_html()
    checker = assert_well_formed(page)
    assert "<script" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert any('<script>alert("x")</script>' in cell for cell in checker.cells)


def test_html_loads_nothing_from_outside() -> None:
    page = hostile().to_html()
    assert [word for word in ("http", "url(", "@import", "src=", "href=") if word in page] == []


def test_notebooks_get_the_page_in_a_sandbox() -> None:
    framed = hostile()._repr_html_()
    parser = HTMLParser()
    found: dict = {}
    parser.handle_starttag = lambda tag, attrs: found.setdefault(tag, dict(attrs))  # type: ignore[method-assign]
    parser.feed(framed)
    assert list(found) == ["iframe"]
    assert hostile().to_html() == found["iframe"]["srcdoc"]
    assert found["iframe"]["sandbox"] == ""


def test_plain_text_has_no_control_characters_and_shows_the_draw() -> None:
    text = str(hostile())
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []
    for piece in ("top_k", "min_p", "S-O1", "law", "W = ", "R = floor", "seed 1 (given)", "▲ R"):
        assert piece in text


def test_names_that_came_with_the_request_cannot_steer_the_terminal() -> None:
    semantics = tirage.Semantics(name="mine\x1b[2J")
    text = str(tirage.explain(HALVES, tirage.SamplingParams(seed=1, semantics=semantics)))
    assert "\x1b" not in text
    assert r"mine\x1b[2J@1" in text


def test_square_brackets_in_tokens_are_not_markup() -> None:
    class Brackets(Words):
        def decode(self, ids: list[int]) -> str:
            return "[red]x[/red]"

    explained = tirage.explain(np.zeros(2), tirage.SamplingParams(seed=1), tokenizer=Brackets())
    assert '"[red]x[/red]"' in str(explained)


@pytest.mark.parametrize("width", [40, 80, 99, 100, 160])
def test_rich_output_fits_its_console(width: int) -> None:
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(hostile())
    assert max(map(len, captured.get().splitlines())) <= width


def test_json_keys_are_stable() -> None:
    plain = hostile().to_dict()
    assert list(plain) == [
        "schema",
        "token",
        "token_id",
        "status",
        "reason",
        "probability",
        "logprob",
        "support_size",
        "mixed",
        "params",
        "semantics",
        "vocab_size",
        "seed",
        "fresh_seed",
        "step",
        "sample_index",
        "stages",
        "off",
        "tokens",
        "coin",
        "throws",
    ]
    assert plain["token"]["text"] == HOSTILE
    banned = tirage.explain(np.zeros(2), tirage.SamplingParams(seed=1, logit_bias={1: -np.inf})).to_dict()
    assert banned["stages"][1]["params"]["logit_bias"] == {"1": "-inf"}
    assert banned["tokens"][1]["steps"][1]["logit_after"] == "-inf"


def test_the_page_of_the_documentation_runs() -> None:
    page = Path(__file__).parent.parent / "docs" / "explain.md"
    failed, tried = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert (failed, tried > 5) == (0, True)
