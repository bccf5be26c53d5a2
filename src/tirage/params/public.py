"""Parameters as others may see them: records, answers and explanations hold no keys of watermarks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.fields.record import specs
from tirage.params.sampling import SamplingParams


def public_dict(params: SamplingParams) -> dict[str, Any]:
    """`params.to_dict()` with null for the key of a watermark."""
    return params.to_dict() | public_values({"watermark": params.watermark})


def public_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Values of fields by name as `to_dict` writes them, with null for the key of a watermark."""
    plain = {name: specs(SamplingParams)[name].rule.dump(value) for name, value in values.items()}
    mark = values.get("watermark")
    return plain if mark is None else plain | {"watermark": mark.to_public_dict()}
