"""What fails in one sample of a request ends that sample: those of the same prompt write on, token for token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters
from small_torch import Numbers, build

from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, SamplingParams, register_processor
from tirage.engine import SequenceGroup
from tirage.engine.grammar_state import GrammarState
from tirage.models.huggingface import wrap_module

FOUR = SamplingParams(seed=3, n=4, max_tokens=12, ignore_eos=True)
LETTERS = SamplingParams(temperature=0, n=3, max_tokens=4)


class Panic(BaseException):
    """What an extension module may raise, which is no Exception."""


class Faulty:
    """A model that hands everything on and fails, in a pass of samples, wherever `bad` is true of the token."""

    def __init__(self, model: Any, bad: Callable[[int], bool], error: BaseException | None) -> None:
        self._model, self._bad, self._error = model, bad, error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> NDArray[np.float32]:
        bad = [self._bad(token) for token in token_ids]
        if self._error is not None and any(bad):
            raise self._error
        logits = np.array(self._model.decode(token_ids, caches))
        logits[bad] = np.nan
        return logits


def faulty(model: Any, bad: Callable[[int], bool], error: BaseException | None) -> Any:
    return Faulty(model, bad, error)


def tokens(done: Completion) -> list[tuple[int, ...]]:
    return [sample.token_ids for sample in done.samples]


def own_token(samples: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """(sample, place, id) of a token, not its sample's last, that no other sample has and that is new in its own."""
    for index, ids in enumerate(samples):
        others = {token for other, each in enumerate(samples) if other != index for token in each}
        for place, token in enumerate(ids[:-1]):
            if token not in others and token not in ids[:place]:
                return index, place, token
    raise AssertionError("no sample has a token of its own")


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RuntimeError("boom"), "model_failed"), (Panic("rust"), "model_failed"), (None, "non_finite_logits")],
)
def test_a_sample_that_the_model_cannot_continue_ends_alone(error: BaseException | None, kind: str) -> None:
    model, prompt = wrap_module(build(), prefix_bytes=0), list(range(4, 20))
    with LLM(model, tokenizer=Numbers()) as llm:
        expected = tokens(llm.generate(prompt, FOUR)[0])
    guilty, place, token = own_token(expected)
    with LLM(faulty(model, lambda each: each == token, error), tokenizer=Numbers()) as llm:
        done, beside = llm.generate([prompt, prompt], [FOUR, FOUR.replace(seed=4)])
        progress = llm.engine.progress()
    stop = done.samples[guilty].stop
    assert stop is not None
    assert stop.kind == kind
    assert error is None or stop.matched_text == f"{type(error).__name__}: {error}"
    expected[guilty] = expected[guilty][: place + 1]
    assert tokens(done) == expected
    assert [s.finish_reason for s in done.samples] == ["error" if i == guilty else "length" for i in range(4)]
    assert any(sample.finish_reason == "length" for sample in beside.samples)
    assert (progress.failed > 0, progress.running, progress.reading) == (True, 0, 0)


@pytest.mark.slow
def test_a_failed_sample_is_the_last_that_best_of_takes() -> None:
    model, prompt = wrap_module(build(), prefix_bytes=0), list(range(4, 20))
    params = FOUR.replace(n=3, best_of=4)
    with LLM(model, tokenizer=Numbers()) as llm:
        expected = tokens(llm.generate(prompt, FOUR)[0])
    guilty, place, token = own_token(expected)
    with LLM(faulty(model, lambda each: each == token, RuntimeError("boom")), tokenizer=Numbers()) as llm:
        done = llm.generate(prompt, params)[0]
        every = llm.generate(prompt, params.replace(n=4))[0]
    left = [ids for index, ids in enumerate(expected) if index != guilty]
    assert sorted(tokens(done)) == sorted(left)
    assert [s.finish_reason for s in every.samples] == ["error" if i == guilty else "length" for i in range(4)]
    assert every.samples[guilty].token_ids == expected[guilty][: place + 1]
    assert done.usage.completion_tokens == sum(map(len, left)) + place + 1


@pytest.mark.slow
def test_a_stream_tells_which_sample_failed() -> None:
    model, prompt = wrap_module(build(), prefix_bytes=0), list(range(4, 20))
    with LLM(model, tokenizer=Numbers()) as llm:
        expected = tokens(llm.generate(prompt, FOUR)[0])
    guilty, _, token = own_token(expected)
    with LLM(faulty(model, lambda each: each == token, RuntimeError("boom")), tokenizer=Numbers()) as llm:
        deltas = list(llm.stream(prompt, FOUR))
    ends = {delta.index: delta.finish_reason for delta in deltas if delta.finish_reason is not None}
    assert ends == {index: "error" if index == guilty else "length" for index in range(4)}
    assert deltas[-1].completion is not None


@pytest.mark.parametrize("error", [ValueError, Panic])
def test_a_processor_that_fails_for_one_sample_ends_that_sample(error: type[BaseException]) -> None:
    with LLM("tiny") as llm:
        expected = tokens(llm.generate("Once upon a time", FOUR)[0])
        guilty, place, token = own_token(expected)

        def breaks(logits: NDArray[Any], args: list[dict[str, Any]]) -> NDArray[Any]:
            if any(token in each["__req__"].output_ids for each in args):
                raise error("no")
            return logits

        breaks.wants_past = True  # type: ignore[attr-defined]
        register_processor("fails_for_one_sample", breaks, replace=True)
        done = llm.generate("Once upon a time", FOUR.replace(logits_processors=[("fails_for_one_sample", {})]))[0]
    expected[guilty] = expected[guilty][: place + 1]
    assert tokens(done) == expected
    assert [sample.finish_reason for sample in done.samples].count("error") == 1
    stop = done.samples[guilty].stop
    assert stop is not None
    assert stop.kind == "processor_failed"
    assert stop.matched_text == "logits processor 'fails_for_one_sample' failed; the log says more"


def test_a_constraint_that_one_sample_cannot_follow_ends_that_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    guided = FOUR.replace(guided_decoding=GuidedDecodingParams(regex="[a-z ]{4,}"))
    nothing = Script("}")._logits(0)
    with LLM("tiny") as llm:
        expected = llm.generate("Once upon a time", guided)[0]
        request = llm.request("Once upon a time", guided)
        # A dead end: the constraint of this sample lets nothing come next.
        fill = GrammarState.fill

        def stuck(state: GrammarState, mask: Any) -> None:
            third = request.samples[2].grammar if len(request.samples) > 2 else None
            mask.fill(0) if state is third else fill(state, mask)

        monkeypatch.setattr(GrammarState, "fill", stuck)
        done = llm.engine.submit(request).wait(60)
    assert np.isneginf(nothing).all()
    assert [s.finish_reason for s in done.samples] == ["length", "length", "error", "length"]
    assert done.samples[2].stop is not None
    assert done.samples[2].stop.kind in ("no_allowed_token", "grammar_failed")
    assert [s for s in done.samples if s.index != 2] == [s for s in expected.samples if s.index != 2]


def test_a_sample_that_finds_no_memory_to_begin_ends_alone() -> None:
    class Full(Script):
        forks = 0

        def fork(self, cache: list[int]) -> list[int]:
            self.forks += 1
            if self.forks == 2:
                raise MemoryError("full")
            return super().fork(cache)

    with LLM(Full("abcdef"), tokenizer=Letters()) as llm:
        first, second = llm.generate(["p", "q"], LETTERS)
        assert llm.engine.progress().running == 0
    assert [s.text for s in first.samples] == ["abcd", "", "abcd"]
    assert first.samples[1].stop is not None
    assert first.samples[1].stop.matched_text == "MemoryError: full"
    assert [s.text for s in second.samples] == ["abcd"] * 3


@pytest.mark.parametrize("phase", ["begin", "step"])
def test_a_listener_that_fails_at_a_failed_sample_ends_its_own_request(phase: str) -> None:
    class Full(Script):
        def fork(self, cache: list[int]) -> list[int]:
            if phase == "begin":
                raise MemoryError("full")
            return super().fork(cache)

        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            if phase == "step" and len(token_ids) > 1:
                raise MemoryError("full")
            if phase == "step" and caches[0][0] == 1 and caches[0][-1] == ord("p"):
                raise MemoryError("full")
            return super().decode(token_ids, caches)

        def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
            return self._logits(len(token_ids) - 1), [len(token_ids) - 1, token_ids[0]]

    with LLM(Full("abcdef"), tokenizer=Letters()) as llm:
        heard: list[str | None] = []

        def listener(sample: Any) -> None:
            heard.append(sample.finish_reason)
            if sample.finish_reason == "error":
                raise OSError("gone")

        request = llm.request("p", LETTERS)
        group = SequenceGroup(request, listener)
        llm.engine.call(lambda: llm.engine._scheduler.add(group))
        # Begins no earlier, so it ends later.
        assert llm.generate("q", LETTERS.replace(n=1))[0].text == "abcd"
        assert request.finished
        assert not llm.engine._scheduler.busy
    assert heard.count("error") == 1
    assert {sample.finish_reason for sample in request.samples} == {"error", "abort"}


@pytest.mark.slow
def test_a_search_ends_as_one_when_the_model_cannot_continue_a_beam() -> None:
    model, prompt = wrap_module(build(), prefix_bytes=0), list(range(4, 20))
    beams = BeamSearchParams(beam_width=3, max_tokens=8, ignore_eos=True)
    with LLM(model, tokenizer=Numbers()) as llm:
        token = llm.beam_search(prompt, beams)[0].token_ids[2]
        text = llm.generate(prompt[::-1], FOUR)[0]
    with LLM(faulty(model, lambda each: each == token, RuntimeError("boom")), tokenizer=Numbers()) as llm:
        streams = llm.engine.submit_all([llm.beam_request(prompt, beams), llm.request(prompt[::-1], FOUR)])
        found, beside = [stream.wait(60) for stream in streams]
    assert [hypothesis.finish_reason for hypothesis in found.samples] == ["error"]
    expected = [ids if token not in ids[:-1] else ids[: ids.index(token) + 1] for ids in tokens(text)]
    assert tokens(beside) == expected
