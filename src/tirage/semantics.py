"""What `top_p=0.9` means: the order of the stages and the rule of each, written down and named.

A `Semantics` is data. `compiled_params.py` lowers it, with one request's parameters, to the list of steps that
every path executes; nothing else in tirage knows an engine by name. SPEC.md rules S-P1 ... S-P9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from dataclasses import replace as _replace
from functools import lru_cache
from typing import Any, Literal, get_args

from tirage.errors import ParamsError, nearest
from tirage.operators import ALWAYS, CANONICAL, OPERATORS
from tirage.operators.scale import OPERATOR as SCALE

EDITS = tuple(operator.name for operator in (*CANONICAL, SCALE) if not operator.is_filter)
"""Stages that change logits. Hard masks run before the first and again after the last: masks always win."""

FILTERS = tuple(operator.name for operator in CANONICAL if operator.is_filter)
"""Stages that turn logits into weights and cut the set of tokens that can be drawn."""

Ties = Literal["index", "all"]
History = Literal["both", "output", "prompt"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """The order of the stages and the option of each, for one row.

    `stages` lists edits first, then filters; a stage that is absent cannot be asked for: a parameter
    that needs it is refused. Options:

    `top_k_ties`, `top_p_ties`: at the cut, fill with the lowest ids ("index") or keep all equal logits ("all").
    `top_p_rule`: "lt" keeps a token while the mass before it is < p; "le" while <= p; "truncated" keeps the
    "lt" set but leaves the crossing token only its share below p.
    `top_p_scope`: mass is judged on what earlier filters left ("sequential"), on everything the temperature
    stage saw ("joint"), or joint for rows without min_p ("joint_unless_min_p").
    `min_p_rule`: probability >= min_p * maximum ("ge"), > ("gt"), or EasyDeL's comparison of raw logits
    ("logit_ratio").
    `typical_rule`: shortest set whose mass reaches p ("lt") or exceeds it ("gt"). `xtc_rule`: tokens at least
    at the threshold ("ge") or above it ("gt").
    `*_history`: which tokens a penalty counts; `penalty_window`: only the last n of prompt + output.
    `frequency_divisor`: "length" divides the frequency penalty by the number of counted tokens.
    `penalty_limit`: largest |frequency| and |presence| penalty that is accepted.
    `greedy`: T = 0 is the largest logit, or "refused". `mask_mode`: the grammar mask comes first, or only
    when the token drawn without it is not allowed ("resample", llama.cpp).
    """

    name: str = "canonical"
    version: str = "1"
    stages: tuple[str, ...] = tuple(operator.name for operator in CANONICAL)
    top_k_ties: Ties = "index"
    top_k_limit: int | None = None
    top_p_ties: Ties = "index"
    top_p_rule: Literal["lt", "le", "truncated"] = "lt"
    top_p_scope: Literal["sequential", "joint", "joint_unless_min_p"] = "sequential"
    min_p_rule: Literal["ge", "gt", "logit_ratio"] = "ge"
    typical_rule: Literal["lt", "gt"] = "lt"
    xtc_rule: Literal["ge", "gt"] = "ge"
    repetition_history: History = "both"
    frequency_history: History = "output"
    presence_history: History = "output"
    bad_words_history: Literal["output", "both"] = "output"
    penalty_window: int | None = None
    frequency_divisor: Literal["none", "length"] = "none"
    penalty_limit: float = 2.0
    greedy: Literal["argmax", "refused"] = "argmax"
    mask_mode: Literal["first", "resample"] = "first"

    def __new__(cls, **options: Any) -> Semantics:
        _known(options)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_options(self)
        _check_stages(self.stages)
        _check_last(self)

    @property
    def label(self) -> str:
        """`name@version`, the form that pins a preset."""
        return f"{self.name}@{self.version}"

    def replace(self, **changes: Any) -> Semantics:
        """A new Semantics with some options changed, checked again; without a `name` it is called `NAME-changed`."""
        _known(changes)
        return _replace(self, **{"name": f"{self.name}-changed", **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` is its inverse."""
        data = asdict(self)
        data["stages"] = list(self.stages)
        if math.isinf(self.penalty_limit):
            data["penalty_limit"] = None
        return data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Semantics:
        """The Semantics that `to_dict` wrote; unknown keys raise ParamsError."""
        if not isinstance(data, Mapping):
            raise ParamsError(f"semantics must be a mapping of options, got {type(data).__name__}")
        _known(data)
        data = dict(data)
        if "stages" in data:
            data["stages"] = tuple(data["stages"]) if isinstance(data["stages"], list) else data["stages"]
        if data.get("penalty_limit", 0) is None:
            data["penalty_limit"] = math.inf
        return cls(**data)


def _known(data: Mapping[str, Any]) -> None:
    names = {f.name for f in fields(Semantics)}
    for key in data:
        if key not in names:
            raise ParamsError(f"semantics option must be a known name, got {key!r}{nearest(key, names)}")


CHOICES = {
    "top_k_ties": get_args(Ties),
    "top_p_ties": get_args(Ties),
    "top_p_rule": ("lt", "le", "truncated"),
    "top_p_scope": ("sequential", "joint", "joint_unless_min_p"),
    "min_p_rule": ("ge", "gt", "logit_ratio"),
    "typical_rule": ("lt", "gt"),
    "xtc_rule": ("ge", "gt"),
    "repetition_history": get_args(History),
    "frequency_history": get_args(History),
    "presence_history": get_args(History),
    "bad_words_history": ("output", "both"),
    "frequency_divisor": ("none", "length"),
    "greedy": ("argmax", "refused"),
    "mask_mode": ("first", "resample"),
}
"""The values that an option may have."""


def _check_names(semantics: Semantics) -> None:
    for name in ("name", "version"):
        value = getattr(semantics, name)
        if not isinstance(value, str) or not value or "@" in value:
            raise ParamsError(f"semantics.{name} must be a non-empty string without '@', got {value!r}")


def _check_options(semantics: Semantics) -> None:
    for name, allowed in CHOICES.items():
        value = getattr(semantics, name)
        if value not in allowed:
            raise ParamsError(f"semantics.{name} must be one of {', '.join(allowed)}, got {value!r}")
    for name in ("top_k_limit", "penalty_window"):
        value = getattr(semantics, name)
        if value is not None and (type(value) is not int or value < 1):
            raise ParamsError(f"semantics.{name} must be an integer >= 1 or None, got {value!r}")
    limit = semantics.penalty_limit
    if isinstance(limit, bool) or not isinstance(limit, (int, float)) or not limit > 0:
        raise ParamsError(f"semantics.penalty_limit must be a number > 0, got {semantics.penalty_limit!r}")


def _check_stages(stages: tuple[str, ...]) -> None:
    if not isinstance(stages, tuple):
        raise ParamsError(f"semantics.stages must be a tuple of stage names, got {type(stages).__name__}")
    seen: set[str] = set()
    filters_begun = False
    known = [name for name, operator in OPERATORS.items() if operator not in ALWAYS]
    for stage in stages:
        if stage not in known:
            raise ParamsError(f"semantics.stages must hold known stages, got {stage!r}{nearest(str(stage), known)}")
        if stage in seen:
            raise ParamsError(f"semantics.stages must name each stage once, got {stage!r} twice")
        if filters_begun and not OPERATORS[stage].is_filter:
            raise ParamsError(f"semantics.stages must list edits before filters, got {stage!r} after a filter")
        filters_begun |= OPERATORS[stage].is_filter
        seen.add(stage)
    if {"scale", "temperature"} <= seen:
        raise ParamsError("semantics.stages must hold 'scale' or 'temperature', got both; remove one")


def _check_last(semantics: Semantics) -> None:
    if semantics.top_p_rule == "truncated" and semantics.top_p_scope != "sequential":
        raise ParamsError(
            f"semantics.top_p_rule 'truncated' must have top_p_scope 'sequential', got {semantics.top_p_scope!r}"
        )
    last = semantics.stages[-1] if semantics.stages else None
    if semantics.top_p_rule == "truncated" and "top_p" in semantics.stages and last != "top_p":
        raise ParamsError(
            f"semantics.top_p_rule 'truncated' must have top_p as the last stage, got {last!r}; move it or choose 'lt'"
        )


_PENALTIES = ("repetition", "frequency", "presence")
_SGLANG = ("frequency", "presence", "repetition", "logit_bias", "processors", "temperature", "top_k", "top_p", "min_p")
_FASTDEPLOY = ("processors", "logit_bias", *_PENALTIES, "temperature", "min_p", "top_k", "top_p")
_EASYDEL = ("logit_bias", "presence", "frequency", "repetition", "top_k", "top_p", "temperature", "min_p")
_HF_EDITS = ("logit_bias", "repetition", "no_repeat_ngram", "processors")
_HF_FILTERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical", "epsilon", "eta")
_LLAMACPP_EDITS = ("logit_bias", *_PENALTIES, "dry")
_LLAMACPP_FILTERS = ("top_n_sigma", "top_k", "typical", "top_p", "min_p", "xtc", "temperature")
_MLX = ("logit_bias", "repetition", "presence", "frequency", "top_p", "min_p", "xtc", "top_k", "temperature")
_TRT_LEGACY = ("logit_bias", "scale", "repetition", "presence", "frequency", "top_k", "top_p")


def _preset(name: str, version: str, stages: tuple[str, ...], **options: Any) -> Semantics:
    return Semantics(name=name, version=version, stages=stages, **options)


def _counting_prompt(**options: Any) -> dict[str, Any]:
    """Options of engines whose frequency and presence penalties count the prompt too."""
    return {"frequency_history": "both", "presence_history": "both", **options}


def _ties_kept(**options: Any) -> dict[str, Any]:
    """Options of engines that keep every logit equal to the last one kept."""
    return {"top_k_ties": "all", "top_p_ties": "all", **options}


_VLLM = ("logit_bias", *_PENALTIES, "processors", "temperature", "min_p", "top_k", "top_p")
_VLLM_V1 = ("logit_bias", "processors", *_PENALTIES, "temperature", "min_p", "top_k", "top_p")
_MINDIE = (*_PENALTIES, "temperature", "top_k", "top_p")

_ALL = (
    Semantics(),
    Semantics(name="openai"),
    _preset("hf", "5.23", _HF_EDITS + _HF_FILTERS, top_k_ties="all", bad_words_history="both"),
    _preset("hf-cb", "5.23", ("temperature", "top_k", "top_p"), top_k_ties="all"),
    _preset("vllm", "0.33", _VLLM),
    _preset("vllm-v1", "0.33", _VLLM_V1, top_k_ties="all"),
    _preset("sglang", "0.5", _SGLANG, **_ties_kept(repetition_history="output", top_p_scope="joint_unless_min_p")),
    _preset("sglang-pytorch", "0.5", _SGLANG, repetition_history="output", top_p_rule="le", top_p_scope="joint"),
    _preset("flashinfer", "0.6", ("temperature", "top_k", "top_p", "min_p"), **_ties_kept()),
    _preset("fastdeploy-base", "2", _FASTDEPLOY, top_k_ties="all", top_p_rule="truncated"),
    _preset("fastdeploy-base_non_truncated", "2", _FASTDEPLOY, top_k_ties="all"),
    _preset("fastdeploy-air", "2", _FASTDEPLOY, top_k_ties="all", top_p_rule="truncated"),
    _preset("fastdeploy-rejection", "2", _FASTDEPLOY, **_ties_kept()),
    _preset("mindie", "2", _MINDIE, top_p_rule="le", penalty_limit=math.inf),
    _preset("mindie-npu", "2", _MINDIE, **_ties_kept(top_p_scope="joint", penalty_limit=math.inf)),
    _preset("gemma-topk", "4", ("top_k", "temperature")),
    _preset("gemma-topp", "4", ("temperature", "top_p"), top_p_ties="all"),
    _preset("easydel", "0.3", _EASYDEL, **_counting_prompt(**_ties_kept())),
    _preset("easydel-strict", "0.3", _EASYDEL, **_counting_prompt(**_ties_kept(min_p_rule="logit_ratio"))),
    _preset(
        "llamacpp",
        "2026.08",
        _LLAMACPP_EDITS + _LLAMACPP_FILTERS,
        **_counting_prompt(penalty_window=64, penalty_limit=math.inf, typical_rule="gt", mask_mode="resample"),
    ),
    _preset("mlx", "2026.08", _MLX, **_counting_prompt(penalty_window=20, penalty_limit=math.inf, xtc_rule="gt")),
    _preset("trtllm", "1", ("logit_bias", "temperature", "top_k", "top_p"), top_k_ties="all", top_p_rule="le"),
    _preset(
        "trtllm-legacy",
        "1",
        _TRT_LEGACY,
        **_counting_prompt(penalty_limit=math.inf, top_k_limit=1024, top_p_rule="truncated"),
    ),
    _preset(
        "tgi",
        "2026.01",
        ("repetition", "frequency", "temperature", "top_k", "top_p", "typical"),
        frequency_history="both",
        frequency_divisor="length",
        top_k_ties="all",
    ),
    _preset("nanovllm", "1", ("temperature",), greedy="refused"),
)

PRESETS: dict[str, Semantics] = {preset.name: preset for preset in _ALL}
"""Every named preset, newest version. Sources: the engines' own code at the versions given."""

_ALIASES = {
    "fastdeploy": "fastdeploy-base",
    "gemma": "gemma-topk",
}
_OTHER_NAMES = {
    "transformers": "hf",
    "huggingface": "hf",
    "llama.cpp": "llamacpp",
    "llama_cpp": "llamacpp",
    "ollama": "llamacpp",
    "tensorrt-llm": "trtllm",
    "tensorrt_llm": "trtllm",
    "mlx-lm": "mlx",
    "mlx_lm": "mlx",
    "tirage": "canonical",
}
"""Names of engines that are no presets: hints for errors."""


def resolve(semantics: str | Semantics) -> Semantics:
    """The Semantics that a preset name, `name@version`, or a Semantics stands for; else ParamsError."""
    if isinstance(semantics, Semantics):
        return semantics
    if not isinstance(semantics, str):
        raise ParamsError(f"semantics must be a preset name or a Semantics, got {type(semantics).__name__}")
    return _preset_named(semantics)


@lru_cache(maxsize=1024)
def _preset_named(semantics: str) -> Semantics:
    name, pinned, version = semantics.partition("@")
    preset = PRESETS.get(_ALIASES.get(name, name))
    if preset is None:
        other = _OTHER_NAMES.get(name.lower())
        hint = f"; did you mean {other!r}?" if other else nearest(name, PRESETS)
        raise ParamsError(f"semantics must name a preset ({', '.join(PRESETS)}), got {name!r}{hint}")
    if pinned and version != preset.version:
        raise ParamsError(
            f"semantics {name!r} is known in version {preset.version!r}, got {version!r}; use {preset.label!r}"
        )
    return preset
