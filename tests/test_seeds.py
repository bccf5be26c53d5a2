"""`tirage.seeds`: many seeds from one, the same everywhere, no two alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tirage
from tirage import ParamsError, SamplingParams
from tirage.exact import seeding
from tirage.exact.philox import Domain, uniform64


def test_the_known_answers_of_the_spec() -> None:
    assert tirage.seeds(7, 3) == [1925143485887816579, 5328984533834585848, 7809119465273286986]
    assert tirage.seeds(-1, 2) == [4731982938737931279, 4962691072138405421]


@pytest.mark.parametrize("base", [0, 7, -1, 2**63 - 1, -(2**63), np.int64(-5)])
def test_seeds_are_the_uniforms_of_a_domain_of_their_own(base: Any) -> None:
    found = tirage.seeds(base, 9)
    assert found == [uniform64(int(base), step, 0, Domain.SEED) >> 1 for step in range(9)]
    assert [type(seed) for seed in found] == [int] * 9
    assert tirage.seeds(base, 4) == found[:4]


@pytest.mark.slow
def test_no_seed_comes_twice_and_each_is_good_for_every_door() -> None:
    many = tirage.seeds(3, 1 << 18)
    assert len(set(many)) == 1 << 18
    assert 0 <= min(many) <= max(many) < 1 << 63
    assert SamplingParams(seed=many[-1]).seed == many[-1]
    assert not set(many) & set(tirage.seeds(4, 1 << 18))


def test_a_number_that_occurred_before_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def block(base: int, start: int, stop: int) -> Any:
        return np.arange(start, stop, dtype=np.uint64) // 3

    monkeypatch.setattr(seeding, "_block", block)
    assert tirage.seeds(1, 7) == [0, 1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize("base", [True, 1.0, "7", None, 2**63, -(2**63) - 1])
def test_a_base_that_is_no_seed_is_refused(base: Any) -> None:
    with pytest.raises(ParamsError, match=r"^base must be an integer in \[-9223372036854775808, 92233720368547758"):
        tirage.seeds(base, 2)


@pytest.mark.parametrize("n", [-1, True, 2.0, "3", None, (1 << 20) + 1])
def test_a_count_out_of_range_is_refused(n: Any) -> None:
    with pytest.raises(ParamsError, match=r"^n must be an integer in \[0, 1048576\], got "):
        tirage.seeds(1, n)


def test_rows_of_one_seed_are_copies_and_rows_of_many_are_not() -> None:
    x = np.zeros((8, 100_000), np.float32)
    assert len(set(tirage.sample(x, SamplingParams(seed=7)).token_ids.tolist())) == 1
    each = [SamplingParams(seed=seed) for seed in tirage.seeds(7, 8)]
    assert len(set(tirage.sample(x, each).token_ids.tolist())) == 8
    assert tirage.seeds(7, 0) == []
