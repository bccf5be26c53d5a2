"""LLM: what a request gives depends on the request alone, and every way to end a text is told apart."""

from __future__ import annotations

import asyncio
import json
import math
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_llama import CONFIG, random_tensors, write_folder
from small_models import Script
from small_tokenizers import Letters, byte_level_tokenizer

import tirage
from tirage import LLM, Completion, ModelError, ParamsError, Prompt, RequestOutputKind, SamplingParams
from tirage.sampling_batch import SamplingRow
from tirage.text import Stop

STORIES = Path(
    os.environ.get("TIRAGE_TEST_MODELS", Path(__file__).resolve().parents[2] / "shared" / "models"), "stories260K"
)
GREEDY = SamplingParams(temperature=0, max_tokens=None)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama over bytes, with a tokenizer, EOS 3 and sampling defaults."""
    config = {**CONFIG, "vocab_size": 264, "max_position_embeddings": 64}
    path = write_folder(tmp_path_factory.mktemp("llama"), random_tensors(config), **config)
    byte_level_tokenizer().raw.save(str(path / "tokenizer.json"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3], "top_k": 1}))
    return path


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, backend="numpy")


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


def says(text: str, params: SamplingParams, *, eos: int | None = None, **options: Any) -> Completion:
    """The completion of a model that says that text."""
    config = {"eos_token_id": eos}
    llm = LLM(Script(text, **options), tokenizer=Letters(), generation_config=config)
    completion = llm.generate("p", params)[0]
    parts = list(llm.stream("p", params.replace(seed=completion.seed)))
    assert "".join(part.text for part in parts) == completion.text
    assert parts[-1].stop == completion.stop
    return completion


# Parameters are checked where they are given and once more against the vocabulary; a seed and EOS ids need no check.


@pytest.mark.parametrize(
    "run",
    [
        lambda llm, params: llm.generate("a", params),
        lambda llm, params: list(llm.stream("a", params)),
        lambda llm, params: llm.chat([{"role": "user", "content": "a"}], params),
    ],
    ids=["generate", "stream", "chat"],
)
@pytest.mark.parametrize("options", [{}, {"seed": 1}, {"n": 3, "presence_penalty": 0.5}], ids=str)
def test_parameters_are_checked_once(llm: LLM, monkeypatch: pytest.MonkeyPatch, run: Any, options: Any) -> None:
    params = SamplingParams(max_tokens=3, **options)
    checked, rows = [], []
    check, row_of = SamplingParams.__post_init__, SamplingRow.of
    monkeypatch.setattr(SamplingParams, "__post_init__", lambda self: checked.append(self) or check(self))
    monkeypatch.setattr(SamplingRow, "of", lambda *args, **rest: rows.append(args) or row_of(*args, **rest))
    run(llm, params)
    assert (len(checked), len(rows)) == (0, 1)


# A row is a pure function of its own request.

PROMPTS = ["Once", "a b", "日本", "x" * 30, "!"]
PARAMS = [
    SamplingParams(seed=seed, temperature=t, top_p=p, max_tokens=m, repetition_penalty=r)
    for seed, t, p, m, r in [
        (1, 1.0, 1.0, 12, 1.0),
        (2, 0.7, 0.9, 30, 1.2),
        (-3, 1.5, 0.5, 1, 1.0),
        (4, 0.0, 1.0, 20, 1.0),
        (2**63 - 1, 1.0, 1.0, None, 1.0),
    ]
]


@pytest.mark.slow
def test_a_request_gives_the_same_alone_and_in_any_company(llm: LLM, folder: Path) -> None:
    alone = [llm.generate(prompt, params)[0].samples for prompt, params in zip(PROMPTS, PARAMS, strict=True)]
    for running in (1, 2, 5, 32):
        together = LLM(folder, backend="numpy", max_running=running).generate(PROMPTS, PARAMS)
        assert [completion.samples for completion in together] == alone
    backwards = llm.generate(PROMPTS[::-1], PARAMS[::-1])
    assert [completion.samples for completion in backwards] == alone[::-1]


def test_completions_come_in_prompt_order_with_their_prompts(llm: LLM) -> None:
    completions = llm.generate(PROMPTS, PARAMS)
    assert [completion.prompt for completion in completions] == PROMPTS
    assert [len(completion.token_ids) for completion in completions[:4]] == [12, 30, 1, 20]


@pytest.mark.slow
def test_prompt_and_text_are_the_decoded_ids(llm: LLM, tiny: LLM) -> None:
    for model in (llm, tiny):
        for seed in range(5):
            params = SamplingParams(seed=seed, temperature=2.0, max_tokens=25, ignore_eos=True)
            done = model.generate("Once upon a time", params)[0]
            together = model.tokenizer.decode(done.prompt_token_ids + done.token_ids)
            assert "Once upon a time" + done.text == together


def test_an_unseeded_request_reports_a_seed_that_repeats_it(llm: LLM) -> None:
    first, second = llm.generate(["ab", "ab"], SamplingParams(max_tokens=20))
    assert first.seed != second.seed
    again = llm.generate("ab", SamplingParams(max_tokens=20, seed=first.seed))[0]
    assert again.samples == first.samples


def test_the_first_of_n_samples_is_the_only_one_of_one(llm: LLM) -> None:
    params = SamplingParams(seed=5, max_tokens=15)
    three = llm.generate("ab", params.replace(n=3))[0]
    assert three.samples[0] == llm.generate("ab", params)[0].samples[0]
    assert [sample.index for sample in three.samples] == [0, 1, 2]
    assert len({sample.token_ids for sample in three.samples}) == 3
    assert three.usage.completion_tokens == sum(len(sample.token_ids) for sample in three.samples)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["raw", "sampled"])
def test_best_of_returns_the_samples_with_the_highest_logprob_per_token(llm: LLM, mode: str) -> None:
    likeliest_in_sum = 0
    for seed in range(6):
        params = SamplingParams(seed=seed, max_tokens=12, temperature=1.5, logprobs_mode=mode)
        drawn = llm.generate("ab", params.replace(n=8, logprobs=0))[0].samples
        best = llm.generate("ab", params.replace(n=2, best_of=8))[0]
        order = sorted(drawn, key=lambda one: -sum(e.logprob for e in one.logprobs or ()) / len(one.token_ids))
        assert [one.token_ids for one in best.samples] == [one.token_ids for one in order[:2]]
        assert best.cumulative_logprob == order[0].cumulative_logprob
        assert best.logprobs is None
        assert best.usage.completion_tokens == sum(len(one.token_ids) for one in drawn)
        likeliest_in_sum += max(drawn, key=lambda one: one.cumulative_logprob) == order[0]
    assert likeliest_in_sum < 6


def test_listing_logprobs_does_not_change_which_samples_best_of_returns(llm: LLM) -> None:
    params = SamplingParams(seed=3, max_tokens=12, temperature=1.5, n=2, best_of=6)
    plain, listed = (llm.generate("ab", p)[0] for p in (params, params.replace(logprobs=2)))
    assert [one.token_ids for one in plain.samples] == [one.token_ids for one in listed.samples]
    assert [one.cumulative_logprob for one in plain.samples] == [one.cumulative_logprob for one in listed.samples]


def test_a_prompt_is_read_once_for_all_its_samples() -> None:
    model = Script("ab")
    LLM(model, tokenizer=Letters()).generate(["xyz", "pq"], SamplingParams(n=4, max_tokens=2))
    assert model.calls == [3, 2]


def test_threads_do_not_disturb_each_other(llm: LLM) -> None:
    expected = [completion.samples for completion in llm.generate(PROMPTS, PARAMS)]
    found: dict[int, Any] = {}

    def work(i: int) -> None:
        found[i] = llm.generate(PROMPTS[i], PARAMS[i])[0].samples

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(PROMPTS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[i] for i in range(len(PROMPTS))] == expected


# How a text ends.


def test_max_tokens_ends_a_text_by_length() -> None:
    done = says("abcdef", GREEDY.replace(max_tokens=3))
    assert (done.text, done.finish_reason, done.stop) == ("abc", "length", Stop(kind="max_tokens"))
    assert (done.usage.prompt_tokens, done.usage.completion_tokens, done.usage.total_tokens) == (1, 3, 4)


def test_max_tokens_none_fills_the_context() -> None:
    done = says("abcdef", GREEDY, max_length=5)
    assert (done.text, done.finish_reason, done.stop) == ("abcd", "length", Stop(kind="context"))
    assert says("abcdef", GREEDY.replace(max_tokens=9), max_length=5).stop == Stop(kind="context")


def test_max_tokens_zero_gives_an_empty_completion() -> None:
    done = says("abc", GREEDY.replace(max_tokens=0, n=2))
    assert [(s.text, s.token_ids, s.stop) for s in done.samples] == [("", (), Stop(kind="max_tokens"))] * 2


def test_eos_ends_a_text_and_is_no_part_of_it() -> None:
    done = says("ab.cd", GREEDY, eos=ord("."))
    assert (done.text, done.finish_reason) == ("ab", "stop")
    assert done.stop == Stop(kind="eos", matched=ord("."), matched_text=".")
    assert done.token_ids == (97, 98, 46)


def test_ignore_eos_concerns_eos_only() -> None:
    params = GREEDY.replace(ignore_eos=True, stop_token_ids=[ord("d")])
    done = says("ab.cde", params, eos=ord("."))
    assert (done.text, done.stop) == ("ab.c", Stop(kind="token", matched=100, matched_text="d"))


def test_a_stop_string_across_tokens_ends_the_text_before_it() -> None:
    done = says("one two three", GREEDY.replace(stop=["two", "three"]))
    assert (done.text, done.stop) == ("one ", Stop(kind="string", matched="two", matched_text="two"))
    assert len(done.token_ids) == 7


def test_a_stop_is_part_of_the_text_on_request() -> None:
    included = GREEDY.replace(include_stop_str_in_output=True)
    assert says("one two", included.replace(stop=["two"])).text == "one two"
    assert says("one two", included.replace(stop_pattern="t.")).text == "one tw"
    assert says("one two", included.replace(stop_token_ids=[ord("t")])).text == "one t"
    assert says("ab.", included, eos=ord(".")).text == "ab."


def test_a_pattern_ends_the_text() -> None:
    done = says("in 1984, it", GREEDY.replace(stop_pattern=r"\d+,"))
    assert (done.text, done.stop) == ("in ", Stop(kind="regex", matched=r"\d+,", matched_text="1984,"))


def test_a_stop_on_the_last_token_beats_the_limit() -> None:
    for params, eos in [
        (GREEDY.replace(max_tokens=3, stop="c"), None),
        (GREEDY.replace(max_tokens=3, stop_token_ids=[99]), None),
        (GREEDY.replace(max_tokens=3), 99),
    ]:
        done = says("abcd", params, eos=eos)
        assert (done.text, done.finish_reason) == ("ab", "stop")


def test_text_held_back_for_a_stop_comes_out_at_the_limit() -> None:
    done = says("abcd", GREEDY.replace(max_tokens=3, stop="bcx"))
    assert (done.text, done.finish_reason) == ("abc", "length")


def test_min_tokens_holds_back_every_kind_of_stop() -> None:
    for params, eos in [
        (GREEDY.replace(stop="."), None),
        (GREEDY.replace(stop_pattern=r"\."), None),
        (GREEDY.replace(stop_token_ids=[46]), None),
        (GREEDY, 46),
    ]:
        done = says("a.b.c.d", params.replace(min_tokens=4), eos=eos)
        assert len(done.token_ids) == 6
        assert done.finish_reason == "stop"


def test_bad_logits_end_their_own_request_only() -> None:
    class Mixed(Script):
        """NaN logits on the second step of prompts that begin with `{`."""

        def prefill(self, token_ids: Sequence[int]) -> tuple[Any, list[int]]:
            self.calls.append(len(token_ids))
            return self._logits(0), [0] if token_ids[0] != ord("{") else [10]

    llm = LLM(Mixed("abcdefghij_{"), tokenizer=Letters())
    good, bad, other = llm.generate(["p", "{", "q"], GREEDY.replace(max_tokens=5))
    assert [good.text, bad.text, other.text] == ["abcde", "a", "abcde"]
    assert (bad.finish_reason, bad.stop) == ("error", Stop(kind="non_finite_logits"))
    assert says("ab}", GREEDY).stop == Stop(kind="no_allowed_token")


# Streams.


def test_each_kind_of_output_carries_its_completions(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=8, ignore_eos=True)
    whole = llm.generate("ab", params)[0]
    cumulative = list(llm.stream("ab", params))
    assert all(d.completion is not None and d.completion.text.endswith(d.text) for d in cumulative)
    delta = list(llm.stream("ab", params.replace(output_kind=RequestOutputKind.DELTA)))
    assert [d.completion is not None for d in delta] == [False] * (len(delta) - 1) + [True]
    (final,) = llm.stream("ab", params.replace(output_kind=RequestOutputKind.FINAL_ONLY))
    for parts in (cumulative, delta, [final]):
        assert "".join(d.text for d in parts) == whole.text
        assert sum((d.token_ids for d in parts), ()) == whole.token_ids
        last = parts[-1].completion
        assert last is not None
        assert last.samples == whole.samples
        assert parts[-1].finish_reason == "length"


def test_a_stream_of_n_samples_says_which_one_moved(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=9, n=3, output_kind=RequestOutputKind.DELTA)
    parts = list(llm.stream("ab", params))
    for sample in llm.generate("ab", params)[0].samples:
        assert "".join(d.text for d in parts if d.index == sample.index) == sample.text
    assert [d.completion is not None for d in parts] == [False] * (len(parts) - 1) + [True]


@pytest.mark.parametrize("kind", [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA])
def test_best_of_n_keeps_the_samples_where_the_deltas_put_them(llm: LLM, kind: RequestOutputKind) -> None:
    drawn = SamplingParams(seed=1, max_tokens=9, n=3, temperature=1.5, logprobs=0, output_kind=kind)
    params = drawn.replace(best_of=3)
    *_, last = parts = list(llm.stream("ab", params))
    assert last.completion is not None
    samples = last.completion.samples
    assert ["".join(d.text for d in parts if d.index == index) for index in range(3)] == [one.text for one in samples]
    assert samples == llm.generate("ab", params)[0].samples == llm.generate("ab", drawn)[0].samples
    ranked = sorted(samples, key=lambda one: -one.cumulative_logprob / len(one.token_ids))
    assert [one.index for one in ranked] != [0, 1, 2]


def test_best_of_cannot_be_streamed(llm: LLM) -> None:
    with pytest.raises(ParamsError, match="best_of must be n or None to stream, got 3"):
        llm.stream("ab", SamplingParams(best_of=3))


def test_errors_of_a_stream_come_at_the_call(llm: LLM) -> None:
    with pytest.raises(ParamsError, match="at most 64 tokens"):
        llm.stream("a" * 65)


def test_an_async_stream_is_the_stream(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=8)

    async def collect() -> list[str]:
        return [delta.text async for delta in llm.astream("ab", params)]

    assert asyncio.run(collect()) == [delta.text for delta in llm.stream("ab", params)]


def test_ids_without_text_come_when_detokenize_is_off(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=8)
    silent = llm.generate("ab", params.replace(detokenize=False))[0]
    assert (silent.text, silent.token_ids) == ("", llm.generate("ab", params)[0].token_ids)
    assert len(list(llm.stream("ab", params.replace(detokenize=False)))) == len(silent.token_ids)


# Logprobs.


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max()
    return shifted - math.log(np.exp(shifted).sum())


def test_logprobs_are_those_of_the_models_logits(llm: LLM) -> None:
    params = SamplingParams(seed=3, temperature=0.7, max_tokens=6, logprobs=4, logprob_token_ids=[7, 9])
    done = llm.generate("Once", params)[0]
    assert done.logprobs is not None
    scores = llm.model.score(done.prompt_token_ids + done.token_ids)[len(done.prompt_token_ids) - 1 :]
    for row, token_id, entry in zip(scores, done.token_ids, done.logprobs, strict=False):
        expected = log_softmax(row)
        ranked = np.argsort(-row, kind="stable")[:4].tolist()
        assert entry.token_id == token_id
        assert entry.rank == 1 + int((row > row[token_id]).sum())
        assert [top.token_id for top in entry.top] == ranked
        assert [i for i, _ in entry.given] == [7, 9]
        pairs = [(token_id, entry.logprob), *((top.token_id, top.logprob) for top in entry.top), *entry.given]
        assert [value for _, value in pairs] == pytest.approx([expected[i] for i, _ in pairs], abs=1e-4)


def test_logprob_entries_know_their_place_in_the_text(llm: LLM) -> None:
    params = SamplingParams(seed=3, temperature=2.0, max_tokens=12, logprobs=0, ignore_eos=True)
    done = llm.generate("Once", params)[0]
    assert done.logprobs is not None
    for entry in done.logprobs:
        assert entry.bytes == llm.tokenizer.token_bytes(entry.token_id)
        if "\ufffd" not in entry.text and entry.offset is not None:
            assert done.text[entry.offset :].startswith((entry.text, "\ufffd" + entry.text))
    assert llm.generate("Once", params.replace(logprobs=None))[0].logprobs is None


def test_prompt_logprobs_are_those_of_the_prompts_tokens(llm: LLM) -> None:
    done = llm.generate("Once", SamplingParams(max_tokens=0, prompt_logprobs=2))[0]
    assert done.prompt_logprobs is not None
    assert done.prompt_logprobs[0] is None
    scores = llm.model.score(done.prompt_token_ids)
    for row, token_id, entry in zip(scores, done.prompt_token_ids[1:], done.prompt_logprobs[1:], strict=False):
        assert entry is not None
        assert (entry.token_id, len(entry.top)) == (token_id, 2)
        assert entry.logprob == pytest.approx(log_softmax(row)[token_id], abs=1e-4)
        assert entry.top[0].logprob == pytest.approx(log_softmax(row).max(), abs=1e-4)


@pytest.mark.parametrize("mode", ["raw", "processed", "sampled"])
@pytest.mark.parametrize("how", [{"temperature": 0}, {"top_k": 1}, {"top_p": 0.7}, {"logprob_token_ids": [3]}])
def test_the_cumulative_logprob_is_the_sum_of_those_listed(llm: LLM, how: dict[str, Any], mode: str) -> None:
    params = SamplingParams(**how, seed=1, max_tokens=9, logprobs=0, logprobs_mode=mode)
    done = llm.generate("Once", params)[0]
    assert done.cumulative_logprob == sum(entry.logprob for entry in done.logprobs or ())
    assert (done.cumulative_logprob == 0.0) == (mode == "sampled" and ("temperature" in how or "top_k" in how))


def test_where_nothing_is_listed_the_cumulative_logprob_is_that_of_the_law_drawn_from(llm: LLM) -> None:
    assert llm.generate("Once", SamplingParams(temperature=0, max_tokens=9))[0].cumulative_logprob == 0.0
    done = llm.generate("Once", SamplingParams(seed=1, top_k=2, max_tokens=1, temperature=3))[0]
    logits = llm.model.prefill(done.prompt_token_ids)[0]
    law = tirage.law(logits, SamplingParams(top_k=2, temperature=3))[0]
    assert done.cumulative_logprob == pytest.approx(math.log(law[done.token_ids[0]]), abs=1e-5)


# Doors and defaults.


def test_without_params_the_models_own_sampling_defaults_apply(llm: LLM) -> None:
    greedy = llm.generate("Once", SamplingParams(temperature=0))[0]
    assert llm.generate("Once")[0].token_ids == greedy.token_ids
    assert len(greedy.token_ids) == 16


def test_the_eos_ids_of_a_folder_end_texts_always(folder: Path) -> None:
    llm = LLM(folder, backend="numpy", generation_config={"eos_token_id": list(range(264))})
    done = llm.generate("Once", SamplingParams(temperature=0))[0]
    assert (done.text, done.stop and done.stop.kind) == ("", "eos")


def test_prompts_may_be_texts_ids_arrays_or_prompts(llm: LLM) -> None:
    ids = llm.tokenizer.encode("Once")
    params = SamplingParams(seed=1)
    expected = llm.generate("Once", params)[0].token_ids
    for one in (ids, np.array(ids), Prompt(text="Once"), Prompt(token_ids=ids)):
        assert [completion.token_ids for completion in llm.generate(one, params)] == [expected]
        assert [c.token_ids for c in llm.generate([one, "Once"], params)] == [expected] * 2
    assert llm.generate([], params) == []


def test_a_prompt_is_cut_to_its_last_tokens_on_request(llm: LLM) -> None:
    params = SamplingParams(seed=1)
    cut = llm.generate("x" * 90 + "Once", params.replace(truncate_prompt_tokens=4))[0]
    assert cut.token_ids == llm.generate("Once", params)[0].token_ids
    assert cut.usage.prompt_tokens == 4


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        ([1, 264], r"prompt token ids must be integers in \[0, 264\), got 264"),
        ([1, -1], r"got -1"),
        (Prompt(token_ids=[True]), "got True"),
        ("", "at least one token"),
        (Prompt(token_ids=[]), "at least one token"),
        ("a" * 65, "at most 64 tokens, the model's context, got 65"),
        (Prompt(text="a", images=3), "prompt images must be a list, got int"),  # type: ignore[arg-type]
        (Prompt(text="a", adapter=["x"]), "prompt adapter must be a name, got list"),  # type: ignore[arg-type]
        (Prompt(), "exactly one of text and token_ids"),
        (Prompt(text="a", token_ids=[1]), "exactly one of text and token_ids"),
        (Prompt(text="a", images=[b"x"]), "prompt images must not be given"),
        (Prompt(embeds=np.zeros((1, 2))), "prompt embeds must not be given"),
        (Prompt(text="a", adapter="x"), "prompt adapter must not be given"),
        ([1, 3.5], "must be integers"),
        ([None], "prompt must be a text, a list of token ids or a Prompt, got NoneType"),
        ("a\ud800", "lone surrogate"),
    ],
)
def test_a_bad_prompt_is_refused_by_name(llm: LLM, prompt: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        llm.generate(prompt)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ([SamplingParams()], r"one per prompt \(2\), got 1 of them"),
        ("greedy", "params must be one SamplingParams"),
        ({"top_p": 1.0}, "params must be one SamplingParams .* got dict"),
        ([{"top_p": 1.0}, None], "params must be a SamplingParams, got dict"),
        (SamplingParams(allowed_token_ids=[264]), "264"),
        (SamplingParams(close_grammar=True), "close_grammar must go with guided_decoding"),
    ],
)
def test_bad_params_are_refused_before_anything_runs(llm: LLM, params: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        llm.generate(["a", "b"], params)


def test_a_later_bad_request_is_found_before_the_first_one_runs() -> None:
    model = Script("abc")
    with pytest.raises(ParamsError):
        LLM(model, tokenizer=Letters()).generate(["a", [999]])
    assert model.calls == []


def test_bad_words_are_found_through_the_tokenizer(tiny: LLM) -> None:
    params = SamplingParams(temperature=0, max_tokens=1)
    word = tiny.generate("Once upon a", params)[0].text
    assert word == " time"
    assert tiny.generate("Once upon a", params.replace(bad_words=["time"]))[0].text != word


def test_a_model_object_needs_its_tokenizer() -> None:
    with pytest.raises(ModelError, match="tokenizer must be given"):
        LLM(Script("a"))
    with pytest.raises(ModelError, match="model must be a name, a folder or a"):
        LLM(3, tokenizer=Letters())  # type: ignore[arg-type]


def test_unknown_backends_are_refused(folder: Path) -> None:
    with pytest.raises(ParamsError, match="backend must be 'auto', 'torch', 'numpy', 'jax' or 'vllm', got 'cuda'"):
        LLM(folder, backend="cuda")


def test_a_damaged_tokenizer_is_named(folder: Path, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    with pytest.raises(ModelError, match=r"tokenizer\.json is missing"):
        LLM(tmp_path, backend="numpy")
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ModelError, match=r"tokenizer\.json is not a valid tokenizer"):
        LLM(tmp_path, backend="numpy")


# Chats and explanations.


def test_a_chat_reply_stands_alone(tiny: LLM) -> None:
    messages = [{"role": "user", "content": "Hello!"}]
    params = SamplingParams(temperature=0, max_tokens=20)
    reply = tiny.chat(messages, params)
    assert reply.text == tiny.tokenizer.decode(reply.token_ids)
    assert not reply.text.startswith(" ")
    assert "".join(delta.text for delta in tiny.chat_stream(messages, params)) == reply.text
    assert tiny.tokenizer.decode(reply.prompt_token_ids, skip_special_tokens=False).startswith("<s><|user|>")


def test_a_template_file_replaces_the_models_own(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "template.jinja"
    path.write_text("{% for m in messages %}{{ m.content }}{% endfor %}")
    llm = LLM(folder, backend="numpy", chat_template=path)
    reply = llm.chat([{"role": "user", "content": "Once"}], SamplingParams(seed=1))
    assert reply.token_ids == llm.generate("Once", SamplingParams(seed=1))[0].token_ids


def test_an_explanation_ends_in_the_token_that_is_drawn(llm: LLM) -> None:
    params = SamplingParams(seed=11, temperature=1.3, top_k=9, top_p=0.9, max_tokens=1)
    drawn = llm.generate("Once", params)[0].token_ids[0]
    assert llm.explain("Once", params).token_id == drawn
    assert llm.explain("Once more", params, position=3).token_id == drawn
    assert llm.explain("Once more", params, position=-6).token_id == drawn


@pytest.mark.parametrize("position", [4, -5, True, 1.0])
def test_a_position_outside_the_prompt_is_refused(llm: LLM, position: Any) -> None:
    with pytest.raises(ParamsError, match=r"position must be in \[-4, 4\)"):
        llm.explain("Once", position=position)


# Real models.


@pytest.mark.slow
def test_the_bundled_model_writes_the_same_story_for_a_seed(tiny: LLM) -> None:
    params = SamplingParams(temperature=0.8, top_p=0.95, seed=7, max_tokens=60)
    first, second = tiny.generate(["Once upon a time"] * 2, params)
    assert first.text == second.text
    assert len(first.text.split()) > 20
    assert tiny.generate("Once upon a time", params.replace(seed=8))[0].text != first.text


@pytest.mark.skipif(not STORIES.is_dir(), reason=f"needs the model folder {STORIES.name}; set TIRAGE_TEST_MODELS")
def test_a_hugging_face_folder_continues_as_its_authors_did() -> None:
    done = LLM(STORIES, backend="numpy").generate("Once upon a time", SamplingParams(temperature=0, max_tokens=24))[0]
    assert done.text.startswith(", there was a little girl named Lily.")
