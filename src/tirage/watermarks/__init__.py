"""Watermarks of texts: keyed green lists (KGW), keyed tournaments (SynthID) and keyed exponential races (Gumbel).

What is here knows tokens, keys and integer weights, and no request: `operators/watermark.py` makes the stage of it,
`detection.py` the detectors. SPEC.md rules S-M1 ... S-M7.
"""

from tirage.watermarks.config import SCHEMES, Watermark

__all__ = ["SCHEMES", "Watermark"]
