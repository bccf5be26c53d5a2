"""Writes src/tirage/conformance/vectors/*.jsonl, except by_hand.jsonl, from the reference in `tests/reference`.

Run it after a change of SPEC.md and read the diff: it shows every token that the change moves. Vectors are never
edited, nor written by a backend, to make a backend pass.

    python scripts/make_vectors.py
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests"))

from golden import FOLDER, case_of  # noqa: E402
from paths import reference_result  # noqa: E402
from strategies import SWITCHES, VALUES, applies, logits_of  # noqa: E402

from tirage.operators import OPERATORS  # noqa: E402
from tirage.semantics import PRESETS  # noqa: E402

NEG = float("-inf")
HALVES = [float(np.log(p)) for p in (0.5, 0.25, 0.25)]
FOUR = [float(np.log(p)) for p in (0.5, 0.3, 0.15, 0.05)]
TIES = [3.0, 2.0, 2.0, 2.0, 0.0]
EIGHT = [1.25, -0.5, 2.0, 0.75, 2.0, -3.0, 0.0, 1.0]
SPREAD = [0.0, -3.0, -3.2, -9.0]
TAIL = [*HALVES, HALVES[0] - 40 * float(np.log(2.0))]
"""Weights 2^40, 2^39, 2^39 and 1: half of the mass is not a whole number."""


def spec(rule: str, logits: list[float], **fields: Any) -> dict[str, Any]:
    """A case by hand: SamplingParams fields in `params`, the rest as in the files."""
    return {"rule": rule, "logits": logits, "params": {}, **fields}


def inputs() -> list[dict[str, Any]]:
    """Signed zeros, subnormals, infinities, NaN of both signs, extreme temperatures."""
    greedy = {"temperature": 0.0, "logprobs": 2}
    patterns = {
        "negative_zero": ["80000000", "00000000", "80000000", "00000000"],
        "subnormals": ["80000047", "00000001", "00000002", "00000000"],
        "nan": ["00000000", "7fc00000", "3f800000"],
        "negative_nan": ["00000000", "ffc00000", "3f800000"],
        "plus_inf": ["00000000", "7f800000", "3f800000"],
        "minus_inf": ["ff800000", "00000000", "ff800000"],
        "all_minus_inf": ["ff800000", "ff800000"],
        "wide": ["7149f2ca", "ff7fffff", "00000000"],
    }
    rows = [
        spec("S-N3", [], id=f"{name}/{kind}", bits=words, params=params)
        for name, words in patterns.items()
        for kind, params in (("greedy", greedy), ("random", {"logprobs": 3}), ("top_k_2", {"top_k": 2}))
    ]
    masked = spec("S-N5", [], id="masked_nan", bits=patterns["negative_nan"], mask=[1, 0, 1])
    raw = {"logprobs": 3, "logprob_token_ids": [1]}
    rows += [masked | {"params": raw}, masked | {"id": "masked_nan_processed", "params": raw | PROCESSED}]
    for t in (1e-20, 1e-3, 0.05, 0.33, 0.37, 0.45, 0.7, 2.0, 1e3, 1e20):
        rows.append(spec("S-N2", EIGHT, id=f"temperature/{t}", params={"temperature": t, "logprobs": 8} | SAMPLED))
    rows.append(spec("S-N6", [0.5], id="one_token", params={"top_p": 0.1, "min_p": 1.0, "logprobs": 1}))
    return rows


PROCESSED = {"logprobs_mode": "processed"}
SAMPLED = {"logprobs_mode": "sampled"}


def operators() -> list[dict[str, Any]]:
    """Every filter alone, at several values, on rows with and without ties."""
    rowsets = {"ties": TIES, "four": FOUR, "eight": EIGHT, "spread": SPREAD, "halves": HALVES, "tail": TAIL}
    rows = []
    named = {name for name, stage in SWITCHES.items() if OPERATORS[stage].is_filter} - {
        "temperature",
        "xtc_probability",
    }
    for name in sorted(named, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)):
        rule = "S-O9" if name == "dynatemp_range" else OPERATORS[SWITCHES[name]].rule
        for value in VALUES[name][1:]:
            for label, logits in rowsets.items():
                rows.append(spec(rule, logits, id=f"{name}={value}/{label}", params={name: value}))
    return rows


FIRST = (
    *("top_p", "min_p", "top_k", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_n_sigma", "top_h"),
    "dynatemp_range",
)
"""These stand first in the file; what was added later follows, so that no line moves."""


AT_ONE = ("min_p", "temperature", "typical_p")


def presets() -> list[dict[str, Any]]:
    """Each preset with every filter it has, first alone at a value where presets part, then all together."""
    parting = {"top_p": 0.6, "min_p": 0.25, "top_k": 2, "typical_p": 0.5, "temperature": 0.5}
    rows = []
    for name, semantics in PRESETS.items():
        have = {k: v for k, v in parting.items() if applies(k, semantics)}
        chosen = [{k: v} for k, v in have.items()]
        chosen += [{k: v for k, v in have.items() if k not in dropped} for dropped in ((), ("min_p",), AT_ONE)]
        for number, fields in enumerate(chosen):
            for label, logits in {"ties": TIES, "four": FOUR, "halves": HALVES}.items():
                params = {**fields, "semantics": name, "logprobs": 2, **SAMPLED}
                rows.append(spec("S-P6", logits, id=f"{name}/{number}/{label}", params=params))
    return rows


def edits() -> list[dict[str, Any]]:
    """Penalties in every preset's order and scope, bias, DRY, n-grams, windows."""
    penalties = {
        "repetition_penalty": 1.5,
        "frequency_penalty": 1.0,
        "presence_penalty": 0.5,
        "logit_bias": {"3": 0.25},
    }
    past = {"prompt": [2, 0, 0], "output": [2, 1, 2]}
    rows = []
    for name, semantics in PRESETS.items():
        have = {k: v for k, v in penalties.items() if applies(k.replace("_penalty", ""), semantics)}
        for fields in [{k: v} for k, v in have.items()] + [have] * (len(have) > 1):
            params = {**fields, "semantics": name, "logprobs": 8, **PROCESSED}
            rows.append(spec("S-H1", EIGHT, id=f"{name}/{'+'.join(fields)}", params=params, **past))
    for f in (0.3, 0.7, 1.1):
        uneven = {"frequency_penalty": f, "presence_penalty": 0.1, "logprobs": 8, **PROCESSED}
        counts = {"output": [0, 0, 0, 1, 2, 2, 2, 2, 2, 3, 3, 3, 6, 6, 6, 7, 7, 7, 7, 7, 7, 7]}
        rows.append(spec("S-N7", [v / 3 for v in EIGHT], id=f"rounding/{f}", params=uneven, **counts))
    dry = {"dry_multiplier": 0.8, "logprobs": 8, "dry_sequence_breakers": [], **PROCESSED}
    loop = {"prompt": [1, 2, 3, 1, 2], "output": [3, 1, 2]}
    rows.append(spec("S-H5", EIGHT, id="dry", params=dry, **loop))
    rows.append(spec("S-H5", EIGHT, id="dry/breaker", params=dry | {"dry_breaker_token_ids": [1]}, **loop))
    rows.append(spec("S-H5", EIGHT, id="dry/next_breaks", params=dry | {"dry_breaker_token_ids": [3]}, **loop))
    rows.append(spec("S-H5", EIGHT, id="dry/last_4", params=dry | {"dry_last_n": 4, "dry_allowed_length": 1}, **loop))
    for n in (1, 2, 3):
        rows.append(spec("S-H4", EIGHT, id=f"ngram/{n}", params={"no_repeat_ngram_size": n}, **loop))
    long = {"prompt": [0] * 70 + [1], "output": [2] * 21}
    for name in ("llamacpp", "mlx", "canonical", "tgi"):
        params = {"frequency_penalty": 0.01, "semantics": name, "logprobs": 8, **PROCESSED}
        rows.append(spec("S-H2", EIGHT, id=f"window/{name}", params=params, **long))
    return rows


def masks() -> list[dict[str, Any]]:
    """Bans, bad words, stops before min_tokens, allowed ids, grammar masks, check-then-resample."""
    base = {"logprobs": 8, "logprob_token_ids": [2], **SAMPLED}
    rows = [
        spec("S-P2", EIGHT, id="ban", params=base | {"logit_bias": {"2": "-inf", "4": 5.0}}),
        spec("S-P2", EIGHT, id="allowed", params=base | {"allowed_token_ids": [5, 1, 2]}),
        spec("S-P2", EIGHT, id="allowed_and_mask", params=base | {"allowed_token_ids": [5, 1]}, mask=[1, 0] * 4),
        spec("S-N4", EIGHT, id="nothing_left", params=base | {"allowed_token_ids": [5]}, mask=[1, 0] * 4),
        spec(
            "S-H3", EIGHT, id="bad_words", params=base | {"bad_words_token_ids": [[2], [6, 4], [1, 3]]}, output=[5, 6]
        ),
        spec("S-P2", EIGHT, id="min_tokens", params=base | {"stop_token_ids": [2, 4], "min_tokens": 2}, output=[1]),
        spec("S-P2", EIGHT, id="min_tokens/over", params=base | {"stop_token_ids": [2], "min_tokens": 1}, output=[1]),
    ]
    for name in ("canonical", "llamacpp"):
        for seed in range(4):
            params = base | {"semantics": name, "top_k": 3}
            rows.append(spec("S-P5", EIGHT, id=f"mask/{name}/{seed}", params=params, mask=[0, 1] * 4, seed=seed))
        rows.append(
            spec(
                "S-P5",
                FOUR,
                id=f"greedy/{name}",
                params=base | {"semantics": name, "temperature": 0.0} | {"logprob_token_ids": []},
                mask=[0, 1, 0, 1],
            )
        )
    return rows


def xtc() -> list[dict[str, Any]]:
    """Coin up, down and in between, thresholds, protected ids, rules of the presets, T last."""
    rows = []
    for probability in (1.0, 0.5, 0.03):
        for threshold in (0.0, 0.02, 0.1, 0.3, 0.5):
            fields = {"xtc_probability": probability, "xtc_threshold": threshold, "logprobs": 4, **SAMPLED}
            rows.append(spec("S-O8", FOUR, id=f"{probability}/{threshold}", params=fields))
    halves = {"xtc_probability": 1.0, "xtc_threshold": 0.25, "logprobs": 3, **SAMPLED}
    for name in ("canonical", "mlx", "llamacpp"):
        rows.append(spec("S-O8", HALVES, id=f"equal/{name}", params=halves | {"semantics": name}))
    rows.append(spec("S-O8", FOUR, id="protected", params=halves | {"xtc_threshold": 0.1, "xtc_protected_ids": [0]}))
    last = {"semantics": "llamacpp", "xtc_probability": 1.0, "xtc_threshold": 0.04, "temperature": 0.05}
    for seed in range(6):
        coin = {"xtc_probability": 0.5, "logprobs": 4, **SAMPLED}
        rows.append(spec("S-O8", SPREAD, id=f"temperature_last/{seed}", params=last | {"logprobs": 4}, seed=seed))
        rows.append(spec("S-O8", FOUR, id=f"coin/{seed}", params=coin, seed=seed, step=3))
    return rows


def draws() -> list[dict[str, Any]]:
    """Seeds, steps and sample indices over a wider row, and the three views of the logprobs."""
    keys = [
        (0, 0, 0),
        (7, 0, 0),
        (7, 1, 0),
        (7, 0, 1),
        (8, 0, 0),
        (-1, 0, 0),
        (-(2**63), 5, 2),
        (2**63 - 1, 2**32 - 1, 0),
    ]
    wide = [float(v) for v in logits_of("medium", 40, 1)]
    ties = [float(v) for v in logits_of("coarse", 40, 2)]
    rows = []
    for seed, step, sample in keys:
        at = {"seed": seed, "step": step, "sample_index": sample}
        for label, logits in {"medium": wide, "coarse": ties}.items():
            for view in ("raw", "processed", "sampled"):
                params = {"temperature": 0.7, "top_p": 0.95, "top_k": 20, "logprobs": 3, "logprobs_mode": view}
                params |= {"logit_bias": {"5": 2.5}, "logprob_token_ids": [0, 5]}
                rows.append(spec("S-W7", logits, id=f"{seed}/{step}/{sample}/{label}/{view}", params=params, **at))
    return rows


TOPICS = {
    "inputs": inputs,
    "operators": operators,
    "presets": presets,
    "edits": edits,
    "masks": masks,
    "xtc": xtc,
    "draws": draws,
}


def line(data: dict[str, Any]) -> str:
    """One case with its outcome, as JSON."""
    data = data | {"logits": [float(np.float32(v)).hex() for v in data["logits"]]}
    result = reference_result(case_of(data))
    known = {
        "status": result.status,
        "token": result.token,
        "support": list(result.support),
        "weights": {str(t): w for t, w in sorted(result.weights.items())},
        "W": sum(result.weights.values()),
        "sampled_logprob": float(result.sampled_logprob).hex(),
        "logprob": float(result.logprob).hex(),
        "rank": result.rank,
        "top": [[t, float(v).hex()] for t, v in result.top],
        "given": [float(v).hex() for v in result.given],
    }
    return json.dumps({"id": data["id"], **{k: v for k, v in data.items() if k != "id"}, **known})


def main() -> None:
    """Write every file."""
    for topic, cases in TOPICS.items():
        lines = [line(data) for data in cases()]
        (FOLDER / f"{topic}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{topic}: {len(lines)}")


if __name__ == "__main__":
    main()
