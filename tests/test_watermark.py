"""Watermarks: laws over keys, every backend, what is refused, and that keys stay secret."""

from __future__ import annotations

import json
import logging
import threading
from decimal import Decimal, getcontext
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy import stats

import tirage
from tirage import LLM, BeamSearchParams, ParamsError, SamplingParams, Watermark
from tirage.backends import sharded
from tirage.compiled_params import compiled
from tirage.exact.philox import philox4x32
from tirage.watermarks import green_list, gumbel, synthid

V = 48
SECRET = 8_123_456_789_012_345_677
MARKS = {
    "gumbel": Watermark(scheme="gumbel", key=SECRET),
    "lefthash": Watermark(scheme="kgw", key=SECRET, bias=3.0),
    "selfhash": Watermark(scheme="kgw", key=15485863, seeding_scheme="selfhash", context_width=2),
    "synthid": Watermark(scheme="synthid", key=[SECRET, 5, 2**40 + 1, 77]),
}
HISTORY = ((3, 9, 4), (7, 1, 40))


def logits(rows: int, seed: int = 0) -> np.ndarray:
    return (np.random.default_rng(seed).standard_normal((rows, V)) * 2).astype(np.float32)


def params(name: str, **options: Any) -> SamplingParams:
    return SamplingParams(**{"seed": 5, "watermark": MARKS[name], "top_p": 0.97, **options})


def mixed() -> list[SamplingParams]:
    """Every scheme, with and without other parameters, beside rows without a watermark."""
    rows = [params(name, temperature=t, logprobs=2, logprobs_mode="sampled") for name in MARKS for t in (0.6, 1.5)]
    plain = [SamplingParams(seed=8, top_k=7), SamplingParams(seed=8, logit_bias={3: 2.0, 5: -1.0})]
    edited = [
        params("lefthash", temperature=0, logit_bias={3: 2.0}),
        params("selfhash", temperature=0),
        params("synthid", frequency_penalty=0.5, xtc_probability=0.5, logit_bias={1: 0.5}),
        params("gumbel", min_p=0.05, bad_words_token_ids=[3, [40, 6]]),
    ]
    return [*rows, *plain, *edited]


# --- the rules, again -----------------------------------------------------------------------------------------------


def reference_u(key: int, context: tuple[int, ...], token: int) -> int:
    """U of a token by single Philox blocks."""
    words, state = (key & 0xFFFFFFFF, key >> 32), 0
    for each in context:
        block = philox4x32((each & 0xFFFFFFFF, state & 0xFFFFFFFF, state >> 32, 7), words)
        state = block[0] << 32 | block[1]
    block = philox4x32((token, state & 0xFFFFFFFF, state >> 32, 6), words)
    return block[0] << 32 | block[1]


def test_the_race_is_won_by_the_smallest_arrival() -> None:
    getcontext().prec = 50
    for seed in range(20):
        x = logits(1, seed)[0]
        asked = params("gumbel", top_p=0.9)
        law = tirage.law(x, asked, history=[HISTORY])[0]
        arrivals = {}
        for t in np.flatnonzero(law):
            u = Decimal(2 * reference_u(SECRET, (4, 7, 1, 40), int(t)) + 1) / Decimal(1 << 65)
            arrivals[int(t)] = -u.ln() / Decimal(float(law[t]))
        assert tirage.sample(x, asked, history=[HISTORY]).token_ids[0] == min(arrivals, key=arrivals.__getitem__)


def test_arrivals_that_float64_cannot_tell_apart_are_ordered_exactly() -> None:
    top = (1 << 64) - 1
    assert gumbel.first(np.array([top - 1, top], np.uint64), np.array([1 << 40, 1 << 40], np.uint64)) == 1
    assert gumbel.first(np.array([5, 5, 5], np.uint64), np.array([8, 8, 8], np.uint64)) == 0
    one_more = np.array([1 << 63, (1 << 63) + 1], np.uint64)
    assert gumbel.first(one_more, np.array([1 << 59, 1 << 59], np.uint64)) == 1
    assert gumbel.first(one_more[::-1].copy(), np.array([1 << 59, 1 << 59], np.uint64)) == 0
    assert gumbel.first(np.array([top, 7], np.uint64), np.array([0, 1], np.uint64)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["gumbel", "synthid"])
def test_over_keys_the_law_is_the_one_without_a_watermark(scheme: str) -> None:
    x, rng, count = logits(1)[0, :12], np.random.default_rng(4), 3000
    options = {"temperature": 0.9, "top_k": 8}
    plain = tirage.law(x, SamplingParams(**options))[0]
    keys = rng.integers(1, 2**62, (count, 3)).tolist()
    marks = [Watermark(scheme=scheme, key=key if scheme == "synthid" else key[0]) for key in keys]
    asked = [SamplingParams(watermark=mark, seed=i, **options) for i, mark in enumerate(marks)]
    rows = np.repeat(x[None], count, 0)
    drawn = tirage.sample(rows, asked, history=[((1, 2), (5, 6, 7, 8))] * count).token_ids
    seen = np.bincount(drawn, minlength=12)
    held = plain > 0
    assert not seen[~held].any()
    assert stats.chisquare(seen[held], plain[held] * count).pvalue > 1e-4
    if scheme == "synthid":
        laws = tirage.law(rows, asked, history=[((1, 2), (5, 6, 7, 8))] * count)
        assert np.abs(laws.mean(0) - plain).max() < 4 * laws.std(0).max() / np.sqrt(count)


@pytest.mark.parametrize("size", [1 << 16, 1 << 18, 1000, 2])
def test_matches_are_won_alike_however_many_tokens_there_are(size: int) -> None:
    """Tables of many tokens are looked up once for all layers."""
    keys, context = [5, 2**61 + 3, 77], 2**63 + 12345
    many = synthid.g_values(context, np.arange(5000), keys, seed=9, size=size)
    few = [synthid.g_values(context, part, keys, seed=9, size=size) for part in np.array_split(np.arange(5000), 5)]
    assert np.array_equal(many, np.concatenate(few))
    ngrams = synthid.hashed(np.array([context], np.uint64), np.arange(5000, dtype=np.uint64))
    table = synthid.g_table(9, size)
    for layer, key in enumerate(keys):
        assert np.array_equal(many >> np.uint64(layer) & np.uint64(1), synthid.g_layer(ngrams, key, table))


@pytest.mark.slow
def test_kgw_draws_from_its_own_law() -> None:
    x, count = logits(1)[0, :10], 3000
    asked = [SamplingParams(watermark=MARKS["lefthash"], seed=i) for i in range(count)]
    law = tirage.law(x, asked[0], history=[(HISTORY[0], (7, 1))])[0]
    drawn = tirage.sample(np.repeat(x[None], count, 0), asked, history=[(HISTORY[0], (7, 1))] * count).token_ids
    assert stats.chisquare(np.bincount(drawn, minlength=10), law * count).pvalue > 1e-4


def test_a_context_that_stood_before_marks_nothing_again() -> None:
    """The seed draws, and the law is the plain one."""
    x = logits(1)[0]
    for name in ("gumbel", "synthid"):
        again = ((), (1, 2, 3, 4, 5, 1, 2, 3, 4))
        plain = SamplingParams(seed=5, top_p=0.97)
        assert np.array_equal(tirage.law(x, params(name), history=[again]), tirage.law(x, plain, history=[again]))
        tokens = [tirage.sample(x, p, history=[again], step=3).token_ids[0] for p in (params(name), plain)]
        assert tokens[0] == tokens[1]


# --- every path -----------------------------------------------------------------------------------------------------


def rows_and_draws() -> tuple[np.ndarray, list[SamplingParams], list[Any], list[int]]:
    asked = mixed()
    x, history = logits(len(asked), 2), [HISTORY] * len(asked)
    alone = [int(tirage.sample(x[r], p, history=[HISTORY]).token_ids[0]) for r, p in enumerate(asked)]
    return x, asked, history, alone


def test_a_row_alone_is_the_row_in_a_batch_on_arrays_and_tensors() -> None:
    x, asked, history, alone = rows_and_draws()
    whole = tirage.sample(x, asked, history=history)
    assert whole.token_ids.tolist() == alone
    tensors = tirage.sample(torch.from_numpy(x), asked, history=history)
    assert tensors.token_ids.tolist() == alone
    assert np.array_equal(np.asarray(tensors.logprobs), whole.logprobs, equal_nan=True)
    parts = [torch.from_numpy(x[:, :20].copy()), torch.from_numpy(x[:, 20:].copy())]
    assert tirage.sample(sharded.Shards(parts), asked, history=history).token_ids.tolist() == alone


def test_jax_draws_the_same_eagerly_and_inside_jit() -> None:
    x, asked, history, alone = rows_and_draws()
    assert tirage.sample(jnp.asarray(x), asked, history=history).token_ids.tolist() == alone
    inside = jax.jit(lambda x: tirage.sample(x, asked, history=history).token_ids)
    assert inside(jnp.asarray(x)).tolist() == alone


def test_logprobs_are_those_of_the_marked_law() -> None:
    for name in MARKS:
        x = logits(1, 3)[0]
        asked = params(name, logprobs=V, logprobs_mode="sampled", logprob_token_ids=list(range(V)))
        draw, law = tirage.sample(x, asked, history=[HISTORY]), tirage.law(x, asked, history=[HISTORY])[0]
        assert draw.logprobs[0] == pytest.approx(np.log(law[draw.token_ids[0]]), abs=2e-6)
        explained = tirage.explain(x, asked, history=[HISTORY])
        assert explained.token_id == draw.token_ids[0]
        assert explained.probability == pytest.approx(law[draw.token_ids[0]])
        assert [stage.name for stage in explained.stages][-1] == "watermark"


@pytest.mark.slow
def test_other_values_of_every_option_draw_from_another_law() -> None:
    x, output = logits(1, 3)[0], (7, 1, 40, 2, 8)

    def law(**options: Any) -> np.ndarray:
        return tirage.law(x, SamplingParams(watermark=options), history=[((1,), output)])[0]

    kgw, synthid = {"scheme": "kgw", "key": 5}, {"scheme": "synthid", "key": [5, 6]}
    changed = [
        (kgw, {"key": 6}),
        (kgw, {"bias": 1.0}),
        (kgw, {"greenlist_ratio": 0.6}),
        (kgw, {"seeding_scheme": "selfhash"}),
        ({**kgw, "seeding_scheme": "selfhash"}, {"context_width": 3}),
        (synthid, {"key": [5, 7]}),
        (synthid, {"ngram_len": 3}),
        (synthid, {"sampling_table_seed": 4}),
        (synthid, {"sampling_table_size": 500}),
        ({**synthid, "ngram_len": 8}, {"skip_first_ngram_calls": True}),
    ]
    for options, change in changed:
        assert not np.array_equal(law(**options), law(**{**options, **change})), change
    drawn = {
        tuple(
            int(tirage.sample(x, SamplingParams(watermark=Watermark(scheme="gumbel", key=k, context_width=w)),
                              history=[((1, i), output)]).token_ids[0])
            for i in range(4)
        )
        for k, w in ((1, 4), (2, 4), (1, 6))
    }  # fmt: skip
    assert len(drawn) > 1


# --- refusals -------------------------------------------------------------------------------------------------------


def test_greedy_decoding_takes_green_lists_alone() -> None:
    for name in ("gumbel", "synthid"):
        with pytest.raises(ParamsError, match=f"watermark of scheme '{name}' must come with a temperature above 0"):
            params(name, temperature=0)
    assert params("lefthash", temperature=0).temperature == 0


def test_a_watermark_needs_the_tokens_so_far() -> None:
    with pytest.raises(ParamsError, match="watermark must come with the tokens so far"):
        tirage.sample(logits(1), params("gumbel"))


def test_beams_are_refused_by_name() -> None:
    llm = LLM("tiny")
    for name in MARKS:
        with pytest.raises(ParamsError, match="watermark must keep its default None in a beam search") as caught:
            llm.beam_search(
                "a", BeamSearchParams(beam_width=2, max_tokens=3), sampling=params(name, top_p=1.0, seed=None)
            )
        assert str(SECRET) not in str(caught.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"scheme": "gumbel", "key": 2**64}, "key must be an integer in .0, 2.64. .*, got an integer of 65 bits"),
        ({"scheme": "kgw", "key": 0}, "key must be an integer in .1, 2.63."),
        ({"scheme": "kgw", "key": [1, 2]}, "key must be an integer .*, got a list of 2"),
        ({"scheme": "synthid", "key": 5}, "key must be a list of 1 to 64 integers"),
        ({"scheme": "synthid", "key": [1, -2]}, "got a negative integer as item 1 of a list"),
        ({"scheme": "gumbel", "key": 1, "bias": 3.0}, "bias must be left out with scheme 'gumbel'"),
        ({"scheme": "kgw", "key": 1, "ngram_len": 3}, "ngram_len must be left out with scheme 'kgw'"),
        ({"scheme": "red", "key": 1}, "scheme must be one of 'gumbel', 'kgw', 'synthid', got 'red'"),
        ({"scheme": "kgw", "key": 1, "greenlist_ratio": 1.0}, "greenlist_ratio must be in"),
        ({"scheme": "kgw"}, "must be given"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ParamsError, match=text):
        Watermark(**options)
    with pytest.raises(ParamsError, match="watermark.*" + text):
        SamplingParams(watermark=options)


# --- keys stay secret -----------------------------------------------------------------------------------------------


def test_no_text_about_parameters_holds_a_key(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("gumbel", "lefthash", "synthid"):
        asked = params(name)
        explained = tirage.explain(logits(1)[0], asked, history=[HISTORY])
        shown = [repr(asked), str(asked.watermark), json.dumps(explained.to_dict()), str(explained), repr(explained)]
        shown.append(explained.to_html() if hasattr(explained, "to_html") else "")
        assert not any(str(SECRET) in text for text in shown), name
        # What a text was drawn with is enough to draw it again, but for the key.
        assert SamplingParams.from_json(asked.to_json()) == asked
    for wrong in ({"scheme": "gumbel", "key": str(SECRET)}, {"scheme": "kgw", "key": -SECRET}, SECRET, str(SECRET)):
        with pytest.raises(ParamsError) as caught:
            SamplingParams(watermark=wrong)
        assert str(SECRET) not in str(caught.value)
    assert str(SECRET) not in caplog.text


@pytest.mark.slow
def test_speculation_changes_no_marked_token() -> None:
    plain = LLM("tiny")
    drafted = LLM("tiny", speculative_config={"method": "ngram", "num_speculative_tokens": 4})
    for name in MARKS:
        asked = params(name, max_tokens=40, ignore_eos=True, temperature=0.7)
        texts = [llm.generate("the fox and the fox and the", asked)[0].token_ids for llm in (plain, drafted)]
        assert texts[0] == texts[1]


def test_samples_of_one_prompt_are_copies_under_races_and_differ_under_green_lists() -> None:
    llm = LLM("tiny")
    for name, different in (("gumbel", 1), ("lefthash", 3), ("synthid", 3)):
        done = llm.generate("Once", params(name, n=3, max_tokens=12, temperature=1.5))[0]
        assert len({sample.token_ids for sample in done.samples}) == different


@pytest.mark.parametrize("key", [0, 7, (1 << 63) + 5, (1 << 64) - 1])
def test_one_context_has_the_hash_that_it_has_among_others(key: int) -> None:
    windows = np.random.default_rng(0).integers(-1, 1 << 20, (20, 5))
    hashes = [gumbel.context_hash(key, window.tolist()) for window in windows]
    assert hashes == gumbel.context_hashes(key, windows).tolist()
    assert len({*hashes, gumbel.context_hash(key ^ 1, windows[0].tolist())}) == 21


@pytest.mark.parametrize("last", [green_list.USUAL_SIZE - 1, green_list.USUAL_SIZE, green_list.TABLE_SIZE + 3])
def test_a_part_of_the_table_hashes_as_the_whole_does(last: int) -> None:
    ngram = np.array([3, 70_000, last])
    whole = green_list.permutation(99, green_list.TABLE_SIZE, green_list.TABLE_SIZE)
    used = [whole[:size] for size in (green_list.USUAL_SIZE, green_list.TABLE_SIZE)]
    assert all((green_list.hash_table(99, each.size) == each).all() for each in used)
    a = (whole[ngram % green_list.TABLE_SIZE] + 1).tolist()
    signed = [int(np.array(99 * each * a[-1] % (1 << 64), np.uint64).astype(np.int64)) for each in a]
    assert green_list.self_seed(99, ngram) == min(signed) % ((1 << 64) - 1)


def test_the_table_of_selfhash_is_made_with_the_parameters_once_for_all_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[int] = []

    def permutation(seed: int, n: int, count: int) -> NDArray[np.int64]:
        made.append(seed)
        return np.arange(count)

    monkeypatch.setattr(green_list, "permutation", permutation)
    mark = Watermark(scheme="kgw", key=987_654_321, seeding_scheme="selfhash")
    threads = [
        threading.Thread(target=compiled, args=(SamplingParams(watermark=mark, seed=seed),)) for seed in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert made == [mark.keys[0]]
        # What draws finds it.
        assert green_list.hash_table(mark.keys[0])[5] == 5
        assert made == [mark.keys[0]]
    finally:
        green_list.hash_table.cache_clear()
