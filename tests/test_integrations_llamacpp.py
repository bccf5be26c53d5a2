"""`tirage.integrations.llamacpp` with the calls that llama-cpp-python makes; the engine itself is not needed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tirage
from tirage import ParamsError, RowError, SamplingParams
from tirage.integrations.llamacpp import LlamaLogitsProcessor, logits_processor

V = 40
PROMPT = [3, 5, 8]
PARAMS = SamplingParams(seed=3, top_p=0.9, repetition_penalty=1.3, presence_penalty=0.5, no_repeat_ngram_size=2)


class Llama:
    """What the adapter asks of llama-cpp-python's `Llama`."""

    def token_eos(self) -> int:
        return 2


def logits_after(ids: list[int]) -> Any:
    return np.random.default_rng(ids).standard_normal(V).astype(np.float32) * 3


def generated(processor: LlamaLogitsProcessor, count: int, prompt: list[int] = PROMPT) -> list[int]:
    """The tokens of a request, with the logits in a field of a record array as llama-cpp-python keeps them."""
    ids = list(prompt)
    for _ in range(count):
        records = np.zeros(V, np.dtype([("id", np.intc), ("logit", np.single), ("p", np.single)], align=True))
        records["logit"] = logits_after(ids)
        records["logit"][:] = processor(np.array(ids, np.intc), records["logit"])
        assert np.isfinite(records["logit"]).sum() == 1
        ids.append(int(records["logit"].argmax()))
    return ids[len(prompt) :]


def alone(params: SamplingParams, count: int, prompt: list[int] = PROMPT) -> list[int]:
    output, state = list[int](), None
    for _ in range(count):
        drawn = tirage.sample(logits_after([*prompt, *output]), params, history=[(prompt, output)], state=state)
        output.append(int(drawn.token_ids[0]))
        state = drawn.states
    return output


def test_a_request_draws_what_sample_draws() -> None:
    assert generated(logits_processor(PARAMS), 30) == alone(PARAMS, 30)
    assert generated(logits_processor(PARAMS.to_json()), 30) == alone(PARAMS, 30)


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat": 2, "mirostat_tau": 2.0, "semantics": "llamacpp"},
        {"mirostat": 1},
        {"adaptive_target": 0.3, "min_p": 0.02},
        {"watermark": {"scheme": "gumbel", "key": 7}},
        {"sequence_bias": [[[3, 9], 2.0]], "smoothing_factor": 0.2, "tfs": 0.9, "min_keep": 2},
        {"p_less": "plain"},
    ],
    ids=str,
)
def test_what_follows_from_every_token_draws_what_sample_draws(fields: dict[str, Any]) -> None:
    params = SamplingParams.from_dict({"seed": 5, **fields})
    processor = logits_processor(params)
    assert generated(processor, 20) == generated(processor, 20) == alone(params, 20)


def test_another_request_begins_anew() -> None:
    processor = logits_processor(PARAMS)
    assert generated(processor, 9) == alone(PARAMS, 9)
    assert generated(processor, 9) == alone(PARAMS, 9)
    assert generated(processor, 9, [7, 7, 1, 4]) == alone(PARAMS, 9, [7, 7, 1, 4])


def test_a_fresh_seed_is_told() -> None:
    processor = logits_processor({"temperature": 1.5})
    with pytest.raises(ParamsError, match="seed must be asked for after the first token"):
        _ = processor.seed
    tokens = generated(processor, 20)
    assert tokens == alone(SamplingParams(temperature=1.5, seed=processor.seed), 20)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"max_tokens": 5}, "give it to llama-cpp-python itself"),
        ({"top_pp": 1.0}, "top_p"),
        ({"bad_words": ["a"]}, "tokenize"),
    ],
)
def test_what_no_draw_reads_is_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises(ParamsError, match=says):
        logits_processor(given)


def test_llama_cpps_own_logit_bias_is_refused() -> None:
    with pytest.raises(ParamsError, match="logit_bias must be given to tirage"):
        logits_processor(PARAMS).extend([len])


def test_a_row_that_cannot_be_drawn_ends_with_eos() -> None:
    processor = logits_processor(PARAMS, llama=Llama())
    left = processor(np.array(PROMPT), np.full(V, np.nan, np.float32))
    assert np.flatnonzero(np.isfinite(left)).tolist() == [2]
    with pytest.raises(RowError, match="token 0 cannot be drawn: non_finite_logits"):
        processor.stop_on_failure(PROMPT, left)


def test_several_tokens_at_once_are_refused() -> None:
    processor = logits_processor(PARAMS)
    generated(processor, 2)
    assert not processor.stop_on_failure(PROMPT, logits_after(PROMPT))
    processor(np.array([*PROMPT, *alone(PARAMS, 2), 1, 1]), logits_after(PROMPT))
    with pytest.raises(RowError, match="use no draft_model"):
        processor.stop_on_failure(PROMPT, logits_after(PROMPT))


def test_an_id_beyond_the_logits_is_refused() -> None:
    processor = logits_processor({"logit_bias": {V: 1.0}})
    processor(np.array(PROMPT), logits_after(PROMPT))
    assert isinstance(processor.failure, ParamsError)
