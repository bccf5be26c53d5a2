"""The parameters of a request: frozen, checked when made, one table of fields.

`FIELDS` is that table for SamplingParams; validation, JSON and docs/parameters.md are read from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tirage.fields.record import SCHEMA, FieldSpec, specs
from tirage.params.beam import BeamSearchParams
from tirage.params.guided import GuidedDecodingParams
from tirage.params.other_names import without_fields
from tirage.params.public import public_dict, public_values
from tirage.params.reasoning_parsers import REASONING_PARSERS
from tirage.params.sampling import SamplingParams, SamplingType
from tirage.params.sampling_fields import RequestOutputKind
from tirage.params.updates import TokenizerLike, require_tokenized

FIELDS: Mapping[str, FieldSpec] = specs(SamplingParams)
takes_params = without_fields(lambda: FIELDS)
"""A decorator of methods whose `params` are a SamplingParams: its fields as keywords of their own raise TypeError."""

__all__ = [
    "FIELDS",
    "REASONING_PARSERS",
    "SCHEMA",
    "BeamSearchParams",
    "FieldSpec",
    "GuidedDecodingParams",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "TokenizerLike",
    "public_dict",
    "public_values",
    "require_tokenized",
    "specs",
    "takes_params",
]
