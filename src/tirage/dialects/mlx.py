"""mlx-lm: the arguments of `make_sampler` and `make_logits_processors`, and the `max_tokens` of `generate_step`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from tirage.dialects.table import Dialect, DialectError, FieldMapping, Fields, Inexpressible, listed, same
from tirage.dialects.unsupported import MLX_LM
from tirage.fields.rules import Float, Int
from tirage.params import SamplingParams
from tirage.semantics import PRESETS, Semantics, resolve

WINDOW = 20
"""How many past tokens a penalty counts unless its context size says otherwise."""
_OFF = {"repetition": 1.0, "presence": 0.0, "frequency": 0.0}
_PENALTIES = tuple(_OFF)


def _window(params: SamplingParams) -> int:
    semantics = resolve(params.semantics)
    if semantics.name != "mlx":
        return WINDOW
    if semantics.penalty_window is None:
        raise Inexpressible
    return semantics.penalty_window


def _context_size(penalty: str) -> FieldMapping:
    def write(params: SamplingParams) -> int:
        return WINDOW if getattr(params, f"{penalty}_penalty") == _OFF[penalty] else _window(params)

    return FieldMapping(
        name=f"{penalty}_context_size",
        rule=Int(low=1),
        default=WINDOW,
        into=lambda value: {},
        out_of=write,
        ours=("semantics",),
        meaning=f"how many past tokens {penalty}_penalty counts",
    )


def _penalty(name: str) -> FieldMapping:
    field, off = f"{name}_penalty", _OFF[name]
    rule = Float(low=0.0, high=1e30) if name == "repetition" else None
    return same(
        field,
        default=None,
        rule=rule,
        # 0 is off there, for the repetition penalty too.
        read=lambda value: off if value in (None, 0.0) else value,
        write=lambda value: None if value == off else value,
    )


def _semantics(given: Mapping[str, Any], ours: Fields) -> str | Semantics:
    """The preset with the one window that all penalties of the request have."""
    active = [name for name in _PENALTIES if ours[f"{name}_penalty"] != _OFF[name]]
    sizes = {f"{name}_context_size": given.get(f"{name}_context_size", WINDOW) for name in active}
    for (before, first), (name, size) in pairwise(sizes.items()):
        if size != first:
            raise DialectError(
                f"{name} must be that of {before}, {first}, got {size}; penalties have one window here", name
            )
    window = next(iter(sizes.values()), WINDOW)
    return "mlx" if window == WINDOW else PRESETS["mlx"].replace(name="mlx", penalty_window=window)


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    return {**ours, "semantics": _semantics(given, ours)}


MLX = Dialect.of(
    "mlx-lm",
    "mlx",
    [
        same(
            "max_tokens",
            default=256,
            rule=Int(low=-1),
            read=lambda limit: None if limit == -1 else limit,
            write=lambda limit: -1 if limit is None else limit,
        ),
        same("temp", "temperature", default=0.0, rule=Float(low=1e-20, high=1e20, zero=True)),
        same(
            "top_p",
            default=0.0,
            rule=Float(low=0.0, high=1.0),
            read=lambda p: p or 1.0,
            write=lambda p: 0.0 if p == 1.0 else p,
        ),
        same("min_p"),
        same("top_k", rule=Int(low=0)),
        same("xtc_probability"),
        same("xtc_threshold"),
        listed("xtc_special_tokens", "xtc_protected_ids"),
        same("logit_bias"),
        _penalty("repetition"),
        _context_size("repetition"),
        _penalty("presence"),
        _context_size("presence"),
        _penalty("frequency"),
        _context_size("frequency"),
    ],
    adjust=_adjust,
    unsupported=MLX_LM,
)


def from_mlx(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that arguments of mlx-lm's `make_sampler` and `make_logits_processors` ask for, in its meaning.

    Absent fields take mlx-lm's defaults: greedy, 256 tokens. `top_p` 0 and penalties of 0 are off, `max_tokens` -1 is
    no limit. Penalties have one window here: context sizes of penalties that are on must be the same. mlx-lm has no
    seed of a request. Raises DialectError (a ParamsError) with mlx-lm's name.
    """
    return MLX.read(data).params


def to_mlx(params: SamplingParams, *, lossy: bool = False) -> Any:
    """Arguments for mlx-lm's `make_sampler` and the rest; those at its defaults are left out.

    A field that mlx-lm cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return MLX.write(params, lossy=lossy)
