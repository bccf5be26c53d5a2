"""How short may a text be? p-values of marked texts of a model by length: the table of docs/watermarks.md.

    python -m benchmarks.watermark_power --model PATH [--texts 16]

Each text has a key of its own. Nothing is timed; the rows say what the page says.
"""

from __future__ import annotations

import argparse

import numpy as np

import tirage
from benchmarks.harness import save
from tirage import LLM, SamplingParams, Watermark

LENGTHS = (100, 200, 400)
PROMPTS = ("Once upon a time", "The dog", "One day", "Lily and Tom")
LAYERS = 20


def mark_of(scheme: str, number: int) -> Watermark:
    """A watermark with a key made of a number."""
    keys = np.random.default_rng(number).integers(1, 2**62, LAYERS).tolist()
    return Watermark(scheme=scheme, key=keys if scheme == "synthid" else keys[0])


def p_values(llm: LLM, scheme: str, texts: int) -> dict[int, list[float]]:
    """The p-values of so many texts, by their length."""
    marks = [mark_of(scheme, number) for number in range(texts)]
    asked = [
        SamplingParams(seed=number, temperature=1.0, max_tokens=max(LENGTHS), ignore_eos=True, watermark=mark)
        for number, mark in enumerate(marks)
    ]
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(texts)]
    done = llm.generate(prompts, asked, progress=False)
    size = llm.model.vocab_size
    return {
        length: [
            tirage.detect(each.token_ids[:length], mark, vocab_size=size).p_value
            for each, mark in zip(done, marks, strict=True)
        ]
        for length in LENGTHS
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--texts", type=int, default=16)
    options = parser.parse_args()
    llm = LLM(options.model, backend="numpy")
    rows = [
        {
            "scheme": scheme,
            "tokens": length,
            "texts": options.texts,
            "median": float(f"{np.median(found):.2g}"),
            "largest": float(f"{max(found):.2g}"),
            "below_1e-4": sum(p < 1e-4 for p in found),
        }
        for scheme in ("gumbel", "synthid", "kgw")
        for length, found in p_values(llm, scheme, options.texts).items()
    ]
    notes = f"{options.texts} texts at temperature 1, one key each; synthid with {LAYERS} layers, kgw with bias 2"
    save("watermark_power", rows, notes=notes)
    print(table(rows))


def table(rows: list[dict]) -> str:
    """The rows as the table of the page."""
    schemes = list(dict.fromkeys(row["scheme"] for row in rows))
    lines = ["| tokens | " + " | ".join(f"`{scheme}`" for scheme in schemes) + " |", "|---" * (1 + len(schemes)) + "|"]
    for length in LENGTHS:
        cells = [
            f"{row['median']:.0e} ({row['below_1e-4']} of {row['texts']})"
            for scheme in schemes
            for row in rows
            if (row["scheme"], row["tokens"]) == (scheme, length)
        ]
        lines.append(f"| {length} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
