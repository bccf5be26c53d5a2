"""Many prompts at once: files of rows, answered so that any run of them gives the same.

Each row's seed follows from its id, so that a retry, a rerun or another partition gives the same text.
"""

from tirage.cluster.generate import Summary, generate
from tirage.cluster.rows import seed_of

__all__ = ["Summary", "generate", "seed_of"]
