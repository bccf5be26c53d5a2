"""What `/generate` answers, in SGLang's shapes: entries, `meta_info`, finish objects, log-probability tuples.

`EntryBuilder` makes the entries of a whole answer and the events of a stream from the same lists of fields.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirage.engine import Completion, LogprobEntry, Sample, kept_of
from tirage.patterns import PatternMatcher, compile_pattern
from tirage.server.errors import of_stop
from tirage.server.replay import effective
from tirage.server.request_group import RunningRequest
from tirage.server.routes.reasoning_count import ReasoningCounters
from tirage.server.routes.sglang_request import GenerateBody, GenerateRequest
from tirage.server.sse import JsonTemplate
from tirage.text import Stop, Tokenizer

LOWEST_LOGPROB = -3.4028235e38
"""What SGLang writes for minus infinity, which JSON does not have."""
TokenText = Callable[[int], str]
"""The text of a token by its id."""


def token_text_of(tokenizer: Tokenizer) -> TokenText:
    """A function from a token id to the token's own text."""
    return lambda token: tokenizer.token_bytes(token).decode("utf-8", "replace")


def finish(
    reason: str | None, stop: Stop | None, token_ids: Sequence[int], patterns: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The finish object; None while the text grows. `patterns` are the request's `stop_regex`."""
    if reason is None:
        return None
    if reason == "length":
        return {"type": "length", "length": len(token_ids)}
    if reason == "abort":
        return {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
    if reason == "error":
        refusal = of_stop(stop)
        kind = None if stop is None else stop.kind
        return {"type": "error", "message": refusal.message, "status_code": refusal.status, "err_type": kind}
    return {"type": "stop", "matched": matched(stop, token_ids, patterns), **details(stop)}


def matched(stop: Stop | None, token_ids: Sequence[int], patterns: Sequence[str]) -> int | str | None:
    """The token, string or pattern that ended the text; the last token where a complete constraint ended it."""
    if stop is None or stop.kind == "grammar":
        return token_ids[-1] if token_ids else None
    if stop.kind == "regex":
        return next((one for one in patterns if ends_with(one, stop.matched_text or "")), stop.matched)
    return stop.matched


def ends_with(pattern: str, text: str) -> bool:
    """Whether the pattern matches at the last character of the text."""
    matcher = PatternMatcher(compile_pattern(pattern))
    ends = [matcher.feed(letter) is not None for letter in text]
    return bool(ends) and ends[-1]


def details(stop: Stop | None) -> dict[str, Any]:
    """What ended a text, beyond what SGLang tells; `closed` where `close_grammar` forced tokens in time."""
    if stop is None:
        return {}
    return {"kind": stop.kind, "matched_text": stop.matched_text, **({"closed": True} if is_closed(stop) else {})}


def is_closed(stop: Stop) -> bool:
    """Whether tokens were forced to complete a constraint in time."""
    return stop.kind == "grammar" and stop.matched == "close_grammar"


def logprob(value: float) -> float | None:
    """A log-probability as JSON can hold it; None for one that could not be computed."""
    if math.isnan(value):
        return None
    return max(value, LOWEST_LOGPROB)


def triple(entry: LogprobEntry, *, text: bool) -> list[Any]:
    """[logprob, token id, text or null]."""
    return [logprob(entry.logprob), entry.token_id, entry.text if text else None]


class LogprobLists:
    """The log-probability lists in the `meta_info` of one prompt's samples, as the request wants them.

    `names` are the members that grow with the output.
    """

    def __init__(self, request: GenerateRequest, body: GenerateBody, token_text: TokenText) -> None:
        self._with_text, self._start = body.return_text_in_logprobs, request.start
        self._has_top, self._ids = bool(request.params.logprobs), request.token_ids_logprob
        self._token_text = token_text
        kinds = ["token", *(["top"] if self._has_top else []), *(["token_ids"] if self._ids else [])]
        self.names = tuple(f"output_{kind}_logprobs" for kind in kinds)

    def input(self, prompt: Sequence[LogprobEntry | None], first: int | None) -> dict[str, list[Any]]:
        """The members for the prompt; `first` is its first token, which has no log-probability."""
        scored = list(prompt)[self._start :] if self._start is not None else []
        opening = [[None, first, self._text(first)]] if scored and scored[0] is None else []
        known = [entry for entry in scored if entry is not None]
        found = {
            name.replace("output", "input"): [*[None] * len(opening), *lists]
            for name, lists in self.output(known).items()
        }
        return found | {"input_token_logprobs": opening + found["input_token_logprobs"][len(opening) :]}

    def output(self, entries: Sequence[LogprobEntry]) -> dict[str, Iterable[Any]]:
        """The members called `names`, for these tokens; the most likely ones are made as they are read."""
        return dict(zip(self.names, self._lists(entries), strict=True))

    def _lists(self, entries: Sequence[LogprobEntry]) -> Iterator[Iterable[Any]]:
        yield [triple(entry, text=self._with_text) for entry in entries]
        if self._has_top:
            yield ([triple(top, text=self._with_text) for top in entry.top] for entry in entries)
        if self._ids:
            yield map(self._given, entries)

    def _given(self, entry: LogprobEntry) -> list[Any]:
        values = dict(entry.given)
        if not values:
            return []  # a forced token, which was not drawn from a law
        return [[logprob(values[token]), token, self._text(token)] for token in self._ids]

    def _text(self, token: int | None) -> str | None:
        return self._token_text(token) if self._with_text and token is not None else None


@dataclass(frozen=True, slots=True)
class Sent:
    """How much of a sample earlier events of a stream have shown: characters, tokens, tokens with log-probabilities.

    `prompt`: they have shown what is said of the prompt's tokens.
    """

    characters: int = 0
    tokens: int = 0
    logprobs: int = 0
    prompt: bool = False


NOTHING_SENT = Sent()


class EntryBuilder:
    """Builds the entries of one prompt's samples, for a whole answer and for the events of a stream.

    `began` is when the request came. `first_index` is the number of the first sample in a stream that numbers them.
    """

    def __init__(
        self,
        running: RunningRequest,
        request: GenerateRequest,
        body: GenerateBody,
        tokenizer: Tokenizer,
        *,
        began: float,
        first_index: int | None = None,
    ) -> None:
        self._running, self._request, self._body = running, request, body
        self._began, self._first_index = began, first_index
        self.reasoning = ReasoningCounters(running.request, tokenizer)
        self.logprobs = LogprobLists(request, body, token_text_of(tokenizer)) if request.return_logprob else None

    def template(self, index: int, sent: Sent = NOTHING_SENT) -> JsonTemplate:
        """The event of a sample that has not ended, without what was `sent` of the prompt.

        Its holes are the text, the ids, how many of these are reasoning, their number and, with log-probabilities, the
        lists and their length.
        """
        names = [] if self.logprobs is None else [*self.logprobs.names, "output_token_logprobs_length"]
        holes = dict.fromkeys(names)
        counts: dict[str, Any] = {"reasoning_tokens": None, "completion_tokens": None}
        entry = self._entry(index, text=None, output_ids=None, counts=counts, logprobs=holes, sent=sent)
        return JsonTemplate(entry, ["text", "output_ids", *counts, *names])

    def finished(self, sample: Sample, sent: Sent = NOTHING_SENT) -> dict[str, Any]:
        """The entry of a sample that has ended, without what was `sent` before."""
        lists: dict[str, Any] = {}
        if self.logprobs is not None:
            drawn = (sample.logprobs or ())[sent.logprobs :]
            lists = {**self.logprobs.output(drawn), "output_token_logprobs_length": len(drawn)}
        ids = list(sample.token_ids)
        entry = self._entry(
            sample.index,
            text=sample.text[sent.characters :],
            output_ids=ids[sent.tokens :],
            counts={"reasoning_tokens": self.reasoning.count(ids), "completion_tokens": len(ids)},
            logprobs=lists,
            sent=sent,
        )
        reason = finish(sample.finish_reason, sample.stop, ids, self._request.stop_regex)
        entry["meta_info"] |= {"finish_reason": reason, **self._final_meta(sample)}
        return entry

    def entries(self, completion: Completion) -> Iterator[dict[str, Any]]:
        """The entries of a prompt that has finished: one per sample, or one for all hypotheses of a beam search."""
        for number, sample in enumerate(completion.samples[: self._request.returned]):
            found = self.finished(sample)
            if not number and self._request.beams is not None:
                beams = [beam_of(each, self._request.stop_regex) for each in completion.samples]
                found["meta_info"] |= {"beam_results": beams, **self._counts(completion)}
            if not number and self._body.return_effective_params:
                found["effective_params"] = effective(self._running, completion)
            yield found

    def _counts(self, completion: Completion) -> dict[str, int]:
        """The token counts of all hypotheses of a beam search."""
        reasoning = sum(self.reasoning.count(sample.token_ids) for sample in completion.samples)
        return {"reasoning_tokens": reasoning, "completion_tokens": completion.usage.completion_tokens}

    def _entry(
        self,
        index: int,
        *,
        text: Any,
        output_ids: Any,
        counts: Mapping[str, Any],
        logprobs: Mapping[str, Any],
        sent: Sent,
    ) -> dict[str, Any]:
        """The members that every entry has; of the prompt's tokens only what was not `sent`."""
        request, own = self._running.request, self._running.rid or self._running.id
        meta = {
            "id": own if self._request.returned == 1 else f"{own}/{index}",
            "finish_reason": None,
            "prompt_tokens": request.prompt_tokens,
            "weight_version": "default",
            "num_retractions": 0,
            **counts,
            "cached_tokens": request.cached_tokens,
            "cached_tokens_details": {"device": request.cached_tokens, "host": 0},
            "dp_rank": None,
            "seed": request.seed,
        }
        if self.logprobs is not None:
            first = request.prompt_ids[0] if request.prompt_ids else None
            scored = () if sent.prompt else request.prompt_logprobs or ()
            meta |= {**self.logprobs.input(scored, first), **logprobs}
        entry: dict[str, Any] = {"text": text, "output_ids": output_ids, "meta_info": meta}
        if self._first_index is not None:
            entry["index"] = self._first_index + index
        if self._body.return_prompt_token_ids and not sent.prompt:
            entry["prompt_token_ids"] = list(request.prompt_ids)
        return entry

    def _final_meta(self, sample: Sample) -> dict[str, Any]:
        """The members of `meta_info` that only the last event of a sample has."""
        found: dict[str, Any] = {
            "weight_versions": [{"version": "default", "start": 0, "end": len(sample.token_ids)}],
            "e2e_latency": time.perf_counter() - self._began,
            "response_sent_to_client_ts": time.time(),
        }
        if sample.grammar_complete is not None:
            found["grammar_complete"] = sample.grammar_complete
        if sample.forced_tokens:
            found["forced_tokens"] = sample.forced_tokens
        if sample.records is not None:
            found["kept"] = kept_of(sample.records)
        if sample.hidden_states is not None:
            found["hidden_states"] = ragged(sample.hidden_states, self._running.request.inputs.length)
        return found


def ragged(states: Any, prompt_tokens: int) -> list[Any]:
    """SGLang's form of hidden states [tokens, width]: the prompt's vectors as one item, then one vector per token."""
    return [states[:prompt_tokens].tolist(), *states[prompt_tokens:].tolist()]


def beam_of(sample: Sample, patterns: Sequence[str]) -> dict[str, Any]:
    """One hypothesis of a beam search; `sequence_score` is what they are ranked by."""
    return {
        "output_ids": list(sample.token_ids),
        "text": sample.text,
        "meta_info": {
            "finish_reason": finish(sample.finish_reason, sample.stop, sample.token_ids, patterns),
            "sequence_score": None if sample.score is None else logprob(sample.score),
        },
    }
