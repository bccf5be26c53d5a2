"""Writes src/tirage/conformance/vectors/*.jsonl, except by_hand.jsonl, from the reference in `tests/reference`.

Run it after a change of SPEC.md and read the diff: it shows every token that the change moves. Vectors are never
edited, nor written by a backend, to make a backend pass.

    python scripts/make_vectors.py             where nothing has changed no line changes
    python scripts/make_vectors.py FOLDER      into another folder, to compare
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
        "min_keep",
    }
    for name in sorted(named - CARRYING, key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name)):
        rule = "S-O9" if name == "dynatemp_range" else OPERATORS[SWITCHES[name]].rule
        for value in VALUES[name][1:]:
            for label, logits in rowsets.items():
                rows.append(spec(rule, logits, id=f"{name}={value}/{label}", params={name: value}))
    return rows + floors(rowsets)


def floors(rowsets: dict[str, list[float]]) -> list[dict[str, Any]]:
    """min_keep beside each filter that heeds it, and beside a dynamic temperature that counts what is listed."""
    heeding = {
        "top_p": {"top_p": 0.4},
        "min_p": {"min_p": 0.9},
        "typical": {"typical_p": 0.2},
        "xtc": {"xtc_probability": 1.0, "xtc_threshold": 0.1, "logprobs": 4, **SAMPLED},
        "listed": {"min_p": 0.9, "dynatemp_range": 0.5, "logit_bias": {"1": "-inf"}, "logprobs": 8, **SAMPLED},
    }
    return [
        spec(
            "S-O11",
            logits,
            id=f"min_keep={n}/{name}/{preset}/{label}",
            params={**f, "min_keep": n, "semantics": preset},
        )
        for preset in ("canonical", "llamacpp")
        for name, f in heeding.items()
        for n in (2, 3, 40)
        for label, logits in rowsets.items()
        if label in {"ties", "eight", "tail"}
    ]


CARRYING = {"adaptive_target", "mirostat"}
"""Their rows carry a state and have a file of their own."""
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
        # Rounded twice all of these are 0; fused, each is what the product's rounding took, and T makes much of that.
        shares = [float(np.float32(f) * np.float32(n)) for n in range(1, 9)]
        counts = {"output": [t for t in range(8) for _ in range(t + 1)]}
        cold = {"frequency_penalty": f, "temperature": 1e-7, "logprobs": 8, **PROCESSED}
        rows.append(spec("S-N7", shares, id=f"fused/{f}", params=cold, **counts))
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
    said = {"prompt": [1, 2, 3], "output": [3, 1, 2]}
    biases = {"one": [[[5], 2.0]], "prefix": [[[1, 2, 0], 4.0], [[2, 0], 0.1], [[0], 0.2]], "other": [[[2, 1, 0], 4.0]]}
    biases |= {
        "ban": [[[2, 2], "-inf"], [[2], 50.0]],
        "whole": [[[1, 2, 3, 3, 1, 2, 6], 9.0], [[0, 1, 2, 3, 3, 1, 2, 6], 9.0]],
    }
    for name in ("canonical", "hf"):
        for label, bias in biases.items():
            params = {"sequence_bias": bias, "semantics": name, "logprobs": 8, **PROCESSED}
            rows.append(spec("S-H7", EIGHT, id=f"sequence_bias/{name}/{label}", params=params, **said))
    return rows + smoothing()


def smoothing() -> list[dict[str, Any]]:
    """Quadratic and cubic, beside temperatures, a bias that makes the largest logit, bans, signed zeros, the ends."""
    shown = {"logprobs": 8, **PROCESSED}
    rows = []
    for factor in (0.3, 2.0, 1e-30, 1e30):
        for curve in (1.0, 2.0, 3.0, 7.5):
            fields = {"smoothing_factor": factor, "smoothing_curve": curve, **shown}
            rows.append(spec("S-N8", EIGHT, id=f"smoothing/{factor}/{curve}", params=fields))
    some = {"smoothing_factor": 0.7, "smoothing_curve": 1.6, **shown}
    for t in (0.0, 1e-20, 0.37, 1.9, 1e20):
        rows.append(spec("S-N8", EIGHT, id=f"smoothing/temperature/{t}", params=some | {"temperature": t}))
    beside = {"bias": {"5": 7.0}, "ban": {"2": "-inf", "4": "-inf"}}
    for name, bias in beside.items():
        rows.append(spec("S-N8", EIGHT, id=f"smoothing/{name}", params=some | {"logit_bias": bias}))
    rows.append(
        spec("S-N8", [], id="smoothing/ends", bits=["7f7fffff", "ff7fffff", "80000000", "ff800000"], params=some)
    )
    rows.append(spec("S-N8", TIES, id="smoothing/ties", params=some | {"top_k": 3, "dynatemp_range": 0.5}))
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


def states() -> list[dict[str, Any]]:
    """Both versions of Mirostat in states that cut everything, something and nothing, and under both ways to run it."""
    zipf = [float(-1.1 * np.log(rank)) for rank in range(1, 121)]
    rowsets = {"ties": TIES, "four": FOUR, "eight": EIGHT, "spread": SPREAD, "tail": TAIL, "zipf": zipf, "one": [0.5]}
    rows = []
    for version in (1, 2):
        for state in (None, -3.0, 0.75, 1.7369655941662063, 2.0, 6.5, 1e9):
            for label, logits in rowsets.items():
                given = {} if state is None else {"state": state, "step": 3}
                params = {"mirostat": version, "mirostat_tau": 1.5}
                rows.append(spec("S-O14", logits, id=f"mirostat={version}/{state}/{label}", params=params, **given))
        full = {
            "mirostat": version,
            "top_k": 2,
            "temperature": 0.5,
            "repetition_penalty": 1.5,
            "logprobs": 4,
            **SAMPLED,
        }
        for preset in ("canonical", "llamacpp"):
            params = full | {"semantics": preset}
            rows.append(
                spec("S-O14", EIGHT, id=f"mirostat={version}/{preset}", params=params, state=2.5, output=[2, 2])
            )
    for target in (0.0, 0.3, 0.9):
        for state in (None, 0.0, 0.45, 1.0):
            for label, logits in rowsets.items():
                given = {} if state is None else {"state": state, "step": 3}
                params = {"adaptive_target": target, "logprobs": 3, **SAMPLED}
                rows.append(spec("S-O15", logits, id=f"adaptive={target}/{state}/{label}", params=params, **given))
    for preset in ("canonical", "llamacpp"):
        params = {"adaptive_target": 0.4, "top_k": 4, "temperature": 0.5, "semantics": preset, "logprobs": 4, **SAMPLED}
        rows.append(spec("S-O15", EIGHT, id=f"adaptive/{preset}", params=params, state=0.3, output=[2, 2]))
    return rows


def marks() -> list[dict[str, Any]]:
    """Each watermark after contexts that are too short, new and known, at several options, and beside other stages."""
    zipf = [float(-1.1 * np.log(rank)) for rank in range(1, 61)]
    rowsets = {"eight": EIGHT, "tail": TAIL, "zipf": zipf}
    own = {"scheme": "kgw", "key": 15485863, "seeding_scheme": "selfhash", "context_width": 3}
    kgw, synthid = {"scheme": "kgw", "key": 15485863}, {"scheme": "synthid", "key": [654, 400, 836, 123, 340]}
    gumbel = {"scheme": "gumbel", "key": 2**63 + 12345}
    options = {
        "kgw": kgw,
        "kgw_half": {**kgw, "key": 2**61 + 12345, "greenlist_ratio": 0.5, "bias": 5.5},
        "selfhash": own,
        "synthid": synthid,
        "synthid_short": {**synthid, "key": [2**62 + 5, 3], "ngram_len": 2, "sampling_table_size": 1000},
        "synthid_late": {**synthid, "skip_first_ngram_calls": True, "ngram_len": 3, "sampling_table_seed": 9},
        "synthid_64": {**synthid, "key": [7919 * (i + 1) ** 3 for i in range(64)]},
        "gumbel": gumbel,
        "gumbel_short": {**gumbel, "key": 7, "context_width": 1},
    }
    pasts = {"none": ([], []), "short": ([3], []), "new": ([3, 1], [2, 0, 1, 3, 2]), "known": ([1], [2, 1, 2, 1, 2, 1])}
    rules = {"kgw": "S-M3", "synthid": "S-M4", "gumbel": "S-M5"}
    shown = {"logprobs": 3, **SAMPLED}
    rows = [
        spec(rules[mark["scheme"]], logits, id=f"{name}/{past}/{label}", prompt=prompt, output=output, seed=5,
             params={"watermark": mark, **shown})
        for name, mark in options.items()
        for past, (prompt, output) in pasts.items()
        for label, logits in rowsets.items()
    ]  # fmt: skip
    beside = {
        "greedy": {"temperature": 0.0, "logprobs": 3},
        "cut": {"temperature": 0.7, "top_p": 0.8, "top_k": 6, "repetition_penalty": 1.3, **shown},
        "xtc": {"xtc_probability": 0.5, "xtc_threshold": 0.05, **shown},
        "adaptive": {"adaptive_target": 0.3, **shown},
        "truncated": {"top_p": 0.6, "semantics": "fastdeploy-air", **shown},
        "llamacpp": {"temperature": 1.5, "top_k": 6, "semantics": "llamacpp", **shown},
    }
    return rows + [
        spec("S-M1", EIGHT, id=f"{name}/{among}", prompt=[3, 1], output=[2, 0, 1, 3, 2], seed=11,
             params={"watermark": options[name], **fields})
        for among, fields in beside.items()
        for name in ("kgw", "selfhash", "synthid", "gumbel")
        if among != "greedy" or options[name]["scheme"] == "kgw"
    ]  # fmt: skip


TOPICS = {
    "inputs": inputs,
    "operators": operators,
    "presets": presets,
    "edits": edits,
    "masks": masks,
    "xtc": xtc,
    "draws": draws,
    "states": states,
    "marks": marks,
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


def main(folder: Path) -> None:
    """Write every file."""
    folder.mkdir(parents=True, exist_ok=True)
    for topic, cases in TOPICS.items():
        lines = [line(data) for data in cases()]
        (folder / f"{topic}.jsonl").write_text("\n".join(lines) + "\n")
        print(f"{topic}: {len(lines)}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
