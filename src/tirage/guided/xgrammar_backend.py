"""The optional backend: xgrammar."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from tirage.errors import GrammarError
from tirage.guided.constraint import WHITESPACE, Constraint
from tirage.guided.json_schema.keywords import is_annotation
from tirage.guided.llguidance_backend import no_text
from tirage.guided.matcher import Cursor, Mask
from tirage.guided.regular.expression import to_regex
from tirage.guided.trial_compile import TRIALS
from tirage.guided.vocabulary import Vocabulary

KEYWORDS = frozenset({
    "$defs", "$ref", "additionalProperties", "anyOf", "const", "definitions", "enum", "items", "maxItems", "minItems",
    "prefixItems", "properties", "required", "type",
})  # fmt: skip
"""Keywords that xgrammar was found to enforce exactly. It accepts more, some of which it ignores."""
_ALONE = {"$ref", "anyOf", "const", "enum"}


class XgrammarBackend:
    """Compiles constraints with xgrammar for one vocabulary. Raises GrammarError when xgrammar is not installed."""

    name = "xgrammar"

    def __init__(self, vocabulary: Vocabulary) -> None:
        try:
            import xgrammar
        except ImportError:
            raise GrammarError(
                "backend xgrammar must be installed, it is not; pip install 'tirage[xgrammar]'"
            ) from None
        self._library, self._vocabulary = xgrammar, vocabulary
        end = vocabulary.width
        tokens = [*vocabulary.tokens, b"<end of text>"]
        self._info = xgrammar.TokenizerInfo(tokens, vocab_size=end + 1, stop_token_ids=[end])
        self._load = {
            "task": "load",
            "compiler": "xgrammar",
            "vocabulary": vocabulary.key,
            "tokens": [base64.b64encode(token).decode() for token in tokens],
        }

    def compile(self, constraint: Constraint) -> tuple[Cursor, int]:
        """A cursor at the start of a text, and the size of the grammar in bytes.

        The compilation runs in a child process. Raises GrammarError for a constraint that xgrammar refuses or would not
        enforce, and LimitError for one that takes too much time or memory.
        """
        method, arguments, options = call_for(constraint)
        task = {"task": "xgrammar", "vocabulary": self._vocabulary.key, "method": method}
        answer = TRIALS.compile(task | {"arguments": arguments, "options": options}, self._load, seconds=2.0)
        if answer["error"]:
            raise GrammarError(f"xgrammar cannot enforce this: {answer['error'].splitlines()[0][:300]}")
        compiled = self._library.CompiledGrammar.deserialize_json(answer["compiled"], self._info)
        matcher = self._library.GrammarMatcher(compiled, max_rollback_tokens=-1)
        cursor = XgrammarCursor(self._library, compiled, matcher, self._vocabulary.width)
        mask = np.zeros(self._vocabulary.words, np.int32)
        cursor.fill(mask)
        if not (mask.any() or cursor.complete()):
            raise no_text(cursor, self._vocabulary, "constraint")
        return cursor, int(answer["bytes"])


class XgrammarCursor:
    """The state of one text in xgrammar; see `Cursor`."""

    __slots__ = ("_buffer", "_compiled", "_library", "_matcher", "_width")

    def __init__(self, library: Any, compiled: Any, matcher: Any, width: int) -> None:
        self._library, self._compiled, self._matcher, self._width = library, compiled, matcher, width
        self._buffer = np.zeros((1, (width + 32) // 32), np.int32)

    def fill(self, mask: Mask) -> None:
        """Writes the allowed tokens into int32 [ceil(V / 32)]; see `Cursor`."""
        self._matcher.fill_next_token_bitmask(self._buffer)
        mask[:] = self._buffer[0, : len(mask)]
        if self._width % 32:
            mask[-1] &= (1 << self._width % 32) - 1

    def accept(self, token_id: int) -> bool:
        """See `Cursor`."""
        return bool(self._matcher.accept_token(token_id))

    def rollback(self, count: int) -> None:
        """See `Cursor`."""
        self._matcher.rollback(count)

    def complete(self) -> bool:
        """See `Cursor`."""
        return bool(self._matcher.is_completed())

    def forced_bytes(self) -> bytes:
        """See `Cursor`."""
        if self.stopped():
            return b""
        try:
            return self._matcher.find_jump_forward_string().encode()
        except UnicodeDecodeError as error:
            # xgrammar goes on inside a character whose first bytes alone are certain, and then has no text to give.
            return error.object

    def stopped(self) -> bool:
        """See `Cursor`."""
        mask = np.zeros((self._width + 31) // 32, np.int32)
        self.fill(mask)
        return not mask.any()

    def error(self) -> str:
        """See `Cursor`."""
        return ""

    def fork(self) -> XgrammarCursor:
        """See `Cursor`."""
        return XgrammarCursor(self._library, self._compiled, self._matcher.fork(), self._width)

    def renew(self) -> None:
        """See `Cursor`; nothing of it can be full."""

    @property
    def shared(self) -> object:
        """See `Cursor`."""
        return self._compiled

    @property
    def shared_bytes(self) -> int:
        """See `Cursor`."""
        return 0


def call_for(constraint: Constraint) -> tuple[str, list[Any], dict[str, Any]]:
    """The compiler method for a constraint, its arguments and options; GrammarError for what it would not enforce."""
    match constraint.kind:
        case "json":
            check_keywords(json.loads(constraint.text), "#")
            return "compile_json_schema", [constraint.text], spacing(constraint.whitespace)
        case "regex":
            return "compile_regex", [to_regex(constraint.expression)], {}
        case "gbnf":
            return "compile_grammar", [constraint.text], {}
        case "lark":
            raise GrammarError("backend xgrammar must get its grammars in GBNF, got Lark; use llguidance")
    raise GrammarError("backend xgrammar must not get structural tags here; use llguidance")


def spacing(whitespace: str) -> dict[str, Any]:
    """The compiler options for a whitespace pattern; GrammarError for one of the user's own."""
    if not whitespace:
        return {"any_whitespace": False, "separators": [",", ":"], "strict_mode": False}
    if whitespace != WHITESPACE:
        raise GrammarError("backend xgrammar must not get a whitespace_pattern; use llguidance")
    return {"any_whitespace": True, "max_whitespace_cnt": 8, "strict_mode": False}


def check_keywords(schema: Any, path: str) -> None:
    """Raises GrammarError with the path of a keyword that xgrammar is not known to enforce where it stands."""
    if not isinstance(schema, dict):
        return
    keys = {key for key in schema if not is_annotation(key)} - {"$defs", "definitions", "$schema"}
    for key in keys:
        alone = key not in _ALONE or len(keys) == 1
        if key not in KEYWORDS or not alone:
            beside = "" if alone else " beside others"
            raise GrammarError(f"schema at {path}/{key} is a keyword that xgrammar does not enforce{beside}")
    check_object(schema, path)
    for key in ("properties", "$defs", "definitions"):
        for name, one in schema.get(key, {}).items():
            check_keywords(one, f"{path}/{key}/{name}")
    for key in ("anyOf", "prefixItems"):
        for i, one in enumerate(schema.get(key, ())):
            check_keywords(one, f"{path}/{key}/{i}")
    for key in ("items", "additionalProperties"):
        check_keywords(schema.get(key), f"{path}/{key}")


def check_object(schema: dict[str, Any], path: str) -> None:
    """Raises GrammarError for named properties together with free ones.

    A free property could spell the name of a named one with an escape.
    """
    named = schema.get("properties", {})
    if named and schema.get("additionalProperties", True) is not False:
        raise GrammarError(f"schema at {path}/properties must go with additionalProperties false in xgrammar")
    missing = [name for name in schema.get("required", ()) if name not in named]
    if missing:
        raise GrammarError(f"schema at {path}/required must name properties of the schema, got {missing[0]!r}")
    if isinstance(schema.get("type"), list) and len(schema) > 1:
        raise GrammarError(f"schema at {path}/type must name one type beside other keywords in xgrammar")
