"""The parameters of a request: frozen, checked when made, one table of fields.

`FIELDS` is that table for SamplingParams; validation, JSON and docs/parameters.md are read from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from tirage.fields.record import SCHEMA, FieldSpec, specs
from tirage.params.beam import BeamSearchParams
from tirage.params.guided import GuidedDecodingParams
from tirage.params.sampling import SamplingParams, SamplingType
from tirage.params.sampling_fields import RequestOutputKind
from tirage.params.updates import TokenizerLike, require_tokenized

FIELDS: Mapping[str, FieldSpec] = specs(SamplingParams)

__all__ = [
    "FIELDS",
    "SCHEMA",
    "BeamSearchParams",
    "FieldSpec",
    "GuidedDecodingParams",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "TokenizerLike",
    "require_tokenized",
    "specs",
]
