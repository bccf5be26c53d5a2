"""Laws of transformers: the processors that `generate` builds from a GenerationConfig, in its order."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from serving import serve
from transformers import GenerationConfig, GenerationMixin
from transformers.generation.logits_process import LogitsProcessorList

_NAMES = {
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "typical_p": "typical_p",
    "epsilon_cutoff": "epsilon_cutoff",
    "eta_cutoff": "eta_cutoff",
    "top_h": "top_h",
    "repetition_penalty": "repetition_penalty",
    "no_repeat_ngram_size": "no_repeat_ngram_size",
    "bad_words_token_ids": "bad_words_ids",
}
_OFF = {"top_k": 0, "temperature": 1.0}


class _Model(GenerationMixin):
    """Enough of a model for the list of processors."""

    config = SimpleNamespace(is_encoder_decoder=False)
    device = torch.device("cpu")


def law(row: Mapping[str, Any]) -> torch.Tensor:
    """The probabilities after all processors of the request; temperature 0 is do_sample=False."""
    params = row["params"]
    greedy = params.get("temperature", 1.0) == 0
    fields = _OFF | {_NAMES[name]: value for name, value in params.items() if name in _NAMES}
    if greedy:
        fields.pop("temperature")
    config = GenerationConfig(**fields, do_sample=not greedy)
    if params["logit_bias"]:
        config.sequence_bias = [[[token], bias] for token, bias in params["logit_bias"].items()]
    eos = params.get("eos_token_ids")
    config._eos_token_tensor = None if eos is None else torch.tensor(eos)
    ids = torch.tensor([row["prompt"] + row["output"]], dtype=torch.long)
    return _probabilities(config, ids, torch.tensor([row["logits"]], dtype=torch.float32), greedy)


def _probabilities(config: GenerationConfig, ids: torch.Tensor, scores: torch.Tensor, greedy: bool) -> torch.Tensor:
    processors = _Model()._get_logits_processor(
        config, input_ids_seq_length=ids.shape[1], device="cpu", logits_processor=LogitsProcessorList()
    )
    scores = processors(ids, scores)
    if greedy:
        return torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])[0].double()
    return torch.softmax(scores, -1)[0]


if __name__ == "__main__":
    serve("transformers", transformers.__version__, {"hf": law, "hf-cb": law})
