"""The options that presets needed to mean what their engines do: each against numbers from the engine, and by hand.

The laws named with an engine were computed by its release; `make peers` asks it again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from paths import PATHS, by_reference
from strategies import Case, logits_of

import tirage
from tirage import ParamsError, SamplingParams, Semantics
from tirage.differences import DIFFERENCES, RELEASES_ELSEWHERE
from tirage.semantics import PRESETS, resolve

FOUR = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
FIVE = np.log(np.array([0.5, 0.2, 0.15, 0.1, 0.05], np.float32))
HELD = 1e-5


def law(logits: Any, preset: str | Semantics, history: Any = None, **params: Any) -> list[float]:
    x = np.array(logits, np.float32)
    return tirage.law(x, SamplingParams(semantics=preset, **params), history=[history or ((), ())])[0].tolist()


# Greedy and XTC.


def test_mlx_takes_the_largest_logit_before_xtc_exists() -> None:
    xtc = {"temperature": 0.0, "xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert law(FOUR, "mlx", **xtc) == [1, 0, 0, 0]


def test_llamacpp_tosses_the_coin_before_it_takes_the_largest() -> None:
    xtc = {"temperature": 0.0, "xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert law(FOUR, "llamacpp", **xtc) == [0, 0, 1, 0]


def test_greedy_first_ignores_every_filter_and_explains_it() -> None:
    params = SamplingParams(semantics="mlx", temperature=0.0, top_k=2, xtc_probability=1.0)
    trace = tirage.explain(FOUR, params, history=[((), ())])
    assert tirage.law(FOUR, params, history=[((), ())])[0].argmax() == 0
    assert "largest logit" in str(trace)


# Ties.


def test_mlx_keeps_all_ties_at_top_p() -> None:
    assert law([1, 1, 0, -3], "mlx", top_p=0.1) == pytest.approx([0.5, 0.5, 0, 0], abs=HELD)


def test_mlx_keeps_all_that_equal_the_least_likely_above_the_threshold() -> None:
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert law([2, 1, 1, -3], "mlx", **xtc)[:3] == pytest.approx([0, 0.5, 0.5], abs=0.01)
    assert law([2, 1, 1, -3], "llamacpp", **xtc)[1] == 0


def test_xtc_among_equals_alone_removes_nothing_when_ties_stay() -> None:
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert law([1, 1, 1], "mlx", **xtc) == pytest.approx([1 / 3] * 3, abs=HELD)
    assert law([1, 1, 1], "llamacpp", **xtc) == [0, 0, 1]


def test_typical_ties_by_rank_stay_as_long_as_they_are_needed() -> None:
    both = Semantics(name="mine", typical_rule="gt"), Semantics(name="mine", typical_rule="gt", typical_ties="index")
    assert [np.count_nonzero(law([1, 1, 1, 1], each, typical_p=0.5)) for each in both] == [4, 3]


@pytest.mark.parametrize(("preset", "left"), [("trtllm", 1), ("sglang", 1), ("flashinfer", 2)])
def test_top_k_one_is_argmax_where_the_engine_has_it_so(preset: str, left: int) -> None:
    assert np.count_nonzero(law([2, 2, 0], preset, top_k=1)) == left


# Dynamic temperature.


def test_llamacpp_counts_candidates_at_minus_infinity_in_the_largest_entropy() -> None:
    logits = [2, 1, 0.5, 0] + [-np.inf] * 60
    engine = [0.673, 0.183, 0.095, 0.050]
    assert law(logits, "llamacpp", dynatemp_range=0.5)[:4] == pytest.approx(engine, abs=6e-4)


@pytest.mark.parametrize(
    ("filters", "listed"),
    [({}, 60), ({"top_k": 10}, 6), ({"top_p": 0.9999}, 0), ({"min_p": 0.01}, 0), ({"top_n_sigma": 5.0}, 60)],
)
def test_what_other_filters_removed_is_not_listed(filters: dict[str, Any], listed: int) -> None:
    four = [2, 1, 0.5, 0]
    found = law([*four, *[-np.inf] * 60], "llamacpp", dynatemp_range=0.5, **filters)[:4]
    assert found == pytest.approx(law([*four, *[-np.inf] * listed], "llamacpp", dynatemp_range=0.5)[:4], abs=HELD)


# Temperature.


@pytest.mark.parametrize("preset", ["vllm", "vllm-v1", "vllm-flashinfer"])
def test_vllm_raises_the_lowest_temperatures(preset: str) -> None:
    near = [0.0, -0.01, -0.02]
    assert law(near, preset, temperature=0.001) == law(near, preset, temperature=0.01)
    assert law(near, preset, temperature=0.02) != law(near, preset, temperature=0.01)
    assert law(near, preset, temperature=0.0) == [1, 0, 0]
    assert law(near, "canonical", temperature=0.001) != law(near, "canonical", temperature=0.01)


@pytest.mark.parametrize("floor", [0, -1.0, float("nan"), True, "0.1", 1e21])
def test_a_floor_that_is_no_temperature_is_refused(floor: Any) -> None:
    with pytest.raises(ParamsError, match="temperature_floor must be a number in"):
        Semantics(name="mine", temperature_floor=floor)


# FastDeploy.


@pytest.mark.parametrize("method", ["base", "base_non_truncated", "air"])
def test_methods_of_fastdeploy_without_top_k_refuse_it_by_name(method: str) -> None:
    with pytest.raises(ParamsError, match="top_k must be off under semantics 'fastdeploy-"):
        SamplingParams(semantics=f"fastdeploy-{method}", top_k=20)


SIX = np.log(np.array([0.4, 0.2, 0.15, 0.1, 0.08, 0.07], np.float32))


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ("base", [0.4 / 0.55, 0.15 / 0.55, 0, 0, 0, 0]),
        ("base_non_truncated", [2 / 3, 1 / 3, 0, 0, 0, 0]),
        ("rejection", [2 / 3, 1 / 3, 0, 0, 0, 0]),
        ("air", [0.4 / 0.4125, 0.0125 / 0.4125, 0, 0, 0, 0]),
    ],
)
def test_min_p_of_fastdeploy_normalises_only_under_air(method: str, expected: list[float]) -> None:
    assert law(SIX, f"fastdeploy-{method}", top_p=0.55, min_p=0.3) == pytest.approx(expected, abs=HELD)


def test_rejection_normalises_after_top_k() -> None:
    kept = law(SIX, "fastdeploy-rejection", top_p=0.6, min_p=0.3, top_k=3)
    assert kept == pytest.approx([2 / 3, 1 / 3, 0, 0, 0, 0], abs=HELD)
    assert np.count_nonzero(law(FIVE, "fastdeploy-rejection", top_p=0.6, top_k=2)) == 1
    assert np.count_nonzero(law(FIVE, "fastdeploy-rejection", top_p=0.6)) == 2


def test_mass_that_is_not_there_is_not_reached() -> None:
    short = law(FIVE, "fastdeploy-base", top_p=0.9, min_p=0.29)
    assert short == pytest.approx([0.5 / 0.85, 0.2 / 0.85, 0.15 / 0.85, 0, 0], abs=HELD)


# Bad words.


def test_transformers_drops_a_bad_word_that_is_an_eos_token() -> None:
    words = {"bad_words_token_ids": [[1], [2]], "eos_token_ids": [1]}
    assert np.flatnonzero(law(FOUR, "hf", **words)).tolist() == [0, 1, 3]
    assert np.flatnonzero(law(FOUR, "canonical", **words)).tolist() == [0, 3]


def test_a_longer_bad_word_that_ends_in_eos_is_kept() -> None:
    words = {"bad_words_token_ids": [[0, 1]], "eos_token_ids": [1]}
    assert law(FOUR, "hf", history=((0,), ()), **words)[1] == 0


# vLLM's FlashInfer.


def test_vllms_flashinfer_keeps_all_ties() -> None:
    assert np.count_nonzero(law([2, 1, 1, 0], "vllm-flashinfer", top_k=2)) == 3
    assert np.count_nonzero(law([1, 1, 0, 0], "vllm-flashinfer", top_p=0.2)) == 2
    assert np.count_nonzero(law([1, 1, 0, 0], "vllm", top_p=0.2)) == 1


# Every path draws what the executable specification draws.

ASKED: list[tuple[str, dict[str, Any]]] = [
    ("mlx", {"xtc_probability": 0.5, "xtc_threshold": 0.05, "top_p": 0.9}),
    ("mlx", {"temperature": 0.0, "xtc_probability": 1.0, "top_k": 3}),
    ("llamacpp", {"typical_p": 0.5, "top_k": 9}),
    ("llamacpp", {"dynatemp_range": 0.5, "top_n_sigma": 1.0, "top_k": 11}),
    ("llamacpp", {"dynatemp_range": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.02}),
    ("trtllm", {"top_k": 1}),
    ("vllm", {"temperature": 0.005}),
    ("vllm-flashinfer", {"top_k": 3, "top_p": 0.5}),
    ("hf", {"bad_words_token_ids": [[1], [2]], "eos_token_ids": [1]}),
    ("fastdeploy-base", {"min_p": 0.3, "top_p": 0.8}),
    ("fastdeploy-base", {"min_p": 0.3, "top_p": 0.99}),
    ("fastdeploy-rejection", {"min_p": 0.3, "top_p": 0.5}),
]


def cases(preset: str, fields: dict[str, Any]) -> list[Case]:
    params = SamplingParams(semantics=preset, logprobs=3, logprobs_mode="sampled", max_tokens=None, **fields)
    shapes = ("medium", "ties", "holes", "coarse")
    made = [(logits_of(shape, 12, seed), seed) for shape in shapes for seed in range(4)]
    return [Case(logits=x, params=params, prompt=(3, 1), output=(2,), seed=seed) for x, seed in made]


@pytest.mark.slow
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(("preset", "fields"), ASKED, ids=lambda value: str(value)[:40])
def test_every_path_draws_the_same(path: str, preset: str, fields: dict[str, Any]) -> None:
    asked = cases(preset, fields)
    assert PATHS[path](asked) == by_reference(asked)


# What presets say of themselves.


@pytest.mark.parametrize("name", [name for name in PRESETS if name not in {"canonical", "openai"}])
def test_a_preset_names_a_release_and_what_that_does_in_another_way(name: str) -> None:
    preset = PRESETS[name]
    assert preset.release is not None
    assert preset.release.split() == [preset.release.split()[0], preset.version]
    assert preset.version[:1].isdigit()
    assert preset.differences == DIFFERENCES[name]


def test_every_difference_names_a_rule_of_the_specification() -> None:
    from pathlib import Path

    spec = (Path(__file__).parents[1] / "SPEC.md").read_text()
    rules = {each.rule for found in DIFFERENCES.values() for each in found}
    assert [rule for rule in sorted(rules) if f"**{rule}" not in spec] == []
    assert set(DIFFERENCES) == set(PRESETS) - {"canonical", "openai"}


def test_releases_that_are_no_packages_of_pypi_say_where_they_are() -> None:
    releases = {preset.release for preset in PRESETS.values()}
    assert set(RELEASES_ELSEWHERE) <= releases
    page = (Path(__file__).parents[1] / "docs" / "divergence.md").read_text(encoding="utf-8")
    assert all(f"- {release}: {place}" in page for release, place in RELEASES_ELSEWHERE.items())


def test_a_changed_preset_describes_no_release() -> None:
    changed = resolve("mlx").replace(greedy="argmax")
    assert (changed.release, changed.differences) == (None, ())


def test_neither_release_nor_differences_make_two_semantics_differ() -> None:
    preset = PRESETS["mlx"]
    plain = Semantics.from_dict(preset.to_dict())
    assert plain == preset
    assert (plain.release, preset.release) == (None, "mlx-lm 0.32.2")
