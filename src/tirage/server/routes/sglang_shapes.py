"""What `/generate` answers, in SGLang's shapes: entries, `meta_info`, finish objects, log-probability tuples."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tirage.engine import Completion, LogprobEntry, Sample
from tirage.patterns import PatternMatcher, compile_pattern
from tirage.server.errors import of_stop
from tirage.server.request_manager import RunningRequest
from tirage.server.routes.sglang_request import GenerateBody, GenerateRequest
from tirage.text import Stop

LEAST = -3.4028235e38
"""What SGLang writes for the log-probability of the impossible, since JSON has no infinity."""


def finish(
    reason: str | None, stop: Stop | None, token_ids: Sequence[int], patterns: Sequence[str] = ()
) -> dict[str, Any] | None:
    """The finish object; None while the text grows. `patterns` are the request's, of which one may have matched."""
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
    """The token, string or pattern that ended the text; a constraint that is complete ends it at its last token."""
    if stop is None or stop.kind == "grammar":
        return token_ids[-1] if token_ids else None
    if stop.kind == "regex":
        return next((one for one in patterns if ends_with(one, stop.matched_text or "")), stop.matched)
    return stop.matched


def ends_with(pattern: str, text: str) -> bool:
    """Whether the text, as it stands, completes the pattern at its last character."""
    matcher = PatternMatcher(compile_pattern(pattern))
    ends = [matcher.feed(letter) is not None for letter in text]
    return bool(ends) and ends[-1]


def details(stop: Stop | None) -> dict[str, Any]:
    """What our stop objects say beyond SGLang's."""
    return {} if stop is None else {"kind": stop.kind, "matched_text": stop.matched_text}


def logprob(value: float) -> float | None:
    """A log-probability as JSON holds it; None for one that could not be computed."""
    if math.isnan(value):
        return None
    return max(value, LEAST)


def triple(entry: LogprobEntry, *, text: bool) -> list[Any]:
    """[logprob, token id, text or null]."""
    return [logprob(entry.logprob), entry.token_id, entry.text if text else None]


class Scores:
    """The log-probability lists of one sample, in the form that its request asked for.

    `token_text` spells a token id, for the tokens of `token_ids_logprob`.
    """

    def __init__(self, ask: GenerateRequest, body: GenerateBody, spell: Any) -> None:
        self._text, self._start = body.text_in_logprobs, ask.start
        self._top, self._given = bool(ask.params.logprobs), bool(ask.params.logprob_token_ids)
        self._spell, self._ids = spell, ask.ids

    @property
    def names(self) -> tuple[str, ...]:
        """The members of `meta_info` that grow with the output."""
        kinds = ["token", *(["top"] if self._top else []), *(["token_ids"] if self._given else [])]
        return tuple(f"output_{kind}_logprobs" for kind in kinds)

    def input(self, prompt: Sequence[LogprobEntry | None], first: int | None) -> dict[str, list[Any]]:
        """The prompt's members of `meta_info`; `first` is its first token id, whose probability there is not."""
        scored = list(prompt)[self._start :] if self._start is not None else []
        opening = [[None, first, self._word(first)]] if scored and scored[0] is None else []
        known = [entry for entry in scored if entry is not None]
        found = {name.replace("output", "input"): [None] * len(opening) + lists for name, lists in self._of(known)}
        return found | {"input_token_logprobs": opening + found["input_token_logprobs"][len(opening) :]}

    def output(self, entries: Sequence[LogprobEntry]) -> dict[str, list[Any]]:
        """The members called `names`, for these tokens."""
        return dict(self._of(entries))

    def _of(self, entries: Sequence[LogprobEntry]) -> Iterator[tuple[str, list[Any]]]:
        yield "output_token_logprobs", [triple(entry, text=self._text) for entry in entries]
        if self._top:
            yield "output_top_logprobs", [self._tops(entry) for entry in entries]
        if self._given:
            yield "output_token_ids_logprobs", [self._chosen(entry) for entry in entries]

    def _tops(self, entry: LogprobEntry) -> list[Any]:
        return [triple(top, text=self._text) for top in entry.top]

    def _chosen(self, entry: LogprobEntry) -> list[Any]:
        values = dict(entry.given)
        return [[logprob(values[token]), token, self._word(token)] for token in self._ids]

    def _word(self, token: int | None) -> str | None:
        return self._spell(token) if self._text and token is not None else None


def entry_of(
    ticket: RunningRequest,
    ask: GenerateRequest,
    body: GenerateBody,
    completion: Completion,
    sample: Sample,
    spell: Any,
    *,
    began: float,
) -> dict[str, Any]:
    """One entry of the answer: the whole of a sample."""
    meta = meta_of(ticket, ask, sample.index, len(sample.token_ids))
    meta["finish_reason"] = finish(sample.finish_reason, sample.stop, sample.token_ids, ask.patterns)
    if ask.logprobs:
        ids = completion.prompt_token_ids
        first = ids[0] if ids else None
        scores, drawn = Scores(ask, body, spell), sample.logprobs or ()
        meta |= scores.input(completion.prompt_logprobs or (), first) | scores.output(drawn)
        meta["output_token_logprobs_length"] = len(drawn)
    meta |= closing(sample, completion.usage.prompt_tokens, began=began)
    found: dict[str, Any] = {"text": sample.text, "output_ids": list(sample.token_ids), "meta_info": meta}
    if ask.beams is not None:
        meta["beam_results"] = [beam_of(each, ask.patterns) for each in completion.samples]
        meta["completion_tokens"] = completion.usage.completion_tokens
    if body.prompt_ids:
        found["prompt_token_ids"] = list(completion.prompt_token_ids)
    return found


def meta_of(ticket: RunningRequest, ask: GenerateRequest, index: int, tokens: int | None) -> dict[str, Any]:
    """The part of `meta_info` that every chunk has."""
    request, own = ticket.request, ticket.rid or ticket.id
    cached = request.cached_tokens
    return {
        "id": own if ask.answers == 1 else f"{own}/{index}",
        "finish_reason": None,
        "prompt_tokens": request.inputs.length,
        "weight_version": "default",
        "num_retractions": 0,
        "reasoning_tokens": 0,
        "completion_tokens": tokens,
        "cached_tokens": cached,
        "cached_tokens_details": {"device": cached, "host": 0},
        "dp_rank": None,
        "seed": request.seed,
    }


def closing(sample: Sample, prompt_tokens: int, *, began: float) -> dict[str, Any]:
    """The part of `meta_info` that only the last chunk of a sample has; `began` is when the request came."""
    found: dict[str, Any] = {
        "weight_versions": [{"version": "default", "start": 0, "end": len(sample.token_ids)}],
        "e2e_latency": time.perf_counter() - began,
        "response_sent_to_client_ts": time.time(),
    }
    if sample.grammar_complete is not None:
        found["grammar_complete"] = sample.grammar_complete
    if sample.hidden_states is not None:
        found["hidden_states"] = ragged(sample.hidden_states, prompt_tokens)
    return found


def ragged(states: Any, prompt_tokens: int) -> list[Any]:
    """SGLang's form of hidden states: the prompt's vectors as one item, then one vector per token read after it."""
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
