"""OpenAI's completions and chats, with what vLLM, SGLang, llama.cpp and this project's own server add to them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tirage.engine import LogprobEntry, Usage
from tirage.remote.answer import AnswerPart, SampleEnding, SamplePart
from tirage.remote.entries import UNKNOWN_ID, UNKNOWN_RANK, entry, ranked
from tirage.remote.request import RemoteRequest
from tirage.remote.routes import RemoteRoute
from tirage.remote.stop_details import told_stop
from tirage.remote.values import logprob, member, members, token_ids, typed, wrong
from tirage.text import Stop


class OpenAIFormat:
    """The body of one request, and its answer; of a chat where the request has messages."""

    def __init__(self, route: RemoteRoute, request: RemoteRequest) -> None:
        self._route, self._request = route, request

    def body(self, model: str) -> dict[str, Any]:
        """The body for a model of this name."""
        request = self._request
        prompt: Any = request.text if request.token_ids is None else list(request.token_ids)
        about = {"prompt": prompt} if request.messages is None else {"messages": request.messages}
        streamed = {"stream": True, "stream_options": {"include_usage": True}} if request.stream else {}
        salt = {"cache_salt": request.salt} if request.salt else {}
        ending = (
            {"add_generation_prompt": False, "continue_final_message": True} if request.continue_final_message else {}
        )
        name = {"model": request.adapter or model}
        return {**name, **about, **ending, **self._route.fixed, **request.fields, **salt, **streamed}

    def read(self, answer: Any) -> AnswerPart:
        """A whole answer, or an event. Raises RemoteError for what is neither."""
        answer = typed(answer, dict, "answer")
        choices = members(answer, "choices", dict)
        first = choices[0] if choices else {}
        prompt = first if "prompt_token_ids" in first else answer
        return AnswerPart(
            samples=tuple(map(self._sample, choices)),
            usage=usage_of(member(answer, "usage", dict, None)),
            prompt_token_ids=token_ids(prompt, "prompt_token_ids") or None,
            prompt_logprobs=prompt_logprobs(first if "prompt_logprobs" in first else answer, self._request),
        )

    def _sample(self, choice: Mapping[str, Any]) -> SamplePart:
        ids = token_ids(choice, "token_ids")
        return SamplePart(
            index=member(choice, "index", int),
            text=self._text(choice),
            token_ids=ids,
            logprobs=self._entries(member(choice, "logprobs", dict, None), ids),
            ending=self._ending(choice, ids),
        )

    def _text(self, choice: Mapping[str, Any]) -> str:
        if self._request.messages is None:
            return member(choice, "text", str, "")
        name = "delta" if self._request.stream else "message"
        return member(member(choice, name, dict, {}), "content", str, "")

    def _entries(self, found: Mapping[str, Any] | None, ids: Sequence[int]) -> tuple[LogprobEntry, ...]:
        """The entries of new tokens, whose ids may be known besides."""
        if found is None or not self._request.params.lists_logprobs:
            return ()
        count = self._request.params.logprobs or 0
        if found.get("content") is not None:
            return tuple(_listed(members(found, "content", dict), ids, count))
        return tuple(_named(found, ids, count))

    def _ending(self, choice: Mapping[str, Any], ids: Sequence[int]) -> SampleEnding | None:
        reason = member(choice, "finish_reason", str, None)
        if reason is None:
            return None
        if reason == "stop":
            # vLLM's member is null for ends that a request does not name, of which SGLang's tells the token.
            told = choice.get("stop_reason")
            told = choice.get("matched_stop") if told is None else told
            details = member(choice, "stop_details", dict, {})
            return SampleEnding("stop", told_stop(details, self._stop(told, ids)))
        if reason == "length":
            return SampleEnding("length")
        if reason == "abort":
            return SampleEnding("abort", Stop(kind="abort"))
        return SampleEnding("error", Stop(kind="model_failed", matched_text=f"the server ended the text: {reason}"))

    def _stop(self, told: Any, ids: Sequence[int]) -> Stop | None:
        params = self._request.params
        last = ids[-1] if ids else None
        if isinstance(told, int) and not isinstance(told, bool):
            return Stop(kind="token" if told in params.stop_token_ids else "eos", matched=told)
        if isinstance(told, str):
            return Stop(kind="string" if told in params.stop else "regex", matched=told)
        if told is not None:
            raise wrong("stop_reason", "a text, a token id or null", told)
        asked = params.stop or params.stop_token_ids or params.stop_pattern
        return Stop(kind="eos", matched=last) if self._route.tells_stop or not asked else None


def usage_of(found: Mapping[str, Any] | None) -> Usage | None:
    """The token counts of an answer, None for none."""
    if found is None:
        return None
    details = member(found, "prompt_tokens_details", dict, {})
    return Usage(
        prompt_tokens=member(found, "prompt_tokens", int, 0),
        completion_tokens=member(found, "completion_tokens", int, 0),
        cached_tokens=member(details, "cached_tokens", int, 0),
    )


def prompt_logprobs(found: Mapping[str, Any], request: RemoteRequest) -> tuple[LogprobEntry | None, ...] | None:
    """The entries of the prompt's tokens in vLLM's form; None without any. Raises RemoteError for other forms.

    Each is an object of entries by token id: the token's own, and the likeliest ones.
    """
    each_token = member(found, "prompt_logprobs", list, [])
    if not each_token:
        return None
    known = token_ids(found, "prompt_token_ids") or request.token_ids or ()
    if len(known) != len(each_token):
        raise wrong("prompt_logprobs", f"a list of {len(known)}", each_token)
    count = request.params.prompt_logprobs or 0
    return tuple(
        None if entries is None else _scored(typed(entries, dict, "prompt_logprobs"), token, count)
        for entries, token in zip(each_token, known, strict=True)
    )


def _scored(entries: Mapping[str, Any], token: int, count: int) -> LogprobEntry:
    """The entry of a prompt's token, with the `count` likeliest."""
    found = {int(name): typed(each, dict, "prompt_logprobs") for name, each in entries.items() if name.isdecimal()}
    if token not in found:
        raise wrong("prompt_logprobs", f"entries with token {token}", entries)
    every = [
        replace(
            entry(member(each, "decoded_token", str, ""), logprob(each.get("logprob")), token_id),
            rank=member(each, "rank", int, UNKNOWN_RANK),
        )
        for token_id, each in found.items()
    ]
    own = next(each for each in every if each.token_id == token)
    # The token itself is listed too where it is none of the likeliest.
    likeliest = sorted((each for each in every if each.rank <= count), key=lambda each: each.rank)
    return replace(own, top=tuple(likeliest[:count]))


def _named(found: Mapping[str, Any], ids: Sequence[int], count: int) -> Iterator[LogprobEntry]:
    """The entries of OpenAI's completions: lists of texts and log-probabilities, and objects of the likeliest."""
    tokens, values = members(found, "tokens", str), member(found, "token_logprobs", list, [])
    tops = member(found, "top_logprobs", list, None) or [None] * len(tokens)
    if not len(tokens) == len(values) == len(tops):
        raise wrong("logprobs", f"lists of {len(tokens)}", found)
    for at, (text, value, top) in enumerate(zip(tokens, values, tops, strict=True)):
        likeliest = {} if top is None else typed(top, dict, "top_logprobs")
        own = entry(text, logprob(value), ids[at] if at < len(ids) else UNKNOWN_ID)
        yield ranked(own, [entry(name, logprob(each)) for name, each in likeliest.items()], count)


def _listed(found: Sequence[Mapping[str, Any]], ids: Sequence[int], count: int) -> Iterator[LogprobEntry]:
    """The entries of a chat."""
    for at, each in enumerate(found):
        own = plain_entry(each, ids[at] if at < len(ids) else UNKNOWN_ID)
        yield ranked(own, [plain_entry(top) for top in members(each, "top_logprobs", dict)], count)


def plain_entry(found: Mapping[str, Any], token_id: int = UNKNOWN_ID, value: float | None = None) -> LogprobEntry:
    """A token as chats and llama.cpp list it, with its id where the server tells it; `value` is its logprob if given.

    Raises RemoteError for what is no such token.
    """
    raw = members(found, "bytes", int)
    if any(not 0 <= each < 256 for each in raw):
        raise wrong("bytes", "a list of bytes", raw)
    told = logprob(found.get("logprob")) if value is None else value
    spelled = None if found.get("bytes") is None else bytes(raw)
    return entry(member(found, "token", str), told, member(found, "id", int, token_id), spelled)
