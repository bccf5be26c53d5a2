"""Seeded tokens as transformers' `generate` draws them on a CPU, from a model that answers with given logits.

Prints lines of `tests/data/engine_draws.jsonl`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parents[2]))

import torch
from engine_draws import PROMPT, STEPS, SeededRequest, print_draws
from transformers import GenerationConfig, GenerationMixin, PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput


class GivenLogits(PreTrainedModel, GenerationMixin):
    """A model whose logits at each step are the next row of a table."""

    config_class = PretrainedConfig
    main_input_name = "input_ids"

    def __init__(self, request: SeededRequest) -> None:
        super().__init__(PretrainedConfig(vocab_size=request.vocab_size))
        self.anchor = torch.nn.Parameter(torch.zeros(1))
        self.table = torch.from_numpy(request.logits())

    def forward(self, input_ids: torch.Tensor, **_: Any) -> CausalLMOutput:
        row = self.table[input_ids.shape[1] - len(PROMPT)]
        return CausalLMOutput(logits=row.expand(1, input_ids.shape[1], -1).clone())


def drawn(request: SeededRequest) -> list[int]:
    """The tokens of one text, after `torch.manual_seed`."""
    model = GivenLogits(request)
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, **request.params}
    config = GenerationConfig(do_sample=True, max_new_tokens=STEPS, use_cache=False, pad_token_id=0, **values)
    torch.manual_seed(request.seed)
    return model.generate(torch.tensor([PROMPT]), generation_config=config)[0, len(PROMPT) :].tolist()


if __name__ == "__main__":
    print_draws("transformers", drawn)
