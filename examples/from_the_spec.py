"""A row of logits drawn by SPEC.md alone

An independent implementation of one row: the rules, NumPy and Python's standard library, no tirage. It has masks,
logit_bias, temperature, top-k, top-p and min-p of `canonical`, and the draw. It reads lines of JSON and answers each
with one: `tirage conformance -- python examples/from_the_spec.py` holds it to the golden vectors.
"""

import json
import sys
from decimal import Decimal
from itertools import accumulate
from math import floor, inf

import numpy as np

F, LARGEST, OCTAVE, ONE = np.float32, np.finfo(np.float32).max, 2**23, 2**32
OFF = {"semantics": "canonical", "temperature": 1, "top_k": 0, "top_p": 1, "min_p": 0, "logit_bias": {}}
UNSAID = {"logprobs", "logprobs_mode", "logprob_token_ids"}  # what they ask for is not told, and so not compared
B = ("-0x1.ebd7dcp29", "0x1.2d0916p33", "-0x1.c4d6a6p35", "0x1.ebdf14p37", "-0x1.62e388p39", "0x1p40")


def weight(q):  # S-W2
    octaves, fraction = divmod(q, OCTAVE)
    r = np.polyval([F(float.fromhex(b)) for b in B], F(fraction / OCTAVE))  # binary32, as its arguments
    return int(r / 2.0**octaves) if octaves < 41 else 0


def uniform(k0, k1, a, b):  # S-W7
    c = d = 0
    for _ in range(10):
        (high0, low0), (high1, low1) = divmod(a * 0xD2511F53, ONE), divmod(c * 0xCD9E8D57, ONE)
        a, b, c, d = high1 ^ b ^ k0, low1, high0 ^ d ^ k1, low0
        k0, k1 = (k0 + 0x9E3779B9) % ONE, (k1 + 0xBB67AE85) % ONE
    return a * ONE + b


def settled(v):  # S-N7
    return F(np.clip(v, -LARGEST, LARGEST)) if abs(v) > 2**-126 else F(0)


def kept(x, p):  # S-W4: the set K in the order of S-W3, with its weights
    order = [token for token in np.argsort(-x, kind="stable").tolist() if x[token] > -inf]
    if not order or p["temperature"] == 0:
        return dict.fromkeys(order[:1], 2**40)
    c = F(float.fromhex("0x1.71547652b82fep23") / float(F(p["temperature"])))  # S-N2
    q = [int(min((x[order[0]] - x[token]) * c, 41 * OCTAVE)) for token in order]  # S-W1
    q = q[: p["top_k"] or None]  # S-O1
    w, share = [weight(each) for each in q], round(float(F(p["top_p"])) * ONE)
    if share < ONE:  # S-O2
        bound = max(1, -(-share * sum(w) // ONE))
        q = q[: sum(before < bound for before in accumulate(w[:-1], initial=0))]
    if p["min_p"]:  # S-O3; rounded, as a whole logarithm would else come out just below itself
        octaves = -Decimal(float(F(p["min_p"]))).ln() / Decimal(2).ln()
        q = [each for each in q if each <= floor(round(octaves * OCTAVE, 15))]
    return dict(zip(order[: len(q)], w))


def answer(ask):
    p = OFF | ask["params"]
    lacking = [*(p.keys() - OFF.keys() - UNSAID), *({p["semantics"]} - {"canonical", "openai"})]
    if lacking:
        return {"unsupported": min(lacking)}
    x = np.array([int(word, 16) for word in ask["bits"]], np.uint32).view(F)
    bias = {int(token): F(b) for token, b in p["logit_bias"].items()}
    masked = [token for token in range(len(x)) if bias.get(token) == -inf or (ask["mask"] and not ask["mask"][token])]
    x[masked] = -inf  # S-P2
    if not (x < inf).all():  # NaN or +inf: S-N5
        return {"status": 1, "token": -1}
    for token in bias:
        if x[token] > -inf:  # S-N7
            x[token] = settled(settled(x[token]) + settled(bias[token]))
    w = kept(x, p)
    if not w:
        return {"status": 2, "token": -1}
    total = sum(w.values())
    u = uniform(ask["seed"] % ONE, ask["seed"] // ONE % ONE, ask["step"], ask["sample_index"])
    sums = zip(sorted(w), accumulate(w[t] for t in sorted(w)))
    token = next(t for t, upto in sums if upto > u * total >> 64)  # S-W5
    law = [w.get(t, 0) / total for t in range(len(x))]
    return {"status": 0, "token": token, "support": np.flatnonzero(law).tolist(), "weights": w, "W": total, "law": law}


np.seterr(all="ignore")
for line in sys.stdin:
    request = json.loads(line)
    print(json.dumps({"id": request["id"], **answer(request)}), flush=True)
