"""The harness bites: each planted mistake must be caught by at least one golden vector.

A mistake is planted in the plain NumPy path, then every vector runs. Without one, all pass.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator

import numpy as np
import pytest
from golden import Vector, read, topics
from paths import by_plain, mask_words

from tirage import compiled_params
from tirage.backends.numpy import distribution
from tirage.exact import numbers, philox
from tirage.history import History
from tirage.operators import (
    Operation,
    Step,
    adaptive_p,
    min_keep,
    mirostat,
    p_less,
    sequence_bias,
    smoothing,
    temperature,
    tfs,
    top_p,
    typical,
    watermark,
)
from tirage.operators import row as row_state
from tirage.operators.frequency import FREQUENCY
from tirage.operators.min_p import MIN_P
from tirage.operators.mirostat import MIROSTAT_V2
from tirage.operators.presence import PRESENCE
from tirage.operators.row import RowState
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import XTC
from tirage.sampling import outcomes
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.watermarks import green_list, gumbel, synthid

Patch = pytest.MonkeyPatch
PLANTED: list[tuple[str, Callable[[Patch], None]]] = []


def mutant(topic: str) -> Callable[[Callable[[Patch], None]], Callable[[Patch], None]]:
    """Puts a mistake on the list, with the vector file that must catch it."""

    def put(plant: Callable[[Patch], None]) -> Callable[[Patch], None]:
        PLANTED.append((topic, plant))
        return plant

    return put


@pytest.fixture(autouse=True)
def fresh_plans() -> Iterator[None]:
    """Plans are cached; a mistake in lowering must not outlive its test, nor be hidden by an older plan."""
    compiled_params._compiled.cache_clear()
    yield
    compiled_params._compiled.cache_clear()


def caught(vector: Vector) -> bool:
    """Whether the plain path no longer gives the golden answer and weights."""
    try:
        return by_plain([vector.case]) != [vector.answer] or _weights(vector) != vector.weights
    except (ArithmeticError, IndexError, KeyError, ValueError, FloatingPointError, RuntimeWarning):
        return True


def _weights(vector: Vector) -> dict[int, int]:
    case, size = vector.case, vector.case.logits.size
    history = History.of(case.prompt, case.output, vocab_size=size)
    state = SamplingRow.of(case.params.replace(seed=case.seed), history, sample_index=case.sample_index, step=case.step)
    state.state = state.state if case.state is None else case.state
    (result,) = outcomes(case.logits[None], SamplingBatch.of([state], size), mask_words([case.mask], size))
    if result.status:
        return {}
    chain = result.chain(case.seed, case.at, case.sample_index)
    rows = [chain.row] if chain.fallback is None else [chain.row, chain.fallback]
    found = [{int(t): int(w) for t, w in zip(row.ids, row.w(), strict=True)} for row in rows]
    return vector.weights if vector.weights in found else found[0]


def _instead(patch: Patch, op: Operation, change: Callable) -> None:
    patch.setattr(op, "run", change)


@mutant("operators")
def top_p_drops_the_token_that_crosses(patch: Patch) -> None:
    real = RowState.keep_prefix
    fewer = lambda row, order, n, *, ties: real(row, order, max(1, n - 1), ties=ties)  # noqa: E731
    patch.setattr(RowState, "keep_prefix", fewer)


@mutant("operators")
def top_p_keeps_the_token_at_equality(patch: Patch) -> None:
    real = TOP_P.run
    _instead(patch, TOP_P, lambda row, step: real(row, step._replace(b=1 if step.b == 0 else step.b)))


@mutant("operators")
def top_p_target_is_rounded_down(patch: Patch) -> None:
    patch.setattr(top_p, "target_mass", lambda p, total: max(1, p * total >> 32))


@mutant("presets")
def top_p_is_never_joint(patch: Patch) -> None:
    real = TOP_P.run
    _instead(patch, TOP_P, lambda row, step: real(row, step._replace(d=0)))


@mutant("presets")
def truncated_top_p_leaves_the_crossing_token_whole(patch: Patch) -> None:
    patch.setattr(top_p, "_truncate", lambda row, order, reached, n, target: None)


@mutant("edits")
def smoothing_forgets_that_the_temperature_divides(patch: Patch) -> None:
    patch.setattr(smoothing, "in_force", lambda temperature, floor: 1.0)


@mutant("edits")
def smoothing_cubes_nothing(patch: Patch) -> None:
    real = smoothing.SMOOTH.run
    _instead(patch, smoothing.SMOOTH, lambda row, step: real(row, step._replace(b=0)))


@mutant("edits")
def a_sequence_may_begin_in_the_output_only(patch: Patch) -> None:
    real = sequence_bias.due
    late = lambda biases, history: real(biases, History.of((), history.output(), vocab_size=8))  # noqa: E731
    patch.setattr(sequence_bias, "due", late)


@mutant("operators")
def min_keep_is_one_too_few(patch: Patch) -> None:
    real = min_keep.floored
    patch.setattr(compiled_params, "floored", lambda step, least: real(step, least - 1))


@mutant("operators")
def p_less_counts_one_token_more(patch: Patch) -> None:
    real = p_less.bound
    patch.setattr(p_less, "bound", lambda norm, squared, total, n: real(norm, squared, total, n + 1))


@mutant("operators")
def tail_free_keeps_one_rank_more(patch: Patch) -> None:
    real = tfs.prefix
    patch.setattr(tfs, "prefix", lambda w, e, s: min(real(w, e, s) + 1, w.size))


@mutant("operators")
def ties_go_to_the_highest_id(patch: Patch) -> None:
    def ranked(row: RowState) -> np.ndarray:
        key = row.key[row.ids].astype(np.int64)
        return (key.size - 1) - np.argsort(-key[::-1], kind="stable")

    patch.setattr(RowState, "ranked", ranked)


@mutant("presets")
def ties_are_always_cut(patch: Patch) -> None:
    real = RowState.keep_prefix
    patch.setattr(RowState, "keep_prefix", lambda row, order, n, *, ties: real(row, order, n, ties=False))


@mutant("operators")
def min_p_is_strict(patch: Patch) -> None:
    real = MIN_P.run
    _instead(patch, MIN_P, lambda row, step: real(row, step._replace(a=max(step.a - 1, 0))))


@mutant("inputs")
def the_temperature_is_not_rounded_first(patch: Patch) -> None:
    def operands(t: float) -> tuple[int, int]:
        c = np.float32(numbers.LOG2E_23 / unrounded[t])
        return numbers.bits(c), numbers.bits(numbers.reciprocal(t))

    unrounded = {float(np.float32(t)): t for t in (1e-20, 1e-3, 0.05, 0.33, 0.37, 0.45, 0.7, 1.0, 2.0, 1e3, 1e20)}
    patch.setattr(temperature, "_operands", operands)


@mutant("xtc")
def weights_are_not_rebased_at_the_temperature(patch: Patch) -> None:
    def unrebased(row: RowState, step: Step) -> None:
        row.c, row.inverse_t = numbers.from_bits(step.a), numbers.from_bits(step.b)

    _instead(patch, TEMPERATURE, unrebased)


@mutant("inputs")
def minus_zero_is_below_zero(patch: Patch) -> None:
    real = row_state.keys
    patch.setattr(row_state, "keys", lambda x: np.where(np.signbit(x) & (x == 0), np.int32(-1), real(x)))


@mutant("inputs")
def negative_nan_passes_for_minus_infinity(patch: Patch) -> None:
    real = row_state.keys
    patch.setattr(row_state, "keys", lambda x: np.maximum(real(x), np.int32(row_state.NEG_INF_KEY)))


@mutant("draws")
def philox_has_nine_rounds(patch: Patch) -> None:
    patch.setattr(philox, "range", lambda n: builtins.range(n - 1), raising=False)


@mutant("draws")
def the_sample_index_is_ignored(patch: Patch) -> None:
    real = distribution.uniform64
    patch.setattr(distribution, "uniform64", lambda seed, step, sample, domain: real(seed, step, 0, domain))


@mutant("edits")
def presence_comes_before_repetition(patch: Patch) -> None:
    real = compiled_params.resolve

    def swapped(name: object) -> object:
        semantics = real(name)  # pyright: ignore[reportArgumentType]
        if not {"presence", "repetition"} <= set(semantics.stages):
            return semantics
        other = {"presence": "repetition", "repetition": "presence"}
        return semantics.replace(stages=tuple(other.get(stage, stage) for stage in semantics.stages))

    patch.setattr(compiled_params, "resolve", swapped)


@mutant("edits")
def repetition_forgets_the_prompt(patch: Patch) -> None:
    patch.setattr(row_state, "SCOPES", ("output", "output", "prompt"))


@mutant("edits")
def presence_counts_every_time(patch: Patch) -> None:
    _instead(patch, PRESENCE, FREQUENCY.run)


@mutant("edits")
def frequency_is_fused_into_one_rounding(patch: Patch) -> None:
    def frequency(row: RowState, step: Step) -> None:
        ids, n = row.seen(step.a)
        penalty = np.float64(numbers.from_bits(step.b))
        row.write(ids, lambda v: (v.astype(np.float64) - penalty * n).astype(np.float32))

    _instead(patch, FREQUENCY, frequency)


@mutant("xtc")
def xtc_removes_the_last_one_too(patch: Patch) -> None:
    real = XTC.run

    def xtc(row: RowState, step: Step) -> None:
        before = row.ids.size
        real(row, step)
        if 1 < row.ids.size < before:
            row.keep(row.key[row.ids] < row.key[row.ids].max())

    _instead(patch, XTC, xtc)


@mutant("xtc")
def the_law_of_xtc_is_one_branch(patch: Patch) -> None:
    patch.setattr(distribution.Distribution, "points", lambda self: self.off.points())


@mutant("operators")
def typical_measures_from_the_maximum(patch: Patch) -> None:
    patch.setattr(typical, "mean_exponent", lambda q, w: 0)


@mutant("states")
def mirostat_judges_by_fewer_tokens(patch: Patch) -> None:
    patch.setattr(mirostat, "M", 3)


@mutant("states")
def mirostat_2_allows_an_eighth_of_a_bit_more(patch: Patch) -> None:
    real = MIROSTAT_V2.run
    _instead(patch, MIROSTAT_V2, lambda row, step: real(row, step._replace(a=step.a + (1 << 20))))


@mutant("states")
def adaptive_p_forgets_the_width(patch: Patch) -> None:
    patch.setattr(adaptive_p, "INVERSE_WIDTH", 3.0)


@mutant("marks")
def green_lists_are_one_token_longer(patch: Patch) -> None:
    real = green_list.green_count
    patch.setattr(green_list, "green_count", lambda size, ratio: real(size, ratio) + 1)


@mutant("marks")
def red_tokens_lose_a_little_less(patch: Patch) -> None:
    real = watermark.scaled
    patch.setattr(watermark, "scaled", lambda w, factor: real(w, factor + np.uint64(1 << 22)))


@mutant("marks")
def known_contexts_are_marked_again(patch: Patch) -> None:
    patch.setattr(synthid, "is_repeated", lambda hashes, memory: False)


@mutant("marks")
def tournaments_end_a_layer_early(patch: Patch) -> None:
    real = synthid.tournament
    patch.setattr(synthid, "tournament", lambda w, wins, layers: real(w, wins, layers - 1))


@mutant("marks")
def races_are_run_without_weights(patch: Patch) -> None:
    real = gumbel.first
    patch.setattr(gumbel, "first", lambda u, w: real(u, np.minimum(w, np.uint64(1))))


@pytest.mark.slow
@pytest.mark.parametrize("topic", topics())
def test_without_a_mistake_every_vector_passes(topic: str) -> None:
    assert not any(caught(vector) for vector in read(topic))


@pytest.mark.parametrize(("topic", "plant"), PLANTED, ids=[plant.__name__ for _, plant in PLANTED])
def test_a_planted_mistake_is_caught(topic: str, plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    vectors = read(topic)
    plant(monkeypatch)
    assert any(caught(vector) for vector in vectors)
