"""Aborts, errors and refusals on vLLM: each ends what it belongs to and nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import vllm
from llama_folder import PROMPTS
from recorded import ENGINE_ARGS

import tirage
from tirage import LLM, BeamSearchParams, ModelError, ParamsError, Prompt, SamplingParams
from tirage.models.vllm import installed
from tirage.models.vllm.engine_args import checked_args

LONG_TEXT = SamplingParams(seed=1, max_tokens=900, ignore_eos=True)


def left_in_vllm(llm: LLM) -> int:
    """How many requests vLLM still has."""
    return llm.model.engine.get_num_unfinished_requests()  # type: ignore[union-attr]


def test_aborted_requests_leave_vllm(llm: LLM) -> None:
    streams = [llm.engine.submit(llm.request(each, LONG_TEXT)) for each in PROMPTS]
    for stream in streams:
        next(iter(stream))
    assert [stream.wait().finish_reason for stream in streams] == ["abort"] * len(streams)
    assert left_in_vllm(llm) == 0
    progress = llm.engine.progress()
    assert (progress.waiting, progress.reading, progress.running, progress.busy) == (0, 0, 0, False)
    assert len(llm.generate("a", LONG_TEXT.replace(max_tokens=3))[0].token_ids) == 3


def test_a_processor_that_fails_ends_its_own_request(llm: LLM) -> None:
    def fail(logits: Any, args: Any) -> Any:
        raise RuntimeError("no")

    tirage.register_processor("fails", fail, replace=True)
    params = SamplingParams(seed=1, max_tokens=8)
    failing = params.replace(logits_processors=(("fails", {}),))
    found = llm.generate([PROMPTS[0]] * 4, [params, failing, params, failing])
    assert [each.finish_reason == "error" for each in found] == [False, True, False, True]
    assert found[1].stop is not None
    assert found[1].stop.kind == "processor_failed"
    assert left_in_vllm(llm) == 0
    assert found[0].text == found[2].text == llm.generate(PROMPTS[0], params)[0].text


def test_a_row_without_a_token_ends_alone(llm: LLM) -> None:
    params = SamplingParams(seed=1, max_tokens=8)
    nothing = params.replace(allowed_token_ids=(5,), logit_bias={5: -np.inf})
    bad, good = llm.generate([PROMPTS[0]] * 2, [nothing, params])
    assert bad.stop is not None
    assert (bad.finish_reason, bad.stop.kind) == ("error", "no_allowed_token")
    assert good.finish_reason == "length"


def test_a_step_of_vllm_that_fails_ends_what_runs(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    worker = llm.model.engine.model_executor.driver_worker.worker  # type: ignore[union-attr]

    def fail(*_: Any, **__: Any) -> Any:
        monkeypatch.undo()
        raise RuntimeError("out of memory")

    monkeypatch.setattr(worker.model_runner, "execute_model", fail)
    failed = llm.generate(PROMPTS[0], SamplingParams(max_tokens=4))[0]
    assert failed.stop is not None
    assert "out of memory" in (failed.stop.matched_text or "")
    assert llm.generate(PROMPTS[0], SamplingParams(seed=1, max_tokens=4, ignore_eos=True))[0].finish_reason == "length"
    assert left_in_vllm(llm) == 0


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        (Prompt(embeds=np.zeros((2, 128), np.float32)), "prompt embeds must not be given, a model on the vLLM backend"),
        (Prompt(text="a", adapter="b"), "prompt adapter must not be given, a model on the vLLM backend"),
        (
            Prompt(text="a", images=[np.zeros((8, 8, 3), np.uint8)]),
            "prompt images must not be given, a model on the vLLM",
        ),
    ],
)
def test_prompts_besides_text_are_refused(llm: LLM, prompt: Prompt, says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        llm.generate(prompt)


def test_what_vllm_cannot_give_is_refused(llm: LLM) -> None:
    with pytest.raises(ParamsError, match="beam search must not be asked of this model"):
        llm.beam_search("a", BeamSearchParams(beam_width=2, max_tokens=3))
    with pytest.raises(ParamsError, match="return_hidden_states must not be given, a model on the vLLM"):
        llm.generate("a", return_hidden_states=True)
    with pytest.raises(ParamsError, match="logprob_token_ids must be empty with prompt_logprobs"):
        llm.generate("a", SamplingParams(prompt_logprobs=0, logprob_token_ids=(3,)))


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"tensor_parallel_size": 2},
            "engine_args must leave out 'tensor_parallel_size': tirage draws in the engine's",
        ),
        ({"max_model_length": 9}, "got 'max_model_length'; did you mean"),
        ({"max_num_seqs": 9}, "use max_running"),
    ],
)
def test_engine_arguments_are_checked(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        checked_args(given)


def test_a_second_model_is_refused_while_one_is_open(llm: LLM, folder: Path) -> None:
    assert llm.max_running == 16
    with pytest.raises(ModelError, match="one model at a time in a process, got a second one; close the first LLM"):
        LLM(folder, backend="vllm", engine_args=ENGINE_ARGS)


def test_another_release_is_refused_with_both_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed.check_version().startswith(installed.KNOWN)
    monkeypatch.setattr(vllm, "__version__", "0.34.1")
    with pytest.raises(ModelError, match=r"that tirage knows, 0\.32 or 0\.33, got 0\.34\.1: its engine was not tried"):
        installed.check_version()
