"""OpenAI's response objects, exactly the keys that OpenAI publishes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tirage.engine import Completion, Sample
from tirage.engine.completion import LogprobEntry
from tirage.params import SamplingParams
from tirage.server import errors
from tirage.server.routes.sglang_shapes import matched
from tirage.text import Stop, Tokenizer

_STOPS = frozenset({"eos", "token", "string", "regex", "grammar"})
LEAST_LOGPROB = -9999.0
"""What stands for minus infinity, which JSON cannot write; vLLM's choice."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What every object of one answer begins with."""

    id: str
    created: int
    model: str
    fingerprint: str

    def of(self, kind: str, choices: Sequence[Any], **more: Any) -> dict[str, Any]:
        """An object of that kind with its choices."""
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.fingerprint,
            "choices": list(choices),
            **more,
        }


def usage(completions: Sequence[Completion]) -> dict[str, Any]:
    """Tokens of an answer: every prompt once, and all that was drawn."""
    prompt = sum(completion.usage.prompt_tokens for completion in completions)
    drawn = sum(completion.usage.completion_tokens for completion in completions)
    cached = sum(completion.usage.cached_tokens for completion in completions)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": drawn,
        "total_tokens": prompt + drawn,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def stops_of(stop: Stop | None, token_ids: Sequence[int]) -> dict[str, Any]:
    """What ended a choice, besides OpenAI's keys: vLLM's `stop_reason`, SGLang's `matched_stop`.

    Both are the stop string or pattern, or the id of a stop token, and None at a limit. Only `matched_stop` tells the
    token of an end that the request did not name: an end of sequence, the last one of a complete constraint.
    """
    if stop is None or stop.kind not in _STOPS:
        return {"stop_reason": None, "matched_stop": None}
    named = stop.matched if stop.kind in {"token", "string", "regex"} else None
    return {"stop_reason": named, "matched_stop": matched(stop, token_ids, ())}


def raise_failed(completions: Sequence[Completion]) -> None:
    """Refusal for a sample that ended with an error or was aborted."""
    for completion in completions:
        for sample in completion.samples:
            if sample.finish_reason in {"error", "abort"}:
                raise errors.of_stop(sample.stop)


def text_entries(sample: Sample, *, included: bool) -> Sequence[LogprobEntry]:
    """The entries of the tokens that the sample's text is made of, without those of a stop that it leaves out."""
    return shown_entries(sample.logprobs or (), sample.stop, len(sample.text), included=included)


def shown_entries(
    entries: Sequence[LogprobEntry], stop: Stop | None, length: int, *, included: bool
) -> Sequence[LogprobEntry]:
    """The last entries of a text of that length, without those of a stop that it leaves out."""
    if stop is None or included:
        return entries
    if stop.kind in {"eos", "token"} or stop.matched == "close_grammar":
        return entries[:-1]
    if stop.kind in {"string", "regex"}:
        return [entry for entry in entries if entry.offset is None or entry.offset < length]
    return entries


def bare_start(entries: Sequence[LogprobEntry], length: int) -> Sequence[LogprobEntry]:
    """The first entries of a text of that length that stands alone, without the space that it has dropped.

    A vocabulary that marks word starts begins every text with one.
    """
    if not entries or entries[0].offset != 0 or not entries[0].text.startswith(" "):
        return entries
    end = length if len(entries) == 1 else entries[1].offset
    if end != len(entries[0].text) - 1:
        return entries
    return [bare(entries[0], entries[0].token_id), *entries[1:]]


def bare(entry: LogprobEntry, token_id: int) -> LogprobEntry:
    """The entry without the space before that token, wherever it is the token."""
    top = tuple(bare(each, token_id) for each in entry.top)
    if entry.token_id != token_id:
        return replace(entry, top=top)
    return replace(entry, text=entry.text[1:], bytes=entry.bytes[1:], top=top)


def number(logprob: float) -> float:
    """A log-probability as JSON can hold it."""
    return logprob if math.isfinite(logprob) else LEAST_LOGPROB


def asked_for(entries: Sequence[LogprobEntry], params: SamplingParams, tokenizer: Tokenizer) -> Sequence[LogprobEntry]:
    """The entries with as many of the likeliest tokens as `logprobs` asks for.

    With `logprob_token_ids` they are the drawn token and those instead, as in vLLM.
    """
    ids, count = params.logprob_token_ids, params.logprobs or 0
    if not ids:
        return [replace(each, top=each.top[:count]) for each in entries]
    return [replace(each, top=(replace(each, top=()), *named(each, tokenizer))) for each in entries]


def named(drawn: LogprobEntry, tokenizer: Tokenizer) -> Iterator[LogprobEntry]:
    """Entries of the tokens of `logprob_token_ids` but the drawn one; nobody has counted their ranks, which are 0."""
    for token_id, logprob in drawn.given:
        if token_id != drawn.token_id:
            spelled = tokenizer.token_bytes(token_id)
            text = spelled.decode("utf-8", "replace")
            yield LogprobEntry(token_id=token_id, logprob=logprob, rank=0, text=text, bytes=spelled)


def chat_logprobs(entries: Sequence[LogprobEntry], *, as_id: bool = False) -> dict[str, Any]:
    """The `logprobs` of a chat choice."""
    content = [
        {
            **chat_entry(entry, as_id=as_id),
            "top_logprobs": [chat_entry(each, as_id=as_id) for each in entry.top],
        }
        for entry in entries
    ]
    return {"content": content, "refusal": None}


def chat_entry(entry: LogprobEntry, *, as_id: bool) -> dict[str, Any]:
    """One token of chat logprobs; `bytes` are its own even where its text alone is no character."""
    token = spelled_id(entry.token_id) if as_id else entry.text
    return {"token": token, "logprob": number(entry.logprob), "bytes": list(entry.bytes)}


def spelled_id(token_id: int) -> str:
    """A token as vLLM spells it for `return_tokens_as_token_ids`."""
    return f"token_id:{token_id}"


def token_text(entry: LogprobEntry, *, as_id: bool) -> str:
    """A token as completions spell it: its text, or its bytes where they are no text."""
    if as_id:
        return spelled_id(entry.token_id)
    try:
        return entry.bytes.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in entry.bytes)


@dataclass(slots=True)
class TextLogprobs:
    """The `logprobs` of a completion choice, as its parts come: the prompt's where it is echoed, then the text's.

    `offsets` are places in the choice's text.
    """

    as_id: bool = False

    def prompt(
        self, ids: Sequence[int], entries: Sequence[LogprobEntry | None], spelled: Sequence[tuple[str, int]]
    ) -> dict[str, Any]:
        """The part of an echoed prompt; nothing precedes its first token."""
        names = [spelled_id(i) if self.as_id else text for i, (text, _) in zip(ids, spelled, strict=True)]
        return {
            "text_offset": [offset for _, offset in spelled],
            "token_logprobs": [None if entry is None else number(entry.logprob) for entry in entries],
            "tokens": names,
            "top_logprobs": [None if entry is None else self._top(entry) for entry in entries],
        }

    def output(self, entries: Sequence[LogprobEntry], *, start: int = 0) -> dict[str, Any]:
        """The part of new text that begins at `start`."""
        return {
            "text_offset": [start + (entry.offset or 0) for entry in entries],
            "token_logprobs": [number(entry.logprob) for entry in entries],
            "tokens": [token_text(entry, as_id=self.as_id) for entry in entries],
            "top_logprobs": [self._top(entry) for entry in entries],
        }

    def _top(self, entry: LogprobEntry) -> dict[str, float]:
        """The likeliest tokens and the one drawn; of two that are spelled alike, the less likely goes by its id."""
        found: dict[str, float] = {}
        chosen = () if any(each.token_id == entry.token_id for each in entry.top) else (entry,)
        for each in (*entry.top, *chosen):
            text = token_text(each, as_id=self.as_id)
            found[text if text not in found else spelled_id(each.token_id)] = number(each.logprob)
        return found


def joined(*parts: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Parts of a choice's logprobs as one."""
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
