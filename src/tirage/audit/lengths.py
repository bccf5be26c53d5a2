"""Promises that hold or break in one answer: greedy texts, stops, limits of tokens, schemas, the model's name."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any

from tirage.audit.context import AuditContext, only_sample
from tirage.audit.evidence import Evidence, bernoulli
from tirage.audit.finding import Finding, judged, not_tested
from tirage.audit.server import NotTestedError, RefusedError
from tirage.engine import LogprobEntry
from tirage.errors import RemoteError
from tirage.params import GuidedDecodingParams
from tirage.remote.answer import AnswerPart, SamplePart

_NEVER = 1e-3
"""How often a server that keeps a promise about an answer may seem to break it."""
_FAULTS = {"now and then": 0.1, "often": 0.5, "always": 0.95}
_SOME = {"often": 0.5, "always": 0.95}
_TOKENS = 12
_GAP = 0.3
"""Two log-probabilities this close are a near-tie, whose order rounding may change."""
_PROMPTS = ("Once upon a time there was a", "One day, a little girl named Lily", "Tom and his mom went to the")


async def greedy_answers(context: AuditContext) -> list[tuple[str, SamplePart]]:
    """The greedy answer to each of three prompts."""
    params = context.params(temperature=0.0, max_tokens=_TOKENS, logprobs=2)
    answers = await context.server.ask_all([(prompt, params) for prompt in _PROMPTS])
    return [(prompt, only_sample(answer)) for prompt, answer in zip(_PROMPTS, answers, strict=True)]


async def check_greedy(context: AuditContext) -> Finding:
    """Whether temperature 0 gives the likeliest tokens, the same ones every time."""
    evidence = context.evidence()
    prediction = bernoulli(_NEVER, _FAULTS)
    bases = [(prompt, sample, firm_length(sample)) for prompt, sample in await greedy_answers(context)]
    await _likeliest(context, evidence)
    for _ in range(5):
        asked = [(prompt, _greedy(context)) for prompt, _, _ in bases for _ in range(4)]
        answers = await context.server.ask_all(asked)
        for (_, base, length), answer in zip([each for each in bases for _ in range(4)], answers, strict=True):
            sample = only_sample(answer)
            if length and min(len(tokens_of(base)), len(tokens_of(sample))) > 0:
                context.add(evidence, prediction, int(tokens_of(base)[:length] != tokens_of(sample)[:length]))
        if evidence.rejected or (evidence.outcomes and not evidence.uncleared()):
            break
    broken = "temperature 0 gives tokens that are not the likeliest, or other ones every time"
    return judged("greedy", evidence, kept="temperature 0 gives the likeliest tokens, always the same", broken=broken)


def _greedy(context: AuditContext) -> Any:
    return context.params(temperature=0.0, max_tokens=_TOKENS, logprobs=2)


async def _likeliest(context: AuditContext, evidence: Evidence) -> None:
    """Holds greedy first tokens against the lists of the positions, where the first two are apart."""
    clear = [each for each in context.positions if each.logprobs[0] - each.logprobs[1] > _GAP][:6]
    params = context.params(temperature=0.0, logprobs=1)
    for position, answer in zip(
        clear, await context.server.ask_all([(each.prompt, params) for each in clear]), strict=True
    ):
        entries = only_sample(answer).logprobs
        if entries:
            context.add(evidence, bernoulli(_NEVER, _FAULTS), int(position.index(entries[0]) != 0))


def tokens_of(sample: SamplePart) -> Sequence[Any]:
    """What tells a sample's tokens apart: ids, else their texts, else the characters of its text."""
    return sample.token_ids or [each.text for each in sample.logprobs] or sample.text


def firm_length(sample: SamplePart) -> int:
    """How many tokens of a greedy text come before the first near-tie; 8 at most where none is told."""
    if not sample.logprobs or len(sample.logprobs[0].top) < 2:
        return 8
    return next((i for i, each in enumerate(sample.logprobs) if _near_tie(each)), len(sample.logprobs))


def _near_tie(entry: LogprobEntry) -> bool:
    values = sorted((each.logprob for each in entry.top if math.isfinite(each.logprob)), reverse=True)
    return len(values) > 1 and values[0] - values[1] < _GAP


async def check_stop(context: AuditContext) -> Finding:
    """Whether a text ends before a stop string. Raises NotTestedError where greedy texts are too short for one."""
    evidence = context.evidence()
    prediction = bernoulli(_NEVER, _SOME)
    asked = []
    for prompt, sample in await greedy_answers(context):
        asked += [(prompt, stop) for stop in stops_in(sample.text)]
    if not asked:
        raise NotTestedError("no greedy text is long enough to hold a stop string")
    for _ in range(3):
        params = [context.params(temperature=0.0, max_tokens=_TOKENS, stop=[stop]) for _, stop in asked]
        answers = await context.server.ask_all([(each[0], one) for each, one in zip(asked, params, strict=True)])
        for (_, stop), answer in zip(asked, answers, strict=True):
            context.add(evidence, prediction, int(stop in only_sample(answer).text))
        if evidence.rejected or not evidence.uncleared():
            break
    return judged("stop", evidence, kept="a text ends before its stop string", broken="a stop string is in the text")


def stops_in(text: str) -> list[str]:
    """Up to three pieces of a text, each long enough to be rare, none at its beginning."""
    places = (len(text) // 4, len(text) // 2, 3 * len(text) // 4)
    pieces = [text[place : place + 4] for place in places if place > 1 and len(text) >= place + 4]
    return [piece for piece in pieces if piece.strip() and "\ufffd" not in piece]


def count_of(answer: AnswerPart) -> int | None:
    """The tokens of an answer of one sample: as many as it lists or says, None where it does neither."""
    sample = only_sample(answer)
    told = 0 if answer.usage is None else answer.usage.completion_tokens
    return max(len(sample.token_ids), len(sample.logprobs), told) or None


async def check_max_tokens(context: AuditContext) -> Finding:
    """Whether a text has no more tokens than `max_tokens`, and as many where that is said to have ended it.

    Raises NotTestedError for a server that tells no number of tokens.
    """
    evidence = context.evidence()
    prediction = bernoulli(_NEVER, _SOME)
    limits = (1, 2, 3, 5, 8)
    seen = ""
    for prompt in _PROMPTS:
        params = [context.params(max_tokens=limit, logprobs=1) for limit in limits]
        answers = await context.server.ask_all([(prompt, each) for each in params])
        for limit, answer in zip(limits, answers, strict=True):
            count, ending = count_of(answer), only_sample(answer).ending
            if count is None:
                raise NotTestedError("the server tells neither tokens nor their number")
            short = count < limit and ending is not None and ending.finish_reason == "length"
            seen = seen or (f"max_tokens={limit} gives {count} tokens" if count > limit or short else "")
            context.add(evidence, prediction, int(count > limit or short))
    return judged("max_tokens", evidence, kept="texts end after max_tokens tokens", broken=seen)


async def check_min_tokens(context: AuditContext) -> Finding:
    """Whether a text goes on to `min_tokens` although its first greedy token is one of `stop_token_ids`.

    Raises NotTestedError for a server that tells no ids, or does not end texts at them.
    """
    evidence = context.evidence()
    prediction = bernoulli(_NEVER, _SOME)
    seen = ""
    for prompt, sample in await greedy_answers(context):
        told = (*sample.token_ids[:1], *(each.token_id for each in sample.logprobs[:1]))
        first = told[0] if told else -1
        if first < 0:
            raise NotTestedError("the server tells no token ids, which stop_token_ids are given by")
        values = {"temperature": 0.0, "max_tokens": 12, "stop_token_ids": [first], "logprobs": 1}
        alone = count_of(await context.server.ask(prompt, context.params(**values)))
        if alone is not None and alone > 1:
            raise NotTestedError("stop_token_ids, with which texts were to end early, does not end them")
        params = context.params(**values, min_tokens=6)
        for answer in await context.server.ask_all([(prompt, params)] * 5):
            count = count_of(answer) or 0
            seen = seen or (f"min_tokens=6 gives {count} tokens" if count < 6 else "")
            context.add(evidence, prediction, int(count < 6))
        if evidence.rejected:
            break
    return judged("min_tokens", evidence, kept="no text ends before min_tokens tokens", broken=seen)


_SCHEMA = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "count": {"type": "integer", "minimum": 0, "maximum": 9}},
    "required": ["color", "count"],
    "additionalProperties": False,
}


async def check_schema(context: AuditContext) -> Finding:
    """Whether texts are JSON of a schema: whole where they end by themselves, else the beginning of some."""
    evidence = context.evidence()
    prediction = bernoulli(_NEVER, _SOME)
    seen = ""
    for _ in range(4):
        for answer in await _schema_answers(context, 4):
            sample = only_sample(answer)
            ended = sample.ending is not None and sample.ending.finish_reason == "stop"
            wrong = not (_fits(sample.text) if ended else _begins(sample.text))
            seen = seen or (f"the schema is not held: {sample.text[:60]!r}" if wrong else "")
            context.add(evidence, prediction, int(wrong))
        if evidence.rejected or not evidence.uncleared():
            break
    return judged("json schema", evidence, kept="texts are JSON of the schema", broken=seen)


async def _schema_answers(context: AuditContext, count: int) -> list[AnswerPart]:
    """Answers under the schema; of chats where the dialect's other route has no field for it."""
    server = context.server
    values = {"guided_decoding": GuidedDecodingParams(json=json.dumps(_SCHEMA)), "max_tokens": 64}
    prompt = "A color and a count, as JSON: "
    if server.has("guided_decoding"):
        return await server.ask_all([(prompt, context.params(**values)) for _ in range(count)])
    return [await server.ask_chat(prompt, context.params(**values)) for _ in range(count)]


def _fits(text: str) -> bool:
    """Whether a text is JSON of the schema."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return False
    if not isinstance(found, dict) or set(found) != {"color", "count"}:
        return False
    count = found["count"]
    whole = isinstance(count, int) and not isinstance(count, bool)
    return found["color"] in ("red", "green") and whole and 0 <= count <= 9


def _begins(text: str) -> bool:
    """Whether a text may go on to be JSON of the schema, as far as its first characters tell."""
    bare = "".join(text.split())
    return '{"color":'.startswith(bare) or '{"count":'.startswith(bare) or bare.startswith(('{"color":', '{"count":'))


async def check_model(context: AuditContext) -> Finding:
    """Whether a model that the server does not have is refused, without which its name says nothing.

    Nor does the name say anything where answers tell another one.
    """
    server = context.server
    if server.dialect.prompts.form != "openai" or not server.name:
        return not_tested("model", "requests of this dialect name no model", asked=False)
    others = sorted(server.answering - {server.name})
    if others:
        return not_tested(
            "model", f"answers are of {others[0]!r:.60}, where {server.name!r:.60} was asked", asked=False
        )
    try:
        await server.ask(_PROMPTS[0], context.params(), model="a-model-that-nobody-has")
    except RefusedError:
        return Finding(name="model", verdict="obeyed", detail="a model that it does not have is refused")
    except RemoteError as error:
        if error.status != 404:
            raise
        return Finding(name="model", verdict="obeyed", detail="a model that it does not have is refused")
    reason = f"the server answers to any name, so which model answers as {server.name!r} cannot be told"
    return not_tested("model", reason, asked=False)
