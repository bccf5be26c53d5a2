"""What does speculation bring? Tokens per second with drafts and without, for texts that repeat and for stories.

A Llama of 100 M random parameters in float32 on one thread does all the work of a model; a script raises the logit of
the token that the text goes on with, so that it writes what a trained model would: an edited copy of a text in its
prompt, sentences taken from it, JSON records, and stories that the bundled model has drawn. All texts are greedy and
the same with drafts as without. Both ways run in turn in one process; ratios of the processor time of whole rounds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from transformers.utils import logging as transformers_logging

import tirage
from benchmarks.engine import llama
from benchmarks.harness import save
from tirage.models import Inputs
from tirage.models.config import LlamaConfig
from tirage.models.huggingface import wrap_module
from tirage.models.llama import Layer, Linear, LlamaNumpy

_RAISE = 30.0
Text = tuple[list[int], list[int]]
"""The ids of a prompt, and of the text that is written after it."""


class Scripted:
    """A `StepModel` whose logits say, after each prompt of a script, its text; the model computes all the same."""

    def __init__(self, model: Any, script: Mapping[tuple[int, ...], Sequence[int]]) -> None:
        self.model, self.script = model, script
        self.vocab_size, self.max_length = model.vocab_size, model.max_length
        self.media_marks: Mapping[str, str] = {}
        self.sampling_rate = None
        if hasattr(model, "draft_cost"):
            self.draft_cost = model.draft_cost

    def _raised(self, logits: Any, row: Any) -> Any:
        """Logits [k, V] after the last k ids of a row, with the script's token raised."""
        text, first = (
            self.script.get(row.inputs.token_ids, ()),
            len(row.token_ids) - len(row.inputs.token_ids) - len(logits) + 1,
        )
        for at in range(len(logits)):
            if 0 <= first + at < len(text):
                logits[at, text[first + at]] += _RAISE
        return logits

    def check(self, inputs: Inputs) -> None:
        self.model.check(inputs)

    def open(self, inputs: Inputs) -> Any:
        return self.model.open(inputs)

    def prefill_chunk(self, row: Any) -> Any:
        logits = self.model.prefill_chunk(row)
        return logits if row.left else self._raised(logits, row)

    def decode(self, token_ids: Sequence[int], rows: Sequence[Any]) -> Any:
        logits = self.model.decode(token_ids, rows)
        return np.concatenate([self._raised(logits[i : i + 1], row) for i, row in enumerate(rows)])

    @property
    def draft_refusal(self) -> str:
        return self.model.draft_refusal

    def room_for_draft(self, row: Any) -> int:
        return self.model.room_for_draft(row)

    def extend_rows(self, token_ids: Sequence[Sequence[int]], rows: Sequence[Any]) -> Any:
        logits, parts, start = self.model.extend_rows(token_ids, rows), [], 0
        for ids, row in zip(token_ids, rows, strict=True):
            parts.append(self._raised(logits[start : start + len(ids)], row))
            start += len(ids)
        return np.concatenate(parts)

    def truncate_row(self, row: Any, count: int) -> None:
        self.model.truncate_row(row, count)

    def fork(self, cache: Any) -> Any:
        return self.model.fork(cache)

    def close(self, row: Any, *, reuse: bool) -> None:
        self.model.close(row, reuse=False)

    def forget(self) -> None:
        self.model.forget()

    def prefill(self, token_ids: Sequence[int]) -> Any:
        raise TypeError("prompts are read in chunks here")

    score = prefill


def texts(tiny: tirage.LLM, tokens: int) -> dict[str, list[Text]]:
    """Prompts and texts of each kind, of at most so many tokens."""
    sampled = tirage.SamplingParams(temperature=1.0, max_tokens=tokens, ignore_eos=True)
    openings = ["Once upon a time", "One day a girl", "The old farmer", "Tim had a red kite"]
    stories = [tiny.generate(each, sampled.replace(seed=seed))[0].text for seed, each in enumerate(openings)]
    encode = tiny.tokenizer.encode
    found: dict[str, list[Text]] = {"edit": [], "extraction": [], "JSON": [], "story": []}
    for opening, story in zip(openings, stories, strict=True):
        whole = opening + story
        edited = whole.replace(" was ", " had been ").replace(" happy", " very glad").replace(" said", " cried")
        found["edit"].append((encode(f"Rewrite: {whole}\nRewritten: "), encode(edited)))
        sentences = [each.strip() for each in whole.split(".") if len(each) > 20][::2]
        found["extraction"].append((encode(f"{whole}\nSentences: "), encode(" - ".join(sentences))))
        words = whole.replace(".", "").replace(",", "").split()
        records = [{"position": i, "word": w, "length": len(w)} for i, w in enumerate(words[:30])]
        found["JSON"].append((encode(f"Words of: {whole}\n"), encode(json.dumps(records))))
        found["story"].append((encode(opening), encode(story)))
    return {kind: [(prompt, text[:tokens]) for prompt, text in each] for kind, each in found.items()}


def as_numpy(module: Any) -> LlamaNumpy:
    """A Llama of transformers as the NumPy model."""
    config, weights = module.config, {k: v.detach().numpy() for k, v in module.state_dict().items()}
    own = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_hidden_layers=config.num_hidden_layers,
        num_attention_heads=config.num_attention_heads,
        num_key_value_heads=config.num_key_value_heads,
        head_dim=config.hidden_size // config.num_attention_heads,
        max_position_embeddings=config.max_position_embeddings,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=10000.0,
        rope_scaling={},
        tie_word_embeddings=config.tie_word_embeddings,
    )

    def joined(index: int, *names: str) -> Linear:
        return Linear(weight=np.concatenate([weights[f"model.layers.{index}.{name}.weight"] for name in names]))

    layers = [
        Layer(
            attention_norm=weights[f"model.layers.{i}.input_layernorm.weight"],
            qkv=joined(i, "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            output=joined(i, "self_attn.o_proj"),
            mlp_norm=weights[f"model.layers.{i}.post_attention_layernorm.weight"],
            gate_up=joined(i, "mlp.gate_proj", "mlp.up_proj"),
            down=joined(i, "mlp.down_proj"),
        )
        for i in range(config.num_hidden_layers)
    ]
    embedding = weights["model.embed_tokens.weight"]
    return LlamaNumpy(own, embedding, layers, norm=weights["model.norm.weight"], head=Linear(weight=embedding))


def measured(plain: tirage.LLM, speculating: tirage.LLM, work: list[Text], rounds: int) -> dict[str, Any]:
    """The ratio of the processor time of both ways, medians over the rounds, and how drafts fared."""
    params = [tirage.SamplingParams(temperature=0, max_tokens=len(text), detokenize=False) for _, text in work]
    prompts, ratios, speed = [prompt for prompt, _ in work], [], []
    before = speculating.engine.progress()
    for _ in range(rounds):
        times = []
        for llm in (plain, speculating):
            start = time.process_time()
            replies = llm.generate(prompts, params)
            times.append(time.process_time() - start)
            assert [list(reply.token_ids) for reply in replies] == [text for _, text in work]
        ratios.append(times[0] / times[1])
        speed.append(sum(len(text) for _, text in work) / times[0])
    after = speculating.engine.progress()
    read, accepted = (getattr(after, name) - getattr(before, name) for name in ("draft_tokens", "accepted_tokens"))
    return {
        "tokens_per_cpu_s": round(statistics.median(speed), 1),
        "times_faster": round(statistics.median(ratios), 2),
        "lowest": round(min(ratios), 2),
        "accepted_share_of_draft": round(accepted / max(read, 1), 2),
        "accepted_share_of_text": round(accepted / rounds / sum(len(text) for _, text in work), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=160)
    parser.add_argument("--size", default="large", choices=("small", "large"))
    parser.add_argument("--backends", nargs="+", default=["torch", "numpy"])
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--texts", nargs="+", default=["edit", "extraction", "JSON", "story"])
    parser.add_argument("--dry", action="store_true", help="write no results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers_logging.set_verbosity_error()
    tiny = tirage.LLM("tiny")
    kinds, module, rows = texts(tiny, options.tokens), llama(options.size), []
    script = {tuple(prompt): text for each in kinds.values() for prompt, text in each}
    for backend in options.backends:
        if backend == "torch":
            inner: Any = wrap_module(llama(options.size), prefix_bytes=0, prefill_batch_tokens=0, packed=True)
        else:
            from tirage.engine.plain_model import PlainModel

            inner = PlainModel(as_numpy(module))
        model: Any = Scripted(inner, script)
        plain = tirage.LLM(model, tokenizer=tiny.tokenizer.raw)
        speculating = tirage.LLM(model, tokenizer=tiny.tokenizer.raw, speculative_config={"method": "ngram"})
        for streams in options.streams:
            for kind in options.texts:
                found = measured(plain, speculating, kinds[kind][:streams], options.rounds)
                rows.append({"model": options.size, "backend": backend, "streams": streams, "text": kind, **found})
                print(json.dumps(rows[-1]), flush=True)
    if not options.dry:
        save("speculation", rows, notes="processor time of one thread, float32, greedy, medians of rounds in turn")


if __name__ == "__main__":
    main()
