"""Models whose logits lie in shards, in the engine: what they generate is what the whole model generates."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_llama
from small_tokenizers import trained_byte_level

import tirage
from tirage import LLM, GuidedDecodingParams, ModelError, ParamsError, SamplingParams
from tirage.backends import sharded
from tirage.models import ShardedModel

HERE = Path(__file__).parent
PROMPTS = ["Once upon a time", "One day", "The dog and"]
EDGES = [0, 500, 500, 900, 1536]


@cache
def whole() -> LLM:
    return LLM("tiny")


class Parts:
    """All shards in this process, cut at `EDGES`; `differs` makes the next step one on which processes differ."""

    vocab_size = EDGES[-1]
    differs = False

    def join(self, parts: Sequence[Any]) -> Any:
        logits = np.concatenate(parts)
        return sharded.Shards([logits[:, a:b] for a, b in pairwise(EDGES)]).ready()

    def agree(self, digest: int) -> bool:
        found, self.differs = not self.differs, False
        return found

    def share(self, value: int) -> int:
        return 11


@pytest.fixture(scope="module")
def parts() -> Parts:
    return Parts()


@pytest.fixture(scope="module")
def cut(parts: Parts) -> Iterator[LLM]:
    model: Any = whole().model
    config = whole().generation_config
    with LLM(ShardedModel(model, parts), tokenizer=whole().tokenizer, generation_config=config, max_running=4) as llm:
        yield llm


ASKED: list[dict[str, Any]] = [
    {"temperature": 0.0, "logprobs": 3},
    {"seed": 1, "top_p": 0.9, "n": 3},
    {"seed": 2, "top_k": 30, "repetition_penalty": 1.3, "frequency_penalty": 0.2, "logprobs": 2},
    {"seed": 3, "temperature": 1.4, "min_p": 0.02, "dry_multiplier": 0.8, "stop": ["."]},
    {"seed": 4, "semantics": "llamacpp", "xtc_probability": 0.5, "typical_p": 0.9},
    {"seed": 5, "guided_decoding": GuidedDecodingParams(regex="[a-z ]{5,30}"), "bad_words": ["dog"]},
    {"seed": 6, "logprobs": 1, "logprobs_mode": "sampled", "top_n_sigma": 1.5, "ignore_eos": True},
]


@pytest.mark.slow
@pytest.mark.parametrize("asked", ASKED)
def test_a_model_in_shards_generates_what_the_whole_one_generates(cut: LLM, asked: dict[str, Any]) -> None:
    params = SamplingParams(max_tokens=12, **asked)
    found, expected = cut.generate(PROMPTS, params), whole().generate(PROMPTS, params)
    assert [each.samples for each in found] == [each.samples for each in expected]
    assert [each.usage.total_tokens for each in found] == [each.usage.total_tokens for each in expected]


def test_streams_and_chats_are_those_of_the_whole_model(cut: LLM) -> None:
    params = SamplingParams(seed=8, top_p=0.8, max_tokens=10)
    assert "".join(delta.text for delta in cut.stream("One day", params)) == whole().generate("One day", params)[0].text
    talk = [{"role": "user", "content": "hi"}]
    assert cut.chat(talk, params).token_ids == whole().chat(talk, params).token_ids


def test_a_request_without_a_seed_gets_one_that_follows_from_that_of_the_first_process(parts: Parts) -> None:
    model: Any = whole().model
    given = []
    for _ in range(2):
        with LLM(ShardedModel(model, parts), tokenizer=whole().tokenizer) as llm:
            params = SamplingParams(temperature=2.0, max_tokens=4)
            given.append([llm.generate("Once", params)[0].seed for _ in range(3)])
    assert given[0] == given[1]
    assert len({*given[0]}) == 3


def test_a_bad_row_ends_alone(cut: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = cut.model
    read = model.model.prefill

    def broken(ids: Any) -> Any:
        logits, cached = read(ids)
        return (np.where(np.arange(logits.size) == 700, np.nan, logits) if len(ids) == 2 else logits), cached

    monkeypatch.setattr(model.model, "prefill", broken)
    params = SamplingParams(seed=1, max_tokens=6)
    first, bad, last = cut.generate(["Once upon a time", [1, 40], "One day"], params)
    assert (bad.finish_reason, bad.stop and bad.stop.kind, bad.text) == ("error", "non_finite_logits", "")
    expected = whole().generate(["Once upon a time", "One day"], params)
    assert [first.samples, last.samples] == [each.samples for each in expected]


def test_a_step_on_which_processes_differ_ends_its_requests_and_the_next_ones_run(cut: LLM, parts: Parts) -> None:
    params = SamplingParams(seed=1, max_tokens=6)
    parts.differs = True
    assert [each.finish_reason for each in cut.generate(PROMPTS, params)] == ["error"] * 3
    assert cut.generate(PROMPTS, params)[0].samples == whole().generate(PROMPTS, params)[0].samples


def test_what_needs_whole_rows_is_refused_by_name(cut: LLM) -> None:
    with pytest.raises(ParamsError, match="prompt_logprobs must be None, a model in shards"):
        cut.generate("Once", SamplingParams(prompt_logprobs=1))
    with pytest.raises(ParamsError, match="logits must be whole rows here, got shards"):
        cut.explain("Once")
    with pytest.raises(ParamsError, match="beam search must not be asked of this model"):
        cut.beam_search("Once", tirage.BeamSearchParams(beam_width=2, max_tokens=4))


@pytest.mark.slow
def test_options_that_do_not_go_with_a_plan_are_refused(tmp_path: Path) -> None:
    folder = small_llama.write_folder(tmp_path / "llama", small_llama.random_tensors(small_llama.CONFIG))
    save_tokenizer(folder)
    for options, kind, says in (
        ({"tp_plan": "mine"}, ParamsError, "tp_plan must be 'auto'"),
        ({"tp_plan": "auto", "dtype": "int8"}, ParamsError, "dtype must not be 'int8' with tp_plan"),
        ({"tp_plan": "auto", "prefix_bytes": 1}, ParamsError, "prefix_bytes must be left out with tp_plan"),
        ({"tp_plan": "auto"}, ModelError, "tp_plan must go with a process group"),
        ({"tp_plan": "auto", "backend": "numpy"}, ParamsError, "tp_plan must not be given on the NumPy backend"),
    ):
        with pytest.raises(kind, match=says):
            LLM(folder, **{"backend": "torch", **options})


# --- processes and devices -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama with random weights for a vocabulary that two processes cannot share evenly."""
    place, config = tmp_path_factory.mktemp("tp") / "llama", {**small_llama.CONFIG, "vocab_size": 425}
    small_llama.write_folder(place, small_llama.random_tensors(config), vocab_size=425)
    save_tokenizer(place)
    return place


def save_tokenizer(folder: Path) -> None:
    """Writes a tokenizer of 421 tokens into a folder."""
    tokenizer: Any = trained_byte_level()
    tokenizer.raw.save(str(folder / "tokenizer.json"))


@pytest.mark.exhaustive
def test_two_processes_of_a_tensor_parallel_model_generate_what_one_does(folder: Path, tmp_path: Path) -> None:
    from tp_process import generated, told

    program = [sys.executable, str(HERE / "tp_process.py")]
    running = [
        subprocess.Popen([*program, str(rank), "2", str(tmp_path), str(folder)], stderr=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    with LLM(folder, backend="torch") as llm:
        expected = json.loads(json.dumps(generated(llm)))
        again = json.loads(json.dumps(told(llm.generate("Once upon a time", SamplingParams(seed=1, max_tokens=8))[0])))
    errors = [each.communicate(timeout=600)[1] for each in running]
    assert [each.returncode for each in running] == [0, 0], errors
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first == second
    assert first["texts"] == expected
    assert [each[0][2] for each in first["beside"]] == ["length", "error", "length"]
    assert first["apart"][0][2:] == ["error", "model_failed"]
    assert first["again"] == again
    assert len({seed for seed, _ in first["fresh"]}) == 2
    assert "logits must be whole rows here" in first["explain"]
    assert "prompt_logprobs must be None" in first["scores"]


@pytest.mark.exhaustive
def test_eight_devices_of_a_mesh_generate_what_one_does() -> None:
    command = [sys.executable, str(HERE / "mesh_model_process.py")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found, expected, ends = json.loads(done.stdout.splitlines()[-1])
    assert found == expected
    assert ends == ["length", "error", "length"]
