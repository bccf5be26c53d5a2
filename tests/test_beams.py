"""Beam search: the likeliest texts, as a search through all of them and as transformers find them."""

from __future__ import annotations

import itertools
import json
import math
import os
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_llama import CONFIG, random_tensors, write_folder
from small_models import Script
from small_tokenizers import Letters, byte_level_tokenizer

from tirage import LLM, BeamSearchParams, Completion, ParamsError, SamplingParams, register_processor
from tirage.engine import EngineRequest
from tirage.engine.fairness import StepPace

STORIES = Path(
    os.environ.get("TIRAGE_TEST_MODELS", Path(__file__).resolve().parents[2] / "shared" / "models"), "stories260K"
)
EOS = ord("e")
ALPHABET = "abcde"


class Table:
    """Logits that depend on the last two letters; every letter but a few is impossible."""

    vocab_size, max_length = 128, 100

    def __init__(self, seed: int, *, spread: float = 1.0) -> None:
        self.seed, self.spread, self.reads = seed, spread, 0

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        return self.logits(token_ids), list(token_ids)

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        self.reads += 1
        for token, cache in zip(token_ids, caches, strict=True):
            cache.append(token)
        return np.stack([self.logits(cache) for cache in caches])

    def fork(self, cache: list[int]) -> list[int]:
        return list(cache)

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([self.logits(token_ids[: i + 1]) for i in range(len(token_ids))])

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        row = np.full(self.vocab_size, -np.inf, np.float32)
        rng = np.random.default_rng([self.seed, *ids[-2:]])
        row[[ord(letter) for letter in ALPHABET]] = rng.normal(0, self.spread, len(ALPHABET))
        return row


def table(seed: int, **options: Any) -> LLM:
    return LLM(Table(seed, **options), tokenizer=Letters(), generation_config={"eos_token_id": EOS})


def searched(llm: LLM, sampling: SamplingParams | None = None, **options: Any) -> Completion:
    return llm.beam_search("a", BeamSearchParams(**options), sampling=sampling)[0]


def texts(completion: Completion) -> list[str]:
    return ["".join(map(chr, sample.token_ids)) for sample in completion.samples]


def every_text(llm: LLM, longest: int, *, temperature: float = 1.0, eos: bool = True) -> list[tuple[str, float]]:
    """Every text that EOS or the limit ends, with its log-probability in float64."""
    found: list[tuple[str, float]] = []

    def grow(text: str, total: float) -> None:
        if len(text) == longest or (eos and text.endswith("e")):
            found.append((text, total))
            return
        row = llm.model.score([ord(letter) for letter in "a" + text])[-1].astype(np.float64) / temperature
        logprobs = row - np.log(np.exp(row[np.isfinite(row)]).sum())
        for letter in ALPHABET:
            grow(text + letter, total + float(logprobs[ord(letter)]))

    grow("", 0.0)
    return found


@pytest.mark.parametrize("penalty", [0.0, 1.0, -0.5, 2.0])
@pytest.mark.parametrize("temperature", [0.0, 0.5, 3.0])
def test_a_wide_search_is_a_search_through_everything(penalty: float, temperature: float) -> None:
    for seed in range(3):
        llm = table(seed)
        scored = [(total / len(t) ** penalty, t) for t, total in every_text(llm, 3, temperature=temperature or 1.0)]
        best = sorted(scored, reverse=True)
        options: dict[str, Any] = {"length_penalty": penalty, "temperature": temperature, "early_stopping": "never"}
        result = searched(llm, beam_width=200, max_tokens=3, **options)
        assert [text for _, text in best] == texts(result)
        for (score, _), sample in zip(best, result.samples, strict=True):
            assert sample.score == pytest.approx(score, abs=1e-5)


def slow_beams(llm: LLM, width: int, longest: int, penalty: float, early: bool | str) -> list[tuple[str, float]]:
    """The rules written out on texts, without caches, samples or arrays kept between steps."""
    running, done = [(0.0, "")], []
    for length in range(1, longest + 1):
        grown = []
        for total, text in running:
            row = llm.model.score([ord(letter) for letter in "a" + text])[-1].astype(np.float64)
            logprobs = row - np.log(np.exp(row[np.isfinite(row)]).sum())
            grown += [(total + float(logprobs[ord(letter)]), text + letter) for letter in ALPHABET]
        grown = sorted(grown, reverse=True)[: 2 * width]
        ends = [t.endswith("e") or length == longest for _, t in grown]
        if not (early is True and len(done) == width):
            done += [(total / length**penalty, t) for (total, t), end in zip(grown[:width], ends, strict=False) if end]
        done = sorted(done, reverse=True)[:width]
        running = [pair for pair, end in zip(grown, ends, strict=True) if not end][:width]
        full = len(done) == width
        ahead = longest if early == "never" and penalty > 0 else length
        if not running or (full and (early is True or running[0][0] / ahead**penalty <= done[-1][0])):
            break
    return [(text, score) for score, text in done]


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True, "never"])
@pytest.mark.parametrize("penalty", [0.0, 1.0, 1.7, -1.0])
def test_a_narrow_search_follows_the_written_rules(early: bool | str, penalty: float) -> None:
    for seed, width in itertools.product(range(6), (1, 2, 3)):
        llm = table(seed)
        result = searched(llm, beam_width=width, max_tokens=6, length_penalty=penalty, early_stopping=early)
        expected = slow_beams(llm, width, 6, penalty, early)
        assert [text for text, _ in expected] == texts(result)
        assert [score for _, score in expected] == pytest.approx([sample.score for sample in result.samples], abs=1e-5)


# Each field takes part.


def differs(first: Completion, second: Completion) -> bool:
    return [(s.token_ids, s.text) for s in first.samples] != [(s.token_ids, s.text) for s in second.samples]


@pytest.mark.parametrize(
    ("base", "change"),
    [
        ({}, {"beam_width": 2}),
        ({}, {"max_tokens": 3}),
        ({}, {"ignore_eos": True}),
        ({}, {"temperature": 4.0}),
        ({}, {"length_penalty": -2.0}),
        ({}, {"include_stop_str_in_output": True}),
        ({"beam_width": 2}, {"early_stopping": True}),
        ({"length_penalty": 2.0, "beam_width": 1}, {"early_stopping": "never"}),
    ],
)
def test_each_field_changes_what_is_found(base: dict[str, Any], change: dict[str, Any]) -> None:
    options = {"beam_width": 3, "max_tokens": 7, **base}
    sampling = SamplingParams(stop=["cb"]) if "include_stop_str_in_output" in change else None
    pairs = [[searched(table(seed), sampling, **{**options, **c}) for c in ({}, change)] for seed in range(6)]
    assert any(differs(before, after) for before, after in pairs)


def test_a_width_of_one_is_greedy() -> None:
    for seed in range(5):
        llm = table(seed)
        greedy = llm.generate("a", SamplingParams(temperature=0, max_tokens=8))[0]
        assert greedy.token_ids == searched(llm, beam_width=1, max_tokens=8).token_ids


# What else a hypothesis obeys.


def test_a_text_ends_at_any_kind_of_stop() -> None:
    kinds = {"string": {"stop": ["cd"]}, "regex": {"stop_pattern": "[ab]d"}, "token": {"stop_token_ids": [ord("c")]}}
    for kind, options in kinds.items():
        results = [
            searched(
                table(s), SamplingParams(**options), length_penalty=-2.0, beam_width=4, max_tokens=9, ignore_eos=True
            )
            for s in range(4)
        ]
        every = [sample for result in results for sample in result.samples]
        ended = [sample for sample in every if sample.stop and sample.stop.kind == kind]
        assert ended
        for sample in ended:
            matched = sample.stop.matched_text if sample.stop else None
            assert "".join(map(chr, sample.token_ids)) == sample.text + str(matched)


def test_a_hypothesis_tells_why_it_ended() -> None:
    result = searched(table(1), beam_width=4, max_tokens=4)
    for sample in result.samples:
        ended = sample.token_ids[-1] == EOS
        assert (sample.finish_reason, sample.stop and sample.stop.kind) == (
            ("stop", "eos") if ended else ("length", "max_tokens")
        )
    assert {sample.finish_reason for sample in result.samples} == {"stop", "length"}


def test_masks_and_minimum_lengths_hold_in_every_hypothesis() -> None:
    sampling = SamplingParams(
        logit_bias={ord("a"): -math.inf}, bad_words_token_ids=[[ord("b"), ord("c")]], min_tokens=3
    )
    for text in texts(searched(table(0), sampling, beam_width=5, max_tokens=5)):
        assert "a" not in text
        assert "bc" not in text
        assert len(text) >= 3


@pytest.mark.parametrize("semantics", ["canonical", "hf"])
def test_a_processor_changes_the_scores(semantics: str) -> None:
    def favour(logits: NDArray[np.float32], args: list[dict[str, Any]]) -> NDArray[np.float32]:
        changed = logits.copy()
        changed[:, args[0]["token"]] += 50
        return changed

    register_processor("favour_in_beams", favour, replace=True)
    processors = (("favour_in_beams", {"token": ord("d")}),)
    sampling = SamplingParams(logits_processors=processors, semantics=semantics)
    assert texts(searched(table(0), sampling, beam_width=2, max_tokens=4))[0] == "dddd"


def test_penalties_edit_logits_or_under_hf_log_probabilities() -> None:
    results = []
    for semantics in ("canonical", "hf"):
        sampling = SamplingParams(repetition_penalty=1.9, semantics=semantics)
        results.append([texts(searched(table(seed), sampling, beam_width=3, max_tokens=6)) for seed in range(6)])
    assert results[0] != results[1]


def test_logprobs_come_with_the_tokens_and_add_up_to_the_score() -> None:
    llm = table(5)
    sampling = SamplingParams(logprobs=2, logprob_token_ids=[ord("b")])
    result = searched(llm, sampling, beam_width=3, max_tokens=5, length_penalty=1.0)
    for sample in result.samples:
        entries = sample.logprobs or ()
        assert [entry.token_id for entry in entries] == list(sample.token_ids)
        total = sum(entry.logprob for entry in entries)
        assert total == pytest.approx(sample.cumulative_logprob, abs=1e-5)
        assert sample.score == pytest.approx(total / len(entries), abs=1e-5)
        row = llm.model.score([ord("a")])[-1]
        assert entries[0].rank == 1 + int((row > row[entries[0].token_id]).sum())
        assert [len(entry.top) for entry in entries] == [2] * len(entries)
        assert [entry.given[0][0] for entry in entries] == [ord("b")] * len(entries)


def test_the_logprobs_of_a_penalised_search_are_the_models_own_unless_asked() -> None:
    llm = table(5)
    raw, processed = (
        searched(llm, SamplingParams(logprobs=0, logprobs_mode=mode, presence_penalty=1.5), beam_width=2, max_tokens=5)
        for mode in ("raw", "processed")
    )
    assert texts(raw) == texts(processed)
    row = llm.model.score([ord("a"), *raw.token_ids[:-1]])[-1].astype(np.float64)
    last = (raw.logprobs or ())[-1]
    assert last.logprob == pytest.approx(float(row[last.token_id] - np.log(np.exp(row[row > -99]).sum())), abs=1e-5)
    assert sum(e.logprob for e in processed.logprobs or ()) == pytest.approx(processed.cumulative_logprob, abs=1e-5)


@pytest.mark.parametrize("named", [(), (3, 7)], ids=["none named", "named"])
@pytest.mark.parametrize("mode", ["raw", "processed"])
def test_the_entries_of_a_search_of_one_beam_are_those_of_greedy_tokens(mode: Any, named: tuple[int, ...]) -> None:
    # A biased token is not among the two likeliest by the model's own logits, where its entry is looked for first.
    asked = SamplingParams(
        logprobs=1, logprobs_mode=mode, logprob_token_ids=named, logit_bias={5: 60.0}, presence_penalty=2.0
    )
    with LLM("tiny") as llm:
        found = llm.beam_search("Once", BeamSearchParams(beam_width=1, max_tokens=4), sampling=asked)[0]
        greedy = llm.generate("Once", asked.replace(temperature=0, max_tokens=4))[0]
    expected = [(one.token_id, one.rank, one.top, one.given) for one in greedy.logprobs or ()]
    assert [(one.token_id, one.rank, one.top, one.given) for one in found.logprobs or ()] == expected
    assert expected[0][0] == 5
    logprobs = [one.logprob for one in greedy.logprobs or ()]
    assert [one.logprob for one in found.logprobs or ()] == pytest.approx(logprobs, abs=1e-6)


@pytest.mark.slow
def test_bad_words_at_the_level_of_text_hold_in_every_hypothesis(folder: Path) -> None:
    llm = LLM(folder)
    free = llm.beam_search("ab", BeamSearchParams(beam_width=4, max_tokens=6))[0]
    letter = next(letter for letter in free.text if letter != "\ufffd")
    sampling = SamplingParams(bad_words=[letter], bad_words_level="text")
    banned = llm.beam_search("ab", BeamSearchParams(beam_width=4, max_tokens=6), sampling=sampling)[0]
    assert [sample.text for sample in banned.samples if letter in sample.text] == []


# Ends of the road.


def test_no_placeholder_stands_for_a_text_that_does_not_exist() -> None:
    result = searched(table(0), SamplingParams(allowed_token_ids=[EOS, ord("a")]), beam_width=50, max_tokens=2)
    assert sorted(texts(result)) == ["aa", "ae", "e"]
    assert all(sample.score is not None and math.isfinite(sample.score) for sample in result.samples)


@pytest.mark.parametrize("options", [{}, {"num_return_sequences": 2}, {"num_return_sequences": 1}])
def test_no_tokens_give_as_many_empty_texts_as_were_asked_for(options: dict[str, Any]) -> None:
    result = searched(table(0), beam_width=3, max_tokens=0, **options)
    count = options.get("num_return_sequences", 3)
    found = [(s.index, s.text, s.finish_reason, s.score) for s in result.samples]
    assert found == [(index, "", "length", 0.0) for index in range(count)]


@pytest.mark.parametrize("semantics", ["canonical", "hf"])
@pytest.mark.parametrize(("letter", "kind"), [("{", "non_finite_logits"), ("}", "no_allowed_token")])
def test_bad_logits_end_a_search_with_an_error(letter: str, kind: str, semantics: str) -> None:
    llm = LLM(Script(letter), tokenizer=Letters())
    sampling = SamplingParams(semantics=semantics)
    bad, good = llm.beam_search(["p", "q"], BeamSearchParams(beam_width=2, max_tokens=3), sampling=sampling)
    assert [(s.finish_reason, s.stop and s.stop.kind, s.text) for s in bad.samples] == [("error", kind, "")]
    assert good.finish_reason == "error"


def test_the_context_ends_a_hypothesis() -> None:
    result = LLM(Table(1), tokenizer=Letters()).beam_search("a" * 97, BeamSearchParams(beam_width=2, max_tokens=9))[0]
    assert [(len(s.token_ids), s.stop and s.stop.kind) for s in result.samples] == [(3, "context")] * 2


def test_prompts_are_searched_one_by_one_with_their_usage() -> None:
    llm = table(2)
    one, two = llm.beam_search(["a", "ab"], BeamSearchParams(beam_width=2, max_tokens=3))
    assert [one.prompt, two.prompt] == ["a", "ab"]
    assert one.samples == searched(llm, beam_width=2, max_tokens=3).samples
    assert two.usage.prompt_tokens == 2
    assert two.usage.completion_tokens == sum(len(sample.token_ids) for sample in two.samples)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": 0.5}, "temperature must keep its default 1.0 in a beam search"),
        ({"top_k": 3}, "top_k must keep its default 0 in a beam search, which draws nothing, got 3; leave it out$"),
        ({"forcing": "canonical"}, "forcing must keep its default None in .*, got 'canonical'; leave it out$"),
        ({"xtc_probability": 0.5}, "xtc_probability must keep its default"),
        ({"seed": 3}, "seed must keep its default"),
        ({"n": 2}, "n must keep its default"),
        ({"max_tokens": 9}, "max_tokens must keep its default .*, got 9; leave it out or set it in BeamSearchParams$"),
        ({"ignore_eos": True}, "ignore_eos must keep its default"),
    ],
)
def test_parameters_of_a_draw_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        searched(table(0), SamplingParams(**options), beam_width=2, max_tokens=3)


def test_other_kinds_of_parameters_are_refused() -> None:
    llm: Any = table(0)
    with pytest.raises(ParamsError, match="params must be a BeamSearchParams, got SamplingParams"):
        llm.beam_search("a", SamplingParams())
    with pytest.raises(ParamsError, match="sampling must be a SamplingParams or None, got dict"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=3), sampling={})


# In the engine.


def test_a_model_that_fails_ends_its_own_search(caplog: pytest.LogCaptureFixture) -> None:
    class Fails(Table):
        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            if caches[0][0] == ord("!"):
                raise MemoryError("full")
            return super().decode(token_ids, caches)

    llm = LLM(Fails(2), tokenizer=Letters(), generation_config={"eos_token_id": EOS})
    bad, good = llm.beam_search(["!", "a"], BeamSearchParams(beam_width=2, max_tokens=3))
    assert [(s.finish_reason, s.stop and s.stop.matched_text) for s in bad.samples] == [("error", "MemoryError: full")]
    assert good.samples == searched(table(2), beam_width=2, max_tokens=3).samples
    assert "full" in caplog.text


def test_other_requests_share_the_steps_of_a_search(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine three rows may be too many for a step.
    monkeypatch.setattr(StepPace, "most_rows", 100)

    class Visited(Table):
        """Gets another request when a search takes its first step of three rows."""

        steps: list[int]

        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            if len(caches) == 3 and 3 not in self.steps:
                streams.append(llm.engine.submit(visitor))
            self.steps.append(len(caches))
            return super().decode(token_ids, caches)

    model, streams = Visited(2), []
    model.steps = []
    llm = LLM(model, tokenizer=Letters())
    visitor = EngineRequest(
        SamplingParams(temperature=0, max_tokens=9), llm.tokenizer, [ord("b")], vocab_size=128, max_length=100
    )
    options = {"beam_width": 3, "max_tokens": 40, "ignore_eos": True}
    found = searched(llm, **options)
    assert found.samples == searched(LLM(Table(2), tokenizer=Letters()), **options).samples
    # Eight steps for the visitor's nine tokens, each in one pass with the three beams.
    assert model.steps.count(4) == 8
    assert model.steps[-1] == 3
    assert streams[0].wait(60).text == llm.generate("b", visitor.params)[0].text


def test_a_search_scores_its_prompt_when_asked() -> None:
    llm = table(4)
    expected = llm.generate("abcd", SamplingParams(max_tokens=1, prompt_logprobs=2))[0].prompt_logprobs
    sampling = SamplingParams(prompt_logprobs=2)
    for tokens in (3, 0):
        found = llm.beam_search("abcd", BeamSearchParams(beam_width=2, max_tokens=tokens), sampling=sampling)[0]
        assert expected == found.prompt_logprobs


@pytest.mark.slow
def test_no_row_is_left_behind_by_a_search(folder: Path) -> None:
    llm = LLM(folder, backend="torch")
    opened, closed = [], []
    model: Any = llm.engine.model
    for name, rows in (("open", opened), ("fork", opened)):
        setattr(model, name, noting(getattr(model, name), rows))
    model.close = lambda row, *, reuse, close=model.close: (closed.append(row), close(row, reuse=reuse))
    llm.beam_search(["ab", "the c"], BeamSearchParams(beam_width=4, max_tokens=6))
    assert sorted(map(id, opened)) == sorted(map(id, closed))
    assert len(opened) > 8


def noting(function: Any, results: list[Any]) -> Any:
    """The function, whose results are also put in a list."""

    def noted(*given: Any) -> Any:
        results.append(function(*given))
        return results[-1]

    return noted


# transformers.


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama over bytes with EOS 3."""
    config = {**CONFIG, "vocab_size": 264, "max_position_embeddings": 64, "eos_token_id": 3, "bos_token_id": 1}
    path = write_folder(tmp_path_factory.mktemp("llama"), random_tensors(config), **config)
    byte_level_tokenizer().raw.save(str(path / "tokenizer.json"))
    (path / "generation_config.json").write_text(json.dumps({"eos_token_id": [3]}))
    return path


def peer(path: Path, ids: list[int], **options: Any) -> list[tuple[list[int], float]]:
    """New tokens and scores of transformers' own search."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import torch
        from transformers import LlamaForCausalLM

        model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32)
        result = model.generate(
            torch.tensor([ids]),
            do_sample=False,
            num_return_sequences=options["num_beams"],
            return_dict_in_generate=True,
            output_scores=True,
            pad_token_id=255,
            **options,
        )
    return [
        ([int(t) for t in row[len(ids) :] if t != 255], float(score))
        for row, score in zip(result.sequences, result.sequences_scores, strict=True)
    ]


# Our name and value, and theirs.
PEERS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "plain": ({}, {}, {}),
    "length penalty": ({"length_penalty": 0.3}, {}, {"length_penalty": 0.3}),
    "never": (
        {"early_stopping": "never", "length_penalty": 2.0},
        {},
        {"early_stopping": "never", "length_penalty": 2.0},
    ),
    "early": ({"early_stopping": True}, {}, {"early_stopping": True}),
    "short": ({"length_penalty": -1.0}, {}, {"length_penalty": -1.0}),
    "repetition": ({}, {"repetition_penalty": 1.4}, {"repetition_penalty": 1.4}),
    "n-grams": ({}, {"no_repeat_ngram_size": 2}, {"no_repeat_ngram_size": 2}),
    "minimum": ({}, {"min_tokens": 6}, {"min_new_tokens": 6}),
    "bad words": ({}, {"bad_words_token_ids": [[5], [7, 8]]}, {"bad_words_ids": [[5], [7, 8]]}),
    "two stops": ({}, {"stop_token_ids": [10]}, {"eos_token_id": [3, 10]}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", PEERS)
@pytest.mark.parametrize("width", [2, 4])
def test_beams_are_those_of_transformers(folder: Path, name: str, width: int) -> None:
    ours, sampling, theirs = PEERS[name]
    # EOS is made likely, so that searches end in every way.
    biased, bias = {"logit_bias": {3: 3.0}, "semantics": "hf", **sampling}, {"sequence_bias": [[[3], 3.0]]}
    llm = LLM(folder)
    for prompt in ("ab", "the c"):
        ids = llm.tokenizer.encode(prompt)
        expected = peer(folder, ids, num_beams=width, max_new_tokens=10, **bias, **theirs)
        params = BeamSearchParams(beam_width=width, max_tokens=10, **ours)
        found = llm.beam_search(prompt, params, sampling=SamplingParams(**biased))[0]
        assert [tokens for tokens, _ in expected] == [list(sample.token_ids) for sample in found.samples]
        assert [score for _, score in expected] == pytest.approx([s.score for s in found.samples], abs=2e-5)


@pytest.mark.slow
@pytest.mark.skipif(not STORIES.is_dir(), reason=f"needs the model folder {STORIES.name}; set TIRAGE_TEST_MODELS")
@pytest.mark.parametrize("semantics", ["canonical", "hf"])
def test_beams_of_a_trained_model_are_those_of_transformers(semantics: str) -> None:
    llm = LLM(STORIES)
    ids = llm.tokenizer.encode("Once upon a time")
    expected = peer(STORIES, ids, num_beams=4, max_new_tokens=24)
    params = BeamSearchParams(beam_width=4, max_tokens=24)
    found = llm.beam_search("Once upon a time", params, sampling=SamplingParams(semantics=semantics))[0]
    assert [tokens for tokens, _ in expected] == [list(sample.token_ids) for sample in found.samples]
    assert [score for _, score in expected] == pytest.approx([sample.score for sample in found.samples], abs=2e-5)
