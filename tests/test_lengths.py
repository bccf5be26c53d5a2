"""Texts on both sides of every bound, the engine's and the configuration's, are those of the model's own `generate`."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import getsource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published_shapes import LONG, SHAPES, SHORT
from small_torch import Numbers, alone, build
from transformers import AutoConfig, AutoModelForCausalLM, Phi3ForCausalLM

from tirage import LLM, BeamSearchParams, SamplingParams
from tirage.models.huggingface import wrap_module

NEW = 10
GREEDY = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True)
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": SHORT, "long_factor": LONG}
BOUND = 300
"""Where the factors of the small models below change: more than a piece of a prompt."""
ROPES: dict[str, tuple[str, dict[str, Any]]] = {
    # Phi-3 reads all again at the bound, Llama goes on with what it has.
    "phi3": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": BOUND}),
    "llama": ("llama", {"rope_parameters": {**LONGROPE, "original_max_position_embeddings": BOUND, "factor": 4.0}}),
    "dynamic": ("llama", {
        "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        "max_position_embeddings": BOUND,
    }),
}  # fmt: skip

crossing = pytest.mark.skipif(
    "next_sequence_length" not in getsource(Phi3ForCausalLM.prepare_inputs_for_generation),
    reason="where Phi-3 reads all again, transformers before 5.20 gives it the last token alone",
)


def sharp(module: Any) -> Any:
    """The module with weights under which a wrong mask, window or frequency changes the text."""
    torch.manual_seed(1)
    for part in module.modules():
        if isinstance(part, torch.nn.Linear):
            torch.nn.init.normal_(part.weight, std=1.5 * part.in_features**-0.5)
    return module


def roped(name: str) -> Any:
    kind, changes = ROPES[name]
    return sharp(build(kind, **{"max_position_embeddings": 1200, **changes}))


def prompts_of(*lengths: int, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, 196, length).tolist() for length in lengths]


def llm_of(module: Any, **options: Any) -> LLM:
    return LLM(wrap_module(module, max_length=20_000, **options), tokenizer=Numbers())


def texts(llm: LLM, prompts: Sequence[list[int]], params: Any = GREEDY) -> list[list[int]]:
    return [list(done.token_ids) for done in llm.generate(list(prompts), params)]


# The engine's own bounds.


@pytest.mark.slow
@pytest.mark.parametrize(
    "lengths", [(1020,), pytest.param((1019, 1019), marks=pytest.mark.exhaustive), (1017, 5, 1030, 1021)]
)
def test_a_text_crosses_the_first_bucket_alone_and_in_company(lengths: tuple[int, ...]) -> None:
    module = sharp(build(max_position_embeddings=4096))
    prompts = prompts_of(*lengths)
    with llm_of(module) as llm:
        expected = [alone(module, prompt, NEW) for prompt in prompts]
        assert texts(llm, prompts) == expected
        # Again, from what the first ones left.
        assert texts(llm, prompts) == expected


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("llama", "gemma2", "mamba", "qwen3_next", "deepseek_v3"),
        *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("mistral", "lfm2", "bloom")),
    ],
)
def test_every_kind_of_layer_crosses_buckets(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tirage.models.huggingface.model._BUCKETS", (20, 24, 36, 56))
    module, prompts = sharp(build(name)), prompts_of(18, 18, 30, 3, 50)
    expected = [alone(module, prompt, NEW) for prompt in prompts]
    with llm_of(module) as llm:
        for some in (slice(0, 1), slice(0, 2), slice(1, 5)):
            assert texts(llm, prompts[some]) == expected[some]
        assert len(llm.model._groups) == 0  # type: ignore[attr-defined]


@pytest.mark.slow
def test_beams_samples_and_hidden_states_cross_buckets(monkeypatch: pytest.MonkeyPatch) -> None:
    module, prompts = sharp(build()), prompts_of(18, 23)
    many = SamplingParams(seed=3, n=3, max_tokens=NEW, ignore_eos=True)
    beams = BeamSearchParams(beam_width=3, max_tokens=NEW, ignore_eos=True)

    def write(llm: LLM) -> Any:
        streams = llm.engine.submit_all([
            llm.beam_request(prompts[0], beams),
            llm.request(prompts[1], many),
            llm.request(prompts[0], GREEDY),
        ])
        done = [[sample.token_ids for sample in stream.wait(60).samples] for stream in streams]
        return done, llm.generate(prompts, GREEDY, return_hidden_states=True)

    with llm_of(module) as llm:
        expected, shown = write(llm)
    monkeypatch.setattr("tirage.models.huggingface.model._BUCKETS", (20, 25))
    with llm_of(module) as llm:
        found, again = write(llm)
    assert found == expected
    for one, other in zip(shown, again, strict=True):
        assert np.allclose(one.hidden_states, other.hidden_states, atol=1e-4)  # type: ignore[arg-type]


# Frequencies that follow from the length of a text.


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[crossing] * (name == "phi3")) for name in ROPES])
def test_a_rope_that_depends_on_the_length_never_sees_a_neighbours(name: str) -> None:
    prompts = prompts_of(40, BOUND - 5, BOUND, BOUND + 1, BOUND + 290, BOUND - 1, BOUND - 5)
    # A fresh module each time: transformers' own dynamic NTK remembers the longest text that it has seen.
    expected = [alone(roped(name), prompt, NEW) for prompt in prompts]
    with llm_of(roped(name)) as llm:
        assert texts(llm, prompts) == expected
        assert texts(llm, prompts) == expected
        for prompt, text in zip(prompts[:4], expected, strict=False):
            assert texts(llm, [prompt]) == [text]
        assert llm.model.path == "joined"  # type: ignore[attr-defined]


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[crossing] * (name == "phi3")) for name in ROPES])
def test_a_prompt_never_takes_up_what_was_read_with_other_frequencies(name: str) -> None:
    (whole,) = prompts_of(BOUND + 100)
    with llm_of(roped(name)) as llm:
        for length in (BOUND - 20, BOUND + 50, BOUND - 2, BOUND + 100, BOUND - 10):
            prompt = whole[:length]
            assert texts(llm, [prompt]) == [alone(roped(name), prompt, NEW)], length


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param(name, marks=[crossing] * (name == "phi3")) for name in ROPES])
def test_a_row_lost_beyond_the_bound_is_read_again_as_it_was(name: str) -> None:
    module, prompts = roped(name), prompts_of(BOUND - 5, BOUND - 5, 30)
    expected = [alone(roped(name), prompt, NEW) for prompt in prompts]
    with llm_of(module, prefix_bytes=0) as llm:
        model: Any = llm.model
        step, joined, calls, failures = model._step_group, model._step_joined, [], []
        many = False

        def noted(token_ids: Any, rows: Any) -> Any:
            nonlocal many
            many = len(rows) > 1
            return joined(token_ids, rows)

        def fail_late(*given: Any) -> Any:
            done = step(*given)
            calls.append(given)
            # A row that is alone, as on a busy machine the last one is, would not be tried again.
            if many and len(calls) % 5 == 4:
                failures.append(given)
                raise MemoryError("full")
            return done

        model._step_group, model._step_joined = fail_late, noted
        assert texts(llm, prompts) == expected
    assert len(failures) > 1


@crossing
def test_samples_of_one_prompt_cross_the_bound_together() -> None:
    (prompt,) = prompts_of(BOUND - 3)
    many = SamplingParams(temperature=0, n=3, max_tokens=NEW, ignore_eos=True)
    with llm_of(roped("phi3")) as llm:
        done = llm.generate([prompt], many)[0]
    assert {sample.token_ids for sample in done.samples} == {tuple(alone(roped("phi3"), prompt, NEW))}


@pytest.mark.slow
def test_the_users_module_is_left_as_it_was() -> None:
    module, prompts = roped("dynamic"), prompts_of(BOUND + 60, 40)
    expected = [alone(roped("dynamic"), prompt, NEW) for prompt in prompts]
    with llm_of(module) as llm:
        assert texts(llm, prompts) == expected
    assert alone(module, prompts[1], NEW) == expected[1]


# Published shapes.


LATER = {"Phi-3-mini-128k", "Llama-3.1", "Mistral-7B-v0.1", "Gemma-2"}
"""Thousands of tokens; small models of these kinds cross bounds above and in test_architectures.py."""


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.exhaustive] * (name in LATER) + [crossing] * name.startswith("Phi-3")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "bound"),
    [
        *(pytest.param(name, SHAPES[name][2], id=name, marks=marks_of(name)) for name in SHAPES),
        # Its frequencies are the same at every length.
        pytest.param("Llama-3.1", 1024, id="Llama-3.1 at a bucket"),
    ],
)
def test_a_published_shape_writes_what_generate_writes_around_its_bounds(name: str, bound: int, tmp_path: Path) -> None:
    kind, settings, _ = SHAPES[name]
    torch.manual_seed(0)
    module = sharp(AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **settings)).float().eval())
    module.save_pretrained(tmp_path)
    prompts = prompts_of(30, bound - 4, bound + 1)
    expected = [alone(module, prompt, NEW) for prompt in prompts]
    with LLM(tmp_path, tokenizer=Numbers()) as llm:
        assert texts(llm, prompts) == expected
    assert len({tuple(text) for text in expected}) > 1


@pytest.mark.slow
def test_a_text_crosses_the_last_bucket() -> None:
    small = {"num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1, "hidden_size": 16}
    module, prompts = sharp(build(max_position_embeddings=20_000, **small)), prompts_of(16_380, 4_090)
    with llm_of(module) as llm:
        assert texts(llm, prompts) == [alone(module, prompt, NEW) for prompt in prompts]
