"""Parameters that look back are refused where nobody says what there is to look back on."""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from preset_rows import FURTHER
from strategies import VALUES

import tirage
from tirage import ParamsError, SamplingParams
from tirage.backends import sharded
from tirage.compiled_params import compiled
from tirage.history import History
from tirage.params import FIELDS
from tirage.processors import register_processor
from tirage.sampling_batch import SamplingBatch, SamplingRow

X = np.zeros((2, 32), np.float32)
READERS: dict[str, dict[str, Any]] = {
    "presence_penalty": {"presence_penalty": 0.5},
    "frequency_penalty": {"frequency_penalty": -0.5},
    "repetition_penalty": {"repetition_penalty": 5},
    "bad_words_token_ids": {"bad_words_token_ids": [3, [1, 2]]},
    "dry_multiplier": {"dry_multiplier": 0.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "sequence_bias": {"sequence_bias": [[[3, 1], 2.0]]},
    "watermark": {"watermark": {"scheme": "gumbel", "key": 7}},
    "logits_processors": {"logits_processors": (("sampling history: past", {}),)},
}


def _with_past(x: Any, args: list[dict[str, Any]]) -> Any:
    return x + len(args[0]["__req__"].output_ids)


_with_past.wants_past = True
register_processor("sampling history: past", _with_past, replace=True)


@pytest.mark.parametrize("name", READERS)
def test_a_parameter_that_looks_back_is_refused_without_a_history(name: str) -> None:
    params = [SamplingParams(seed=1), SamplingParams(seed=1, **READERS[name])]
    message = rf"^{name} must come with the tokens so far, got history None; pass history=\[\(\(\), \(\)\)\] for none"
    parts = sharded.Shards([X[:, :9], X[:, 9:]])
    for refused in (
        lambda: tirage.sample(X, params),
        lambda: tirage.law(X, params),
        lambda: tirage.explain(X[0], params[1]),
        lambda: tirage.sample(parts, params),
        lambda: jax.jit(lambda x: tirage.sample(x, params).token_ids)(jnp.asarray(X)),
    ):
        with pytest.raises(ParamsError, match=message):
            refused()
    assert tirage.sample(X, params, history=[((), ())] * 2).status.tolist() == [0, 0]


@pytest.mark.parametrize(
    "neutral",
    [
        {"repetition_penalty": 1.0, "presence_penalty": 0, "dry_multiplier": 0, "no_repeat_ngram_size": 0},
        {"bad_words_token_ids": [3, 7]},
        {"min_tokens": 4, "stop_token_ids": [2]},
        {"dry_base": 2.0, "dry_allowed_length": 4},
    ],
)
def test_a_parameter_that_asks_nothing_of_the_past_needs_no_history(neutral: dict[str, Any]) -> None:
    np.testing.assert_array_equal(
        tirage.law(X, SamplingParams(**neutral)), tirage.law(X, SamplingParams(**neutral), history=[((), ())] * 2)
    )


def asked_of(params: SamplingParams, prompt: tuple[int, ...], output: tuple[int, ...]) -> list[bytes]:
    """Steps, tables and counts of a row with this past, at step 5 whatever its length."""
    history = History.of(prompt, output, vocab_size=32)
    rows = SamplingBatch.of([SamplingRow.of(params.replace(seed=1), history, step=5)], 32).metadata(None)
    tables = (rows.programs, rows.edit_ids, rows.edit_values, rows.count_ids, rows.prompt_counts, rows.output_counts)
    return [table.tobytes() for table in tables]


@pytest.mark.parametrize("name", sorted(VALUES))
def test_a_field_says_that_it_looks_back_exactly_when_its_steps_do(name: str) -> None:
    for value in VALUES[name]:
        params = SamplingParams(**{name: value, "semantics": "canonical"})
        moved = asked_of(params, (1, 2, 3, 1, 2), (3, 1, 2)) != asked_of(params, (), ())
        assert compiled(params).readers == ((name,) if moved else ()), value


@pytest.mark.parametrize("fields", FURTHER, ids=lambda fields: next(iter(fields)))
def test_ids_and_words_say_that_they_look_back_exactly_when_their_steps_do(fields: dict[str, Any]) -> None:
    params = SamplingParams(**fields)
    moved = asked_of(params, (1, 2, 3, 1, 2), (3, 1, 2)) != asked_of(params, (), ())
    assert bool(compiled(params).readers) == moved
    assert set(compiled(params).readers) <= set(fields)


def test_every_field_that_may_look_back_is_tried_here() -> None:
    assert {name for name, spec in FIELDS.items() if spec.needs_history} == set(READERS)


@pytest.mark.parametrize("fields", [{"n": 3}, {"best_of": 2}])
def test_several_samples_of_one_row_are_refused_by_name(fields: dict[str, int]) -> None:
    [(name, count)] = fields.items()
    params = SamplingParams(seed=7, **fields)
    with pytest.raises(ParamsError, match=rf"^{name} must be 1 for a row of logits, .*got {count}; use tirage.LLM, or"):
        tirage.sample(X, params)
    rows = tirage.sample(np.zeros((3, 1000)), params, sample_index=[0, 1, 2])
    assert len(set(rows.token_ids.tolist())) == 3
    assert tirage.law(X, params).shape == X.shape


def test_what_reads_no_history_is_lowered_once_and_the_rest_in_each_step() -> None:
    params = SamplingParams(logit_bias={7: 1.5, 3: -2.0, 5: -math.inf}, bad_words_token_ids=[(1, 2)])
    row = compiled(params)
    assert row.fixed is None
    first, second = (row.lower(History.of((), said, vocab_size=16), len(said)) for said in ([4], [4, 1]))
    kept = {name: row.known[name] for name in (("logit_bias", "lower"), ("logit_bias", "bans"))}
    again = row.lower(History.of((), [4], vocab_size=16), 1)
    assert all(row.known[name] is each for name, each in kept.items())
    assert ("bad_words", "bans") not in row.known
    assert again.edit_ids.tolist() == first.edit_ids.tolist() == [5, 3, 7]
    assert second.edit_ids.tolist() == [5, 2, 3, 7]
