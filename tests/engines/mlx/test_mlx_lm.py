"""mlx-lm with tirage inside: the tokens are those of `tirage.sample` for the same logits."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from captured_mlx import loaded
from mlx_lm.generate import BatchGenerator, generate_step, speculative_generate_step

import tirage
from tirage import ParamsError, RowError, SamplingParams
from tirage.integrations.mlx import logits_processors, sampler

PROMPT = [5, 9, 14, 9, 5, 9, 14]
FIELDS: dict[str, Any] = {"seed": 3, "top_p": 0.9, "repetition_penalty": 1.3, "temperature": 1.4}
PLAIN: dict[str, Any] = {"seed": 4, "min_p": 0.02, "temperature": 2.0}
MIROSTAT: dict[str, Any] = {"seed": 5, "mirostat": 2, "mirostat_tau": 3.0, "mirostat_eta": 0.4}
ADAPTIVE: dict[str, Any] = {"seed": 6, "adaptive_target": 0.3, "adaptive_decay": 0.6}
WATERMARK: dict[str, Any] = {"seed": 7, "watermark": {"scheme": "kgw", "key": 15485863, "bias": 4.0}}
NAMES = ["reading", "plain", "mirostat", "adaptive-p", "watermark"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return loaded(tmp_path_factory.mktemp("llama"))[0]


def redrawn(model: Any, prompt: list[int], fields: dict[str, Any], count: int = 12) -> list[int]:
    """The text of a plain loop over the model and `tirage.sample` of MLX arrays."""
    output, state = list[int](), None
    for _ in range(count):
        logits = model(mx.array([[*prompt, *output]]))[:, -1, :]
        draw = tirage.sample(logits, SamplingParams(**fields), history=[(prompt, output)], state=state)
        output.append(int(draw.token_ids.item()))
        state = draw.states
    return output


def written(model: Any, prompt: list[int], count: int = 12, **given: Any) -> list[int]:
    if draft := given.pop("draft_model", None):
        steps = speculative_generate_step(mx.array(prompt), model, draft, max_tokens=count, num_draft_tokens=3, **given)
    else:
        steps = generate_step(mx.array(prompt), model, max_tokens=count, **given)
    return [int(token) for token, *_ in steps]


@pytest.mark.parametrize("fields", [FIELDS, PLAIN, MIROSTAT, ADAPTIVE, WATERMARK], ids=NAMES)
def test_logits_processors_draw_what_a_plain_loop_draws(model: Any, fields: dict[str, Any]) -> None:
    assert written(model, PROMPT, logits_processors=logits_processors(fields)) == redrawn(model, PROMPT, fields)


def test_a_sampler_draws_what_a_plain_loop_draws(model: Any) -> None:
    assert written(model, PROMPT, sampler=sampler(PLAIN)) == redrawn(model, PROMPT, PLAIN)


@pytest.mark.parametrize("fields", [FIELDS, PLAIN, MIROSTAT, ADAPTIVE, WATERMARK], ids=NAMES)
def test_a_draft_model_changes_no_token(model: Any, fields: dict[str, Any]) -> None:
    processors = logits_processors(fields, prompt_ids=PROMPT)
    assert written(model, PROMPT, draft_model=model, logits_processors=processors) == redrawn(model, PROMPT, fields)


def test_prompts_of_a_batch_have_parameters_of_their_own(model: Any) -> None:
    prompts = [PROMPT, [7, 7, 21], [100]]
    asked = [FIELDS, PLAIN, {"temperature": 0.0, "frequency_penalty": 0.5}]
    generator = BatchGenerator(model, max_tokens=12)
    uids = generator.insert(prompts, logits_processors=[logits_processors(fields) for fields in asked])
    texts: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            texts[response.uid].append(response.token)
    generator.close()
    assert list(texts.values()) == [redrawn(model, p, fields) for p, fields in zip(prompts, asked, strict=True)]


def test_samplers_of_a_batch_serve_one_prompt_each(model: Any) -> None:
    generator = BatchGenerator(model, max_tokens=8)
    prompts = [PROMPT, [7, 7, 21]]
    uids = generator.insert(prompts, samplers=[sampler(PLAIN), sampler({**PLAIN, "seed": 9})])
    texts: dict[int, list[int]] = {uid: [] for uid in uids}
    while responses := generator.next_generated():
        for response in responses:
            texts[response.uid].append(response.token)
    generator.close()
    seeds = [PLAIN, {**PLAIN, "seed": 9}]
    assert list(texts.values()) == [redrawn(model, p, fields, 8) for p, fields in zip(prompts, seeds, strict=True)]


def test_a_row_that_cannot_be_drawn_is_named_or_ends(caplog: pytest.LogCaptureFixture) -> None:
    broken = mx.full((1, 20), np.nan)
    with pytest.raises(RowError, match="non_finite_logits; eos_token_id ends"):
        sampler(PLAIN)(broken)
    assert sampler(PLAIN, eos_token_id=7)(broken).tolist() == [7]
    (processor,) = logits_processors(FIELDS, eos_token_id=7)
    assert int(mx.argmax(processor(mx.array(PROMPT), broken)[0]).item()) == 7
    assert "cannot be drawn: non_finite_logits" in caplog.text


# --- refusals ----------------------------------------------------------------------------------------------------


def test_a_sampler_refuses_parameters_that_read_tokens_by_name() -> None:
    for name, fields in (
        ("repetition_penalty", FIELDS), ("mirostat", MIROSTAT), ("adaptive_target", ADAPTIVE), ("watermark", WATERMARK),
    ):  # fmt: skip
        with pytest.raises(ParamsError, match=f"{name} must be given to logits_processors"):
            sampler(fields)


@pytest.mark.parametrize("form", [sampler, logits_processors])
@pytest.mark.parametrize(
    ("fields", "says"), [({"top_pp": 1}, "did you mean 'top_p'"), ({"max_tokens": 5}, "give it to mlx-lm itself")]
)
def test_wrong_parameters_are_refused(form: Any, fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        form(fields)


def test_a_sampler_refuses_several_rows(model: Any) -> None:
    with pytest.raises(ParamsError, match="one row, got"):
        sampler(PLAIN)(mx.zeros((2, 20)))
    with pytest.raises(ParamsError, match="a draft model logits_processors="):
        written(model, PROMPT, draft_model=model, sampler=sampler(PLAIN))


def test_a_draft_model_hides_the_prompt_from_parameters_that_read_it(model: Any) -> None:
    with pytest.raises(ParamsError, match="prompt_ids must be given where repetition_penalty"):
        written(model, PROMPT, draft_model=model, logits_processors=logits_processors(FIELDS))


def test_processors_serve_one_generation(model: Any) -> None:
    processors = logits_processors(PLAIN)
    written(model, PROMPT, logits_processors=processors)
    with pytest.raises(ParamsError, match="made anew for each generation"):
        written(model, [7, 7, 21, 5], logits_processors=processors)
