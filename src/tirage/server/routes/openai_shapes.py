"""OpenAI's response objects, with exactly the members that OpenAI publishes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tirage.engine import Completion, EngineRequest, LogprobEntry, MadeWhenRead
from tirage.params import SamplingParams
from tirage.server import errors
from tirage.server.routes.sglang_shapes import details, is_closed, matched
from tirage.text import Stop, Tokenizer

_STOPS = frozenset({"eos", "token", "string", "regex", "grammar"})
LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot write; vLLM's choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseMetadata:
    """The members with which every object of one answer begins."""

    id: str
    created: int
    model: str
    fingerprint: str

    def object(self, kind: str, choices: Iterable[Any], **more: Any) -> dict[str, Any]:
        """An object of this kind with its choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": choices,
            **more,
        }


def usage(
    completions: Sequence[Completion],
    requests: Sequence[EngineRequest],
    *,
    reasoning_tokens: Callable[[Sequence[int]], int] | None = None,
) -> dict[str, Any]:
    """The token counts of an answer: every prompt once, and all tokens drawn, those of samples not returned too.

    `requests` are those of the completions. `reasoning_tokens` counts the reasoning tokens of a sample, for an answer
    that separates reasoning. Forced tokens are counted where there are any.
    """
    prompt = sum(completion.usage.prompt_tokens for completion in completions)
    drawn = sum(completion.usage.completion_tokens for completion in completions)
    cached = sum(completion.usage.cached_tokens for completion in completions)
    found = {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": cached},
    }
    samples = [sample for each in requests for sample in each.all_samples()]
    forced = sum(sample.forced_tokens for sample in samples)
    details = {"forced_tokens": forced} if forced else {}
    if reasoning_tokens is not None:
        details["reasoning_tokens"] = sum(reasoning_tokens(sample.token_ids) for sample in samples)
    return {**found, "completion_tokens_details": details} if details else found


def stops_of(stop: Stop | None, token_ids: Sequence[int]) -> dict[str, Any]:
    """What ended a choice, besides OpenAI's members: vLLM's `stop_reason`, SGLang's `matched_stop`, our `stop_details`.

    The first two are the stop string or pattern, or the id of a stop token, and None at a limit. For an end that the
    request did not name, an EOS token or the end of a complete constraint, only `matched_stop` holds the last token,
    and `stop_details` alone tells the one from the other.
    """
    told = details(stop) or None
    if stop is None or stop.kind not in _STOPS:
        return {"stop_reason": None, "matched_stop": None, "stop_details": told}
    named = stop.matched if stop.kind in {"token", "string", "regex"} else None
    return {"stop_reason": named, "matched_stop": matched(stop, token_ids, ()), "stop_details": told}


def raise_failed(completions: Sequence[Completion]) -> None:
    """Raises Refusal for a sample that ended with an error or was aborted."""
    for completion in completions:
        for sample in completion.samples:
            if sample.finish_reason in {"error", "abort"}:
                raise errors.of_stop(sample.stop)


def shown_entries(
    entries: Sequence[LogprobEntry], stop: Stop | None, length: int, *, included: bool
) -> Sequence[LogprobEntry]:
    """The last entries of a text of this length, without those of a stop that the text leaves out."""
    if stop is None or included:
        return entries
    if stop.kind in {"eos", "token"}:
        return entries[:-1]
    # A constraint that was closed in time ends with an EOS token or with the last token of its text.
    if stop.kind in {"string", "regex"} or is_closed(stop):
        return [entry for entry in entries if entry.offset is None or entry.offset < length]
    return entries


def bare_start(entries: Sequence[LogprobEntry], length: int) -> Sequence[LogprobEntry]:
    """The first entries of a text of this length, without the leading space that the text does not have.

    Vocabularies that mark word starts begin every text with a space, which decoding a text on its own removes.
    """
    if not entries or entries[0].offset != 0 or not entries[0].text.startswith(" "):
        return entries
    end = length if len(entries) == 1 else entries[1].offset
    if end != len(entries[0].text) - 1:
        return entries
    return [bare(entries[0], entries[0].token_id), *entries[1:]]


def is_start_certain(entries: Sequence[LogprobEntry], start: str) -> bool:
    """Whether `bare_start` has the same result for all of a text as for its `start`, which spells these entries."""
    first = entries[0]
    if first.offset != 0 or not first.text.startswith(" "):
        return True
    if len(entries) > 1 and (end := entries[1].offset) is not None:
        return end <= len(start)
    # The rest of the token may be held back, so only what has come can tell whether its space was left out.
    return len(start) >= len(first.text) or (start == first.text[1:] and not first.text.startswith(start))


def bare(entry: LogprobEntry, token_id: int) -> LogprobEntry:
    """The entry without the leading space of this token, as the drawn token and among the top ones."""
    top = tuple(bare(each, token_id) for each in entry.top)
    if entry.token_id != token_id:
        return replace(entry, top=top)
    return replace(entry, text=entry.text[1:], bytes=entry.bytes[1:], top=top)


def number(logprob: float) -> float:
    """A log-probability as JSON can hold it."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def with_top(entries: Sequence[LogprobEntry], params: SamplingParams, tokenizer: Tokenizer) -> Sequence[LogprobEntry]:
    """The entries, each with as many of the likeliest tokens as `logprobs` says.

    With `logprob_token_ids` each has the drawn token and those instead, as in vLLM.
    """
    ids, count = params.logprob_token_ids, params.logprobs or 0
    if not ids:
        return [replace(each, top=each.top[:count]) for each in entries]
    return [replace(each, top=NamedEntries(each, tokenizer)) for each in entries]


class NamedEntries(MadeWhenRead[LogprobEntry]):
    """The entries of the drawn token and the others of `logprob_token_ids`, whose ranks are unknown and given as 0."""

    __slots__ = ("_drawn", "_tokenizer")

    def __init__(self, drawn: LogprobEntry, tokenizer: Tokenizer) -> None:
        self._drawn, self._tokenizer = drawn, tokenizer

    def __len__(self) -> int:
        return 1 + sum(token_id != self._drawn.token_id for token_id, _ in self._drawn.given)

    def __iter__(self) -> Iterator[LogprobEntry]:
        yield replace(self._drawn, top=())
        for token_id, logprob in self._drawn.given:
            if token_id != self._drawn.token_id:
                spelled = self._tokenizer.token_bytes(token_id)
                text = spelled.decode("utf-8", "replace")
                yield LogprobEntry(token_id=token_id, logprob=logprob, rank=0, text=text, bytes=spelled)


def chat_logprobs(entries: Sequence[LogprobEntry], *, as_id: bool = False) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    return {"content": ChatEntries(entries, as_id=as_id), "refusal": None}


class ChatEntries(MadeWhenRead[dict[str, Any]]):
    """Entries as chat logprobs list them; without `spelled` they have no `bytes`."""

    __slots__ = ("_as_id", "_entries", "_spelled")

    def __init__(self, entries: Sequence[LogprobEntry], *, as_id: bool = False, spelled: bool = True) -> None:
        self._entries, self._as_id, self._spelled = entries, as_id, spelled

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for entry in self._entries:
            yield {**self._one(entry), "top_logprobs": map(self._one, entry.top)}

    def _one(self, entry: LogprobEntry) -> dict[str, Any]:
        """One token; its bytes are exact even where it is only a part of a character."""
        token = spelled_id(entry.token_id) if self._as_id else entry.text
        found = {"token": token, "logprob": number(entry.logprob)}
        return {**found, "bytes": list(entry.bytes)} if self._spelled else found


def spelled_id(token_id: int) -> str:
    """A token as vLLM writes it for `return_tokens_as_token_ids`."""
    return f"token_id:{token_id}"


def token_text(entry: LogprobEntry, *, as_id: bool) -> str:
    """A token as completions write it: its text, or its bytes where they are not UTF-8."""
    if as_id:
        return spelled_id(entry.token_id)
    try:
        return entry.bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)


@dataclass(slots=True)
class TextLogprobs:
    """Builds the `logprobs` of a completion choice: those of an echoed prompt, then those of the text."""

    as_id: bool = False

    def prompt(
        self, ids: Sequence[int], entries: Sequence[LogprobEntry | None], spelled: Sequence[tuple[str, int]]
    ) -> dict[str, Any]:
        """The logprobs of an echoed prompt, None for its first token. `spelled` are texts and offsets of its tokens."""
        names = [spelled_id(i) if self.as_id else text for i, (text, _) in zip(ids, spelled, strict=True)]
        return {
            "text_offset": [offset for _, offset in spelled],
            "token_logprobs": [None if entry is None else number(entry.logprob) for entry in entries],
            "tokens": names,
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
        }

    def output(self, entries: Sequence[LogprobEntry], *, start: int = 0) -> dict[str, Any]:
        """The logprobs of new text; `start` is where the output begins in the choice's text."""
        return {
            "text_offset": [start + (entry.offset or 0) for entry in entries],
            "token_logprobs": [number(entry.logprob) for entry in entries],
            "tokens": [token_text(entry, as_id=self.as_id) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
        }

    def _top(self, entry: LogprobEntry) -> dict[str, float]:
        """The likeliest tokens and the drawn one by text; of two with one text, the less likely goes by its id."""
        found: dict[str, float] = {}
        chosen = () if any(each.token_id == entry.token_id for each in entry.top) else (entry,)
        for each in (*entry.top, *chosen):
            text = token_text(each, as_id=self.as_id)
            found[text if text not in found else spelled_id(each.token_id)] = number(each.logprob)
        return found


def joined(*parts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The concatenated parts of a choice's logprobs; None without any."""
    given = [part for part in parts if part is not None]
    if not given:
        return None
    return {key: [item for part in given for item in part[key]] for key in given[0]}


def prompt_logprobs(entries: Sequence[LogprobEntry | None] | None) -> list[Any] | None:
    """vLLM's `prompt_logprobs`: for each token of the prompt the likeliest tokens and its own, by id."""
    if entries is None:
        return None
    return [
        None
        if entry is None
        else {
            str(each.token_id): {"logprob": number(each.logprob), "rank": each.rank, "decoded_token": each.text}
            for each in (*entry.top, entry)
        }
        for entry in entries
    ]
