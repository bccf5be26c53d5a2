"""min_keep by hand: how many tokens each filter leaves; tests/engines/llamacpp compares it with llama.cpp."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import reference
from strategies import logits_of

import tirage
from tirage import ParamsError, SamplingParams, Semantics
from tirage.semantics import PRESETS

CUTS: dict[str, dict[str, Any]] = {
    "top_p": {"top_p": 0.3},
    "min_p": {"min_p": 0.9},
    "typical": {"typical_p": 0.2},
}


def kept(x: np.ndarray, **fields: Any) -> list[int]:
    return np.flatnonzero(tirage.law(x, SamplingParams(**fields))[0]).tolist()


@pytest.mark.parametrize("semantics", ["canonical", "llamacpp"])
@pytest.mark.parametrize("name", CUTS)
def test_a_filter_leaves_the_larger_of_its_own_set_and_the_first_n(name: str, semantics: str) -> None:
    for seed in range(12):
        x = logits_of("normal", 40, seed)
        alone = kept(x, semantics=semantics, **CUTS[name])
        for n in (0, 1, 2, 5, 17, 40, 1000):
            found = kept(x, semantics=semantics, min_keep=n, **CUTS[name])
            assert len(found) == max(len(alone), min(n, 40))
            assert set(alone) <= set(found)
            if name != "typical":
                assert sorted(found, key=lambda t: -x[t]) == np.argsort(-x, kind="stable")[: len(found)].tolist()


def test_xtc_removes_all_or_nothing() -> None:
    x = np.log(np.array([0.4, 0.3, 0.2, 0.06, 0.04])).astype(np.float32)
    xtc = {"xtc_probability": 1.0, "xtc_threshold": 0.1}
    assert kept(x, **xtc) == kept(x, **xtc, min_keep=3) == [2, 3, 4]
    assert kept(x, **xtc, min_keep=4) == [0, 1, 2, 3, 4]


def test_filters_that_llama_cpp_gives_no_floor_cut_below_it() -> None:
    x = logits_of("normal", 40, 1)
    for fields in ({"top_k": 2}, {"top_n_sigma": 0.1}, {"epsilon_cutoff": 0.5}, {"tfs": 0.0}, {"p_less": "plain"}):
        assert kept(x, **fields) == kept(x, **fields, min_keep=30)
    assert len(kept(x, top_k=3, top_p=0.1, min_keep=30)) == 3


def test_presets_without_the_stage_refuse_it() -> None:
    for name, semantics in PRESETS.items():
        if "min_keep" not in semantics.stages:
            with pytest.raises(ParamsError, match=r"^min_keep must be off under semantics"):
                SamplingParams(min_keep=2, semantics=name)
    assert {name for name, s in PRESETS.items() if "min_keep" in s.stages} == {"canonical", "openai", "llamacpp"}


def test_other_rules_of_min_p_and_xtc_heed_it_too() -> None:
    stages = ("temperature", "min_keep", "min_p", "xtc")
    own = Semantics(name="own", stages=stages, min_p_rule="logit_ratio", xtc_ties="all")
    cuts: list[dict[str, Any]] = [{"min_p": 0.9}, {"xtc_probability": 1.0, "xtc_threshold": 0.02}]
    for seed in range(8):
        x = logits_of("coarse", 24, seed)
        for fields in cuts:
            for n in (0, 3, 9, 23, 40):
                params = SamplingParams(semantics=own, min_keep=n, **fields)
                np.testing.assert_allclose(tirage.law(x, params)[0], np.array(reference.law(x.tolist(), params), float))


def test_explain_says_what_was_held_back() -> None:
    x = logits_of("normal", 40, 1)
    stages = {s.name: s.note for s in tirage.explain(x, SamplingParams(top_p=0.1, min_keep=7, seed=1)).stages}
    assert stages["top_p"].endswith("; min_keep is 7")
    assert "min_keep" not in stages
