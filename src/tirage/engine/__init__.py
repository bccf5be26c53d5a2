"""The engine: it runs any number of requests at once and gives their completions and deltas."""

from tirage.engine.beams import sampling_of
from tirage.engine.completion import Completion, Delta, LogprobEntry, Sample, Timings, Usage
from tirage.engine.content_parts import split_parts
from tirage.engine.engine import Engine
from tirage.engine.grammar_state import CompiledConstraint
from tirage.engine.progress import BOUNDS_S, DurationHistogram, Progress
from tirage.engine.prompt import AnyPrompt, Prompt, as_prompt, check_embeds, check_ids, checked_salt, is_one_prompt
from tirage.engine.request import EngineRequest
from tirage.engine.request_stream import RequestStream
from tirage.engine.sample import masks_of
from tirage.engine.sequence import SequenceGroup
from tirage.engine.waiting import astream, finish, stream

__all__ = [
    "BOUNDS_S",
    "AnyPrompt",
    "CompiledConstraint",
    "Completion",
    "Delta",
    "DurationHistogram",
    "Engine",
    "EngineRequest",
    "LogprobEntry",
    "Progress",
    "Prompt",
    "RequestStream",
    "Sample",
    "SequenceGroup",
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
