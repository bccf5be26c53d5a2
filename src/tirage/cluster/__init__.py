"""More than one prompt, replica or machine: files of prompts, and Ray for what one machine is too small for.

Each row's seed follows from its id, so that a retry, a rerun or another partition gives the same text; a served request
with a seed has the same answer on every replica.
"""

from tirage.cluster.deployment import application, deployment
from tirage.cluster.generate import Summary, generate
from tirage.cluster.ray_workers import Cluster
from tirage.cluster.rows import seed_of

__all__ = ["Cluster", "Summary", "application", "deployment", "generate", "seed_of"]
