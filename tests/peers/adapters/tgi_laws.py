"""Laws of text-generation-inference, which has no package: transformers' warpers in its order, penalties by hand.

Source: server/text_generation_server/utils/logits_process.py, StaticWarper and the Heterogeneous processors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from serving import serve
from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper, TypicalLogitsWarper


def law(row: Mapping[str, Any]) -> torch.Tensor:
    """The probabilities after the penalties of a batch and the warpers that are on."""
    params = row["params"]
    ids = torch.tensor([row["prompt"] + row["output"]], dtype=torch.long)
    scores = _penalised(torch.tensor([row["logits"]], dtype=torch.float32), ids, params)
    if params.get("temperature") == 0:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])[0].double()
    for warper in _warpers(params):
        scores = warper(None, scores)
    return torch.softmax(scores, -1)[0]


def _penalised(scores: torch.Tensor, ids: torch.Tensor, params: Mapping[str, Any]) -> torch.Tensor:
    if not ids.shape[1]:
        return scores
    if "repetition_penalty" in params:
        seen = torch.gather(scores, 1, ids)
        r = params["repetition_penalty"]
        scores = scores.scatter(1, ids, torch.where(seen < 0, seen * r, seen / r))
    if "frequency_penalty" in params:
        counts = torch.zeros_like(scores).scatter_add_(1, ids, torch.ones_like(ids, dtype=torch.float32))
        scores = scores - counts / ids.shape[1] * params["frequency_penalty"]
    return scores


def _warpers(params: Mapping[str, Any]) -> list[Any]:
    made = {
        "temperature": lambda t: TemperatureLogitsWarper(float(t)),
        "top_k": lambda k: TopKLogitsWarper(top_k=k),
        "top_p": lambda p: TopPLogitsWarper(top_p=p),
        "typical_p": lambda p: TypicalLogitsWarper(mass=p),
    }
    return [make(params[name]) for name, make in made.items() if name in params]


if __name__ == "__main__":
    serve("text-generation-inference (its warpers by transformers)", "3.3.7", {"tgi": law})
