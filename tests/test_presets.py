"""The presets as SPEC.md prints them, and what each of them must not change."""

from __future__ import annotations

import math
from dataclasses import fields
from pathlib import Path

import pytest

from tirage import ParamsError, SamplingParams, Semantics
from tirage.semantics import EDITS, FILTERS, PRESETS, resolve

SPEC = (Path(__file__).parents[1] / "SPEC.md").read_text()
OPTIONS = [f.name for f in fields(Semantics) if f.compare and f.name not in {"name", "version", "stages"}]


def options_of(semantics: Semantics) -> str:
    """The options that differ from `canonical`, as SPEC.md writes them."""
    canonical = PRESETS["canonical"]
    changed = [name for name in OPTIONS if getattr(semantics, name) != getattr(canonical, name)]
    return ", ".join(f"{name} {_text(getattr(semantics, name))}" for name in changed) or "-"


def _text(value: object) -> str:
    return "none" if value == math.inf else str(value)


def line_of(semantics: Semantics) -> str:
    """A preset's line in the table of SPEC.md."""
    same = semantics.stages == PRESETS["canonical"].stages
    order = "as canonical" if same and semantics.name != "canonical" else " ".join(semantics.stages)
    return f"| `{semantics.label}` | {order} | {options_of(semantics)} |"


@pytest.mark.parametrize("name", PRESETS)
def test_the_specification_prints_each_preset_as_it_is(name: str) -> None:
    assert line_of(PRESETS[name]) in SPEC.splitlines()


def test_the_specification_prints_no_other_preset() -> None:
    rows = [line for line in SPEC.splitlines() if line.startswith("| `") and "@" in line.split("|")[1]]
    assert sorted(line_of(preset) for preset in PRESETS.values()) == sorted(rows)


def test_the_specification_names_every_stage_and_option() -> None:
    assert [name for name in (*EDITS, *FILTERS, *OPTIONS) if f"`{name}`" not in SPEC] == []


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_found_by_its_name_and_by_its_version(name: str) -> None:
    assert (PRESETS[name], PRESETS[name]) == (resolve(name), resolve(PRESETS[name].label))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_survives_its_plain_form(name: str) -> None:
    assert PRESETS[name] == Semantics.from_dict(PRESETS[name].to_dict())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_changes_no_field(name: str) -> None:
    assert SamplingParams() == SamplingParams(semantics=name).replace(semantics="canonical")


def test_another_version_is_refused_with_the_one_that_is_known() -> None:
    with pytest.raises(ParamsError, match=r"known in version '0\.33\.0', got '0\.1'; use 'vllm@0\.33\.0'"):
        resolve("vllm@0.1")


def test_an_unknown_preset_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ParamsError, match="did you mean 'sglang'"):
        resolve("sglan")


@pytest.mark.parametrize(("field", "value"), [("min_p", 0.1), ("typical_p", 0.5), ("xtc_probability", 1.0)])
def test_a_parameter_without_its_stage_is_refused(field: str, value: float) -> None:
    with pytest.raises(ParamsError, match=f"{field} must be off under semantics 'mindie'"):
        SamplingParams().replace(semantics="mindie", **{field: value})
