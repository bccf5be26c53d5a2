"""What fails ends the request that it belongs to: the rows beside it write on, token for token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_models import Script
from small_tokenizers import Letters
from small_torch import Numbers, alone, build

from tirage import LLM, BeamSearchParams, Completion, GuidedDecodingParams, SamplingParams, register_processor
from tirage.models.huggingface import HuggingFaceModel, wrap_module

COUNT = 10
GREEDY = SamplingParams(temperature=0, max_tokens=COUNT, ignore_eos=True)
LETTERS = SamplingParams(temperature=0, max_tokens=4)
LENGTHS = (9, 30, 17, 5, 22)


class Panic(BaseException):
    """What an extension module may raise, which is no Exception."""


def prompts_of(seed: int = 1) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 196, length).tolist() for length in LENGTHS]


def fatal_token(texts: Sequence[Sequence[int]], prompts: Sequence[Sequence[int]]) -> tuple[int, int, int]:
    """(row, place, id) of a token, not the last of its text, that no other row has and that is new in its own."""
    for row, text in enumerate(texts):
        for place, token in enumerate(text[:-1]):
            elsewhere = [i for other, ids in enumerate(texts) if other != row for i in ids]
            if place and token not in [*elsewhere, *text[:place], *(i for prompt in prompts for i in prompt)]:
                return row, place, token
    raise AssertionError("no text has a token of its own")


@contextmanager
def fails(module: Any, bad: Callable[[torch.Tensor], bool], error: BaseException) -> Iterator[None]:
    """The module raises when the ids it reads are bad, after its first layer has written into the cache."""
    seen: list[torch.Tensor] = []
    layers = next(m for m in module.modules() if isinstance(m, torch.nn.ModuleList) and len(m) >= 2)

    def look(_: Any, given: Any) -> None:
        seen[:] = [given[0]]

    def fail(*_: Any) -> None:
        # Prompts of embeddings bring no ids.
        if seen and bad(seen.pop()):
            raise error

    hooks = [
        module.get_input_embeddings().register_forward_pre_hook(look),
        layers[1].register_forward_pre_hook(fail, with_kwargs=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tokens(done: Sequence[Completion]) -> list[list[int]]:
    return [list(one.token_ids) for one in done]


# A forward pass of a real class.


BOOM = RuntimeError("boom")
OTHERS = ("gemma2", "gpt2", "lfm2", "mamba", "qwen3_next")
"""Architectures that keep their past in ways of their own."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("llama", BOOM),
        ("llama", Panic("rust")),
        ("rwkv", BOOM),
        pytest.param("llama", torch.OutOfMemoryError("full"), marks=pytest.mark.slow),
        *(pytest.param(name, BOOM, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_a_row_that_breaks_the_joined_pass_ends_alone(name: str, error: BaseException) -> None:
    # No token comes twice, or these models would say nothing else.
    params = GREEDY.replace(no_repeat_ngram_size=1)
    module, prompts = build(name), prompts_of()
    texts = [alone(module, prompt, COUNT, no_repeat_ngram_size=1) for prompt in prompts]
    guilty, place, token = fatal_token(texts, prompts)
    llm = LLM(wrap_module(module), tokenizer=Numbers())
    with llm, fails(module, lambda ids: bool((ids == token).any()), error):
        done = llm.generate(prompts, params)
        kind = done[guilty].stop
        assert kind is not None
        assert (kind.kind, kind.matched_text) == ("model_failed", f"{type(error).__name__}: {error}")
        assert [one.finish_reason for i, one in enumerate(done) if i != guilty] == ["length"] * 4
        texts[guilty] = texts[guilty][: place + 1]
        assert tokens(done) == texts
        # Nothing that the failure left behind serves the next.
        assert tokens(llm.generate(prompts, params)) == texts


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "rwkv", pytest.param("lfm2", marks=pytest.mark.slow)])
def test_rows_that_cannot_share_a_pass_are_written_one_by_one(name: str) -> None:
    module, prompts = build(name), prompts_of(2)
    texts = [alone(module, prompt, COUNT) for prompt in prompts]
    llm = LLM(wrap_module(module), tokenizer=Numbers())
    with llm, fails(module, lambda ids: len(ids) > 2, MemoryError("too many rows")):
        assert tokens(llm.generate(prompts, GREEDY)) == texts


@pytest.mark.slow
def test_rows_that_step_alone_survive_a_neighbour() -> None:
    module, prompts = build(), prompts_of()
    texts = [alone(module, prompt, COUNT) for prompt in prompts]
    guilty, place, token = fatal_token(texts, prompts)
    model = wrap_module(module)
    model.path = "alone"
    with LLM(model, tokenizer=Numbers()) as llm, fails(module, lambda ids: bool((ids == token).any()), ValueError()):
        done = llm.generate(prompts, GREEDY)
    texts[guilty] = texts[guilty][: place + 1]
    assert tokens(done) == texts


@pytest.mark.slow
def test_rows_of_other_lengths_survive_a_group_that_fails() -> None:
    module = build(max_position_embeddings=4096)
    rng = np.random.default_rng(3)
    prompts = [rng.integers(4, 196, length).tolist() for length in (5, 1018, 1400, 12)]
    texts = [alone(module, prompt, COUNT) for prompt in prompts]
    model = wrap_module(module, prefix_bytes=0)
    with LLM(model, tokenizer=Numbers()) as llm, fails(module, lambda ids: len(ids) == 2, ValueError("pairs")):
        assert tokens(llm.generate(prompts, GREEDY)) == texts


@pytest.mark.slow
def test_a_group_that_cannot_take_a_row_in_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.models.huggingface.batched_cache import BatchedKVCache

    module, prompts = build(), prompts_of()
    enter, calls = BatchedKVCache._enter, []

    def full(self: BatchedKVCache, row: Any, slot: int) -> None:
        calls.append(slot)
        if len(calls) == 4:
            raise MemoryError("full")
        enter(self, row, slot)

    llm = LLM(wrap_module(module), tokenizer=Numbers())
    monkeypatch.setattr(BatchedKVCache, "_enter", full)
    with llm:
        assert tokens(llm.generate(prompts, GREEDY)) == [alone(module, prompt, COUNT) for prompt in prompts]
    assert len(calls) > 4


@pytest.mark.slow
def test_embeddings_and_samples_of_one_prompt_survive_a_failed_step() -> None:
    module = build("lfm2")
    prompts = prompts_of()[:2]
    embeds = module.get_input_embeddings()(torch.tensor(prompts[0])).detach().numpy()
    from tirage import Prompt

    given = [Prompt(embeds=embeds), Prompt(token_ids=prompts[1])]
    params = [GREEDY, SamplingParams(seed=3, n=3, max_tokens=COUNT, ignore_eos=True)]
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        expected = [[s.token_ids for s in one.samples] for one in llm.generate(given, params)]
        with fails(module, lambda ids: len(ids) == 4, ValueError("four")):
            done = llm.generate(given, params)
    assert [[s.token_ids for s in one.samples] for one in done] == expected


@pytest.mark.slow
def test_a_search_whose_steps_fail_ends_alone_beside_text() -> None:
    module, prompts = build(), prompts_of()
    texts = [alone(module, prompt, COUNT) for prompt in prompts]
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        beams = llm.beam_request(prompts[0], BeamSearchParams(beam_width=3, max_tokens=COUNT, ignore_eos=True))
        broken = llm.beam_request(prompts[1], BeamSearchParams(beam_width=2, max_tokens=COUNT, ignore_eos=True))
        expected = llm.beam_search(prompts[0], BeamSearchParams(beam_width=3, max_tokens=COUNT, ignore_eos=True))
        broken.samples[0]._detokenizer = Broken()
        found, failed, *done = [
            stream.wait(60)
            for stream in llm.engine.submit_all([beams, broken, *(llm.request(p, GREEDY) for p in prompts)])
        ]
    assert [s.token_ids for s in found.samples] == [s.token_ids for s in expected[0].samples]
    assert (failed.finish_reason, failed.stop and failed.stop.kind) == ("error", "model_failed")
    assert tokens(done) == texts


class Broken:
    """A detokenizer or matcher that fails whatever is asked."""

    error = complete = done = None

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("broken")


# Everything else that a row meets.


def llm_of(text: str = "abcdef", **options: Any) -> LLM:
    return LLM(Script(text), tokenizer=options.pop("tokenizer", Letters()), **options)


def ends(done: Sequence[Completion]) -> list[tuple[str, str | None]]:
    return [(one.text, one.stop.kind if one.stop else None) for one in done]


@pytest.mark.parametrize("error", [ValueError, SystemExit, Panic])
def test_a_processor_that_raises_anything_ends_its_own_request(error: type[BaseException]) -> None:
    def breaks(logits: NDArray[Any], args: list[dict[str, Any]]) -> NDArray[Any]:
        raise error("no")

    register_processor("raises_anything", breaks, replace=True)
    with llm_of() as llm:
        bad = LETTERS.replace(logits_processors=[("raises_anything", {})])
        done = llm.generate(["p", "q", "r"], [LETTERS, bad, LETTERS])
        assert ends(done) == [("abcd", "max_tokens"), ("", "processor_failed"), ("abcd", "max_tokens")]


def test_rows_drawn_again_alone_draw_what_they_draw_in_company() -> None:
    def breaks(logits: NDArray[Any], args: list[dict[str, Any]]) -> NDArray[Any]:
        raise Panic

    register_processor("panics", breaks, replace=True)
    params = SamplingParams(seed=5, n=2, max_tokens=12, temperature=4.0, repetition_penalty=1.3, logprobs=1)
    with LLM("tiny") as llm:
        expected = llm.generate("Once", params)[0]
        bad = params.replace(logits_processors=[("panics", {})])
        done = llm.generate(["Once", "x"], [params, bad])
    assert done[0].samples == expected.samples
    assert [sample.finish_reason for sample in done[1].samples] == ["error", "error"]


class Unspeakable(Letters):
    """Cannot decode an exclamation mark."""

    def decode(self, ids: Sequence[int]) -> str:
        if ord("!") in ids:
            raise UnicodeError("unspeakable")
        return super().decode(ids)


def test_a_text_that_cannot_be_decoded_ends_its_own_request() -> None:
    class Two(Script):
        """Says `ab!d` after a prompt of p, else abcd."""

        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            rows = super().decode(token_ids, caches)
            for cache, row in zip(caches, rows, strict=True):
                if cache[1] == ord("p") and cache[0] == 2:
                    row[ord("!")] = 99
            return rows

        def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
            return self._logits(0), [0, token_ids[0]]

    with LLM(Two("abcd"), tokenizer=Unspeakable()) as llm:
        done = llm.generate(["p", "q"], LETTERS)
        assert ends(done) == [("ab", "text_failed"), ("abcd", "max_tokens")]
        assert done[0].stop is not None
        assert done[0].stop.matched_text == "UnicodeError: unspeakable"
        assert llm.engine.progress().failed == 1


def test_a_matcher_that_fails_ends_its_own_request() -> None:
    with LLM("tiny") as llm:
        guided = SamplingParams(seed=1, max_tokens=8, guided_decoding=GuidedDecodingParams(regex="[a-z]{4}"))
        expected = llm.generate("Once", guided)[0]
        bad, good = llm.request("Once", guided), llm.request("Once", guided)
        bad.samples[0].grammar._matcher = Broken()  # type: ignore[union-attr, assignment]
        done = [stream.wait(60) for stream in llm.engine.submit_all([bad, good])]
    assert done[1].samples == expected.samples
    assert (done[0].finish_reason, done[0].stop and done[0].stop.kind) == ("error", "model_failed")
    assert done[0].stop is not None
    assert done[0].stop.matched_text == "RuntimeError: broken"


@pytest.mark.slow
def test_logits_that_are_not_numbers_end_their_own_request() -> None:
    module, prompts = build(), prompts_of()
    texts = [alone(module, prompt, COUNT) for prompt in prompts]
    guilty, place, token = fatal_token(texts, prompts)

    def poison(_: Any, given: Any, out: torch.Tensor) -> torch.Tensor:
        return torch.where((given[0] == token)[..., None], torch.nan, out)

    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        hook = module.get_input_embeddings().register_forward_hook(poison)
        done = llm.generate(prompts, GREEDY)
        hook.remove()
        stop = done[guilty].stop
        assert stop is not None
        assert stop.kind == "non_finite_logits"
        # The poisoned keys are not kept: the same prompt is read well afterwards.
        assert tokens(llm.generate(prompts, GREEDY)) == texts
    texts[guilty] = texts[guilty][: place + 1]
    assert tokens(done) == texts


def test_a_model_that_returns_another_shape_ends_its_requests_by_name() -> None:
    class Narrow(Script):
        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            return super().decode(token_ids, caches)[:, :7]

    with LLM(Narrow("abc"), tokenizer=Letters()) as llm:
        done = llm.generate(["p", "q"], LETTERS)
        assert ends(done) == [("a", "model_failed")] * 2
        assert done[0].stop is not None
        assert done[0].stop.matched_text == "ModelError: decode must give logits of shape [2, 300], got [2, 7]"


def test_a_users_model_that_fails_for_one_row_goes_on_with_the_others() -> None:
    class Half(Script):
        """Moves the caches on one after the other, and fails at a prompt of p."""

        def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
            return self._logits(len(token_ids) - 1), [len(token_ids) - 1, token_ids[0]]

        def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
            for cache in caches:
                cache[0] += 1
                if cache[1] == ord("p") and cache[0] == 2:
                    raise MemoryError("full")
            return np.stack([self._logits(cache[0]) for cache in caches])

    with LLM(Half("abcdef"), tokenizer=Letters()) as llm:
        done = llm.generate(["q", "p", "r"], LETTERS)
        assert ends(done) == [("abcd", "max_tokens"), ("ab", "model_failed"), ("abcd", "max_tokens")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
def test_an_adapters_failure_leaves_no_hooks_behind(tmp_path: Any) -> None:
    from peft import LoraConfig, get_peft_model

    from tirage import Prompt

    for name in ("first", "second"):
        config = LoraConfig(r=4, target_modules=["q_proj"], lora_alpha=64, task_type="CAUSAL_LM")
        adapted: Any = get_peft_model(build(), config)
        for weight_name, weight in adapted.named_parameters():
            if "lora_B" in weight_name:
                torch.nn.init.normal_(weight, std=0.3)
        adapted.save_pretrained(tmp_path / name)
    module = build()
    model = HuggingFaceModel(module, adapters={name: tmp_path / name for name in ("first", "second")})
    prompts = [
        Prompt(token_ids=ids, adapter=name) for ids, name in zip(prompts_of(), ["first", "second"], strict=False)
    ]
    with LLM(model, tokenizer=Numbers()) as llm:
        expected = tokens(llm.generate(prompts, GREEDY))
        with fails(module, lambda ids: len(ids) == 2, RuntimeError("two")):
            assert tokens(llm.generate(prompts, GREEDY)) == expected
        assert tokens(llm.generate(prompts, GREEDY)) == expected
        assert expected[0] != alone(build(), list(prompts[0].token_ids or ()), COUNT)
