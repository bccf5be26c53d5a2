"""The same text from every engine that is here: one model, one seed, one prompt.

    python scripts/same_seed.py FOLDER [--gguf FILE] [--python ENGINE=INTERPRETER ...]

FOLDER is a Llama as Hugging Face stores it; FILE the same model for llama.cpp. Each engine runs in the interpreter of
its own environment: the one that is named, else `.engines/ENGINE/bin/python`, which `make engines` builds, else this
one. An engine that cannot run is named with the reason. The exit status is 1 where two texts differ.
"""

# Each engine is installed in its own environment only.
# pyright: reportMissingImports=false

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROMPT = "Once upon a time"
NEW = 40
FIELDS: dict[str, Any] = {"seed": 7, "temperature": 0.8, "top_p": 0.95, "repetition_penalty": 1.1}
MARK = "same_seed: "


def own_engine(model: str, **options: Any) -> str:
    """The text of tirage's own engine."""
    from tirage import LLM, SamplingParams

    with LLM(model, **options) as llm:
        return llm.generate(PROMPT, SamplingParams(**FIELDS, max_tokens=NEW, ignore_eos=True))[0].text


def over_numpy(folder: str, _: str) -> str:
    return own_engine(folder, backend="numpy")


def over_torch(folder: str, _: str) -> str:
    return own_engine(folder, backend="torch")


def over_jax(folder: str, _: str) -> str:
    return own_engine(folder, backend="jax")


def over_gguf(_: str, file: str) -> str:
    if not file:
        raise RuntimeError("it needs --gguf FILE")
    return own_engine(file, dtype="float32")


def transformers(folder: str, _: str) -> str:
    from transformers import AutoTokenizer

    from tirage.integrations.transformers import custom_generate

    model, tokenizer = _hugging_face(folder), AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    ids = model.generate(**inputs, max_new_tokens=NEW, custom_generate=custom_generate, params=FIELDS)
    return tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :])


def mlx(folder: str, __: str) -> str:
    from mlx_lm import generate, load

    from tirage.integrations.mlx import logits_processors

    model, tokenizer, *_ = load(folder)
    tokenizer.eos_token_ids = set()
    return generate(model, tokenizer, PROMPT, max_tokens=NEW, logits_processors=logits_processors(FIELDS))


def llamacpp(_: str, file: str) -> str:
    if not file:
        raise RuntimeError("it needs --gguf FILE")
    from llama_cpp import Llama, LogitsProcessorList

    from tirage.integrations.llamacpp import logits_processor

    # Keys and values in float32, as the other engines keep them here; llama.cpp's own choice is float16.
    llama = Llama(file, n_ctx=256, n_threads=1, verbose=False, type_k=0, type_v=0)
    prompt = llama.tokenize(PROMPT.encode())
    tokens = llama.generate(prompt, logits_processor=LogitsProcessorList([logits_processor(FIELDS)]))
    return llama.detokenize([token for _, token in zip(range(NEW), tokens, strict=False)], prompt).decode(
        errors="replace"
    )


def vllm(folder: str, _: str) -> str:
    from vllm import LLM, SamplingParams

    drawing = ["tirage.integrations.vllm:TirageLogitsProcessor"]
    llm = LLM(folder, dtype="float32", max_model_len=256, enforce_eager=True, logits_processors=drawing)
    params = SamplingParams(temperature=0, max_tokens=NEW, ignore_eos=True, extra_args={"tirage": FIELDS})
    return llm.generate([PROMPT], params)[0].outputs[0].text


def sglang(folder: str, __: str) -> str:
    """The classes of SGLang's wheel around transformers' model: its server needs a GPU."""
    sys.path[:0] = [str(ROOT / "tests" / "engines"), str(ROOT / "tests" / "engines" / "sglang")]
    import scheduled
    import torch
    from transformers import AutoTokenizer

    model, tokenizer = _hugging_face(folder), AutoTokenizer.from_pretrained(folder)

    def logits_of(ids: list[int]) -> torch.Tensor:
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0, -1]

    scheduled.V, scheduled.logits_of = model.config.vocab_size, logits_of
    held, told = [scheduled.request("r", tokenizer(PROMPT).input_ids, FIELDS)], [[]]
    for _ in range(NEW):
        scheduled.step(held, told)
        held[0].output_ids.append(told[0][-1])
    return tokenizer.decode(told[0])


def _hugging_face(folder: str) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    return model


ENGINES: dict[str, Callable[[str, str], str]] = {
    "numpy": over_numpy,
    "torch": over_torch,
    "jax": over_jax,
    "gguf": over_gguf,
    "transformers": transformers,
    "mlx": mlx,
    "llamacpp": llamacpp,
    "vllm": vllm,
    "sglang": sglang,
}
"""By name; the first four are tirage's own engine, over its models of each backend."""
ENVIRONMENTS = {"gguf": "llamacpp"}
"""The environment of an engine where it has another name."""


def main() -> int:
    options = _options()
    if options.engine:
        print(MARK + json.dumps(ENGINES[options.engine](options.folder, options.gguf)))
        return 0
    named = dict(each.split("=", 1) for each in options.python)
    texts = {engine: text for engine in ENGINES if (text := _text(engine, options, named)) is not None}
    print(f"\n{len(texts)} engines, {len(set(texts.values()))} text")
    return int(len(set(texts.values())) != 1)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder")
    parser.add_argument("--gguf", default="")
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=INTERPRETER")
    parser.add_argument("--engine", choices=ENGINES, help="only this engine, in this interpreter")
    return parser.parse_args()


def _text(engine: str, options: argparse.Namespace, named: dict[str, str]) -> str | None:
    """What an engine writes; None, with the reason printed, where it cannot run."""
    built = ROOT / ".engines" / ENVIRONMENTS.get(engine, engine) / "bin" / "python"
    python = named.get(engine, str(built) if built.exists() else sys.executable)
    command = [python, __file__, options.folder, "--engine", engine, "--gguf", options.gguf]
    environment = {"OMP_NUM_THREADS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", **os.environ}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    said = [line for line in done.stdout.splitlines() if line.startswith(MARK)]
    if done.returncode or not said:
        lines = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()
        errors = [line for line in lines if "Error" in line]
        print(f"{engine:13} not run: {(errors or lines)[-1][:200]}")
        return None
    text = json.loads(said[-1].removeprefix(MARK))
    print(f"{engine:13} {text!r}", flush=True)
    return text


if __name__ == "__main__":
    raise SystemExit(main())
