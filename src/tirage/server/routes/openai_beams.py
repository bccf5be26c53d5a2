"""Beam searches on OpenAI's two routes: vLLM's `use_beam_search`, and beside it the width and rules of a search."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.dialects import DialectError
from tirage.dialects.sglang import BEAM_WIDTH
from tirage.fields.rules import Bool, shown
from tirage.llm import LLM
from tirage.params import FIELDS, BeamSearchParams, SamplingParams, specs
from tirage.semantics import EDITS
from tirage.server.routes.fields import Field

_RULES = specs(BeamSearchParams)

BEAM_FIELDS = (
    Field("use_beam_search", Bool(), False, "search with beams instead of drawing (vLLM)"),
    Field("beam_width", BEAM_WIDTH, None, "beams of the search, of which the best n come back; n when left out"),
    Field("length_penalty", _RULES["length_penalty"].rule, None, _RULES["length_penalty"].meaning + " (vLLM)"),
    Field("early_stopping", _RULES["early_stopping"].rule, None, _RULES["early_stopping"].meaning + " (vLLM)"),
)

_NEUTRAL: dict[str, tuple[Any, ...]] = {
    "beam_width": (None,),
    "length_penalty": (None, 1.0),
    "early_stopping": (None, False),
}
"""What says nothing without a beam search; clients of vLLM send some of it always."""


def without_draws(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The model's parameters that a search can use: those that say how to draw are for draws."""
    return {
        name: value for name, value in defaults.items() if FIELDS[name].stage is None or FIELDS[name].stage in EDITS
    }


def read_beams(
    own: Mapping[str, Any], params: SamplingParams, llm: LLM
) -> tuple[BeamSearchParams | None, SamplingParams]:
    """The search that the fields ask for, if any, and the parameters beside it; DialectError where they contradict.

    A search draws nothing, so it keeps what a seed promises with any.
    """
    if not own["use_beam_search"]:
        for name, neutral in _NEUTRAL.items():
            if own[name] not in neutral:
                raise DialectError(f"{name} must go with use_beam_search, got {shown(own[name])}; leave it out", name)
        return None, params
    width = params.n if own["beam_width"] is None else own["beam_width"]
    if params.n > width:
        raise DialectError(f"n must be at most beam_width, {width}, got {params.n}; widen the search", "n")
    given = {name: own[name] for name in ("length_penalty", "early_stopping") if own[name] is not None}
    beams = BeamSearchParams(
        beam_width=width,
        max_tokens=llm.model.max_length if params.max_tokens is None else params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        include_stop_str_in_output=params.include_stop_str_in_output,
        num_return_sequences=params.n,
        **given,
    )
    return beams, params.replace(n=1, max_tokens=beams.max_tokens, seed=None)
