"""transformers' logits as they reach tirage, drawn again by `tirage.sample` alone: the same tokens, every parameter.

    python tests/engines/transformers/proof.py

Results: benchmarks/results/engines/transformers.json.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from captured_rows import CapturedRow, compared, flat, same_texts, save
from every_parameter import requests
from llama_folder import PROMPTS, write_folder
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, LogitsProcessorList
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from tirage.integrations.transformers import TirageLogitsProcessor
from tirage.integrations.transformers_batching import draw_with_tirage

NEW = 12
Fields = dict[str, Any]


class Capturing(TirageLogitsProcessor):
    """The adapter, with every row that it draws from in `rows`, one list for each row of the batch."""

    def __init__(self, fields: Sequence[Fields], prompts: Sequence[list[int]], **given: Any) -> None:
        super().__init__(list(fields), **given)
        self.fields, self.prompts = fields, prompts
        self.rows: list[list[CapturedRow]] = [[] for _ in prompts]
        self.width = 0

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        self.width = self.width or input_ids.shape[1]
        before = scores.clone()
        left = super().__call__(input_ids, scores)
        if left is not scores:
            for at, row in enumerate(self.rows):
                output, token = input_ids[at, self.width :].tolist(), int(left[at].argmax())
                row.append(CapturedRow(before[at].numpy(), self.fields[at], self.prompts[at], output, token))
        return left


def main() -> None:
    fields = requests()
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder))
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model.generation_config.eos_token_id = None
        prompts = [tokenizer(PROMPTS[at % len(PROMPTS)]).input_ids for at in range(len(fields))]
        found = prove(model, list(zip(prompts, fields, strict=True)))
    save("transformers", ("transformers", "torch"), fields, found)


def prove(model: Any, asked: list[tuple[list[int], Fields]]) -> dict[str, Any]:
    """What each way of generating drew, compared with `tirage.sample`, and with the texts of the first way."""
    alone = [generated(model, [one])[0] for one in asked]
    sampled = [generated(model, [one], do_sample=True)[0] for one in asked]
    together = [rows for at in range(0, len(asked), 16) for rows in generated(model, asked[at : at + 16])]
    lookup = [generated(model, [one], prompt_lookup_num_tokens=3)[0] for one in asked]
    assisted = [generated(model, [one], assistant_model=model)[0] for one in asked]
    continuous = continuous_batching(model, asked)
    others = {
        "do_sample": sampled,
        "in a batch of 16, padded": together,
        "prompt lookup": lookup,
        "assistant model": assisted,
        "continuous batching": continuous,
    }
    return {"alone": compared(flat(alone))} | {
        name: compared(flat(way)) | same_texts(alone, way) for name, way in others.items()
    }


def generated(model: Any, asked: list[tuple[list[int], Fields]], **options: Any) -> list[list[CapturedRow]]:
    """The rows of the text of each of some prompts, which are generated together."""
    prompts, fields = [prompt for prompt, _ in asked], [each for _, each in asked]
    width = max(map(len, prompts))
    ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    processor = Capturing(fields, prompts, attention_mask=mask)
    given = {"input_ids": ids, "attention_mask": mask, "max_new_tokens": NEW, "pad_token_id": 0, **options}
    text = model.generate(**given, logits_processor=LogitsProcessorList([processor]))[:, width:].tolist()
    return [of_text(rows, text[at]) for at, rows in enumerate(processor.rows)]


def of_text(rows: list[CapturedRow], text: list[int]) -> list[CapturedRow]:
    """Of the rows that were drawn from, those that the text consists of: candidates that were refused are left out."""
    last = {tuple(row.output): row for row in rows}
    kept = [last[tuple(text[:at])] for at in range(len(text))]
    assert [row.token for row in kept] == text
    return kept


def continuous_batching(model: Any, asked: list[tuple[list[int], Fields]]) -> list[list[CapturedRow]]:
    """The rows of each request of a manager with a small cache."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    config = ContinuousBatchingConfig(num_blocks=24, page_size=32, max_batch_tokens=64, max_memory_percent=0.01)
    asked_for = GenerationConfig(max_new_tokens=NEW, eos_token_id=-1)
    manager = model.init_continuous_batching(generation_config=asked_for, continuous_batching_config=config)
    draw_with_tirage(manager)
    rows = _captured(manager, [fields for _, fields in asked], [prompt for prompt, _ in asked])
    manager.start()
    ids = [manager.add_request(prompt, tirage=fields) for prompt, fields in asked]
    results: dict[str, Any] = {}
    while len(results) < len(ids):
        if result := manager.get_result(timeout=60):
            results[result.request_id] = result
    manager.stop(block=True)
    model.set_attn_implementation(before)
    return [of_text(rows[at], results[ids[at]].generated_tokens) for at in range(len(ids))]


def _captured(manager: Any, fields: list[Fields], prompts: list[list[int]]) -> list[list[CapturedRow]]:
    """Lists, one for each request, that the manager's processor fills as it draws."""
    rows: list[list[CapturedRow]] = [[] for _ in fields]
    processor = manager.logit_processor.logits_processor[0]

    class CapturingProcessor(type(processor)):
        def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
            before = scores.clone()
            left = super().__call__(scores, tensor_arg)
            for place, state in enumerate(self.states):
                at = int(state.request_id.removeprefix("req_"))
                output, token = list(state.generated_tokens), int(left[place].argmax())
                rows[at].append(CapturedRow(before[place].numpy(), fields[at], prompts[at], output, token))
            return left

    processor.__class__ = CapturingProcessor
    return rows


if __name__ == "__main__":
    main()
