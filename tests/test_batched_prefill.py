"""Short prompts that wait together are prefilled in one pass, and their answers are those of each alone."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_models import Script
from small_tokenizers import Letters
from small_torch import ARCHITECTURES, RECOMPUTED, UNLIKE, Numbers, alone, build

from tirage import LLM, ParamsError, Prompt, SamplingParams
from tirage.engine import EngineRequest, SchedulerConfig, SequenceGroup
from tirage.engine.plain_model import PlainModel
from tirage.engine.prefill_queue import PREFILL_BUDGET
from tirage.engine.scheduler import Scheduler
from tirage.models import Inputs
from tirage.models.huggingface import open_folder, wrap_module
from tirage.models.huggingface.model import CHUNK, HuggingFaceModel
from tirage.text import wrap_tokenizer

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
TOKENIZER = wrap_tokenizer(Letters())
LENGTHS = (9, 16, 13, 17, 30, 25, 1, 40)
"""Prompts of lengths (8, 16] and (16, 32] share passes; those of 1 and of 40 tokens have no company."""
PASSES = {(9, 16, 13), (17, 30, 25)}
FEW = ("gemma2", "llama", "mamba", "rwkv")


def prompts_of(lengths: Sequence[int], seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 196, length).tolist() for length in lengths]


@contextmanager
def passes_of(model: HuggingFaceModel) -> Any:
    """The lengths of the prompts of each pass over several."""
    plain, passes = model.prefill_batch, []

    def counted(rows: Any) -> Any:
        passes.append(tuple(row.inputs.length for row in rows))
        return plain(rows)

    model.prefill_batch = counted  # type: ignore[method-assign]
    yield passes
    model.prefill_batch = plain  # type: ignore[method-assign]


def chosen(model: HuggingFaceModel, lengths: Sequence[int], **fields: Any) -> list[int]:
    return model.choose_prefill([model.open(Inputs(token_ids=tuple(ids), **fields)) for ids in prompts_of(lengths)])


def ids_of(done: Sequence[Any]) -> list[list[int]]:
    return [list(one.token_ids) for one in done]


# Answers.


def check_family(name: str) -> None:
    module = build(name)
    model = wrap_module(module, prefix_bytes=0)
    prompts = prompts_of(LENGTHS)
    expected = [alone(module, prompt, 8) for prompt in prompts]
    with LLM(model, tokenizer=Numbers()) as llm, passes_of(model) as passes:
        assert ids_of(llm.generate(prompts, GREEDY)) == expected
    assert set(passes) == (set() if name in RECOMPUTED else PASSES)


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_prompts_read_together_are_answered_as_each_alone(name: str) -> None:
    check_family(name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in UNLIKE else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in sorted(set(ARCHITECTURES) - set(FEW))
    ],
)
def test_every_architecture_reads_prompts_together_and_answers_as_alone(name: str) -> None:
    check_family(name)


@pytest.mark.slow
def test_plain_prompts_share_a_pass_beside_prompts_of_every_other_kind() -> None:
    module = build(max_position_embeddings=1024)
    model = wrap_module(module)
    width = module.get_input_embeddings()
    plain, (long, scored, seen) = prompts_of((12, 14, 10)), prompts_of((CHUNK + 50, 11, 20), seed=2)
    with LLM(model, tokenizer=Numbers()) as llm:
        first = llm.generate(seen, GREEDY)[0]
        again = [*seen, *first.token_ids]
        with torch.inference_mode():
            embeds = Prompt(embeds=width(torch.tensor(scored)).numpy())
        asked: list[Any] = [plain[0], long, scored, plain[1], embeds, again, plain[2]]
        params = [GREEDY.replace(prompt_logprobs=1) if ids is scored else GREEDY for ids in asked]
        with passes_of(model) as passes:
            done = llm.generate(asked, params)
    expected = [alone(module, scored if one is embeds else one, 8) for one in asked]
    assert ids_of(done) == expected
    assert passes == [(12, 14, 10)]
    assert done[5].usage.cached_tokens == len(again) - 1
    assert done[2].prompt_logprobs is not None


def test_a_prompt_read_in_company_serves_later_ones_as_a_prefix() -> None:
    module = build("mistral")
    prompts = prompts_of((20, 29))
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        turns = [[*ids, *one.token_ids, 7] for ids, one in zip(prompts, llm.generate(prompts, GREEDY), strict=True)]
        done = llm.generate(turns, GREEDY)
    assert ids_of(done) == [alone(module, ids, 8) for ids in turns]
    # The window of 16 tokens has moved on: the prefix serves as a whole.
    assert [one.usage.cached_tokens for one in done] == [27, 36]


def test_samples_and_beams_go_on_from_a_prompt_read_in_company() -> None:
    module, prompts = build(), prompts_of((10, 15, 12))
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        done = llm.generate(prompts, GREEDY.replace(n=2))
    expected = [alone(module, ids, 8) for ids in prompts]
    assert [[list(sample.token_ids) for sample in one.samples] for one in done] == [[ids, ids] for ids in expected]


# Which prompts share a pass.


def test_a_pass_holds_as_many_tokens_as_the_option_says_padding_included() -> None:
    model = wrap_module(build(), prefill_batch_tokens=48)
    assert chosen(model, (16, 9, 16, 9)) == [0, 1, 2]
    assert chosen(model, (12, 12, 12, 12)) == [0, 1, 2, 3]
    assert chosen(model, (12, 12, 12, 13)) == [0, 1, 2]
    # A later prompt that fits joins where one before it does not.
    assert chosen(model, (12, 12, 12, 16, 12)) == [0, 1, 2, 4]
    assert chosen(model, (25, 25)) == [0]
    assert chosen(model, (24, 24)) == [0, 1]


@pytest.mark.parametrize(("lengths", "company"), [((8, 5), [0, 1]), ((8, 4), [0]), ((8, 9), [0]), ((9, 16), [0, 1])])
def test_prompts_share_a_pass_with_those_of_the_same_power_of_two(lengths: tuple[int, int], company: list[int]) -> None:
    assert chosen(wrap_module(build()), lengths) == company


def test_a_prompt_of_several_chunks_has_no_company() -> None:
    model = wrap_module(build(max_position_embeddings=1024), prefill_batch_tokens=4096)
    assert chosen(model, (CHUNK, CHUNK)) == [0, 1]
    assert chosen(model, (CHUNK + 1, CHUNK + 1)) == [0]


@pytest.mark.parametrize("fields", [{"score": True}, {"hidden_states": True}])
def test_a_prompt_of_which_more_is_wanted_has_no_company(fields: dict[str, Any]) -> None:
    assert chosen(wrap_module(build()), (9, 9), **fields) == [0]


@pytest.mark.slow
def test_rows_with_different_rotary_frequencies_have_no_company() -> None:
    rope = {"rope_type": "longrope", "long_factor": [4.0] * 8, "short_factor": [1.0] * 8, "rope_theta": 1e4}
    rope["original_max_position_embeddings"] = 24
    model = wrap_module(build("phi3", rope_parameters=rope, original_max_position_embeddings=24))
    assert chosen(model, (20, 24)) == [0, 1]
    assert chosen(model, (20, 25)) == [0]


# Off.


@pytest.mark.slow
def test_without_company_the_first_logits_do_not_depend_on_other_requests() -> None:
    model = wrap_module(build().to(torch.bfloat16), prefill_batch_tokens=0)
    assert chosen(model, (9, 9, 9)) == [0]
    prompts = prompts_of((9, 12, 16))
    params = SamplingParams(max_tokens=1, temperature=0, logprobs=5)
    with LLM(model, tokenizer=Numbers()) as llm, passes_of(model) as passes:
        lone = [llm.generate(prompt, params)[0] for prompt in prompts]
        assert [one.logprobs for one in llm.generate(prompts, params)] == [one.logprobs for one in lone]
    assert passes == []


def test_one_running_request_has_no_company() -> None:
    model = wrap_module(build())
    with LLM(model, tokenizer=Numbers(), max_running=1) as llm, passes_of(model) as passes:
        llm.generate(prompts_of((9, 12, 16)), GREEDY)
    assert passes == []


@pytest.mark.parametrize("count", [-1, 2.5, True, "256"])
def test_a_bad_option_is_refused(count: Any) -> None:
    with pytest.raises(ParamsError, match=r"prefill_batch_tokens must be an integer of at least 0, got .*; 0 prefills"):
        wrap_module(build(), prefill_batch_tokens=count)


@pytest.mark.slow
def test_the_option_reaches_the_model_from_llm_and_server(tmp_path: Path) -> None:
    from tirage.server.app import open_llm
    from tirage.server.options import Options

    build().save_pretrained(tmp_path)
    assert open_folder(tmp_path).prefill_batch_tokens == 256
    llm: Any = LLM(tmp_path, tokenizer=Numbers(), prefill_batch_tokens=0)
    assert llm.model.prefill_batch_tokens == 0
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "tokenizer.json"))
    served: Any = open_llm(Options.of(model=str(tmp_path), prefill_batch_tokens=64))
    assert served.model.prefill_batch_tokens == 64


# The probe.


def test_a_model_that_looks_at_padding_reads_prompts_alone(caplog: pytest.LogCaptureFixture) -> None:
    module = build()
    layer = module.model.layers[0].mlp
    plain = layer.forward

    def forward(x: torch.Tensor) -> torch.Tensor:
        # The first position of a pass, which is padding in company, reaches all the others.
        return plain(x + x[:, :1]) if x.shape[1] > 1 else plain(x)

    layer.forward = forward
    with caplog.at_level(logging.INFO, "tirage"):
        model = wrap_module(module)
    assert (model.path, model.joins_prompts) == ("joined", False)
    assert "prompts are read alone: logits differ by" in caplog.text
    assert chosen(model, (9, 16)) == [0]


# Failures and aborts.


@contextmanager
def fails(module: Any, is_bad: Any) -> Any:
    plain = module.forward

    def forward(*args: Any, **kwargs: Any) -> Any:
        if is_bad(kwargs["input_ids"]):
            raise MemoryError("no room")
        return plain(*args, **kwargs)

    module.forward = forward
    yield
    module.forward = plain


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_prompt_that_cannot_be_read_ends_alone(place: int) -> None:
    module, prompts = build(), prompts_of((10, 16, 12))
    prompts[place][3] = 197
    expected = [alone(module, prompt, 8) for prompt in prompts]
    llm = LLM(wrap_module(module, prefix_bytes=0), tokenizer=Numbers())
    with llm, fails(module, lambda ids: bool((ids == 197).any()) and ids.shape[1] > 1):
        done = llm.generate(prompts, GREEDY)
    assert [one.finish_reason == "error" for one in done] == [index == place for index in range(3)]
    assert ids_of(done) == [[] if index == place else ids for index, ids in enumerate(expected)]


def test_prompts_for_which_a_pass_has_no_room_are_read_alone() -> None:
    module, prompts = build(), prompts_of((10, 16, 12))
    expected = [alone(module, prompt, 8) for prompt in prompts]
    llm = LLM(wrap_module(module, prefix_bytes=0), tokenizer=Numbers())
    with llm, fails(module, lambda ids: len(ids) > 1 and ids.shape[1] > 1):
        assert ids_of(llm.generate(prompts, GREEDY)) == expected


class Together(PlainModel):
    """A scripted model that prefills up to four prompts in one pass; `log` holds passes and steps."""

    def __init__(self, *, width: int = Script.vocab_size) -> None:
        super().__init__(Script("abcdefghij" * 3))
        self.log: list[tuple[str, int]] = []
        self._width = width

    def choose_prefill(self, rows: Sequence[Any]) -> list[int]:
        short = [index for index, row in enumerate(rows) if row.inputs.length <= 64]
        return short[:4] if 0 in short else [0]

    def prefill_batch(self, rows: Sequence[Any]) -> Any:
        self.log.append(("together", len(rows)))
        return np.concatenate([super(Together, self).prefill_chunk(row) for row in rows])[:, : self._width]

    def prefill_chunk(self, row: Any) -> Any:
        self.log.append(("alone", row.inputs.length))
        return super().prefill_chunk(row)

    def decode(self, token_ids: Sequence[int], caches: Sequence[Any]) -> Any:
        self.log.append(("step", len(caches)))
        return super().decode(token_ids, caches)


def group_of(text: str, heard: list[Any]) -> SequenceGroup:
    ids = TOKENIZER.encode(text)
    params = SamplingParams(temperature=0, max_tokens=20)
    request = EngineRequest(params, TOKENIZER, ids, vocab_size=Script.vocab_size, max_length=100_000, prompt=text)
    return SequenceGroup(request, heard.append)


def started(model: Any, texts: Sequence[str]) -> tuple[Scheduler, list[SequenceGroup]]:
    scheduler = Scheduler(model, TOKENIZER, config=SchedulerConfig(max_running=64))
    groups = [group_of(text, []) for text in texts]
    deque(map(scheduler.add, groups), maxlen=0)
    return scheduler, groups


def test_running_rows_move_on_between_passes_and_a_long_prompt_gets_its_turn() -> None:
    model = Together()
    scheduler, _ = started(model, ["s" * 64, "L" * 700, *["s" * 64] * 11])
    for _ in range(4):
        scheduler.step()
    # 256 tokens are one pass of four prompts, after which the rows that run make a step.
    assert PREFILL_BUDGET == 4 * 64
    assert model.log == [
        ("together", 4), ("step", 4), ("alone", 700), ("step", 5), ("together", 4), ("step", 9), ("together", 4),
        ("step", 13),
    ]  # fmt: skip


def test_a_request_aborted_before_its_turn_leaves_the_others_their_pass() -> None:
    model = Together()
    scheduler, groups = started(model, ["L" * 700, "aa", "bb", "cc"])
    scheduler.step()
    assert model.log == [("alone", 700), ("step", 1)]
    scheduler.abort(groups[2])
    while scheduler.busy:
        scheduler.step()
    assert model.log[2] == ("together", 2)
    reasons = [group.request.completion().finish_reason for group in groups]
    assert reasons == ["length", "length", "abort", "length"]


def test_logits_of_a_wrong_shape_end_the_requests_of_their_pass_only() -> None:
    model = Together(width=5)
    scheduler, groups = started(model, ["L" * 700, "aa", "bb"])
    while scheduler.busy:
        scheduler.step()
    done = [group.request.completion() for group in groups]
    assert [one.finish_reason for one in done] == ["length", "error", "error"]
    assert done[1].stop is not None
    assert "prefill_batch must give logits of shape" in str(done[1].stop.matched_text)
