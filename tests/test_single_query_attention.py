"""Attention of one query per row: nearer to the exact result than PyTorch's kernel, and only where asked for."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from small_torch import Numbers, alone, build
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from tirage import LLM, SamplingParams
from tirage.models.huggingface import single_query_attention as module_under_test
from tirage.models.huggingface import wrap_module
from tirage.models.huggingface.single_query_attention import attend, attention, single_query_attention

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


class Layer:
    """What an attention function is told of its layer."""

    num_key_value_groups = 3
    is_causal = True
    training = False


def inputs_of(dtype: torch.dtype, *, rows: int = 5, length: int = 33, queries: int = 1) -> tuple[Any, Any, Any, Any]:
    generator = torch.Generator().manual_seed(0)
    # Columns of wider buffers, as the caches of rows that decode together are.
    keys, values = (torch.randn(rows, 2, length + 9, 16, generator=generator).to(dtype) for _ in range(2))
    query = torch.randn(rows, queries, 6, 16, generator=generator).to(dtype).transpose(1, 2)
    mask = torch.ones(rows, 1, 1, length, dtype=torch.bool)
    mask[1, ..., :7] = mask[4, ..., :30] = False
    return query, keys[:, :, 4 : 4 + length], values[:, :, 4 : 4 + length], mask


def exact(query: Any, key: Any, value: Any, mask: Any, scaling: float) -> torch.Tensor:
    key, value = (each.double().repeat_interleave(3, 1) for each in (key, value))
    bias = torch.zeros(1) if mask is None else torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    scores = query.double() @ key.transpose(-1, -2) * scaling + bias
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("elements", [1, 2 * 33 * 16 * 2, 1 << 18])
@pytest.mark.parametrize("masked", [True, False])
def test_it_is_at_least_as_near_to_the_exact_result_as_pytorchs(
    dtype: torch.dtype, elements: int, masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module_under_test, "_ELEMENTS", elements)
    ours: list[torch.Tensor] = []
    monkeypatch.setattr(module_under_test, "attend", lambda *given: ours.append(attend(*given)) or ours[-1])
    query, key, value, mask = inputs_of(dtype)
    mask = mask if masked else None
    want = exact(query, key, value, mask, 0.25)
    with single_query_attention():
        got, _ = attention(Layer(), query, key, value, mask, scaling=0.25)
    theirs, _ = attention(Layer(), query, key, value, mask, scaling=0.25)
    assert (got.shape, got.dtype) == (theirs.shape, dtype)
    slack = 1e-6 if dtype is torch.float32 else 0.0
    assert float((got - want).abs().max()) <= float((theirs - want).abs().max()) + slack
    assert [id(each) for each in ours] == [id(got)]


def test_a_mask_of_numbers_is_added_and_one_mask_may_serve_all_rows() -> None:
    query, key, value, mask = inputs_of(torch.float32)
    bias = torch.zeros(mask.shape).masked_fill(~mask, -torch.inf)
    want = attend(query, key, value, mask, 0.25)
    assert torch.equal(attend(query, key, value, bias, 0.25), want)
    assert torch.equal(attend(query, key, value, mask[1:2], 0.25)[1], want[1])


def test_a_row_does_not_depend_on_the_number_of_rows_computed_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = inputs_of(torch.float32)
    together = attend(*arguments, 0.25)
    monkeypatch.setattr(module_under_test, "_ELEMENTS", 1)
    torch.testing.assert_close(attend(*arguments, 0.25), together, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", ["off", "queries", "head masks", "softcap", "dropout", "another thread"])
def test_all_else_is_left_to_transformers(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(module_under_test, "_plain", lambda *a, **k: calls.append("plain") or (None, None))
    monkeypatch.setattr(module_under_test, "attend", lambda *a: calls.append("ours"))
    query, key, value, mask = inputs_of(torch.float32, queries=2 if case == "queries" else 1)
    mask = mask.expand(-1, 6, -1, -1) if case == "head masks" else None if case == "queries" else mask
    options: dict[str, Any] = {"softcap": {"softcap": 30.0}, "dropout": {"dropout": 0.1}}.get(case, {})

    def run() -> None:
        attention(Layer(), query, key, value, mask, **options)

    if case == "off":
        run()
    else:
        with single_query_attention():
            if case == "another thread":
                thread = threading.Thread(target=run)
                thread.start()
                thread.join()
            else:
                run()
    assert calls == ["plain"]
    with single_query_attention():
        attention(Layer(), *inputs_of(torch.float32), scaling=None, position_bias=None)
    assert calls == ["plain", "ours"]


def test_an_error_turns_it_off_again() -> None:
    with pytest.raises(ValueError, match="no"), single_query_attention():
        raise ValueError("no")
    assert module_under_test._local.active is False


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_steps_use_it_and_write_what_generate_writes(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module, prompts = build(name), [[5, 6, 7], list(range(20, 60)), [9] * 17]
    expected = [alone(module, prompt, 12) for prompt in prompts]
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is attention
    calls: list[int] = []
    plain = attend
    monkeypatch.setattr(module_under_test, "attend", lambda *a: calls.append(len(a[0])) or plain(*a))
    with LLM(wrap_module(module), tokenizer=Numbers()) as llm:
        done = llm.generate(prompts, SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    assert [list(one.token_ids) for one in done] == expected
    assert 3 in calls
