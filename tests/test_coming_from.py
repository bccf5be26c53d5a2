"""The pages for users of other engines say what the dialects, the presets and those engines' own classes say."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from peer_contract import Row, read_rows

from tirage.compat import gemma
from tirage.compat.mindie import SamplingData, SamplingParam
from tirage.dialects import from_llamacpp, from_sglang, from_vllm
from tirage.dialects.mindie import MINDIE
from tirage.dialects.mlx import MLX
from tirage.errors import ParamsError
from tirage.operators import OPERATORS
from tirage.params import SamplingParams
from tirage.semantics import CHOICES, PRESETS, Semantics

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import coming_from

PLACES = {"from_vllm": "vllm", "from_hf": "huggingface", "from_llamacpp": "llamacpp"}


def text_of(page: str) -> str:
    return (coming_from.FOLDER / f"{page}.md").read_text(encoding="utf-8")


def test_there_is_a_page_for_every_engine_of_the_tables() -> None:
    assert {path.stem for path in coming_from.FOLDER.glob("*.md")} == set(coming_from.PAGES)


@pytest.mark.parametrize("page", coming_from.PAGES)
def test_a_page_holds_the_tables_of_now(page: str) -> None:
    assert coming_from.filled(page, text_of(page)) == text_of(page)


@pytest.mark.parametrize("row", [row for row in read_rows() if row.place in PLACES], ids=lambda row: row.field)
def test_a_page_names_every_field_of_its_engine(row: Row) -> None:
    if row.standing.status != "noted":
        assert f"`{row.field}`" in text_of(PLACES[row.place])


def test_a_page_without_a_place_for_a_table_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mlx.md must have one place between <!-- fields -->"):
        coming_from.filled("mlx", "<!-- fields -->")


# --- meaning -------------------------------------------------------------------------------------------------------


def test_every_option_of_semantics_is_said_in_words() -> None:
    named = {field.name for field in dataclasses.fields(Semantics) if field.compare} - {"name", "version", "stages"}
    assert set(coming_from.OPTIONS) == named
    for name, choices in CHOICES.items():
        assert set(coming_from.OPTIONS[name].words) == set(choices), name
    for name, option in coming_from.OPTIONS.items():
        assert set(option.stages) <= set(OPERATORS), name


def test_what_a_page_says_of_a_preset_without_a_column_is_so() -> None:
    assert "`fastdeploy-air` is as `fastdeploy-base`" in text_of("fastdeploy")
    as_base = PRESETS["fastdeploy-air"].replace(name="fastdeploy-base", top_p_scope="joint")
    assert as_base == PRESETS["fastdeploy-base"]
    assert "`hf-cb`" in text_of("huggingface")
    assert PRESETS["hf-cb"].stages == ("temperature", "top_k", "top_p")


def test_a_table_shows_each_option_in_which_presets_differ() -> None:
    changed = PRESETS["canonical"].replace(name="other", min_p_rule="gt", stages=("min_p", "temperature"))
    rows = dict(coming_from.differences([PRESETS["canonical"], changed]))
    assert rows["order of the filters"] == ["temperature, min_p", "min_p, temperature"]
    assert rows["`min_p` keeps a probability"] == ["of at least `min_p` × the largest", "above `min_p` × the largest"]
    assert len(rows) == 2


ON: dict[str, Any] = {
    "mirostat": 2,
    "logit_bias": {1: 1.0},
    "logits_processors": (("forced_token", {"token_id": 1}),),
    "top_k": 5,
    "repetition_penalty": 1.1,
    "no_repeat_ngram_size": 2,
    "sequence_bias": {(1, 2): 1.0},
    "min_keep": 2,
    "p_less": "norm",
}
"""Values at which parameters are on; for the others it is 0.5."""


def is_refused(field: str, preset: str) -> bool:
    """Whether the preset takes no value at which the parameter is on."""
    try:
        SamplingParams(**{"temperature": 1.0, field: ON.get(field, 0.5), "semantics": preset})
    except ParamsError:
        return True
    return False


@pytest.mark.parametrize("name", PRESETS)
def test_a_parameter_is_listed_as_lacking_exactly_where_it_is_refused(name: str) -> None:
    staged = [field for field, spec in coming_from.FIELDS.items() if spec.stage and spec.has_off]
    refused = [f"`{field}`" for field in staged if is_refused(field, name)]
    assert list(coming_from.lacking(PRESETS[name])) == refused


# --- seeds -----------------------------------------------------------------------------------------------------------


def test_the_pages_name_the_field_of_the_seed_that_an_engine_has() -> None:
    """transformers has none, and its page says so."""
    named = {(row.peer, row.field) for row in read_rows() if row.field.endswith("seed")}
    having = {(peer, "seed") for peer in ("easydel", "fastdeploy", "llamacpp", "openai", "sglang", "vllm")}
    assert named == {*having, ("sglang", "sampling_seed")}
    assert "`generate` has no seed" in text_of("huggingface")
    assert "`sampling_seed`" in text_of("sglang").partition("## Seeds")[2]


def test_a_seed_of_minus_one_is_read_as_the_pages_say() -> None:
    assert from_vllm({"seed": -1}).seed is None
    assert from_llamacpp({"seed": -1}).seed is from_llamacpp({"seed": 4294967295}).seed is None
    assert SamplingParams(seed=-1).seed == from_sglang({"sampling_seed": -1}).seed == -1


# --- engines without a dialect ---------------------------------------------------------------------------------------


def listed(peer: str, owner: str) -> dict[str, str]:
    return {each.name: each.default for each in dict(coming_from.PEERS[peer])[owner]}


def fields_of(kind: Any) -> dict[str, str]:
    """The public fields of a dataclass with their defaults as a program would write them."""
    found = {}
    for field in dataclasses.fields(kind):
        if field.init and not field.name.startswith("_"):
            made = field.default_factory() if field.default is dataclasses.MISSING else field.default  # type: ignore[misc]
            found[field.name] = repr(made)
    return found


def test_the_dialects_without_a_published_class_know_the_parameters_of_ours() -> None:
    assert MINDIE.names == set(listed("mindie", "SamplingParam"))
    assert MLX.names - {"max_tokens"} == {
        each.name for _, parameters in coming_from.PEERS["mlx"] for each in parameters
    }


def test_the_parameters_of_mindie_are_those_of_its_classes() -> None:
    assert listed("mindie", "SamplingParam") == fields_of(SamplingParam)
    assert listed("mindie", "SamplingData") == fields_of(SamplingData)


@pytest.mark.parametrize("name", listed("mindie", "SamplingParam"))
def test_a_parameter_of_mindie_sets_the_one_that_the_page_names(name: str) -> None:
    if name in ("to_tensor", "do_sample"):
        return
    probe = np.array([3]) if name in ("top_k", "seed") else np.array([0.5])
    one, half = np.array([1.0]), {name: probe}
    before = SamplingParam.from_numpy(temperature=one).requests(1)[0]
    after = SamplingParam.from_numpy(**{"temperature": one, **half}).requests(1)[0]
    changed = {key for key in coming_from.FIELDS if getattr(before, key) != getattr(after, key)}
    here = next(each.here for each in dict(coming_from.PEERS["mindie"])["SamplingParam"] if each.name == name)
    assert changed == {re.findall(r"`(\w+)`", here)[0]}


@pytest.mark.parametrize("kind", ["Greedy", "RandomSampling", "TopkSampling", "TopPSampling"])
def test_the_parameters_of_a_method_of_gemma_are_those_of_its_class(kind: str) -> None:
    assert listed("gemma", kind) == fields_of(getattr(gemma, kind))
    before = gemma.TopkSampling(k=2) if kind == "TopkSampling" else getattr(gemma, kind)()
    for each in dict(coming_from.PEERS["gemma"])[kind]:
        after = dataclasses.replace(before, **{each.name: 3 if each.name == "k" else 0.5})
        changed = {key for key in coming_from.FIELDS if getattr(before.params, key) != getattr(after.params, key)}
        assert changed == {re.findall(r"`(\w+)`", each.here)[0]}


def test_the_parameters_of_gemmas_sampler_are_those_of_its_class() -> None:
    sampler = [
        field
        for field in dataclasses.fields(gemma.Sampler)
        if field.init and field.name not in {"model", "params", "tokenizer"}
    ]
    assert list(listed("gemma", "Sampler")) == [field.name for field in sampler]
    call = inspect.signature(gemma.Sampler.sample).parameters
    listed_call = listed("gemma", "Sampler.sample")
    assert set(listed_call) == set(call) - {"self", "prompt", "images", "return_state", "last_state", "sharding"}
    assert listed_call == {name: repr(call[name].default) for name in listed_call}


@pytest.mark.slow
def test_easydels_parameters_are_our_first_ones_in_its_order() -> None:
    from tirage.compat.easydel import SamplingParams as EasyDelParams

    assert EasyDelParams.documented == coming_from.EASYDEL_DOCUMENTED
    names = re.findall(r"`(\w+)`", coming_from.positional())
    defaults = EasyDelParams()
    assert EasyDelParams(*(getattr(defaults, name) for name in names)) == defaults
    for place, name in enumerate(names):
        if name in ("temperature", "top_p", "seed"):
            given = EasyDelParams(*(getattr(defaults, each) for each in names[:place]), 0.5 if name != "seed" else 3)
            assert given == defaults.replace(**{name: getattr(given, name)}) != defaults
