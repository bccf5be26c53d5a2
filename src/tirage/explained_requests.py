"""Draws of requests explained: the next token, the same one under several parameters, or every token of a text."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.compiled_params import compiled
from tirage.engine import Engine, EngineRequest, check_ids, masks_of
from tirage.errors import ParamsError
from tirage.text import Tokenizer
from tirage.tracing import Comparison, Explanation, TextExplanation, TextToken, explain, summaries


def explain_next(
    request: EngineRequest,
    logits: NDArray[np.float32],
    output_ids: Sequence[int],
    *,
    tokenizer: Tokenizer,
    top: int = 10,
    follow: Sequence[int] = (),
    state: float | None = None,
) -> Explanation:
    """The draw after the tokens `output_ids`, which the request's first sample has taken, from logits float32 [V].

    `top`, `follow` and `state` are those of `tirage.explain`. Raises ParamsError where the mask of a constraint is not
    known, and after the first token for parameters that carry a state, without it.
    """
    sample, history = request.samples[0], [(request.prompt_ids, list(output_ids))]
    mask = masks_of([sample], logits.size)
    if sample.grammar is not None and sample.grammar.exceeded:
        raise ParamsError(f"the mask of the constraint is not known: {sample.grammar.exceeded}")
    given = {"tokenizer": tokenizer, "history": history, "mask": mask}
    return explain(logits, request.params, **given, top=top, follow=follow, state=state)


def accept(request: EngineRequest, output_ids: Sequence[int], *, vocab_size: int, last: bool = False) -> None:
    """Gives the first sample tokens; raises ParamsError where one ends its text, but not for the `last` of all.

    Raises GrammarError where the constraint takes longer than its limits allow.
    """
    sample = request.samples[0]
    for token_id in check_ids(output_ids, vocab_size):
        with request.constraint_budget.taking("output_ids"):
            sample.accept(token_id, 0.0)
        if sample.stop is not None and sample.finish_reason != "length" and not last:
            raise ParamsError(f"output_ids must leave a token to draw, got a text that ends: {sample.stop.kind}")


def compare_requests(
    requests: Sequence[EngineRequest], logits: NDArray[np.float32], *, tokenizer: Tokenizer, top: int
) -> Comparison:
    """The first draw of each request, from the same logits float32 [V]; tokens that one follows are followed in all."""
    found = [explain_next(each, logits, (), tokenizer=tokenizer, top=top) for each in requests]
    follow = sorted({trace.token.token_id for each in found for trace in each.tokens})
    again = [explain_next(each, logits, (), tokenizer=tokenizer, top=0, follow=follow) for each in requests]
    return Comparison(tuple(again))


def explain_text(
    engine: Engine, request: EngineRequest, output_ids: Sequence[int], *, tokenizer: Tokenizer
) -> TextExplanation:
    """Each of `output_ids` as the draw of the request at its place, whose first sample takes them.

    Raises ParamsError where the text ends before its last token, or breaks its constraint.
    """
    size, first = engine.model.vocab_size, len(request.prompt_ids)
    ids = [*request.prompt_ids, *check_ids(output_ids, size)]
    explanations: list[Explanation] = []
    carried = compiled(request.params.unwrapped)
    state = carried.initial_state
    for at, logits in enumerate(engine.logits_along(ids[:-1]), 1):
        if at >= first:
            given = {"tokenizer": tokenizer, "follow": ids[at : at + 1], "state": state}
            explanations.append(explain_next(request, logits, ids[first:at], **given))
            if state is not None and explanations[-1].token_id == ids[at]:
                state = carried.next_state(state, explanations[-1].logprob)
            accept(request, ids[at : at + 1], vocab_size=size, last=at + 1 == len(ids))
    tokens = [TextToken.of(each.trace_of(token), each) for each, token in zip(explanations, ids[first:], strict=False)]
    return TextExplanation(
        prompt=tokenizer.decode(request.prompt_ids) if request.prompt is None else request.prompt,
        semantics=explanations[0].semantics if explanations else str(request.params.semantics),
        tokens=tuple(tokens),
        stages=summaries(explanations, tokens),
    )
