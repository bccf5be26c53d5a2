"""Custom logits processors, by name: the registry, and those that are always there."""

from tirage.processors.builtin import BUILT_IN, is_built_in, register_built_in
from tirage.processors.calls import AbandonedError, ProcessorThread, ProcessorThreads, not_called, too_late
from tirage.processors.registry import (
    PAST,
    Past,
    Processor,
    ProcessorFunction,
    find_processor,
    processor_names,
    register_processor,
    unregister_processor,
)

__all__ = [
    "BUILT_IN",
    "PAST",
    "AbandonedError",
    "Past",
    "Processor",
    "ProcessorFunction",
    "ProcessorThread",
    "ProcessorThreads",
    "find_processor",
    "is_built_in",
    "not_called",
    "processor_names",
    "register_processor",
    "too_late",
    "unregister_processor",
]

register_built_in()
