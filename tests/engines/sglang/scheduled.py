"""Requests of SGLang's own class, stepped as its scheduler steps them, over a model that is a function of the text."""

from __future__ import annotations

from array import array
from types import SimpleNamespace
from typing import Any

import numpy as np
import published
import torch
from captured_rows import CapturedRow
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.sampling_batch_info import ProcessorEntry
from sglang.srt.sampling.sampling_params import SamplingParams

from tirage import SamplingParams as OurParams
from tirage.integrations.sglang import request_fields

V = 300
assert published


def logits_of(ids: list[int]) -> torch.Tensor:
    """float32 [V] that follow from all ids so far."""
    random = np.random.default_rng([len(ids), *ids])
    return torch.from_numpy(random.standard_normal(V).astype(np.float32) * 3)


def request(rid: str, prompt: list[int], fields: Any) -> Req:
    """A request as the scheduler holds it."""
    given = request_fields(fields)
    params = SamplingParams(max_new_tokens=1000, **given["sampling_params"])
    return Req(rid, "", array("q", prompt), params, custom_logit_processor=given["custom_logit_processor"])


def step(
    requests: list[Req],
    told: list[list[int]],
    *,
    chunks: dict[int, int] | None = None,
    dtype: torch.dtype = torch.float32,
) -> list[CapturedRow]:
    """One forward pass and draw of all requests, whose whole outputs are `told`; `chunks`: prompt tokens read so far.

    The tokens go into `told`; whether the requests know them as well is the caller's business.
    """
    logits = torch.empty(len(requests), V, dtype=dtype)
    for at, each in enumerate(requests):
        text = [*each.origin_input_ids, *told[at]]
        each.kv.kv_committed_len = (chunks or {}).get(at, len(text))
        logits[at] = logits_of(text[: each.kv.kv_committed_len])
    before = logits.to(torch.float32, copy=True)
    apply_custom_logit_processor(logits, batch_info(requests))
    rows = []
    for at, each in enumerate(requests):
        if at not in (chunks or {}):
            token = int(logits[at].argmax())
            output = list(told[at])
            rows.append(CapturedRow(before[at].numpy(), fields_of(each), list(each.origin_input_ids), output, token))
            told[at].append(token)
    return rows


def fields_of(request: Req) -> dict[str, Any]:
    """The fields of `tirage.SamplingParams` that a request brings."""
    return OurParams.from_json(request.sampling_params.custom_params["tirage"]).to_dict()


def batch_info(requests: list[Req]) -> Any:
    """What SamplingBatchInfo makes of requests that bring a custom logit processor."""
    rows: dict[str, list[int]] = {}
    for at, each in enumerate(requests):
        rows.setdefault(each.custom_logit_processor, []).append(at)
    entries = {
        hash(text): ProcessorEntry(CustomLogitProcessor.from_str(text), which, torch.tensor(which))
        for text, which in rows.items()
    }
    params = [each.sampling_params.custom_params for each in requests]

    class Info(SimpleNamespace):
        def __len__(self) -> int:
            return len(requests)

    return Info(custom_params=params, custom_logit_processor=entries, device="cpu")
