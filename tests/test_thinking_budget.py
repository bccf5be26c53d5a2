"""SGLang's thinking budgets: their tokens are those of the served model's own tokenizer."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tokenizers
from servers import shared

import tirage
from tirage import LLM, ParamsError
from tirage.dialects import from_sglang
from tirage.text.tokenizer import wrap_tokenizer


def reference(name: str) -> str:
    """What SGLang's `to_str` writes for a class of its own."""
    words = ("sglang.srt.sampling.custom_logit_processor", name)
    texts = b"".join(b"\x8c" + bytes([len(word)]) + word.encode() + b"\x94" for word in words)
    return json.dumps({"callable": (b"\x80\x04" + texts + b"\x93\x94.").hex()})


def test_a_thinking_budget_finds_its_tokens_in_the_models_tokenizer() -> None:
    text = reference("DeepSeekR1ThinkingBudgetLogitProcessor")
    params = from_sglang({"custom_params": {"thinking_budget": 4}}, custom_logit_processor=text)
    assert params.untokenized == ("logits_processors",)
    with pytest.raises(ParamsError, match="logits_processors must be tokenised first"):
        tirage.sample(np.zeros(9, np.float32), params)
    raw = tokenizers.Tokenizer.from_str(LLM("tiny").tokenizer.raw.to_str())
    raw.add_special_tokens(["<think>"])
    raw.add_tokens(["</think>"])
    newline = raw.encode("\n", add_special_tokens=False).ids[-1]
    for tokenizer in (raw, wrap_tokenizer(raw)):
        found = params.update_with_tokenizer(tokenizer)
        assert found.untokenized == ()
        assert dict(found.logits_processors[0][1]) == {
            "thinking_budget": 4,
            "think_start_id": raw.token_to_id("<think>"),
            "think_end_id": raw.token_to_id("</think>"),
            "newline_id": newline,
        }
        assert found.update_with_tokenizer(tokenizer) == found


def test_ids_of_the_requests_own_replace_them() -> None:
    own = {"thinking_budget": 4, "think_start_id": 7, "think_end_id": 8, "newline_id": 9}
    text = reference("Glm4MoeThinkingBudgetLogitProcessor")
    given = from_sglang({"custom_params": own}, custom_logit_processor=text)
    assert dict(given.logits_processors[0][1]) == own
    assert given.untokenized == ()


def test_a_model_that_does_not_think_has_no_thinking_budget() -> None:
    server = shared("tiny", "--enable-custom-logit-processor")
    body = {"text": "One day", "custom_logit_processor": reference("Qwen3ThinkingBudgetLogitProcessor")}
    refused = server.post("/generate", {**body, "sampling_params": {"custom_params": {"thinking_budget": 3}}})
    assert refused.status_code == 400
    assert "must be one token of the model, got '" in refused.json()["error"]["message"]
    known = {"thinking_budget": 0, "think_start_id": "<s>", "think_end_id": "</s>", "newline_id": 9}
    sampling = {"custom_params": known, "max_new_tokens": 4, "temperature": 0, "ignore_eos": True}
    answer = server.post("/generate", {**body, "sampling_params": sampling}).json()
    assert answer["output_ids"][:2] == [9, LLM("tiny").tokenizer.raw.token_to_id("</s>")]
