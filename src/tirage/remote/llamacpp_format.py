"""llama.cpp's `/completion`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from tirage.engine import LogprobEntry, Usage
from tirage.remote.answer import AnswerPart, SampleEnding, SamplePart
from tirage.remote.entries import ranked
from tirage.remote.openai_format import plain_entry
from tirage.remote.request import RemoteRequest
from tirage.remote.routes import RemoteRoute
from tirage.remote.values import member, members, token_ids, typed, wrong
from tirage.text import Stop


class LlamaCppFormat:
    """The body of one request, and its answer."""

    def __init__(self, route: RemoteRoute, request: RemoteRequest) -> None:
        self._route, self._request = route, request

    def body(self, model: str) -> dict[str, Any]:
        """The body for a model of this name."""
        request = self._request
        prompt = request.text if request.token_ids is None else list(request.token_ids)
        streamed = {"stream": True} if request.stream else {}
        return {"model": model, "prompt": prompt, **self._route.fixed, **request.fields, **streamed}

    def read(self, answer: Any) -> AnswerPart:
        """A whole answer, one object or a list of them, or an event. Raises RemoteError for what is neither."""
        found = [typed(each, dict, "answer") for each in (answer if isinstance(answer, list) else [answer])]
        if not found:
            raise wrong("answer", "at least one sample", answer)
        drawn = sum(member(each, "tokens_predicted", int, 0) for each in found)
        prompt = member(found[0], "tokens_evaluated", int, 0)
        alone = not self._request.stream or self._request.params.n == 1
        return AnswerPart(
            samples=tuple(map(self._sample, found)),
            usage=Usage(prompt_tokens=prompt, completion_tokens=drawn) if alone else None,
        )

    def _sample(self, found: Mapping[str, Any]) -> SamplePart:
        return SamplePart(
            index=member(found, "index", int, 0),
            text=member(found, "content", str),
            token_ids=token_ids(found, "tokens"),
            logprobs=tuple(self._entries(found)) if self._request.params.lists_logprobs else (),
            ending=self._ending(found) if found.get("stop") is True else None,
        )

    def _entries(self, found: Mapping[str, Any]) -> Iterator[LogprobEntry]:
        for each in members(found, "completion_probabilities", dict):
            top = members(each, "top_logprobs" if "top_logprobs" in each else "top_probs", dict)
            yield ranked(_scored(each), list(map(_scored, top)), self._request.params.logprobs or 0)

    def _ending(self, found: Mapping[str, Any]) -> SampleEnding:
        kind = member(found, "stop_type", str)
        if kind == "limit":
            return SampleEnding("length")
        if kind == "word":
            return SampleEnding("stop", Stop(kind="string", matched=member(found, "stopping_word", str)))
        if kind == "eos":
            return SampleEnding("stop", Stop(kind="eos"))
        return SampleEnding("error", Stop(kind="model_failed", matched_text=f"the server ended the text: {kind}"))


def _scored(found: Mapping[str, Any]) -> LogprobEntry:
    """An entry, whose probability may be told instead of its logarithm."""
    if "prob" not in found:
        return plain_entry(found)
    share = member(found, "prob", float)
    return plain_entry(found, value=math.log(share) if share > 0 else -math.inf)
