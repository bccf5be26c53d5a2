"""The engine: it runs any number of requests at once and gives their completions and deltas."""

from tirage.engine.beams import sampling_of
from tirage.engine.completion import Completion, Delta, LogprobEntry, Sample, Timings, TokenRecord, Usage
from tirage.engine.content_parts import split_parts
from tirage.engine.draft_opening import open_draft
from tirage.engine.engine import Engine
from tirage.engine.entry_lists import MadeWhenRead
from tirage.engine.fairness import Tenant, share_of
from tirage.engine.grammar_state import CompiledConstraint
from tirage.engine.kept import kept_of
from tirage.engine.progress import BOUNDS_S, DurationHistogram, Progress
from tirage.engine.prompt import (
    AnyPrompt,
    Prompt,
    as_prompt,
    check_ids,
    checked_salt,
    is_one_prompt,
    listed_prompts,
    one_per_prompt,
    read_prompt,
)
from tirage.engine.reasoning import ReasoningState, ReasoningTokens, opened_by
from tirage.engine.request import EngineRequest
from tirage.engine.request_constraints import RequestConstraints, check_constraint_options
from tirage.engine.request_stream import RequestStream
from tirage.engine.sample import masks_of
from tirage.engine.scheduler_config import SchedulerConfig, check_cache_length
from tirage.engine.sequence import SequenceGroup
from tirage.engine.speculative_config import SpeculativeConfig, parse_speculative_config
from tirage.engine.waiting import astream, checked_stream, finish, stream

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
    "MadeWhenRead",
    "Progress",
    "Prompt",
    "ReasoningState",
    "ReasoningTokens",
    "RequestConstraints",
    "RequestStream",
    "Sample",
    "SchedulerConfig",
    "SequenceGroup",
    "SpeculativeConfig",
    "Tenant",
    "Timings",
    "TokenRecord",
    "Usage",
    "as_prompt",
    "astream",
    "check_cache_length",
    "check_constraint_options",
    "check_ids",
    "checked_salt",
    "checked_stream",
    "finish",
    "is_one_prompt",
    "kept_of",
    "listed_prompts",
    "masks_of",
    "one_per_prompt",
    "open_draft",
    "opened_by",
    "parse_speculative_config",
    "read_prompt",
    "sampling_of",
    "share_of",
    "split_parts",
    "stream",
]
