"""The numeric rule: from one float32 logit to integers that every backend agrees on.

Read in this order: `keys` (how logits compare), `weights` (from logits to integer mass), `philox` (the uniform),
`logs` (logarithms without libm), `numbers` (parameters to integers, once, on the host). The whole rule stands a second
time in the repository's `tests/reference`, in plain Python integers that share no code with this package.
"""

from tirage.exact.keys import keys, values
from tirage.exact.logs import ilog2, neglog2_floor
from tirage.exact.philox import uniform64
from tirage.exact.weights import exponents, weights

__all__ = ["exponents", "ilog2", "keys", "neglog2_floor", "uniform64", "values", "weights"]
