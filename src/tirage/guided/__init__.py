"""Guided decoding: texts that satisfy a schema, a pattern, a choice or a grammar, token by token.

A `Compiler` turns `GuidedDecodingParams` into a `Grammar`, which is compiled once per `Vocabulary` and shared. Each
request follows it with its own `Matcher`.
"""

from tirage.guided.closing.byte_search import BYTES
from tirage.guided.closing.path import ClosingPath
from tirage.guided.closing.shortest_completion import CompletionFinder
from tirage.guided.compiler import Compiler, Grammar
from tirage.guided.forced_text import forced_tokens
from tirage.guided.matcher import Matcher
from tirage.guided.supported import supported
from tirage.guided.trial_compile import LimitError
from tirage.guided.vocabulary import Vocabulary

__all__ = [
    "BYTES",
    "ClosingPath",
    "Compiler",
    "CompletionFinder",
    "Grammar",
    "LimitError",
    "Matcher",
    "Vocabulary",
    "forced_tokens",
    "supported",
]
