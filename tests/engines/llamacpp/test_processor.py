"""`tirage.integrations.llamacpp` in llama-cpp-python's own `Llama`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from captured_rows import Redraws
from gguf_models import random_folder
from llama_cpp import Llama, LogitsProcessorList, StoppingCriteriaList
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

import tirage
from tirage import ParamsError, RowError, SamplingParams
from tirage.integrations.llamacpp import logits_processor

PARAMS = SamplingParams(seed=6, temperature=0.9, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3)
OWN: list[dict[str, Any]] = [
    {},
    {"temp": 0.0},
    {"temp": -1.0},
    {"top_k": 1, "repeat_penalty": 1.5, "frequency_penalty": 1.0},
    {"typical_p": 0.3, "min_p": 0.5},
    {"mirostat_mode": 2},
]
"""Parameters of llama-cpp-python's own sampler, which runs after the processor and finds one token."""


@pytest.fixture(scope="module")
def llama() -> Iterator[Any]:
    opened = Llama(str(random_folder().with_name("q8.gguf")), n_ctx=512, n_threads=1, verbose=False)
    yield opened
    opened.close()


def generated(llama: Any, processors: Any, count: int = 40, **own: Any) -> list[int]:
    found = []
    for token in llama.generate(llama.tokenize(b"Once upon a time"), logits_processor=processors, **own):
        found.append(int(token))
        if len(found) == count:
            return found
    return found


@pytest.mark.parametrize("own", OWN)
def test_tokens_are_those_of_sample_whatever_the_own_sampler_is_told(llama: Any, own: dict[str, Any]) -> None:
    rows: list[Any] = []

    def keep(ids: Any, scores: Any) -> Any:
        rows.append((np.array(ids).tolist(), np.array(scores, np.float32)))
        return scores

    tokens = generated(llama, LogitsProcessorList([keep, logits_processor(PARAMS)]), **own)
    prompt = rows[0][0]
    redrawn = [tirage.sample(row, PARAMS, history=[(prompt, ids[len(prompt) :])]).token_ids[0] for ids, row in rows]
    assert tokens == redrawn


@pytest.mark.parametrize(
    "fields",
    [
        {"mirostat": 2, "mirostat_tau": 3.0, "semantics": "llamacpp"},
        {"mirostat": 1, "mirostat_tau": 2.0},
        {"adaptive_target": 0.3, "min_p": 0.02},
        {"watermark": {"scheme": "gumbel", "key": 7}},
    ],
    ids=str,
)
def test_what_follows_from_every_token_is_that_of_sample(llama: Any, fields: dict[str, Any]) -> None:
    params, rows = SamplingParams.from_dict({"seed": 6, **fields}), list[Any]()

    def keep(ids: Any, scores: Any) -> Any:
        rows.append((np.array(ids).tolist(), np.array(scores, np.float32)))
        return scores

    tokens, alone = generated(llama, LogitsProcessorList([keep, logits_processor(params)])), Redraws()
    prompt = rows[0][0]
    assert tokens == [alone.token(row, params, prompt, ids[len(prompt) :]) for ids, row in rows]


def test_the_text_of_the_calls_is_the_same(llama: Any) -> None:
    own = {"max_tokens": 24, "stop": ["zzz"]}
    first = llama("Once upon", logits_processor=LogitsProcessorList([logits_processor(PARAMS)]), **own)
    second = llama.create_completion("Once upon", logits_processor=logits_processor(PARAMS), **own)
    assert first["choices"][0]["text"] == second["choices"][0]["text"]
    streamed = llama("Once upon", logits_processor=logits_processor(PARAMS), stream=True, **own)
    assert "".join(part["choices"][0]["text"] for part in streamed) == first["choices"][0]["text"]


def test_one_processor_for_two_requests_begins_anew(llama: Any) -> None:
    processor = LogitsProcessorList([logits_processor(PARAMS)])
    assert generated(llama, processor) == generated(llama, processor)


def test_own_logit_bias_is_refused(llama: Any) -> None:
    with pytest.raises(ParamsError, match="logit_bias must be given to tirage"):
        llama("a", logits_processor=logits_processor(PARAMS), logit_bias={5: 1.0}, max_tokens=3)


def test_a_row_that_cannot_be_drawn_ends_its_request(llama: Any) -> None:
    def spoil(ids: Any, scores: Any) -> Any:
        return np.full_like(scores, np.nan)

    processor = logits_processor(PARAMS, llama=llama)
    done = llama("a", logits_processor=LogitsProcessorList([spoil, processor]), max_tokens=9)
    assert (done["choices"][0]["finish_reason"], done["usage"]["completion_tokens"]) == ("stop", 0)
    assert isinstance(processor.failure, RowError)
    criteria = StoppingCriteriaList([processor.stop_on_failure])
    with pytest.raises(RowError, match="token 0 cannot be drawn: non_finite_logits"):
        llama("a", logits_processor=LogitsProcessorList([spoil, processor]), stopping_criteria=criteria, max_tokens=9)
    after = logits_processor(PARAMS)
    assert len(generated(llama, LogitsProcessorList([after]))) == 40


def test_a_draft_model_is_refused() -> None:
    path = str(random_folder().with_name("q8.gguf"))
    llama = Llama(path, n_ctx=512, n_threads=1, verbose=False, logits_all=True,
                  draft_model=LlamaPromptLookupDecoding(num_pred_tokens=4))  # fmt: skip
    processor = logits_processor({"temperature": 0.0}, llama=llama)
    criteria = StoppingCriteriaList([processor.stop_on_failure])
    with pytest.raises(RowError, match="use no draft_model"):
        llama("ab ab ab ab ab ab", logits_processor=LogitsProcessorList([processor]), stopping_criteria=criteria,
              max_tokens=60)  # fmt: skip
    llama.close()
