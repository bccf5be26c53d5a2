"""Many prompts at once: files and datasets, on this machine or on a Ray cluster.

Each row's seed follows from its id, so that a retry, a rerun or another partition gives the same text.
"""

from tirage.cluster.generate import Summary, generate
from tirage.cluster.rows import seed_of

__all__ = ["Summary", "generate", "seed_of"]
