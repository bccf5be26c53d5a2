"""SGLang's `/generate`, which this project's own server speaks too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tirage.engine import LogprobEntry, Usage
from tirage.remote.answer import AnswerPart, SampleEnding, SamplePart
from tirage.remote.entries import entry, ranked
from tirage.remote.request import RemoteRequest
from tirage.remote.routes import BESIDE, RemoteRoute
from tirage.remote.stop_details import told_stop
from tirage.remote.values import logprob, member, members, token_ids, typed, wrong
from tirage.text import Stop


class SGLangFormat:
    """The body of one request, and its answer.

    An event of a stream has all so far, or what is new where the server was started so; both are read.
    """

    def __init__(self, route: RemoteRoute, request: RemoteRequest) -> None:
        self._route, self._request = route, request
        self._seen: dict[int, tuple[int, int, int]] = {}

    def body(self, model: str) -> dict[str, Any]:
        """The body; the server has one model, so its name is left out."""
        request = self._request
        prompt = {"text": request.text} if request.token_ids is None else {"input_ids": list(request.token_ids)}
        beside = {name: value for name, value in request.fields.items() if name in BESIDE}
        sampling = {name: value for name, value in request.fields.items() if name not in BESIDE}
        more = {"lora_path": request.adapter, "cache_salt": request.salt or None, "stream": request.stream or None}
        given = {name: value for name, value in more.items() if value is not None}
        return {**prompt, "sampling_params": sampling, **beside, **self._route.fixed, **given}

    def read(self, answer: Any) -> AnswerPart:
        """A whole answer, one object or a list of them, or an event. Raises RemoteError for what is neither."""
        found = [typed(each, dict, "answer") for each in (answer if isinstance(answer, list) else [answer])]
        if not found:
            raise wrong("answer", "at least one sample", answer)
        numbered = [(member(each, "index", int, at), each) for at, each in enumerate(found)]
        metas = [member(each, "meta_info", dict) for each in found]
        drawn = [member(meta, "completion_tokens", int, 0) for meta in metas]
        return AnswerPart(
            samples=tuple(self._sample(*each) for each in numbered),
            usage=None if self._request.stream else usage_of(metas[0], sum(drawn)),
            prompt_token_ids=token_ids(found[0], "prompt_token_ids") or None,
            prompt_logprobs=self._prompt_logprobs(metas[0]),
        )

    def _sample(self, index: int, found: Mapping[str, Any]) -> SamplePart:
        meta = member(found, "meta_info", dict)
        text, ids = member(found, "text", str, ""), token_ids(found, "output_ids")
        entries = tuple(self._entries(meta, "output")) if self._request.params.lists_logprobs else ()
        seen = self._seen.get(index, (0, 0, 0))
        if self._request.stream and len(ids) == member(meta, "completion_tokens", int, len(ids)):
            self._seen[index] = (len(text), len(ids), len(entries))
            text, ids, entries = text[seen[0] :], ids[seen[1] :], entries[seen[2] :]
        return SamplePart(index=index, text=text, token_ids=ids, logprobs=entries, ending=self._ending(meta))

    def _prompt_logprobs(self, meta: Mapping[str, Any]) -> tuple[LogprobEntry | None, ...] | None:
        if self._request.params.prompt_logprobs is None or not meta.get("input_token_logprobs"):
            return None
        # The first token has no log-probability.
        return (None, *list(self._entries(meta, "input"))[1:])

    def _entries(self, meta: Mapping[str, Any], side: str) -> Iterator[LogprobEntry]:
        own = members(meta, f"{side}_token_logprobs", list)
        tops = _lists(meta, f"{side}_top_logprobs", len(own))
        given = _lists(meta, f"{side}_token_ids_logprobs", len(own))
        if not len(own) == len(tops) == len(given):
            raise wrong(f"{side}_token_logprobs", "lists of one length", own)
        for one, top, asked in zip(own, tops, given, strict=True):
            pairs = tuple((each.token_id, each.logprob) for each in map(_triple, asked))
            found = ranked(_triple(one), list(map(_triple, top)), self._request.params.logprobs or 0)
            yield replace(found, given=pairs)

    def _ending(self, meta: Mapping[str, Any]) -> SampleEnding | None:
        reason = member(meta, "finish_reason", dict, None)
        if reason is None:
            return None
        kind = member(reason, "type", str)
        if kind == "stop":
            return SampleEnding("stop", told_stop(reason, self._stop(reason.get("matched"))))
        if kind == "length":
            return SampleEnding("length")
        message = member(reason, "message", str, "") or None
        if kind == "abort":
            return SampleEnding("abort", Stop(kind="abort", matched_text=message))
        return SampleEnding(
            "error", Stop(kind="model_failed", matched_text=message or f"the server ended the text: {kind}")
        )

    def _stop(self, matched: Any) -> Stop:
        params = self._request.params
        if isinstance(matched, str):
            return Stop(kind="string" if matched in params.stop else "regex", matched=matched)
        if matched is not None and (isinstance(matched, bool) or not isinstance(matched, int)):
            raise wrong("finish_reason.matched", "a text, a token id or null", matched)
        return Stop(kind="token" if matched in params.stop_token_ids else "eos", matched=matched)


def usage_of(meta: Mapping[str, Any], drawn: int) -> Usage:
    """The token counts of a request whose samples have `drawn` tokens together. Raises RemoteError for wrong ones."""
    prompt, cached = member(meta, "prompt_tokens", int, 0), member(meta, "cached_tokens", int, 0)
    return Usage(prompt_tokens=prompt, completion_tokens=drawn, cached_tokens=cached)


def _lists(meta: Mapping[str, Any], name: str, count: int) -> list[list[Any]]:
    """A list for each of `count` tokens, empty where there is none."""
    found = member(meta, name, list, None) or [None] * count
    return [[] if each is None else typed(each, list, name) for each in found]


def _triple(found: Any) -> LogprobEntry:
    """The entry of [logprob, token id, text]."""
    if not isinstance(found, list) or len(found) < 2:
        raise wrong("logprobs", "lists of a log-probability, a token id and a text", found)
    text = typed(found[2], str, "logprobs") if len(found) > 2 and found[2] is not None else ""
    return entry(text, logprob(found[0]), typed(found[1], int, "logprobs"))
