"""Guided decoding: texts that satisfy a schema, a pattern, a choice or a grammar, token by token.

A `Compiler` turns `GuidedDecodingParams` into a `Grammar`, compiled once for a `Vocabulary` and shared; each request
follows it with a `Matcher` of its own.
"""

from tirage.guided.compiler import Compiler, Grammar
from tirage.guided.ending.closing import BYTES, ClosingPath
from tirage.guided.ending.fewest import Shortest
from tirage.guided.matcher import Matcher
from tirage.guided.probe import LimitError
from tirage.guided.supported import supported
from tirage.guided.vocabulary import Vocabulary

__all__ = [
    "BYTES",
    "ClosingPath",
    "Compiler",
    "Grammar",
    "LimitError",
    "Matcher",
    "Shortest",
    "Vocabulary",
    "supported",
]
