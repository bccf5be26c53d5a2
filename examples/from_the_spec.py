"""A row of logits drawn by SPEC.md alone

An independent implementation: the rules and Python's standard library, no tirage. It has the stages of `canonical` but
`dry`, `no_repeat_ngram`, `top_h` and dynamic temperature, and no log-probabilities. It reads lines of JSON and answers
each with one: `tirage conformance -- python examples/from_the_spec.py` holds it to the golden vectors.
"""

import json
import math
import struct
import sys
from collections import Counter
from decimal import Decimal
from fractions import Fraction
from itertools import accumulate

LARGEST, OCTAVE, ONE = float.fromhex("0x1.fffffep127"), 2**23, 2**32
HEX = ("0x1p40", "-0x1.62e388p39", "0x1.ebdf14p37", "-0x1.c4d6a6p35", "0x1.2d0916p33", "-0x1.ebd7dcp29")
B = [float.fromhex(text) for text in HEX]
OFF = {"temperature": 1, "top_n_sigma": 0, "top_k": 0, "top_p": 1, "min_p": 0, "top_a": 0, "typical_p": 1}
OFF |= {"epsilon_cutoff": 0, "eta_cutoff": 0, "xtc_probability": 0, "xtc_threshold": 0.1, "xtc_protected_ids": []}
OFF |= {"repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "logit_bias": {}, "min_tokens": 0}
OFF |= {"stop_token_ids": [], "bad_words_token_ids": [], "allowed_token_ids": None, "semantics": "canonical"}


def f32(v):  # RN32. One operation in binary64 and then this is that operation in binary32.
    try:
        return struct.unpack("f", struct.pack("f", v))[0]
    except OverflowError:
        return math.copysign(math.inf, v)


def key(v):  # S-N3
    bits = struct.unpack("i", struct.pack("f", v))[0]
    return bits if bits >= 0 else -(bits & 0x7FFFFFFF)


def small(v):  # S-N7: what is too small is 0
    return 0.0 if abs(v) <= 2**-126 else v


def weight(q):  # S-W2
    r, f = B[5], q % OCTAVE / OCTAVE
    for b in B[4::-1]:
        r = f32(b + min(f32(r * f), LARGEST))
    return 0 if q == 41 * OCTAVE else int(r * 2.0 ** -(q // OCTAVE))


def depth(v, unit):  # floor(-log2(v) * unit), exact: only powers of two have whole logarithms
    mantissa, power = math.frexp(v)
    return (1 - power) * unit if mantissa == 0.5 else math.floor(-Decimal(v).ln() / Decimal(2).ln() * unit)


def uniform(seed, step, sample, domain):  # S-W7
    k0, k1, a, b, c, d = seed % ONE, seed // ONE % ONE, step, sample, domain, 0
    for _ in range(10):
        (high0, low0), (high1, low1) = divmod(a * 0xD2511F53, ONE), divmod(c * 0xCD9E8D57, ONE)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % ONE, (k1 + 0xBB67AE85) % ONE
    return a * ONE + b


def edit(x, p, ask):  # hard masks (S-P2, S-H3), then edits (S-N7, S-H1); None for a row with NaN or +inf (S-N5)
    said, bias = ask["output"], {int(t): float(b) for t, b in p["logit_bias"].items()}
    banned = {t for t, b in bias.items() if b == -math.inf} | {t for t, may in enumerate(ask["mask"] or []) if not may}
    banned |= {w[-1] for w in p["bad_words_token_ids"] if said[len(said) - len(w) + 1 :] == w[:-1]}
    banned |= {t for t in range(len(x)) if p["allowed_token_ids"] is not None and t not in p["allowed_token_ids"]}
    banned |= {t for t in p["stop_token_ids"] if ask["step"] < p["min_tokens"]}
    x = [-math.inf if t in banned else v for t, v in enumerate(x)]
    if not all(v < math.inf for v in x):
        return None
    r, f, once = (f32(p[f"{name}_penalty"]) for name in ("repetition", "frequency", "presence"))
    stages = [{t: lambda v, b=b: v + small(f32(b)) for t, b in bias.items()}]
    stages += [{t: lambda v: min(f32(v * (f32(1 / r) if v > 0 else r)), LARGEST) for t in ask["prompt"] + said}] * (
        r != 1
    )
    stages += [{t: lambda v, n=n: v - min(f32(small(f) * n), LARGEST) for t, n in Counter(said).items()}] * (f != 0)
    stages += [{t: lambda v: v - small(once) for t in said}] * (once != 0)
    for t, change in ((t, change) for stage in stages for t, change in stage.items() if x[t] > -math.inf):
        x[t] = small(max(-LARGEST, min(f32(change(small(x[t]))), LARGEST)))
    return x


def kept(x, p, coin):  # the weights of K after all filters, for one side of XTC's coin (S-P3, S-W1, S-W4, S-O)
    K = sorted((t for t, v in enumerate(x) if v > -math.inf), key=lambda t: (-key(x[t]), t))
    if not K or p["temperature"] == 0:
        return dict.fromkeys(K[:1], 2**40)
    m, c = x[K[0]], f32(float.fromhex("0x1.71547652b82fep23") / f32(p["temperature"]))
    q = {t: int(min(f32(f32(m - x[t]) * c), 41 * OCTAVE)) for t in K}
    w = {t: weight(q[t]) for t in K}

    def mass():
        return sum(w[t] for t in K)

    def least(name, of):  # E and s of S-W4
        return math.ceil(Fraction(f32(p[name])) * of)

    def share(name):  # P of S-W4
        return max(1, -(-round(f32(p[name]) * ONE) * mass() // ONE))

    top = [t for t in K if key(x[t]) == key(m)]
    if p["top_n_sigma"]:
        d = {t: small(min(f32(m - x[t]), LARGEST)) for t in K}
        v = {t: math.floor(Fraction(d[t]) * Fraction(2) ** (30 - math.frexp(max(d.values()))[1])) for t in K}
        n, s1, s2 = len(K), sum(v.values()), sum(i * i for i in v.values())
        K = [t for t in K if v[t] <= least("top_n_sigma", Fraction(math.isqrt(4 * ((n * s2 - s1 * s1) // n**2)), 2))]
    K = K[: p["top_k"] or len(K)]
    if f32(p["top_p"]) < 1:
        K = [t for t, before in zip(K, [0, *accumulate(w[t] for t in K)]) if before < share("top_p")]
    if f32(p["min_p"]):
        K = [t for t in K if q[t] - q[K[0]] <= min(depth(f32(p["min_p"]), OCTAVE), 41 * OCTAVE)]
    if p["top_a"]:
        K = [t for t in K if w[t] >= least("top_a", Fraction(w[K[0]] ** 2, mass())) or t in top]
    if f32(p["typical_p"]) < 1:
        mean = sum(w[t] * q[t] for t in K) // mass()
        far = {t: abs(q[t] - mean) for t in K}
        reach = next(d for d in sorted(far.values()) if sum(w[t] for t in K if far[t] <= d) >= share("typical_p"))
        K = [t for t in K if far[t] <= reach]
    if p["epsilon_cutoff"]:
        K = [t for t in K if w[t] >= least("epsilon_cutoff", mass()) or t in top]
    if p["eta_cutoff"]:
        deep = sum(w[t] * q[t] for t in K) // mass() + depth(f32(p["eta_cutoff"]), OCTAVE // 2)
        K = [t for t in K if w[t] >= least("eta_cutoff", mass()) or q[t] <= deep or t in top]
    likely = [t for t in K if coin and w[t] >= max(1, least("xtc_threshold", mass()))][:-1]
    return {t: w[t] for t in K if t not in likely or t in p["xtc_protected_ids"]}


def answer(ask):
    p = OFF | ask["params"]
    if others := sorted(p.keys() - OFF.keys() - {"logprobs", "logprobs_mode", "logprob_token_ids"}):
        return {"unsupported": others[0]}
    if p["semantics"] not in {"canonical", "openai"}:
        return {"unsupported": p["semantics"]}
    x = edit([struct.unpack(">f", bytes.fromhex(word))[0] for word in ask["bits"]], p, ask)
    px = round(f32(p["xtc_probability"]) * ONE)
    at = (ask["seed"], ask["step"], ask["sample_index"])
    sides = [kept(x, p, coin) for coin in (False, True)] if x else [{}, {}]
    if not sides[0]:
        return {"token": -1, "status": 2 if x else 1}
    w = sides[uniform(*at, 1) // ONE < px and p["temperature"] != 0]
    total = sum(w.values())
    token = next(
        t for t, upto in zip(sorted(w), accumulate(w[t] for t in sorted(w))) if upto > uniform(*at, 0) * total >> 64
    )
    part = [[side.get(t, 0) / sum(side.values()) for t in range(len(x))] for side in sides]
    law = [off * (1 - px / ONE) + on * px / ONE for off, on in zip(*part)]
    support = [t for t, chance in enumerate(law) if chance > 0]
    return {"token": token, "status": 0, "support": support, "weights": w, "W": total, "law": law}


for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), flush=True)
