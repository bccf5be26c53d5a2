"""Records of tokens as answers hold them: little-endian arrays in base64, which a client reads without a parser."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine.completion import TokenRecord

_NUMBERS = {
    "logmass": "kept_logmass",
    "raw_logprobs": "raw_logprob",
    "processed_logprobs": "processed_logprob",
    "sampled_logprobs": "sampled_logprob",
}


def kept_of(records: Sequence[TokenRecord]) -> dict[str, Any]:
    """The `kept` member of a choice, an entry or a row: of T tokens, each array in base64, little-endian.

    `ids` int32 [N] and `offsets` int32 [T + 1], `logmass` and the three kinds of logprobs float32 [T].
    """
    sizes = [record.kept_ids.size for record in records]
    ids = np.concatenate([np.zeros(0, np.int32), *(record.kept_ids for record in records)])
    found = {"ids": _encoded(ids, "<i4"), "offsets": _encoded(np.cumsum([0, *sizes]), "<i4")}
    for name, own in _NUMBERS.items():
        found[name] = _encoded(np.array([getattr(record, own) for record in records]), "<f4")
    return found


def _encoded(values: NDArray[Any], dtype: str) -> str:
    return b64encode(values.astype(dtype).tobytes()).decode("ascii")
