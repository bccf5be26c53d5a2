"""What the constraints and the reasoning of requests need of a model's vocabulary, made once and shared."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from tirage.engine.grammar_state import CompiledConstraint, FirstTokens
from tirage.engine.reasoning import ReasoningState, ReasoningTokens, opened_by
from tirage.errors import GrammarError, ParamsError
from tirage.guided import BYTES, Compiler, CompletionFinder, Vocabulary
from tirage.guided.matcher import set_bit
from tirage.guided.trial_compile import LimitError
from tirage.params import REASONING_PARSERS, GuidedDecodingParams, SamplingParams
from tirage.recently_used import RecentlyUsed
from tirage.text import Tokenizer
from tirage.text.text_start import start_of

_FINDERS, _FINDER_CHARS = 8, 1 << 16
"""The number of constraints whose searches for the shortest closing paths are kept, and their characters together."""
_FIRST, _FIRST_BYTES = 256, 4 << 20
"""The number of constraints of which the first tokens are kept, and the bytes of their masks."""


class RequestConstraints:
    """Compiles the constraints of requests for a tokenizer and a model of `vocab_size` tokens; for any thread.

    Compilers are made when first needed, since reading a vocabulary takes time.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._start = start_of(tokenizer)
        self._compilers: dict[str, Compiler] = {}
        self._reasoning_tokens: dict[tuple[str, str], ReasoningTokens] = {}
        self._first: RecentlyUsed[FirstTokens] = RecentlyUsed(most=_FIRST, size=_FIRST_BYTES)
        self._finders: RecentlyUsed[CompletionFinder] = RecentlyUsed(most=_FINDERS, size=_FINDER_CHARS)

    def compile(self, params: SamplingParams, context_ids: Sequence[int] = ()) -> CompiledConstraint | None:
        """The compiled constraint of the parameters, if any, for a text that goes on after other ids.

        Raises GrammarError when it cannot be enforced.
        """
        guided = params.guided_decoding
        if guided is None:
            return None
        grammar = self._compiler("tokens").compile(guided)
        first = None
        # Of more spaces than one, the second token may still lose some.
        if self._start and self._start.spaces <= 1 and self._tokenizer.special_ids.issuperset(context_ids):
            first = self._first_tokens(guided)
        if not params.close_grammar:
            return CompiledConstraint(grammar, first=first)
        by_byte = self._compiler("bytes").compile(guided)
        return CompiledConstraint(grammar, by_byte, self._finder(guided), first)

    def _first_tokens(self, guided: GuidedDecodingParams) -> FirstTokens:
        """The tokens with which a text may begin that loses a space."""
        compiler = self._compiler("beginning")

        def make() -> FirstTokens:
            mask = np.zeros(compiler.vocabulary.words, np.int32)
            try:
                compiler.compile(guided).matcher().fill_mask(mask)
            except LimitError:
                raise
            except GrammarError:
                # The constraint itself has been compiled: no token that writes something may come first.
                mask[:] = 0
            for token_id in self._silent:
                set_bit(mask, token_id, True)
            return FirstTokens(mask, compiler.vocabulary)

        return self._first.get(guided, make, lambda found: found.mask.nbytes)

    @cached_property
    def _silent(self) -> Sequence[int]:
        """The tokens that write nothing at the start of a text but a space elsewhere."""
        pairs = zip(
            self._compiler("tokens").vocabulary.tokens, self._compiler("beginning").vocabulary.tokens, strict=True
        )
        return [token_id for token_id, (inside, first) in enumerate(pairs) if inside and not first]

    def begin_reasoning(
        self, params: SamplingParams, prompt_ids: Sequence[int], *, begun: str = ""
    ) -> ReasoningState | None:
        """Where a text that follows the prompt begins; None where nothing depends on reasoning.

        `begun` is the text of the message that the prompt ends inside, if it does. Raises ParamsError where the end tag
        would be forced and the model cannot write it.
        """
        guided, budget = params.guided_decoding, params.thinking_budget
        held = guided is not None and not guided.enable_in_reasoning and params.reasoning_parser is not None
        if not held and budget is None:
            return None
        tags = REASONING_PARSERS[params.reasoning_parser or "think"]
        if tags not in self._reasoning_tokens:
            found = ReasoningTokens(self._compiler("tokens").vocabulary, tags)
            self._reasoning_tokens.setdefault(tags, found)
        tokens = self._reasoning_tokens[tags]
        if tokens.longest_end is None and (budget is not None or params.close_grammar):
            name = "close_grammar" if budget is None else "thinking_budget"
            raise ParamsError(f"{name} must be left out for a model whose tokens cannot spell {tags[1]}")
        spent = opened_by(prompt_ids, tags, self._tokenizer, begun=begun)
        return ReasoningState(tokens, opened=spent is not None, spent=spent or 0, budget=budget)

    def continuing(self, params: SamplingParams, prompt_ids: Sequence[int], begun: str) -> SamplingParams:
        """The parameters of a text that goes on with a message, `begun`, in which the prompt ends.

        Where that is in its answer no reasoning follows: a constraint holds from the first token.
        """
        tags = REASONING_PARSERS[params.reasoning_parser or "think"]
        if not begun.strip() or opened_by(prompt_ids, tags, self._tokenizer, begun=begun) is not None:
            return params
        guided = params.guided_decoding
        held = None if guided is None else guided.replace(enable_in_reasoning=True)
        return params.replace_unchecked(guided_decoding=held, thinking_budget=None)

    def stats(self) -> dict[str, int]:
        """Counts of grammars: number and `bytes` of the cached `grammars`, how many were `compiled` and `hits`."""
        stats = [compiler.stats() for compiler in list(self._compilers.values())]
        return {name: sum(each[name] for each in stats) for name in ("grammars", "bytes", "compiled", "hits")}

    def _finder(self, guided: GuidedDecodingParams) -> CompletionFinder:
        """The search for the shortest closing paths of a constraint, kept for those used most recently."""

        def make() -> CompletionFinder:
            return CompletionFinder(guided, self._compiler("tokens").vocabulary)

        found = self._finders.get(guided, make, lambda _: len(repr(guided)))
        if found.is_full:
            found = make()
            self._finders.put(guided, found, len(repr(guided)))
        return found

    def _compiler(self, kind: str) -> Compiler:
        """The grammar compiler for "tokens" inside a text, for those of its "beginning", or for "bytes"."""
        if kind not in self._compilers:
            self._compilers.setdefault(kind, Compiler(self._vocabulary(kind)))
        return self._compilers[kind]

    def _vocabulary(self, kind: str) -> Vocabulary:
        if kind == "bytes":
            return BYTES
        if kind == "tokens":
            return Vocabulary.of(self._tokenizer, self._vocab_size)
        inside = self._compiler("tokens").vocabulary
        written = self._start.written
        first = (written(self._tokenizer, i) if token else token for i, token in enumerate(inside.tokens))
        return Vocabulary(tuple(first), inside.special)


def check_constraint_options(params: SamplingParams) -> None:
    """Raises ParamsError for `close_grammar` and `forcing` without a constraint."""
    if params.forcing is not None and params.guided_decoding is None:
        raise ParamsError(f"forcing must go with guided_decoding, got {params.forcing!r} alone; leave it out")
    if params.close_grammar and params.guided_decoding is None:
        raise ParamsError("close_grammar must go with guided_decoding, got no constraint; leave it out")
