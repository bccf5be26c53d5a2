"""The operator's watermark: it marks the texts of requests that name none."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from tirage.errors import ModelError
from tirage.params import SamplingParams
from tirage.server.engine_input import EngineInput
from tirage.watermarks import Watermark

_MOST_CHARACTERS = 1 << 20
"""The longest file that is read whole; a longer one is no JSON where it is cut."""


def operator_watermark(path: Path | None) -> Watermark | None:
    """The Watermark of a JSON file, None without a file.

    Raises ModelError for a file that cannot be read, and ParamsError, which shows no key, for a wrong watermark.
    """
    if path is None:
        return None
    try:
        with path.expanduser().open(encoding="utf-8") as file:
            plain = json.loads(file.read(_MOST_CHARACTERS))
    except (OSError, ValueError, RecursionError):
        # The error may hold some of the text, and so of the key.
        raise ModelError(f"--watermark must be a file of JSON with a scheme and a key, got {path}") from None
    return SamplingParams(watermark=plain).watermark


def marked(engine_input: EngineInput, watermark: Watermark | None) -> EngineInput:
    """The input with the operator's watermark, unless it has one or cannot be marked.

    Beams cannot, nor can greedy decoding by a scheme that marks draws.
    """
    params = engine_input.params
    if watermark is None or params.watermark is not None or engine_input.beams is not None:
        return engine_input
    if params.temperature == 0 and watermark.scheme != "kgw":
        return engine_input
    return dataclasses.replace(engine_input, params=params.replace(watermark=watermark))
