"""Words that both views share: numbers, settings and headlines as people read them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tirage.tracing.records import ExplainedDraw, Removed, Stage, Token, TokenTrace, UniformDraw
from tirage.tracing.texts import printable

_LONGEST = 32
_SHOWN = 3


def headline(e: ExplainedDraw) -> str:
    """The drawn token with its chance, or the status of a row without one."""
    if e.token is None:
        return f"no token: {e.status.name}"
    return f"{name(e.token)}  p = {percent(e.probability)}"


def circumstances(e: ExplainedDraw) -> list[tuple[str, str]]:
    """What else one must know to repeat the draw, as (name, value) pairs."""
    seed = f"{e.seed} ({'fresh' if e.fresh_seed else 'given'})"
    sample = [("sample", str(e.sample_index))] if e.sample_index else []
    support = [("could be drawn", f"{e.support_size:,} of {e.vocab_size:,}")]
    return [("semantics", printable(e.semantics)), ("seed", seed), ("step", str(e.step)), *sample, *support]


def name(token: Token) -> str:
    """`#262 "␣the"`, or the id alone."""
    return token.shown if token.text is None else f"#{token.token_id} {token.shown}"


def percent(p: float) -> str:
    """A probability in percent with about three digits; `0` is exactly 0, `?` is NaN."""
    if math.isnan(p):
        return "?"
    if p == 0:
        return "0"
    if p < 0.00005:
        return "<0.01%"
    return f"{p:.0%}" if p == 1 else f"{p:.1%}" if p >= 0.0995 else f"{p:.2%}"


def logit(x: float) -> str:
    """A logit with two decimals, or nan, inf, -inf; very large ones in powers of ten."""
    return f"{x:.2f}" if math.isfinite(x) and abs(x) < 1e6 else f"{x:.3g}"


def setting(stage: Stage) -> str:
    """The values that govern a stage: a single one bare, several with their names."""
    params = stage.params
    if len(params) == 1:
        return value(next(iter(params.values())))
    return ", ".join(f"{key}={value(item)}" for key, item in params.items())


def value(item: Any) -> str:
    """A parameter value, cut short when it is long."""
    if isinstance(item, float):
        return f"{item:g}"
    if isinstance(item, Mapping) and len(item) > 2:
        return f"{len(item)} entries"
    if isinstance(item, Mapping):
        return ", ".join(f"{printable(str(key))}: {value(inner)}" for key, inner in item.items())
    if isinstance(item, Sequence) and not isinstance(item, str) and len(item) > 4:
        return f"{len(item)} entries"
    if isinstance(item, Sequence) and not isinstance(item, str):
        return f"[{', '.join(map(value, item))}]"
    text = printable(str(item))
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def law_title(e: ExplainedDraw) -> str:
    """The head of the column of final probabilities; a mixture has tokens that this draw could not reach."""
    return "law (mixed)" if e.mixed else "law"


def logits_of(trace: TokenTrace) -> str:
    """The model's logit, and the edited one where the edits moved it."""
    last = trace.steps[-1].logit_after
    first = logit(trace.logit)
    return first if logit(last) == first else f"{first} → {logit(last)}"


def examples(stage: Stage) -> tuple[Removed, ...]:
    """The most likely tokens that a stage took out; the model's own -inf are not worth naming."""
    return () if stage.kind == "input" else stage.examples[:_SHOWN]


def happened(stage: Stage) -> str:
    """The note of a stage, with the most likely tokens that it took out."""
    shown = [removed.token.shown for removed in examples(stage)]
    more = ", …" if stage.removed_count > len(shown) else ""
    return f"{stage.note}; out: {', '.join(shown)}{more}" if shown else stage.note


def capital(text: str) -> str:
    """`text` with its first letter large."""
    return text[:1].upper() + text[1:]


def uniform(throw: UniformDraw) -> str:
    """U in hexadecimal and as a fraction of 2^64."""
    return f"0x{throw.uniform:016x} = {throw.uniform / 2**64:.6f} × 2^64"


def throw_title(throw: UniformDraw, first: bool) -> str:
    """What a throw was for."""
    if not throw.accepted:
        return "first throw, without the mask (refused)"
    return "the throw" if first else "second throw, with the mask"


def coin_line(e: ExplainedDraw) -> str:
    """XTC's coin in words, or nothing."""
    if e.coin is None:
        return ""
    verdict = "on" if e.coin.on else "off"
    sign = "<" if e.coin.on else "≥"
    return f"XTC coin: {e.coin.value / 2**32:.4f} {sign} {e.coin.threshold / 2**32:g}, {verdict}"
