"""llama.cpp's logits as they reach tirage, drawn again by `tirage.sample` alone: the same tokens.

    python tests/engines/llamacpp/proof.py [FILE.gguf]

Two ways are proven: the processor inside llama-cpp-python's `Llama`, and `tirage.LLM` over a GGUF file, alone, in
batches of 16 and with prompt lookup. It also counts how far the logits of a request move when seven others run beside
it, with short prompts prefilled together and each alone. Results: benchmarks/results/engines/llamacpp.json.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from captured_rows import Redraws
from every_parameter import names, requests
from gguf_models import STARTS, STORIES, ids_of, random_folder, stories
from llama_cpp import Llama, LogitsProcessorList

import tirage
from tirage import LLM, SamplingParams
from tirage.integrations.llamacpp import logits_processor
from tirage.models.gguf import GGUFModel

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results" / "engines" / "llamacpp.json"
NEW = 24
LOOKUP = {"method": "ngram", "prompt_lookup_min": 1}


def redraw(rows: Sequence[Any], params: SamplingParams, prompt: list[int]) -> list[int]:
    """The token that `tirage.sample` draws of each pair of all ids so far and logits float32 [V]."""
    alone = Redraws()
    return [alone.token(row, params, prompt, ids[len(prompt) :]) for ids, row in rows]


def inside_llama(path: Path, given: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Draws of the processor in `Llama.generate`, each request with one start, compared with draws of `sample`."""
    llama = Llama(str(path), n_ctx=128, n_threads=1, verbose=False)
    tokens = wrong = 0
    for at, fields in enumerate(given):
        rows: list[Any] = []

        def keep(ids: Any, scores: Any, rows: list[Any] = rows) -> Any:
            rows.append((np.array(ids).tolist(), np.array(scores, np.float32)))
            return scores

        prompt = llama.tokenize(STARTS[at % len(STARTS)].encode())
        processors = LogitsProcessorList([keep, logits_processor(fields)])
        drawn = []
        for token in llama.generate(prompt, logits_processor=processors):
            drawn.append(int(token))
            if len(drawn) == NEW:
                break
        expected = redraw(rows, SamplingParams.from_dict(fields), list(prompt))
        tokens += len(drawn)
        wrong += sum(1 for one, other in zip(drawn, expected, strict=True) if one != other)
    llama.close()
    return {"requests": len(given), "tokens": tokens, "different": wrong}


def through_llm(path: Path, given: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each way of drawing through `tirage.LLM`, and how many of its texts are those of the first, a request alone."""
    ways: list[dict[str, Any]] = [{"together": 1}, {"together": 16}, {"together": 1, "speculative_config": LOOKUP}]
    found = []
    for way in ways:
        row, texts = through_llm_in_one_way(path, given, **way)
        alone = found[0][1] if found else texts
        same = sum(one == other for one, other in zip(alone, texts, strict=True))
        found.append(({**row, "texts equal to those alone": f"{same} of {len(texts)}"}, texts))
    return [row for row, _ in found]


def through_llm_in_one_way(
    path: Path, given: Sequence[dict[str, Any]], *, together: int, **options: Any
) -> tuple[dict[str, Any], list[tuple[int, ...]]]:
    """Draws of `tirage.LLM`, `together` requests at once, compared with draws of `sample` from what libllama gave.

    The second value is the token ids of all texts.
    """
    texts, wrong = list[tuple[int, ...]](), 0
    seen = Recorder(GGUFModel(path))
    with LLM(seen, tokenizer=seen.tokenizer, max_running=together, **options) as llm:
        for at in range(0, len(given), together):
            seen.rows.clear()
            some = given[at : at + together]
            params = [SamplingParams.from_dict({**fields, "max_tokens": NEW, "ignore_eos": True}) for fields in some]
            starts = [STARTS[(at + i) % len(STARTS)] for i in range(len(some))]
            for done, each in zip(llm.generate(starts, params), params, strict=True):
                prompt, output = list(done.prompt_token_ids), list(done.token_ids)
                rows = [([*prompt, *output[:t]], seen.rows[tuple(prompt + output[:t])]) for t in range(len(output))]
                texts.append(tuple(output))
                wrong += sum(1 for one, other in zip(output, redraw(rows, each, prompt), strict=True) if one != other)
        accepted = {"accepted draft tokens": llm.engine.progress().accepted_tokens} if options else {}
    about = {"requests": len(given), "together": together, **options}
    return {**about, "tokens": sum(map(len, texts)), "different": wrong, **accepted}, texts


class Recorder:
    """A model that keeps the logits float32 [V] that it gave, by the tokens before them."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self.rows: dict[tuple[int, ...], Any] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def prefill_chunk(self, row: Any) -> Any:
        """Logits [k, V] of the model, kept at the end of the prompt."""
        logits = self._model.prefill_chunk(row)
        if not row.left:
            self.rows[tuple(row.token_ids)] = logits[-1].copy()
        return logits

    def prefill_batch(self, rows: Any) -> Any:
        """Logits [B, V] of the model after whole prompts, each row kept."""
        logits = self._model.prefill_batch(rows)
        for row, each in zip(rows, logits, strict=True):
            self.rows[tuple(row.token_ids)] = each.copy()
        return logits

    def decode(self, token_ids: Any, caches: Any) -> Any:
        """Logits [B, V] of the model, each row kept."""
        logits = self._model.decode(token_ids, caches)
        for row, each in zip(caches, logits, strict=True):
            self.rows[tuple(row.token_ids)] = each.copy()
        return logits

    def decode_single(self, token_id: int, row: Any) -> Any:
        """Logits [1, V] of the model, kept."""
        logits = self._model.decode_single(token_id, row)
        self.rows[tuple(row.token_ids)] = logits[0].copy()
        return logits

    def extend_rows(self, token_ids: Any, rows: Any) -> Any:
        """Logits [n, V] of the model after each of the ids of each row, each kept."""
        before = [tuple(row.token_ids) for row in rows]
        logits = self._model.extend_rows(token_ids, rows)
        after = [(*past, *ids[: n + 1]) for past, ids in zip(before, token_ids, strict=True) for n in range(len(ids))]
        for key, each in zip(after, logits, strict=True):
            self.rows[key] = each.copy()
        return logits


def moved(path: Path, **options: int) -> dict[str, Any]:
    """How far logits move when eight requests run together: the largest difference, and how many rows differ.

    `options` are those of GGUFModel.
    """
    params = SamplingParams(temperature=0.0, max_tokens=60, ignore_eos=True)
    found: list[dict[tuple[int, ...], Any]] = []
    texts: list[list[tuple[int, ...]]] = []
    for sets in ([[start] for start in STARTS], [list(STARTS)]):
        seen = Recorder(GGUFModel(path, **options))
        with LLM(seen, tokenizer=seen.tokenizer) as llm:
            texts.append([ids for prompts in sets for ids in ids_of(llm, prompts, params)])
        found.append(seen.rows)
    alone, together = found
    both = [key for key in alone if key in together]
    far = [float(np.abs(alone[key] - together[key]).max()) for key in both]
    return {
        "rows": len(both),
        "rows_that_differ": sum(1 for each in far if each > 0),
        "largest_difference": max(far),
        "same_greedy_texts": texts[0] == texts[1],
    }


def main(arguments: Sequence[str]) -> int:
    """Proves both ways and writes the results; 1 where a token differs."""
    given = [fields for fields in requests() if "logits_processors" not in fields]
    quantised = random_folder().with_name("q8.gguf")
    path = Path(arguments[0]) if arguments else stories() if STORIES.exists() else quantised
    found = {
        "versions": {name: version(name) for name in ("llama-cpp-python", "numpy")} | {"tirage": tirage.__version__},
        "parameters": names(given),
        "model": path.name,
        "inside_llama": inside_llama(path, given),
        "through_llm": through_llm(path, given),
        "logits_in_a_batch_of_8": {each.name: moved(each) for each in (path, quantised)},
        "with_prompts_together": {each.name: moved(each, prefill_batch_tokens=256) for each in (path, quantised)},
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))
    return int(any(each["different"] for each in (found["inside_llama"], *found["through_llm"])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
