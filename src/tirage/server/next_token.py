"""The next token explained: the model's logits come from the engine once, and are kept for other parameters."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.engine import EngineRequest, Prompt, Tenant, check_ids
from tirage.errors import ParamsError
from tirage.exact.keys import keys, largest
from tirage.explained_requests import accept, explain_next
from tirage.llm import LLM
from tirage.params import SamplingParams
from tirage.server import errors
from tirage.server.client import current_client
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal, of_stop
from tirage.server.request_manager import RequestManager
from tirage.server.sse import dump
from tirage.tracing import TokenTexts
from tirage.workers.quick_switching import quickly

_MOST_BYTES = 32 << 20
"""The size of all logits that are kept: 64 rows of a vocabulary of 128k."""
_SHOWN_ALLOWED = 64
"""How many of the tokens that a constraint allows are listed."""
_PIECE = 128
"""How many tokens of an answer are read in one turn of a thread."""

Key = tuple[Tenant, str | None, tuple[int, ...]]
Logits = NDArray[np.float32]


class LogitsCache:
    """Logits float32 [V] by tenant, adapter and token ids, those used most recently, of at most so many bytes in all.

    What a tenant asks for is kept for that tenant alone, so that times tell nobody what others have asked.
    """

    def __init__(self, most_bytes: int = _MOST_BYTES) -> None:
        self._rows: OrderedDict[Key, Logits] = OrderedDict()
        self._most, self._bytes = most_bytes, 0

    def get(self, key: Key) -> Logits | None:
        """The logits [V] of a key; None where they are not kept."""
        if key in self._rows:
            self._rows.move_to_end(key)
        return self._rows.get(key)

    def put(self, key: Key, logits: Logits) -> None:
        """Keeps logits [V], in the place of those that were used longest ago."""
        self._bytes += logits.nbytes - (self._rows.pop(key).nbytes if key in self._rows else 0)
        self._rows[key] = logits
        while self._bytes > self._most:
            self._bytes -= self._rows.popitem(last=False)[1].nbytes


@dataclass(frozen=True, slots=True, kw_only=True)
class NextTokenQuestion:
    """What to explain: the draw after a prompt, or the reply to messages, and `output_ids`, once for each of `params`.

    `top` is how many of the most likely tokens are followed, `follow` are further ones.
    `ignored` are the fields of the parameters that nobody knows.
    """

    prompt: Prompt | None
    messages: Sequence[Mapping[str, Any]] | None
    adapter: str | None
    output_ids: tuple[int, ...]
    params: tuple[SamplingParams, ...]
    top: int
    follow: tuple[int, ...] = ()
    ignored: tuple[str, ...] = ()

    def inputs(self) -> list[EngineInput]:
        """An input for each of the parameters; of the samples that they ask for, the first is explained."""
        given = {"prompt": self.prompt, "messages": self.messages, "adapter": self.adapter}
        return [EngineInput(**given, params=each.replace_unchecked(n=1, best_of=None)) for each in self.params]


class NextTokenExplainer:
    """Explains next tokens of the manager's model, under the limits and in the turns of its other requests."""

    def __init__(self, manager: RequestManager) -> None:
        self._manager, self._cache = manager, LogitsCache()

    def forget(self) -> None:
        """Drops the logits that are kept, as an adapter's name may come to stand for another."""
        self._cache = LogitsCache()

    async def explain(self, question: NextTokenQuestion, *, tenant: Tenant) -> tuple[Sequence[int], list[bytes]]:
        """The prompt's ids, and an explanation for each of the parameters as JSON.

        Raises what `RequestManager.submit` raises, ParamsError where the text ends before the token, and Refusal.
        """
        check_output_ids(question.output_ids, self._manager.llm)
        requests = await self._manager.prepare(question.inputs(), tenant=tenant)
        try:
            async with asyncio.timeout(self._manager.options.limits.request_timeout):
                explanations = [await self._explain_one(request, question, tenant) for request in requests]
        except TimeoutError:
            raise errors.timed_out() from None
        return requests[0].prompt_ids, explanations

    async def _explain_one(self, request: EngineRequest, question: NextTokenQuestion, tenant: Tenant) -> bytes:
        llm, ids = self._manager.llm, question.output_ids
        logits = await self._logits((tenant, question.adapter, (*request.prompt_ids, *ids)))
        turn = {"tenant": tenant, "guided": request.params.guided_decoding is not None}
        # Long answers are read in pieces, between which others have their turn.
        for start in range(0, len(ids), _PIECE):
            if current_client().disconnected:
                raise Refusal(499, "the client has left")
            piece = ids[start : start + _PIECE]
            await self._manager.in_pool(partial(accept, request, piece, vocab_size=llm.model.vocab_size), **turn)
        # One that follows as many tokens as a request may name takes nearly a megabyte as JSON, and twenty before that.
        return await self._manager.in_pool(lambda: quickly(written, llm, request, logits, question), **turn)

    async def _logits(self, key: Key) -> Logits:
        """The model's logits [V] after the ids of a key; a request of one token brings those that are not kept."""
        found = self._cache.get(key)
        if found is None:
            found = await self._compute(key)
            self._cache.put(key, found)
        return found

    async def _compute(self, key: Key) -> Logits:
        tenant, adapter, ids = key
        if len(ids) >= (most := self._manager.llm.model.max_length):
            text = f"input_ids and output_ids must be fewer than the {most} tokens of the context, got {len(ids)}"
            raise Refusal(400, text, param="output_ids", code="context_length_exceeded")
        params = SamplingParams(temperature=0.0, max_tokens=1, detokenize=False)
        prompt = Prompt(token_ids=ids, adapter=adapter)
        engine_input = EngineInput(prompt=prompt, adapter=adapter, params=params, keep_logits=True)
        async with await self._manager.submit([engine_input], tenant=tenant) as group:
            (completion,) = await group.completions()
            logits = group.requests[0].request.prompt_logits
            if logits is None:
                raise errors.timed_out() if group.reason == "timeout" else of_stop(completion.samples[0].stop)
            return logits


def check_output_ids(output_ids: Sequence[int], llm: LLM) -> None:
    """Raises Refusal for ids that the model's vocabulary does not have."""
    try:
        check_ids(output_ids, llm.model.vocab_size, name="output_ids")
    except ParamsError as error:
        raise Refusal(400, str(error), param="output_ids") from None


def written(llm: LLM, request: EngineRequest, logits: Logits, question: NextTokenQuestion) -> bytes:
    """The JSON of what `explained` gives for logits [V]."""
    return dump(explained(llm, request, logits, question))


def explained(llm: LLM, request: EngineRequest, logits: Logits, question: NextTokenQuestion) -> dict[str, Any]:
    """The explanation of the request's next token, from logits [V], with what its constraint allows (null without one).

    Its first sample has taken the question's `output_ids`. Raises ParamsError where the mask is not known.
    """
    given = {"tokenizer": llm.tokenizer, "top": question.top, "follow": question.follow}
    explanation = explain_next(request, logits, question.output_ids, **given)
    return {**explanation.to_dict(), "allowed": allowed(llm, request, logits)}


def allowed(llm: LLM, request: EngineRequest, logits: Logits) -> dict[str, Any] | None:
    """The number of tokens that the constraint allows now, and those to which logits [V] give most, likeliest first."""
    mask = None if request.samples[0].grammar is None else request.samples[0].mask(logits.size)
    if mask is None:
        return None
    ids = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[: logits.size])
    likeliest = ids[largest(keys(logits[ids]), _SHOWN_ALLOWED)]
    texts = TokenTexts(llm.tokenizer)
    shown = [{"token_id": int(token), "shown": texts.token(int(token)).shown} for token in likeliest]
    return {"count": int(ids.size), "tokens": shown}
