"""Text of GGUF models: that of the folder of the same model, alone and in company, and whatever was asked before."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from gguf_models import STARTS, STORIES, greedy, ids_of, random_folder, stories

from tirage import LLM, BeamSearchParams, GuidedDecodingParams, Prompt, SamplingParams
from tirage.models import Inputs
from tirage.models.gguf import GGUFModel

pytestmark = pytest.mark.skipif(not STORIES.exists(), reason="needs shared/models/stories260K and its GGUF file")
LONG = 100
DRAWN = [SamplingParams(seed=seed, temperature=0.9, top_p=0.95, max_tokens=60) for seed in range(8)]


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    with LLM(stories()) as opened:
        yield opened


@pytest.fixture(scope="module")
def folder() -> Iterator[LLM]:
    with LLM(STORIES, backend="numpy") as opened:
        yield opened


def test_greedy_text_is_that_of_the_folder(llm: LLM, folder: LLM) -> None:
    for start in STARTS:
        ours, theirs = llm.generate(start, greedy(LONG))[0], folder.generate(start, greedy(LONG))[0]
        assert ours.prompt_token_ids == theirs.prompt_token_ids
        assert ours.token_ids == theirs.token_ids
        assert ours.text == theirs.text


def test_drawn_text_is_that_of_the_folder(llm: LLM, folder: LLM) -> None:
    assert ids_of(llm, STARTS, DRAWN) == ids_of(folder, STARTS, DRAWN)


def test_a_random_llama_says_what_its_folder_says() -> None:
    with LLM(random_folder().with_name("random.gguf")) as ours, LLM(random_folder(), backend="numpy") as theirs:
        for prompt in ("Once upon a time", "1, 2, 3", "na\u00efve \u2603 snow"):
            first, second = ours.generate(prompt, greedy(60))[0], theirs.generate(prompt, greedy(60))[0]
            assert first.prompt_token_ids == second.prompt_token_ids
            assert (first.token_ids, first.text) == (second.token_ids, second.text)


def test_eight_requests_together_say_what_each_says_alone(llm: LLM) -> None:
    for params in (greedy(LONG), *DRAWN[:2]):
        together = ids_of(llm, STARTS, params)
        assert together == [ids_of(llm, [start], params)[0] for start in STARTS]


def test_a_text_goes_on_unchanged_whatever_else_the_model_is_asked(llm: LLM) -> None:
    for params in (greedy(LONG), SamplingParams(seed=7, temperature=0.9, top_p=0.95, max_tokens=LONG)):
        wanted = llm.generate(STARTS[0], params)[0].token_ids
        found: list[int] = []
        for at, delta in enumerate(llm.stream(STARTS[0], params)):
            found += delta.token_ids
            if at % 10 == 1:
                ids = llm.tokenizer.encode(STARTS[4])
                assert len(list(llm.engine.logits_along(ids[:1], ids[1:]))) == len(ids) > 1
            if at % 10 == 3:
                llm.engine.next_logits(llm.tokenizer.encode(STARTS[1]))
            if at % 10 == 5:
                llm.generate(STARTS[2], greedy(2))
            if at % 10 == 7:
                llm.engine.call(llm.engine.model.forget)
            if at % 10 == 9:
                next(iter(llm.stream(STARTS[3], params)))
        assert tuple(found) == wanted


def test_samples_share_their_prompt_and_differ(llm: LLM) -> None:
    done = llm.generate(STARTS[0], SamplingParams(n=6, seed=5, max_tokens=40))[0]
    again = llm.generate(STARTS[0], SamplingParams(n=6, seed=5, max_tokens=40))[0]
    assert [sample.token_ids for sample in done.samples] == [sample.token_ids for sample in again.samples]
    assert len({sample.token_ids for sample in done.samples}) == 6


def test_a_common_beginning_is_computed_once_and_changes_nothing(llm: LLM) -> None:
    model = llm.engine.model
    whole = llm.generate(STARTS[1], greedy(60))[0]
    prompt = [*whole.prompt_token_ids, *whole.token_ids[:50]]
    llm.engine.call(model.forget)
    fresh = llm.generate(prompt, greedy(30))[0]
    assert fresh.usage.cached_tokens == 0
    reused = llm.generate(prompt, greedy(30))[0]
    assert reused.usage.cached_tokens == len(prompt) - 1
    assert reused.token_ids == fresh.token_ids
    other = llm.generate(Prompt(token_ids=prompt, salt="another"), greedy(30))[0]
    assert other.usage.cached_tokens == 0
    assert other.token_ids == fresh.token_ids


def test_a_cache_that_grows_changes_nothing() -> None:
    with LLM(GGUFModel(stories(), first_cells=256), tokenizer=LLM(stories()).tokenizer) as small, LLM(stories()) as llm:
        params = greedy(LONG, n=3, temperature=0.8, seed=4)
        assert ids_of(small, STARTS, params) == ids_of(llm, STARTS, params)
        assert small.model._context.cells > 256


def test_there_are_more_sequences_where_more_are_needed(llm: LLM) -> None:
    params = SamplingParams(n=80, seed=3, max_tokens=12)
    with LLM(stories(), max_running=100) as wide:
        many = wide.generate(STARTS[0], params)[0].samples
        assert wide.model._context.sequences == 128
    few = llm.generate(STARTS[0], params)[0].samples
    assert [sample.token_ids for sample in many] == [sample.token_ids for sample in few]


def test_short_prompts_are_prefilled_in_one_batch(llm: LLM) -> None:
    model = llm.engine.model
    prompts = [llm.tokenizer.encode(start) for start in STARTS]

    def prefilled() -> None:
        llm.engine.call(model.forget)
        rows = [model.open(Inputs(token_ids=tuple(prompt))) for prompt in prompts]
        assert model.choose_prefill(rows) == list(range(8))
        logits = model.prefill_batch(rows)
        for prompt, row, each in zip(prompts, rows, logits, strict=True):
            assert (row.left, row.length) == (0, len(prompt))
            alone, other = model.prefill(prompt)
            np.testing.assert_allclose(each, alone, atol=1e-4)
            both = model.decode([5, 5], [row, other])
            np.testing.assert_allclose(both[0], both[1], atol=1e-4)
            model.close(row)
            model.close(other)

    llm.engine.call(prefilled)


def test_long_and_scored_prompts_are_prefilled_alone(llm: LLM) -> None:
    quantised = random_folder().with_name("q8.gguf")
    long, default = GGUFModel(quantised, prefill_batch_tokens=256), GGUFModel(quantised)
    given = [Inputs(token_ids=(5,) * 100), Inputs(token_ids=(5,) * 300), Inputs(token_ids=(5,), score=True),
             Inputs(token_ids=(5,) * 150), Inputs(token_ids=(5,) * 20)]  # fmt: skip
    rows = [long.open(inputs) for inputs in given]
    # With cells of their own, only prompts of one length are computed together.
    assert long.choose_prefill(rows) == [0]
    assert long.choose_prefill([rows[0], long.open(given[3]), long.open(given[0])]) == [0, 2]
    long.fork(rows[-1])
    assert long.choose_prefill(rows) == [0, 3]
    assert long.choose_prefill(rows[1:]) == [0]
    assert long.choose_prefill(rows[2:]) == [0]
    # From 64 tokens on, libllama computes attention in tiles, whose last bits are others.
    assert default.choose_prefill([default.open(inputs) for inputs in given]) == [0]


@pytest.mark.parametrize("shared", [False, True])
def test_short_prompts_of_a_quantised_model_share_a_batch_and_keep_every_bit(shared: bool) -> None:
    model, alone = (GGUFModel(random_folder().with_name("q8.gguf"), prefill_batch_tokens=most) for most in (None, 0))
    if shared:
        model.fork(model.prefill([3])[1])
    random = np.random.default_rng(5)
    for lengths in (
        [16, 16, 16, 16],
        [1, 30, 32, 2],
        [63, 1],
        [5, 1, 1, 50, 6, 7],
        [40, 23, 63],
        [64, 3],
        [21, 21, 21],
    ):
        rows = [model.open(Inputs(token_ids=tuple(random.integers(3, 300, n).tolist()))) for n in lengths]
        while rows:
            chosen = [rows[at] for at in model.choose_prefill(rows)]
            if shared:
                assert sum(row.left for row in chosen) <= 63 or len(chosen) == 1
            else:
                assert len({row.left for row in chosen}) == 1
            for row, logits in zip(chosen, model.prefill_batch(chosen), strict=True):
                expected, other = alone.prefill(row.token_ids)
                np.testing.assert_array_equal(logits, expected)
                np.testing.assert_array_equal(model.decode([5], [row]), alone.decode([5], [other]))
                rows.remove(row)


def test_beams_are_those_of_the_folder(llm: LLM, folder: LLM) -> None:
    params = BeamSearchParams(beam_width=4, max_tokens=30)
    for start in STARTS[:3]:
        ours, theirs = llm.beam_search(start, params)[0], folder.beam_search(start, params)[0]
        assert [each.text for each in ours.samples] == [each.text for each in theirs.samples]
        scores = [[each.score for each in done.samples] for done in (ours, theirs)]
        np.testing.assert_allclose(*scores, atol=1e-3)


def test_constraints_hold(llm: LLM) -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 8}}, "required": ["name"]}
    guided = GuidedDecodingParams(json=schema)
    done = llm.generate(STARTS[0], SamplingParams(max_tokens=80, seed=1, guided_decoding=guided, close_grammar=True))[0]
    assert set(json.loads(done.text)) >= {"name"}
    pattern = r"[a-z]{3}-\d{4}"
    guided = GuidedDecodingParams(regex=pattern)
    done = llm.generate(STARTS[0], SamplingParams(max_tokens=40, seed=2, guided_decoding=guided))[0]
    assert re.fullmatch(pattern, done.text)


def test_log_probabilities_are_those_of_the_folder(llm: LLM, folder: LLM) -> None:
    params = greedy(40, logprobs=3, prompt_logprobs=2)
    ours, theirs = llm.generate(STARTS[2], params)[0], folder.generate(STARTS[2], params)[0]
    assert [each.token_id for each in ours.logprobs] == [each.token_id for each in theirs.logprobs]
    for name in ("logprobs", "prompt_logprobs"):
        both = [[each.logprob for each in getattr(done, name) if each is not None] for done in (ours, theirs)]
        np.testing.assert_allclose(*both, atol=1e-4)


def test_a_stream_is_the_whole_text(llm: LLM) -> None:
    whole = llm.generate(STARTS[3], DRAWN[3])[0]
    deltas = list(llm.stream(STARTS[3], DRAWN[3]))
    assert "".join(delta.text for delta in deltas) == whole.text
    assert len(deltas) > 10


def test_a_stop_ends_the_text(llm: LLM) -> None:
    done = llm.generate(STARTS[0], greedy(60, stop=["Lily"]))[0]
    assert done.finish_reason == "stop"
    assert "Lily" not in done.text
    assert llm.generation_config["eos_token_id"] == [2]


def test_a_chat_uses_the_template_of_the_file(tmp_path: Path) -> None:
    with LLM(random_folder().with_name("q8.gguf")) as llm:
        request = llm.chat_request([{"role": "user", "content": "hi <|end|> there"}])
        text = llm.tokenizer.decode(request.prompt_ids, skip_special_tokens=False)
        assert text == "<user> hi <|end|> there\n<assistant>"
        assert 511 not in request.prompt_ids
        assert llm.chat([{"role": "user", "content": "hi"}], SamplingParams(max_tokens=5, seed=1)).token_ids


def test_an_explanation_ends_at_the_drawn_token(llm: LLM) -> None:
    params = SamplingParams(seed=9, top_p=0.9)
    explanation = llm.explain(STARTS[0], params)
    drawn = llm.generate(STARTS[0], params.replace(max_tokens=1))[0].token_ids[0]
    assert explanation.token_id == drawn


def test_numerics_name_the_library(llm: LLM) -> None:
    found = llm.model.numerics()
    assert found["llama-cpp-python"].startswith("0.")
    assert found["dtype"] == "float32"
