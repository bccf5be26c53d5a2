"""The engine: requests in, completions out, any number at a time."""

from tirage.engine.beams import sampling_of
from tirage.engine.completion import Completion, Delta, LogprobEntry, Sample, Timings, Usage
from tirage.engine.engine import Engine
from tirage.engine.guide import Constrained
from tirage.engine.handle import Handle
from tirage.engine.job import Job
from tirage.engine.parts import split_parts
from tirage.engine.progress import BOUNDS_S, Progress, Times
from tirage.engine.prompt import AnyPrompt, Prompt, as_prompt, check_embeds, check_ids, checked_salt, is_one_prompt
from tirage.engine.request import Request
from tirage.engine.sample import masks_of
from tirage.engine.waiting import astream, finish, stream

__all__ = [
    "BOUNDS_S",
    "AnyPrompt",
    "Completion",
    "Constrained",
    "Delta",
    "Engine",
    "Handle",
    "Job",
    "LogprobEntry",
    "Progress",
    "Prompt",
    "Request",
    "Sample",
    "Times",
    "Timings",
    "Usage",
    "as_prompt",
    "astream",
    "check_embeds",
    "check_ids",
    "checked_salt",
    "finish",
    "is_one_prompt",
    "masks_of",
    "sampling_of",
    "split_parts",
    "stream",
]
