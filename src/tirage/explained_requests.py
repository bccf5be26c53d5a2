"""Draws of requests explained: the next token, the same one under several parameters, or every token of a text."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace

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


def explain_at(engine: Engine, request: EngineRequest, position: int, *, tokenizer: Tokenizer) -> Explanation:
    """The draw of the request after the prompt's token at `position`, from the logits of its own inputs.

    Raises ParamsError for a position outside the prompt, and for one before the last where the prompt is not ids alone.
    """
    ids, inputs, begun = request.prompt_ids, request.inputs, list(request.samples[0].token_ids)
    length = len(ids) if inputs.embeds is None else inputs.length
    if isinstance(position, bool) or not isinstance(position, int) or not -length <= position < length:
        raise ParamsError(f"position must be in [{-length}, {length}), got {position!r}")
    if position % length + 1 < length:
        if begun or inputs.media or inputs.embeds is not None:
            raise ParamsError(
                f"position must be -1 for a prompt with images, audio, embeddings or output_ids, got {position}"
            )
        request.prompt_ids = ids[: position % length + 1]
        inputs = replace(inputs, token_ids=tuple(request.prompt_ids))
    return explain_next(request, engine.next_logits(inputs), begun, tokenizer=tokenizer)


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
    engine: Engine, requests: Sequence[EngineRequest], *, tokenizer: Tokenizer, top: int
) -> Comparison:
    """The next draw of each request after their common prompt; tokens that one follows are followed in all."""
    logits, begun = engine.next_logits(requests[0].inputs), list(requests[0].samples[0].token_ids)
    found = [explain_next(each, logits, begun, tokenizer=tokenizer, top=top) for each in requests]
    follow = sorted({trace.token.token_id for each in found for trace in each.tokens})
    again = [explain_next(each, logits, begun, tokenizer=tokenizer, top=0, follow=follow) for each in requests]
    return Comparison(tuple(again))


def explain_text(
    engine: Engine, request: EngineRequest, output_ids: Sequence[int], *, tokenizer: Tokenizer
) -> TextExplanation:
    """Each of `output_ids` as the draw of the request at its place, whose first sample takes them.

    Raises ParamsError where the text ends before its last token, or breaks its constraint.
    """
    size, begun = engine.model.vocab_size, list(request.samples[0].token_ids)
    ids = check_ids(output_ids, size)
    explanations: list[Explanation] = []
    carried = compiled(request.params.unwrapped)
    state = carried.initial_state
    with closing(engine.logits_along(request.inputs, ids[:-1])) as along:
        for at, (token_id, logits) in enumerate(zip(ids, along, strict=False), 1):
            given = {"tokenizer": tokenizer, "follow": (token_id,), "state": state}
            explanations.append(explain_next(request, logits, [*begun, *ids[: at - 1]], **given))
            if state is not None and explanations[-1].token_id == token_id:
                state = carried.next_state(state, explanations[-1].logprob)
            accept(request, [token_id], vocab_size=size, last=at == len(ids))
    tokens = [TextToken.of(each.trace_of(token), each) for each, token in zip(explanations, ids, strict=True)]
    return TextExplanation(
        prompt=tokenizer.decode(request.prompt_ids) if request.prompt is None else request.prompt,
        semantics=explanations[0].semantics if explanations else str(request.params.semantics),
        tokens=tuple(tokens),
        stages=summaries(explanations, tokens),
    )
