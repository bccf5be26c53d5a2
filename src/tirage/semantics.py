"""What `top_p=0.9` means: the order of the stages and the rule of each, written down and named.

A `Semantics` is data. `compiled_params.py` lowers it, with one request's parameters, to the list of steps that
every path executes; nothing else in tirage knows an engine by name. SPEC.md rules S-P1 ... S-P9.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from dataclasses import replace as _replace
from functools import lru_cache
from typing import Any, Literal, get_args

from tirage.differences import DIFFERENCES, EngineDifference
from tirage.errors import ParamsError, nearest
from tirage.operators import ALWAYS, CANONICAL, LAST, OPERATORS
from tirage.operators.scale import OPERATOR as SCALE

EDITS = tuple(operator.name for operator in (*CANONICAL, SCALE) if not operator.is_filter)
"""Stages that change logits. Hard masks run before the first and again after the last: masks always win."""

FILTERS = tuple(operator.name for operator in CANONICAL if operator.is_filter)
"""Stages that turn logits into weights and cut the set of tokens that can be drawn."""

_UNLISTED = frozenset(operator.name for operator in (*ALWAYS, *LAST))
"""Operators that are no stages."""

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
    `top_k_one`: top_k = 1 is a top-k like any other ("cut"), or the largest logit of lowest id whatever
    `top_k_ties` says ("argmax").
    `top_p_scope`: mass is judged on what earlier filters left ("sequential"), on everything the temperature
    stage saw ("joint"), or joint for rows without min_p or top_k ("joint_unless_min_p", "joint_unless_top_k").
    `min_p_rule`: probability >= min_p * maximum ("ge"), > ("gt"), or EasyDeL's comparison of raw logits
    ("logit_ratio").
    `typical_rule`: shortest set whose mass reaches p ("lt") or exceeds it ("gt"); `typical_ties`: tokens as
    typical as the last one stay ("all") or are filled by rank ("index"). `xtc_rule`: tokens at least
    at the threshold ("ge") or above it ("gt"); `xtc_ties`: of the tokens at the threshold the last in order stays
    ("index"), or all that equal it ("all").
    `entropy_count`: dynamic temperature's largest entropy is the logarithm of how many candidates are left
    ("candidates"), or counts tokens at -inf that no filter has removed too ("listed", llama.cpp).
    `mirostat_with`: a row with Mirostat runs all its other stages too ("stages"), or of them `logit_bias` and the
    temperature alone ("temperature", llama.cpp).
    `temperature_floor`: temperatures between 0 and this one are raised to it.
    `*_history`: which tokens a penalty counts; `penalty_window`: only the last n of prompt + output.
    `frequency_divisor`: "length" divides the frequency penalty by the number of counted tokens.
    `penalty_limit`: largest |frequency| and |presence| penalty that is accepted.
    `bad_words_eos`: a bad word that is one EOS token is "banned" like any other, or "dropped".
    `greedy`: T = 0 is the largest logit that filters before the temperature leave ("argmax"), the largest of all
    ("first"), or "refused". `mask_mode`: the grammar mask comes first, or only
    when the token drawn without it is not allowed ("resample", llama.cpp).

    `release` is what a user installs to get the engine that a preset describes, and `differences` what the engine
    still does in another way; neither changes a draw, nor counts when two Semantics are compared.
    """

    name: str = "canonical"
    version: str = "1"
    stages: tuple[str, ...] = tuple(operator.name for operator in CANONICAL)
    top_k_ties: Ties = "index"
    top_k_limit: int | None = None
    top_k_one: Literal["cut", "argmax"] = "cut"
    top_p_ties: Ties = "index"
    top_p_rule: Literal["lt", "le", "truncated"] = "lt"
    top_p_scope: Literal["sequential", "joint", "joint_unless_min_p", "joint_unless_top_k"] = "sequential"
    min_p_rule: Literal["ge", "gt", "logit_ratio"] = "ge"
    typical_rule: Literal["lt", "gt"] = "lt"
    typical_ties: Ties = "all"
    xtc_rule: Literal["ge", "gt"] = "ge"
    xtc_ties: Ties = "index"
    entropy_count: Literal["candidates", "listed"] = "candidates"
    mirostat_with: Literal["stages", "temperature"] = "stages"
    temperature_floor: float | None = None
    repetition_history: History = "both"
    frequency_history: History = "output"
    presence_history: History = "output"
    bad_words_history: Literal["output", "both"] = "output"
    bad_words_eos: Literal["banned", "dropped"] = "banned"
    penalty_window: int | None = None
    frequency_divisor: Literal["none", "length"] = "none"
    penalty_limit: float = 2.0
    greedy: Literal["argmax", "first", "refused"] = "argmax"
    mask_mode: Literal["first", "resample"] = "first"
    release: str | None = field(default=None, compare=False)
    differences: tuple[EngineDifference, ...] = field(default=(), compare=False)

    def __new__(cls, **options: Any) -> Semantics:
        _known(options)
        return object.__new__(cls)

    def __post_init__(self) -> None:
        _check_names(self)
        _check_options(self)
        _check_stages(self.stages)
        _check_last(self)

    @property
    def is_greedy_first(self) -> bool:
        """Whether T = 0 takes the largest logit before every filter (S-P3)."""
        return self.greedy == "first" or "temperature" not in self.stages

    @property
    def label(self) -> str:
        """`name@version`, the form that pins a preset."""
        return f"{self.name}@{self.version}"

    def replace(self, **changes: Any) -> Semantics:
        """A new Semantics with some options changed, checked again; without a `name` it is called `NAME-changed`.

        It describes no release any more, so `release` and `differences` are empty unless they are given.
        """
        _known(changes)
        return _replace(self, **{"name": f"{self.name}-changed", "release": None, "differences": (), **changes})

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, without `release` and `differences`; `from_dict` is its inverse."""
        data = {name: getattr(self, name) for name in OPTION_NAMES}
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


OPTION_NAMES = tuple(f.name for f in fields(Semantics) if f.compare)
"""The fields that say what is drawn, with the name and the version."""
_NAMES = frozenset(f.name for f in fields(Semantics))


def _known(data: Mapping[str, Any]) -> None:
    for key in data:
        if key not in _NAMES:
            raise ParamsError(f"semantics option must be a known name, got {key!r}{nearest(key, _NAMES)}")


CHOICES = {
    "top_k_ties": get_args(Ties),
    "top_k_one": ("cut", "argmax"),
    "top_p_ties": get_args(Ties),
    "top_p_rule": ("lt", "le", "truncated"),
    "top_p_scope": ("sequential", "joint", "joint_unless_min_p", "joint_unless_top_k"),
    "min_p_rule": ("ge", "gt", "logit_ratio"),
    "typical_rule": ("lt", "gt"),
    "typical_ties": get_args(Ties),
    "xtc_rule": ("ge", "gt"),
    "xtc_ties": get_args(Ties),
    "entropy_count": ("candidates", "listed"),
    "mirostat_with": ("stages", "temperature"),
    "repetition_history": get_args(History),
    "frequency_history": get_args(History),
    "presence_history": get_args(History),
    "bad_words_history": ("output", "both"),
    "bad_words_eos": ("banned", "dropped"),
    "frequency_divisor": ("none", "length"),
    "greedy": ("argmax", "first", "refused"),
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
    floor = semantics.temperature_floor
    if floor is not None and not (type(floor) in {int, float} and 1e-20 <= floor <= 1e20):
        raise ParamsError(f"semantics.temperature_floor must be a number in [1e-20, 1e20] or None, got {floor!r}")


def _check_stages(stages: tuple[str, ...]) -> None:
    if not isinstance(stages, tuple):
        raise ParamsError(f"semantics.stages must be a tuple of stage names, got {type(stages).__name__}")
    seen: set[str] = set()
    filters_begun = False
    for stage in stages:
        if stage not in OPERATORS or stage in _UNLISTED:
            known = [name for name in OPERATORS if name not in _UNLISTED]
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
    last = semantics.stages[-1] if semantics.stages else None
    if "adaptive_p" in semantics.stages and last != "adaptive_p":
        raise ParamsError(f"semantics.stages must have adaptive_p as the last stage, got {last!r}; move it to the end")
    if semantics.top_p_rule == "truncated" and "top_p" in semantics.stages and last != "top_p":
        raise ParamsError(
            f"semantics.top_p_rule 'truncated' must have top_p as the last stage, got {last!r}; move it or choose 'lt'"
        )


_PENALTIES = ("repetition", "frequency", "presence")
_SGLANG = ("frequency", "presence", "repetition", "logit_bias", "processors", "temperature", "top_k", "top_p", "min_p")
_FASTDEPLOY = ("processors", "logit_bias", *_PENALTIES, "temperature", "min_p", "top_p")
_FASTDEPLOY_TOP_K = (*_FASTDEPLOY[:-1], "top_k", "top_p")
_EASYDEL = ("logit_bias", "presence", "frequency", "repetition", "top_k", "top_p", "temperature", "min_p")
_HF_EDITS = ("logit_bias", "sequence_bias", "repetition", "no_repeat_ngram", "processors")
_HF_FILTERS = ("temperature", "top_h", "top_k", "top_p", "min_p", "typical", "epsilon", "eta")
_LLAMACPP_EDITS = ("logit_bias", *_PENALTIES, "dry")
_LLAMACPP_FILTERS = (
    "top_n_sigma",
    "top_k",
    "min_keep",
    "typical",
    "top_p",
    "min_p",
    "xtc",
    "temperature",
    "mirostat",
    "adaptive_p",
)
_MLX = ("logit_bias", "repetition", "presence", "frequency", "top_p", "min_p", "xtc", "top_k", "temperature")
_TRT_LEGACY = ("logit_bias", "scale", "repetition", "presence", "frequency", "top_k", "top_p")
_VLLM = ("logit_bias", *_PENALTIES, "processors", "temperature", "min_p", "top_k", "top_p")
_VLLM_V1 = ("logit_bias", "processors", *_PENALTIES, "temperature", "min_p", "top_k", "top_p")
_MINDIE = (*_PENALTIES, "temperature", "top_k", "top_p")


def _preset(name: str, release: str, stages: tuple[str, ...], **options: Any) -> Semantics:
    """The preset of a release `PACKAGE VERSION`, whose version it takes."""
    version, differences = release.rsplit(" ", 1)[1], DIFFERENCES.get(name, ())
    return Semantics(name=name, version=version, stages=stages, release=release, differences=differences, **options)


def _counting_prompt(**options: Any) -> dict[str, Any]:
    """Options of engines whose frequency and presence penalties count the prompt too."""
    return {"frequency_history": "both", "presence_history": "both", **options}


def _ties_kept(**options: Any) -> dict[str, Any]:
    """Options of engines that keep every logit equal to the last one kept."""
    return {"top_k_ties": "all", "top_p_ties": "all", **options}


_HF_RELEASE, _VLLM_RELEASE, _SGLANG_RELEASE = "transformers 5.23.0", "vllm 0.33.0", "sglang 0.5.23"
_FASTDEPLOY_RELEASE, _MINDIE_RELEASE = "fastdeploy-gpu 2.2.0", "MindIE 2.2.RC1"
_GEMMA_RELEASE, _EASYDEL_RELEASE, _TRT_RELEASE = "gemma 4.0.1", "easydel 0.3.0", "tensorrt-llm 1.2.1"

_ALL = (
    Semantics(),
    Semantics(name="openai"),
    _preset(
        "hf", _HF_RELEASE, _HF_EDITS + _HF_FILTERS, top_k_ties="all", bad_words_history="both", bad_words_eos="dropped"
    ),
    _preset("hf-cb", _HF_RELEASE, ("temperature", "top_k", "top_p"), top_k_ties="all"),
    _preset("vllm", _VLLM_RELEASE, _VLLM, temperature_floor=0.01),
    _preset("vllm-v1", _VLLM_RELEASE, _VLLM_V1, top_k_ties="all", temperature_floor=0.01),
    _preset("vllm-flashinfer", _VLLM_RELEASE, _VLLM, **_ties_kept(temperature_floor=0.01)),
    _preset(
        "sglang",
        _SGLANG_RELEASE,
        _SGLANG,
        **_ties_kept(repetition_history="output", top_k_one="argmax", top_p_scope="joint_unless_min_p"),
    ),
    _preset(
        "sglang-pytorch", _SGLANG_RELEASE, _SGLANG, repetition_history="output", top_p_rule="le", top_p_scope="joint"
    ),
    _preset("flashinfer", "flashinfer-python 0.6.18", ("temperature", "top_k", "top_p", "min_p"), **_ties_kept()),
    _preset("fastdeploy-base", _FASTDEPLOY_RELEASE, _FASTDEPLOY, top_p_rule="truncated", top_p_scope="joint"),
    _preset("fastdeploy-base_non_truncated", _FASTDEPLOY_RELEASE, _FASTDEPLOY, top_p_scope="joint"),
    _preset("fastdeploy-air", _FASTDEPLOY_RELEASE, _FASTDEPLOY, top_p_rule="truncated"),
    _preset(
        "fastdeploy-rejection",
        _FASTDEPLOY_RELEASE,
        _FASTDEPLOY_TOP_K,
        **_ties_kept(top_p_scope="joint_unless_top_k"),
    ),
    _preset("mindie", _MINDIE_RELEASE, _MINDIE, top_p_rule="le", penalty_limit=math.inf),
    _preset("mindie-npu", _MINDIE_RELEASE, _MINDIE, **_ties_kept(top_p_scope="joint", penalty_limit=math.inf)),
    _preset("gemma-topk", _GEMMA_RELEASE, ("top_k", "temperature")),
    _preset("gemma-topp", _GEMMA_RELEASE, ("temperature", "top_p"), top_p_ties="all"),
    _preset("easydel", _EASYDEL_RELEASE, _EASYDEL, **_counting_prompt(**_ties_kept())),
    _preset("easydel-strict", _EASYDEL_RELEASE, _EASYDEL, **_counting_prompt(**_ties_kept(min_p_rule="logit_ratio"))),
    _preset(
        "llamacpp",
        "llama-cpp-python 0.3.36",
        _LLAMACPP_EDITS + _LLAMACPP_FILTERS,
        **_counting_prompt(
            penalty_window=64,
            penalty_limit=math.inf,
            typical_rule="gt",
            typical_ties="index",
            entropy_count="listed",
            mirostat_with="temperature",
            mask_mode="resample",
        ),
    ),
    _preset(
        "mlx",
        "mlx-lm 0.32.2",
        _MLX,
        **_counting_prompt(
            penalty_window=20,
            penalty_limit=math.inf,
            top_p_ties="all",
            xtc_rule="gt",
            xtc_ties="all",
            greedy="first",
        ),
    ),
    _preset(
        "trtllm",
        _TRT_RELEASE,
        ("logit_bias", "temperature", "top_k", "top_p"),
        top_k_ties="all",
        top_k_one="argmax",
        top_p_rule="le",
    ),
    _preset(
        "trtllm-legacy",
        _TRT_RELEASE,
        _TRT_LEGACY,
        **_counting_prompt(penalty_limit=math.inf, top_k_limit=1024, top_p_rule="truncated"),
    ),
    _preset(
        "tgi",
        "text-generation-inference 3.3.7",
        ("repetition", "frequency", "temperature", "top_k", "top_p", "typical"),
        frequency_history="both",
        frequency_divisor="length",
        top_k_ties="all",
    ),
    _preset("nanovllm", "nano-vllm 0.2.0", ("temperature",), greedy="refused"),
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
