"""Custom logits processors, by name: the registry, and those that are always there."""

from tirage.processors.builtin import BUILT_IN, register_built_in
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
    "Past",
    "Processor",
    "ProcessorFunction",
    "find_processor",
    "processor_names",
    "register_processor",
    "unregister_processor",
]

register_built_in()
