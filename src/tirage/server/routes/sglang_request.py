"""The body of `/generate`: SGLang's fields, read into one request per prompt and checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tirage.dialects.own import OWN
from tirage.dialects.sglang import BEAM_WIDTH, SGLANG
from tirage.dialects.table import Dialect, DialectError, ParsedParams, check_unsupported, join, listed
from tirage.dialects.unsupported import SGLANG_GENERATE
from tirage.engine import Prompt
from tirage.errors import nearest
from tirage.fields.rules import Bool, Ids, Int, OneOf, Rule, Text, Texts, shown
from tirage.params import BeamSearchParams, RequestOutputKind, SamplingParams
from tirage.server.media import MediaItem, read_sglang
from tirage.server.options import Options, check_limit
from tirage.server.plugins import with_named
from tirage.server.routes.budgets import with_budget
from tirage.server.routes.fields import (
    ANYTHING,
    CACHE_SALT,
    NOTED,
    Field,
    check_streamed_samples,
    json_body,
    object_schema,
    structured,
    table,
)

GENERATE: Dialect = join("sampling_params", Dialect.of("", "sglang", [listed("stop", rule=Texts())]), SGLANG, OWN)
"""The fields of `sampling_params`: SGLang's, and ours beside them. The operator's limits hold for stop strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderedIds(Ids):
    """A tuple of token ids in the order given, duplicates included: an answer has an entry for each."""

    def check(self, value: Any) -> tuple[int, ...]:
        Ids.check(self, value)
        return tuple(value)


def per_request(name: str, rule: Rule, default: Any, meaning: str, *, per_prompt: bool = False) -> Field:
    """A field with one value, whose error message names the default."""
    remedy = "leave it out" if default in (None, ()) else f"leave it out for the default, {default!r}"
    return Field(name, rule, default, meaning, per_prompt, remedy)


def per_prompt(name: str, rule: Rule, default: Any, meaning: str) -> Field:
    """A field that may hold a list with one value per prompt."""
    return per_request(name, rule, default, meaning, per_prompt=True)


_NAME = Text(max_bytes=4096, optional=True)
_IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_VECTORS = {"type": "array", "items": {"type": "array", "items": {"type": "number"}}}
_MODE = OneOf(("cumulative", "delta"))
_STREAM_OPTIONS = {"type": "object", "properties": {"mode": {"enum": list(_MODE.values)}}}
_SEMANTICS = OWN.entries["semantics"].rule

SAMPLING_FIELDS = table([
    per_request("beam_width", BEAM_WIDTH, None, "beams of a beam search; null for none"),
    per_request("stream_interval", Int(low=1, optional=True), None, "tokens per event of a stream, at least"),
])
"""Fields of `sampling_params` that are the route's own."""

_SAMPLING = object_schema(GENERATE.entries, GENERATE.unsupported, SAMPLING_FIELDS)

FIELDS = table([
    per_prompt("text", structured({"type": "string"}), None, "the prompt, or a list of prompts"),
    per_prompt("input_ids", structured(_IDS), None, "token ids instead of text"),
    per_prompt("input_embeds", structured(_VECTORS), None, "embeddings, one vector per token, instead of text"),
    per_request("output_ids", OrderedIds(), (), "tokens with which the answer begins; it goes on after them"),
    per_request("image_data", ANYTHING, None, "images as data URIs or base64; names and URLs where allowed"),
    per_request("audio_data", ANYTHING, None, "audio, given like images"),
    per_prompt("sampling_params", structured(_SAMPLING), None, "the sampling parameters of all prompts or of each"),
    per_prompt("rid", _NAME, None, "the client's own id of the request, by which it can be aborted"),
    per_prompt("return_logprob", Bool(), False, "report log-probabilities, after penalties, masks and temperature"),
    per_prompt("logprob_start_len", Int(low=-1), -1, "where in the prompt log-probabilities begin; -1: outputs only"),
    per_prompt("top_logprobs_num", Int(low=0), 0, "how many of the likeliest tokens to report"),
    per_prompt("token_ids_logprob", OrderedIds(), (), "tokens whose log-probabilities to report at every step"),
    per_prompt("lora_path", _NAME, None, "the name of a LoRA adapter that the operator has loaded"),
    per_prompt("max_thinking_tokens", Int(low=0, optional=True), None, "SGLang's name of thinking_budget"),
    per_prompt("cache_salt", CACHE_SALT, None, "only prompts with the same text share cached prefixes"),
    per_prompt("custom_logit_processor", _NAME, None, "a reference to a processor that the operator has registered"),
    per_prompt("return_hidden_states", Bool(), False, "report the last layer's states of every token that was read"),
    per_request("return_text_in_logprobs", Bool(), False, "third member of log-probability tuples: the token's text"),
    per_request("return_prompt_token_ids", Bool(), False, "report the prompt's token ids"),
    per_request("return_effective_params", Bool(), False, "report the parameters in force, with seed and defaults"),
    per_request("stream", Bool(), False, "send the answer as it grows, as server-sent events"),
    per_request("stream_options", structured(_STREAM_OPTIONS), None, "what the events of a stream hold"),
    per_request("semantics", _SEMANTICS, None, "the preset of every prompt that names none itself"),
    per_request("session_id", _NAME, None, NOTED),
    per_request("conversation_id", _NAME, None, NOTED),
])
"""Every field of a request."""

SOURCES = ("text", "input_ids", "input_embeds")
"""The fields that hold the prompts, of which a request has one; at this index each has so many levels of lists."""

BODY = json_body(object_schema(SGLANG_GENERATE, FIELDS))
"""What the route's OpenAPI entry says of the body."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """The request for one prompt. Members that are called like a field hold its value; the others are:

    `start`, where log-probabilities of the prompt begin, None without any; `media`, the images and audio, not loaded
    yet; `has_limit`, whether the request itself says how many tokens to draw; `where`, the place of its sampling
    fields.
    """

    prompt: Prompt
    params: SamplingParams
    beams: BeamSearchParams | None = None
    rid: str | None = None
    media: tuple[MediaItem, ...] = ()
    return_logprob: bool = False
    start: int | None = None
    token_ids_logprob: tuple[int, ...] = ()
    return_hidden_states: bool = False
    cache_salt: str | None = None
    stream_interval: int = 1
    has_limit: bool = False
    stop_regex: tuple[str, ...] = ()
    where: str = ""

    @property
    def returned(self) -> int:
        """How many entries of the answer belong to this prompt."""
        return 1 if self.beams is not None else self.params.n


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBody:
    """A body of `/generate`: a request per prompt, and what holds for the whole answer.

    `source` is the field that held the prompts. With `delta` an event of a stream has only what is new.
    """

    requests: tuple[GenerateRequest, ...]
    batch: bool
    delta: bool
    stream: bool
    return_text_in_logprobs: bool
    return_prompt_token_ids: bool
    return_effective_params: bool
    source: str = "text"
    rid: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def is_list(self) -> bool:
        """Whether the answer is a list: for a batch, or more than one sample."""
        return self.batch or any(request.returned > 1 for request in self.requests)


def read_body(body: Mapping[str, Any], options: Options, *, lenient: bool = False) -> GenerateBody:
    """The requests in a body; raises DialectError or ParamsError that names the first field that breaks a rule.

    With `lenient` unknown fields are ignored and listed. Images and audio are not loaded here.
    """
    unknown = check_known(body, lenient=lenient)
    prompts, batch = read_prompts(body, options)
    media = read_media(body, len(prompts), batch)
    simple = [each for each in FIELDS.values() if not each.has_reader]
    given = {each.name: spread(each, body, len(prompts), batch) for each in simple if each.per_prompt}
    whole = {each.name: each.read(body) for each in simple if not each.per_prompt}
    given["rid"] = read_rids(body.get("rid"), given["rid"], len(prompts), options)
    requests, ignored = [], dict.fromkeys(unknown)
    for number, sampling in enumerate(read_params(body, whole["semantics"], len(prompts), batch, lenient=lenient)):
        if whole["stream"]:
            check_streamed_samples(sampling.parsed.params, sampling.where)
        own = {name: values[number] for name, values in given.items()}
        requests.append(replace(read_request(prompts[number], sampling, own, options), media=media[number]))
        ignored |= dict.fromkeys(sampling.where + name for name in sampling.parsed.ignored)
    if whole["output_ids"]:
        requests = [with_beginning(each, whole["output_ids"], body) for each in requests]
    return GenerateBody(
        requests=tuple(requests),
        batch=batch,
        delta=read_mode(body.get("stream_options"), stream=whole["stream"]) == "delta",
        stream=whole["stream"],
        return_text_in_logprobs=whole["return_text_in_logprobs"],
        return_prompt_token_ids=whole["return_prompt_token_ids"],
        return_effective_params=whole["return_effective_params"],
        source=next(name for name in SOURCES if body.get(name) is not None),
        rid=body["rid"] if isinstance(body.get("rid"), str) else None,
        ignored=tuple(ignored),
    )


def with_beginning(request: GenerateRequest, output_ids: tuple[int, ...], body: Mapping[str, Any]) -> GenerateRequest:
    """The request with the tokens that its answer begins with; raises DialectError where it cannot be replayed."""
    if body.get("return_effective_params"):
        raise DialectError("output_ids must be left out with return_effective_params; leave one out", "output_ids")
    return replace(request, prompt=replace(request.prompt, output_ids=output_ids))


def check_known(body: Mapping[str, Any], *, lenient: bool) -> tuple[str, ...]:
    """The unknown names, if `lenient`; otherwise raises DialectError for them, and for fields without effect here."""
    unknown = tuple(name for name in body if name not in FIELDS and name not in SGLANG_GENERATE)
    if unknown and not lenient:
        name = unknown[0]
        hint = f"; did you mean sampling_params.{name}?" if name in GENERATE.names else nearest(name, FIELDS)
        raise DialectError(f"/generate field must be a known name, got {shown(name)}{hint or '; leave it out'}", name)
    for name in body.keys() & SGLANG_GENERATE.keys():
        check_unsupported(SGLANG_GENERATE, name, body[name])
    return unknown


def read_prompts(body: Mapping[str, Any], options: Options) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a batch; raises DialectError unless one field holds them."""
    found = [name for name in SOURCES if body.get(name) is not None]
    if len(found) != 1:
        got = " and ".join(found) or "none of them"
        raise DialectError(f"text must be given, or input_ids or input_embeds instead, got {got}; give one", "text")
    name = found[0]
    values, batch = batched(name, body[name], SOURCES.index(name))
    check_limit(options.limits, "max_prompts", len(values), "prompts")
    return [prompt_of(name, value, f"{name}[{i}]" if batch else name) for i, value in enumerate(values)], batch


def read_media(body: Mapping[str, Any], count: int, batch: bool) -> list[tuple[MediaItem, ...]]:
    """The images and audio of each prompt, not loaded yet; raises DialectError for media without text."""
    images = read_sglang("image", "image_data", body.get("image_data"), prompts=count, batch=batch)
    audio = read_sglang("audio", "audio_data", body.get("audio_data"), prompts=count, batch=batch)
    found = [(*pictures, *sounds) for pictures, sounds in zip(images, audio, strict=True)]
    if any(found) and body.get("text") is None:
        name = "image_data" if any(images) else "audio_data"
        raise DialectError(f"{name} must come with text, whose marks they stand for, got none; give text", name)
    return found


def batched(name: str, value: Any, depth: int) -> tuple[list[Any], bool]:
    """The value of each prompt, and whether it is a batch: one prompt is `depth` levels of lists, a batch one more.

    Raises DialectError for fewer levels, and for empty lists.
    """
    if depth == 0:
        batch = isinstance(value, list)
    else:
        inner = value
        for _ in range(depth):
            if not isinstance(inner, list) or not inner:
                raise DialectError(f"{name} must be a list that is not empty, got {shown(value)}; give a prompt", name)
            inner = inner[0]
        batch = isinstance(inner, list)
    if not batch:
        return [value], False
    if not value:
        raise DialectError(f"{name} must hold at least one prompt, got an empty list; give a prompt", name)
    return value, True


def prompt_of(name: str, value: Any, where: str) -> Prompt:
    """The Prompt of one value; raises DialectError. Ids and vectors are checked against the model later."""
    kind = str if name == "text" else list
    if not isinstance(value, kind) or (kind is list and not value):
        word = "a text" if name == "text" else "a list that is not empty"
        raise DialectError(f"{where} must be {word}, got {shown(value)}; give a prompt", where)
    if isinstance(value, str):
        return Prompt(text=value)
    if name == "input_ids":
        return Prompt(token_ids=tuple(ids_of(value, where)))
    return Prompt(embeds=embeds_of(value, where))


def ids_of(value: Sequence[Any], where: str) -> Sequence[int]:
    """The value, if it is a list of integers; else raises DialectError."""
    for index, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int):
            place = f"{where}[{index}]"
            raise DialectError(f"{place} must be a token id, got {shown(token)}; give integers", place)
    return value


def embeds_of(value: Sequence[Any], where: str) -> Any:
    """The vectors as a float32 array [tokens, width]; raises DialectError unless they are equally long."""
    import numpy as np

    width = len(value[0]) if isinstance(value[0], list) else 0
    vectors = np.empty((len(value), width), np.float32)
    for index, row in enumerate(value):
        plain = isinstance(row, list) and all(isinstance(x, (int, float)) and not isinstance(x, bool) for x in row)
        if not plain or not row or len(row) != width:
            place = f"{where}[{index}]"
            raise DialectError(f"{place} must be a list of as many numbers as the others, got {shown(row)}", place)
        try:
            with np.errstate(over="ignore"):
                vectors[index] = row
        except OverflowError:
            place = f"{where}[{index}]"
            raise DialectError(f"{place} must be numbers that float32 can hold, got {shown(row)}", place) from None
    return vectors


def spread(field: Field, body: Mapping[str, Any], count: int, batch: bool) -> list[Any]:
    """The field's value for each prompt, from one value for all or, in a batch, a list with one each.

    Raises DialectError for a list of another length.
    """
    value = body.get(field.name)
    if not isinstance(value, list) or (isinstance(field.rule, Ids) and is_flat(value)):
        return [None] * count if field.name == "rid" and batch else [field.check(value, field.name)] * count
    if not batch or len(value) != count:
        raise DialectError(
            f"{field.name} must be one value, or in a batch one per prompt ({count}), got a list of {len(value)}",
            field.name,
        )
    return [field.check(item, f"{field.name}[{index}]") for index, item in enumerate(value)]


def is_flat(value: Sequence[Any]) -> bool:
    """Whether a list is one value, a list of ids, and not a list of such lists."""
    return not any(item is None or isinstance(item, list) for item in value)


def read_rids(value: Any, each: list[Any], count: int, options: Options) -> list[str | None]:
    """The id of each prompt; one text for a batch gets numbers. Raises DialectError for two that are equal."""
    rids: list[str | None] = list(each)
    if isinstance(value, str) and each == [None] * count:
        rids = [f"{value}_{index}" for index in range(count)]
    given = [rid for rid in rids if rid is not None]
    for rid in given:
        check_limit(options.limits, "max_rid", len(rid), "rid characters")
    twice = [rid for rid in given if given.count(rid) > 1]
    if twice:
        raise DialectError(f"rid must differ from prompt to prompt, got {shown(twice[0])} twice", "rid")
    if value is not None and not isinstance(value, (str, list)):
        raise DialectError(f"rid must be a text or a list of texts, got {shown(value)}; leave it out", "rid")
    return rids


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingObject:
    """A `sampling_params` object that was read: the parameters, the route's own fields, and the place of them all."""

    parsed: ParsedParams
    own: Mapping[str, Any]
    where: str


def read_params(
    body: Mapping[str, Any], semantics: str | None, count: int, batch: bool, *, lenient: bool
) -> list[SamplingObject]:
    """The `sampling_params` of each prompt; one object for all is read once. Raises DialectError for wrong ones."""
    value = body.get("sampling_params")
    if not isinstance(value, list):
        return [read_sampling(value, "sampling_params.", semantics, lenient=lenient)] * count
    if not batch or len(value) != count:
        raise DialectError(
            f"sampling_params must be one object, or in a batch one per prompt ({count}), got a list of {len(value)}",
            "sampling_params",
        )
    places = (f"sampling_params[{index}]." for index in range(count))
    return [read_sampling(each, where, semantics, lenient=lenient) for each, where in zip(value, places, strict=True)]


def read_sampling(plain: Any, where: str, semantics: str | None, *, lenient: bool) -> SamplingObject:
    """One `sampling_params` object, null for none; `semantics` is that of the whole request. Raises DialectError."""
    plain = {} if plain is None else plain
    if not isinstance(plain, Mapping):
        raise DialectError(f"{where[:-1]} must be an object, got {shown(plain)}; leave it out", where[:-1])
    rest = {name: value for name, value in plain.items() if name not in SAMPLING_FIELDS}
    if not lenient:
        check_place(rest, where)
    # Cumulative events are put together by the route: the engine would build the whole text anew for every token.
    defaults: dict[str, Any] = {"output_kind": RequestOutputKind.DELTA}
    if semantics is not None:
        defaults["semantics"] = semantics
    known = (*SAMPLING_FIELDS, *FIELDS)
    parsed = GENERATE.read(rest, where=where, known=known, defaults=defaults, lenient=lenient)
    own = {name: each.read(plain, where) for name, each in SAMPLING_FIELDS.items()}
    return SamplingObject(parsed=parsed, own=own, where=where)


def check_place(sampling: Mapping[str, Any], where: str) -> None:
    """Raises DialectError for a field that stands among the sampling parameters and belongs beside them."""
    name = next((name for name in sampling if name in FIELDS and name not in GENERATE.names), None)
    if name is not None and name not in GENERATE.unsupported:
        raise DialectError(
            f"{name} must stand beside sampling_params, at the top level of the body, got it in {where[:-1]}; move it",
            f"{where}{name}",
        )


def read_mode(value: Any, *, stream: bool) -> str:
    """What events hold: all the text so far ("cumulative", as SGLang's do), or what is new ("delta").

    Raises DialectError for other values, and without a stream.
    """
    if value is None:
        return "cumulative"
    if not isinstance(value, Mapping) or set(value) - {"mode"}:
        raise DialectError(
            'stream_options must be an object such as {"mode": "delta"}, got ' + shown(value), "stream_options"
        )
    if not stream:
        raise DialectError(
            "stream_options must go with stream=true, got stream=false; leave them out", "stream_options"
        )
    return per_request("mode", _MODE, "cumulative", "").read(value, "stream_options.")


def read_request(prompt: Prompt, sampling: SamplingObject, given: dict[str, Any], options: Options) -> GenerateRequest:
    """The request for one prompt; raises DialectError for fields that contradict each other."""
    sent, where = sampling.parsed.given, sampling.where
    params = with_named(
        sampling.parsed.params, given["custom_logit_processor"], sent.get("custom_params"), options, where
    )
    check_limit(options.limits, "max_logprob_ids", len(given["token_ids_logprob"]), "number of token_ids_logprob")
    if given["max_thinking_tokens"] is not None:
        params = with_budget(params, "max_thinking_tokens", given["max_thinking_tokens"])
    params, start = with_logprobs(params, given, mode=sent.get("logprobs_mode"))
    if start is not None and prompt.embeds is not None:
        raise DialectError(
            "logprob_start_len must be -1 for input_embeds, whose prompt has no tokens; leave it out",
            "logprob_start_len",
        )
    request = GenerateRequest(
        prompt=replace(prompt, adapter=adapter_of(given["lora_path"])),
        params=params,
        rid=given["rid"],
        return_logprob=given["return_logprob"],
        start=start,
        token_ids_logprob=given["token_ids_logprob"],
        return_hidden_states=given["return_hidden_states"],
        cache_salt=given["cache_salt"],
        stream_interval=sampling.own["stream_interval"] or 1,
        has_limit=sent.get("max_new_tokens") is not None,
        stop_regex=tuple(sent.get("stop_regex") or ()),
        where=where,
    )
    return with_beams(request, sampling.own["beam_width"], has_n="n" in sent)


def adapter_of(name: str | None) -> str | None:
    """The adapter's name; raises DialectError for what could be a path, before anything looks for it."""
    if name is not None and (
        len(name) > 128 or not name.isprintable() or any(c in name for c in "/\\") or ".." in name
    ):
        raise DialectError("lora_path must be the name of a loaded adapter, got a path or the like", "lora_path")
    return name


_WITHOUT_LOGPROBS: Mapping[str, tuple[Any, ...]] = {
    "logprob_start_len": (-1, 0),
    "top_logprobs_num": (0,),
    "token_ids_logprob": ((),),
}
"""What SGLang's clients send even when they want no log-probabilities."""


def with_logprobs(params: SamplingParams, given: Mapping[str, Any], *, mode: Any) -> tuple[SamplingParams, int | None]:
    """The parameters with the log-probabilities that a request wants, and where in the prompt they begin.

    Raises DialectError for fields that need `return_logprob`.
    """
    if not given["return_logprob"]:
        for name, inert in _WITHOUT_LOGPROBS.items():
            if given[name] not in inert:
                got = shown(given[name])
                raise DialectError(f"{name} must go with return_logprob=true, got {got}; leave it out", name)
        return params, None
    start, top, ids = (given[name] for name in ("logprob_start_len", "top_logprobs_num", "token_ids_logprob"))
    changed = params.replace(
        logprobs=top,
        prompt_logprobs=top if start >= 0 else None,
        logprob_token_ids=ids,
        logprobs_mode=mode or "processed",
    )
    return changed, start if start >= 0 else None


def with_beams(request: GenerateRequest, width: int | None, *, has_n: bool) -> GenerateRequest:
    """The request as a beam search if it has a `beam_width`; `n` is then how many hypotheses come back.

    Raises DialectError without a token limit, and for more hypotheses than beams.
    """
    if width is None:
        return request
    params = request.params
    if params.max_tokens is None:
        place = f"{request.where}max_new_tokens"
        raise DialectError(f"{place} must be a number with beam_width, got null; give a limit", place)
    if has_n and params.n > width:
        place = f"{request.where}n"
        raise DialectError(f"{place} must be at most beam_width, {width}, got {params.n}", place)
    beams = BeamSearchParams(
        beam_width=width,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        include_stop_str_in_output=params.include_stop_str_in_output,
        early_stopping="never",
        num_return_sequences=params.n if has_n else None,
    )
    return replace(request, beams=beams, params=params.replace(n=1))
