"""A whole loop inside one compiled JAX program

A `Batch` made like a JAX array is a pytree: `lax.scan` carries requests, seeds and histories, and compiles once.
"""

import jax
import jax.numpy as jnp
import numpy as np

import tirage

table = jnp.asarray(np.random.default_rng(0).normal(0, 3, (50, 50)), jnp.float32)  # the model: next-token logits
batch = tirage.Batch(50, 2, like=table, history_capacity=32)
batch.add(tirage.SamplingParams(temperature=0.8, seed=1), prompt_ids=[3])
batch.add(tirage.SamplingParams(temperature=0), prompt_ids=[4])


@jax.jit
def run(batch, last):
    def step(carry, _):
        batch, last = carry
        drawn = batch.sample(table[last])
        batch.advance(drawn)
        return (batch, drawn.token_ids), drawn.token_ids

    return jax.lax.scan(step, (batch, last), None, length=10)


(batch, _), tokens = run(batch, jnp.array([3, 4]))
print(tokens.T.tolist() == [list(batch.history(slot)[1]) for slot in (0, 1)])
