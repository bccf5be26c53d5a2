"""llama.cpp: the sampling fields of its server's `/completion` route."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tirage.dialects.constraints import constraint, schema_mapping
from tirage.dialects.openai import TOP_P, top_p_zero
from tirage.dialects.table import Dialect, FieldMapping, Inexpressible, listed, read_only, same
from tirage.dialects.unsupported import LLAMACPP_SERVER
from tirage.fields.rules import INT32_MAX, Bias, BrokenRuleError, Custom, Float, Int, Texts, items
from tirage.params import SamplingParams
from tirage.semantics import PRESETS, Semantics, resolve

WINDOW = 64
"""How many past tokens the penalties see, and DRY, unless a request says otherwise."""
ALL = 1 << 20
"""How many past tokens stand for all. -1 did until llama.cpp refused it; every release takes a number, and keeps room
for so many tokens."""
_RANDOM = 2**32 - 1


def _window(params: SamplingParams) -> int:
    semantics = resolve(params.semantics)
    if semantics.name != "llamacpp":
        return WINDOW
    return ALL if semantics.penalty_window is None else semantics.penalty_window


def _semantics(window: int) -> str | Semantics:
    if window == WINDOW:
        return "llamacpp"
    return PRESETS["llamacpp"].replace(name="llamacpp", penalty_window=None if window in (-1, ALL) else window)


def _last_n(value: Any) -> int:
    if Int(low=-1).check(value) == 0:
        raise BrokenRuleError("an integer >= 1, or -1 for all; penalties have off values of their own", value)
    return value


def _bias(value: Any) -> Any:
    rule = "a list of [token id, number or false], or a mapping from token id to number"
    if isinstance(value, Mapping):
        return Bias().check(Bias().load(value))
    found = {}
    for index, pair in enumerate(items(value, rule)):
        if not isinstance(pair, (list, tuple)) or len(pair) != 2 or isinstance(pair[0], str):
            raise BrokenRuleError(rule, pair, f"[{index}]")
        found[pair[0]] = -float("inf") if pair[1] is False else pair[1]
    return Bias().check(found)


def _write_bias(bias: Any) -> list[Any] | None:
    if bias is None:
        return None
    return [[token, False if value == -float("inf") else value] for token, value in bias.items()]


def _write_probs(logprobs: int | None) -> int:
    if logprobs == 0:
        raise Inexpressible
    return logprobs or 0


def _write_length(limit: int | None) -> int:
    return -1 if limit is None else limit


def _text(value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        raise Inexpressible
    return value


_N_PREDICT = same(
    "n_predict",
    "max_tokens",
    default=-1,
    rule=Int(low=-1),
    read=lambda limit: None if limit == -1 else limit,
    write=_write_length,
)
_N_PROBS = same(
    "n_probs",
    "logprobs",
    default=0,
    rule=Int(low=0, high=1 << 20),
    read=lambda count: count or None,
    write=_write_probs,
)

LLAMACPP = Dialect.of(
    "llama.cpp",
    "llamacpp",
    [
        _N_PREDICT,
        *(read_only(replace(_N_PREDICT, name=name)) for name in ("max_tokens", "max_completion_tokens")),
        same("n_cmpl", "n"),
        read_only(same("n")),
        same("temperature", default=0.8, rule=Float(low=-1e20, high=1e20), read=lambda t: max(t, 0.0)),
        same("dynatemp_range"),
        same("dynatemp_exponent"),
        same("top_k", default=40, rule=Int(low=-INT32_MAX - 1), read=lambda k: max(k, 0)),
        same("top_p", default=0.95, rule=TOP_P),
        same("min_p", default=0.05),
        same("typical_p"),
        same("min_keep"),
        same(
            "top_n_sigma",
            default=-1.0,
            rule=Float(low=-1.0, high=1e20),
            read=lambda n: max(n, 0.0),
            write=lambda n: n or -1.0,
        ),
        same("xtc_probability"),
        same("xtc_threshold"),
        same("mirostat"),
        same("mirostat_tau"),
        same("mirostat_eta"),
        same("adaptive_target", rule=Float(low=-1e20, high=1.0), read=lambda target: target if target >= 0 else -1.0),
        same("adaptive_decay"),
        same("repeat_penalty", "repetition_penalty"),
        FieldMapping(
            name="repeat_last_n",
            rule=Custom("an integer >= 1, or -1 for all", _last_n, lambda value: value, lambda plain: plain),
            default=WINDOW,
            into=lambda window: {"semantics": _semantics(window)},
            out_of=_window,
            ours=("semantics",),
            meaning="how many past tokens the penalties see",
        ),
        same("presence_penalty"),
        same("frequency_penalty"),
        same("dry_multiplier"),
        same("dry_base"),
        same("dry_allowed_length"),
        same(
            "dry_penalty_last_n",
            "dry_last_n",
            default=WINDOW,
            read=lambda window: -1 if window == ALL else window,
            write=lambda window: ALL if window == -1 else window,
        ),
        same("dry_sequence_breakers", default=None, rule=Texts(optional=True, single=False)),
        same(
            "seed",
            default=-1,
            rule=Int(low=-1, high=_RANDOM),
            read=lambda seed: None if seed in (-1, _RANDOM) else seed,
            write=lambda seed: -1 if seed is None else seed,
        ),
        listed("stop", rule=Texts(single=False)),
        same("ignore_eos"),
        same(
            "logit_bias",
            rule=Custom("a list of [token id, number or false]", _bias, lambda value: value, lambda plain: plain),
            write=_write_bias,
        ),
        _N_PROBS,
        read_only(replace(_N_PROBS, name="logprobs")),
        FieldMapping(
            name="post_sampling_probs",
            rule=same("ignore_eos").rule,
            default=False,
            into=lambda value: {"logprobs_mode": "sampled" if value else "raw"},
            out_of=lambda params: params.logprobs_mode == "sampled",
            ours=("logprobs_mode",),
            meaning="report the law that was drawn from instead of the model's",
        ),
        constraint("grammar", "grammar"),
        constraint("json_schema", "json", write=schema_mapping),
    ],
    adjust=top_p_zero,
    unsupported=LLAMACPP_SERVER,
)


def from_llamacpp(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that fields of llama.cpp's `/completion` ask for, in llama.cpp's order of stages.

    Absent fields take llama.cpp's defaults: temperature 0.8, top_k 40, top_p 0.95, min_p 0.05, no limit of length;
    penalties and DRY see 64 past tokens. A temperature below 0 and `top_p` 0 are greedy, a seed of -1 is none, and
    `repeat_last_n` and `dry_penalty_last_n` of -1, as older releases take it, or 1048576 are all tokens. Raises
    DialectError (a ParamsError) with llama.cpp's name.
    """
    return LLAMACPP.read(data).params


def to_llamacpp(params: SamplingParams, *, lossy: bool = False) -> Any:
    """Fields of llama.cpp's `/completion`; those at llama.cpp's defaults are left out.

    All past tokens are written as 1048576, which every release takes. A field that llama.cpp cannot express raises
    ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    written = LLAMACPP.write(params, lossy=lossy)
    fields = written[0] if isinstance(written, tuple) else written
    if "dry_multiplier" in fields:
        # Absent, it is all tokens to releases that take -1.
        fields.setdefault("dry_penalty_last_n", WINDOW)
    return written
