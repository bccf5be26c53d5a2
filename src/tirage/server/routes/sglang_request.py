"""The body of `/generate`, SGLang's fields: what each prompt asks for, checked before anything runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tirage.dialects.own import OWN
from tirage.dialects.schema import nullable, schema_of
from tirage.dialects.sglang import BEAM_WIDTH, SGLANG
from tirage.dialects.table import Dialect, DialectError, ParsedParams, check_unsupported, join, listed
from tirage.dialects.unsupported import SGLANG_GENERATE
from tirage.engine import Prompt
from tirage.errors import nearest
from tirage.fields.rules import Bool, BrokenRuleError, Ids, Int, OneOf, Rule, Text, Texts, shown
from tirage.params import BeamSearchParams, SamplingParams
from tirage.server.media import MediaItem, read_sglang
from tirage.server.options import Options, check_limit
from tirage.server.plugins import with_named
from tirage.server.routes.fields import NOTED

GENERATE: Dialect = join("sampling_params", Dialect.of("", "sglang", [listed("stop", rule=Texts())]), SGLANG, OWN)
"""The fields of `sampling_params`: SGLang's, and ours beside them. The operator's limits hold for stop strings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdsAsAsked(Ids):
    """A tuple of token ids in their order, as often as they are given: an answer has an entry for each."""

    def check(self, value: Any) -> tuple[int, ...]:
        Ids.check(self, value)
        return tuple(value)


_NAME = Text(max_bytes=4096, optional=True)
EACH: Mapping[str, tuple[Rule, Any, str]] = {
    "rid": (_NAME, None, "the client's own id of the request, by which it can be aborted"),
    "return_logprob": (Bool(), False, "report log-probabilities, after penalties, masks and temperature"),
    "logprob_start_len": (Int(low=-1), -1, "where in the prompt log-probabilities begin; -1 for outputs only"),
    "top_logprobs_num": (Int(low=0), 0, "how many of the likeliest tokens to report"),
    "token_ids_logprob": (IdsAsAsked(), (), "tokens whose log-probabilities to report at every step"),
    "lora_path": (_NAME, None, "the name of a LoRA adapter that the operator has loaded"),
    "custom_logit_processor": (_NAME, None, "a reference to a processor that the operator has registered"),
    "return_hidden_states": (Bool(), False, "report the last layer's states of every token that was read"),
}
"""Fields that may hold a list with one value per prompt: rule of one, default, meaning."""

WHOLE: Mapping[str, tuple[Rule, Any, str]] = {
    "return_text_in_logprobs": (Bool(), False, "third member of log-probability tuples: the token's text"),
    "stream": (Bool(), False, "send the answer as it grows, as server-sent events"),
    "return_prompt_token_ids": (Bool(), False, "report the prompt's token ids"),
    "return_effective_params": (Bool(), False, "report the parameters in force, with the seed and all defaults"),
    "session_id": (_NAME, None, NOTED),
    "conversation_id": (_NAME, None, NOTED),
}
"""Fields of the request as a whole."""

SOURCES = ("text", "input_ids", "input_embeds")
MEDIA = ("image_data", "audio_data")
NAMES = (*SOURCES, *MEDIA, *EACH, *WHOLE, "sampling_params", "stream_options", "semantics")
MODE = OneOf(("cumulative", "delta"))
INTERVAL = Int(low=1, optional=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateRequest:
    """What one prompt asks for; `media` go into the prompt once they are loaded.

    `start` is where prompt log-probabilities begin, None without any; `ids` are the tokens of `token_ids_logprob`.
    `limited`: the request itself names a number of tokens. `patterns` are its `stop_regex`. `where` is the place of
    its fields.
    """

    prompt: Prompt
    params: SamplingParams
    beams: BeamSearchParams | None = None
    rid: str | None = None
    media: tuple[MediaItem, ...] = ()
    logprobs: bool = False
    start: int | None = None
    ids: tuple[int, ...] = ()
    hidden_states: bool = False
    interval: int = 1
    limited: bool = False
    patterns: tuple[str, ...] = ()
    where: str = ""

    @property
    def answers(self) -> int:
        """How many entries of the answer are this prompt's."""
        return 1 if self.beams is not None else self.params.n


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateBody:
    """A request: its prompts in order, and how it wants to be answered. `source` is the field they came in."""

    asks: tuple[GenerateRequest, ...]
    batch: bool
    stream: bool
    delta: bool
    text_in_logprobs: bool
    prompt_ids: bool
    effective: bool
    source: str = "text"
    rid: str | None = None
    ignored: tuple[str, ...] = ()

    @property
    def listed(self) -> bool:
        """Whether the answer is a list: a batch, or more than one sample."""
        return self.batch or any(ask.answers > 1 for ask in self.asks)


def read_body(body: Mapping[str, Any], options: Options, *, lenient: bool = False) -> GenerateBody:
    """The request that a body describes; DialectError or ParamsError names the first field that breaks a rule.

    `lenient` ignores unknown fields and lists them. Images and sounds are not read here.
    """
    ignored = refuse_unknown(body, lenient=lenient)
    prompts, batch = read_prompts(body, options)
    media = read_media(body, len(prompts), batch)
    each = {name: spread(body, name, len(prompts), batch) for name in EACH}
    whole = {name: one(name, body.get(name), *WHOLE[name][:2]) for name in WHOLE}
    rids = read_rids(body.get("rid"), each["rid"], len(prompts), options)
    asks, more = [], []
    for number, sampling in enumerate(read_params(body, len(prompts), batch, lenient=lenient)):
        given = {name: values[number] for name, values in each.items()} | {"rid": rids[number]}
        asks.append(replace(read_ask(prompts[number], sampling, given, options), media=media[number]))
        more += [sampling.where + name for name in sampling.reading.ignored]
    return GenerateBody(
        asks=tuple(asks),
        batch=batch,
        stream=whole["stream"],
        delta=read_mode(body.get("stream_options"), stream=whole["stream"]) == "delta",
        text_in_logprobs=whole["return_text_in_logprobs"],
        prompt_ids=whole["return_prompt_token_ids"],
        effective=whole["return_effective_params"],
        source=next(name for name in SOURCES if body.get(name) is not None),
        rid=body["rid"] if isinstance(body.get("rid"), str) else None,
        ignored=(*ignored, *dict.fromkeys(more)),
    )


def refuse_unknown(body: Mapping[str, Any], *, lenient: bool) -> tuple[str, ...]:
    """The unknown names, where they may be ignored; DialectError for them, or for fields that have no part here."""
    unknown = tuple(name for name in body if name not in NAMES and name not in SGLANG_GENERATE)
    if unknown and not lenient:
        name = unknown[0]
        inner = f"; did you mean sampling_params.{name}?" if name in GENERATE.names else nearest(name, NAMES)
        inner = inner or "; leave it out"
        raise DialectError(f"/generate field must be a known name, got {shown(name)}{inner}", name)
    for name in body.keys() & SGLANG_GENERATE.keys():
        check_unsupported(SGLANG_GENERATE, name, body[name])
    return unknown


def one(name: str, value: Any, rule: Rule, default: Any, where: str = "") -> Any:
    """A value as its rule stores it; null is the default."""
    if value is None:
        return default
    try:
        return rule.check(value)
    except BrokenRuleError as broken:
        place = f"{name}{where}{broken.where}"
        message = f"{place} must be {broken.rule}, got {shown(broken.value)}; leave it out"
        message += f" for the default, {default!r}" if default not in (None, ()) else ""
        raise DialectError(message, place) from None


def read_prompts(body: Mapping[str, Any], options: Options) -> tuple[list[Prompt], bool]:
    """The prompts, and whether they came as a batch; exactly one source is given."""
    found = [name for name in SOURCES if body.get(name) is not None]
    if len(found) != 1:
        got = " and ".join(found) or "none of them"
        raise DialectError(f"text must be given, or input_ids or input_embeds instead, got {got}; give one", "text")
    name = found[0]
    values, batch = batched(name, body[name], SOURCES.index(name))
    check_limit(options.limits, "max_prompts", len(values), "prompts")
    return [prompt_of(name, value, f"{name}[{i}]" if batch else name) for i, value in enumerate(values)], batch


def read_media(body: Mapping[str, Any], count: int, batch: bool) -> list[tuple[MediaItem, ...]]:
    """The images and sounds of each prompt, not yet loaded."""
    images = read_sglang("image", "image_data", body.get("image_data"), prompts=count, batch=batch)
    audio = read_sglang("audio", "audio_data", body.get("audio_data"), prompts=count, batch=batch)
    found = [(*seen, *heard) for seen, heard in zip(images, audio, strict=True)]
    if any(found) and body.get("text") is None:
        name = "image_data" if any(images) else "audio_data"
        raise DialectError(f"{name} must come with text, whose marks they stand for, got none; give text", name)
    return found


def batched(name: str, value: Any, depth: int) -> tuple[list[Any], bool]:
    """The values of each prompt: one prompt is `depth` lists deep, a batch one more."""
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
    """The Prompt of one value; ids and vectors are checked against the model later."""
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
    for index, token in enumerate(value):
        if isinstance(token, bool) or not isinstance(token, int):
            place = f"{where}[{index}]"
            raise DialectError(f"{place} must be a token id, got {shown(token)}; give integers", place)
    return value


def embeds_of(value: Sequence[Any], where: str) -> Any:
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


def spread(body: Mapping[str, Any], name: str, count: int, batch: bool) -> list[Any]:
    """The field's value for each prompt: one for all, or in a batch a list with one each."""
    rule, default, _ = EACH[name]
    value = body.get(name)
    # A list of ids is one value; it takes a list of such lists to be several.
    flat = (
        isinstance(rule, Ids) and isinstance(value, list) and not any(v is None or isinstance(v, list) for v in value)
    )
    if not isinstance(value, list) or flat:
        return [None] * count if name == "rid" and batch else [one(name, value, rule, default)] * count
    if not batch or len(value) != count:
        raise DialectError(
            f"{name} must be one value, or in a batch one per prompt ({count}), got a list of {len(value)}", name
        )
    return [one(name, item, rule, default, f"[{index}]") for index, item in enumerate(value)]


def read_rids(value: Any, each: list[Any], count: int, options: Options) -> list[str | None]:
    """The client's ids: one text for a batch gets numbers, and no two are the same."""
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
class Sampling:
    """A `sampling_params` object: what it says, its fields that are the route's own, and the place of them all."""

    reading: ParsedParams
    special: Mapping[str, Any]
    where: str


def read_params(body: Mapping[str, Any], count: int, batch: bool, *, lenient: bool) -> list[Sampling]:
    """The `sampling_params` of each prompt; one object for all of them is read once."""
    value, semantics = body.get("sampling_params"), body.get("semantics")
    if not isinstance(value, list):
        return [read_sampling(value, "sampling_params.", semantics, lenient=lenient)] * count
    if not batch or len(value) != count:
        raise DialectError(
            f"sampling_params must be one object, or in a batch one per prompt ({count}), got a list of {len(value)}",
            "sampling_params",
        )
    places = (f"sampling_params[{index}]." for index in range(count))
    return [read_sampling(each, where, semantics, lenient=lenient) for each, where in zip(value, places, strict=True)]


def read_sampling(plain: Any, where: str, semantics: Any, *, lenient: bool) -> Sampling:
    """One `sampling_params` object, null for none; `semantics` is the one that holds for the whole request."""
    plain = {} if plain is None else plain
    if not isinstance(plain, Mapping):
        raise DialectError(f"{where[:-1]} must be an object, got {shown(plain)}; leave it out", where[:-1])
    special = {name: plain.get(name) for name in ("beam_width", "stream_interval")}
    rest = {name: value for name, value in plain.items() if name not in special}
    defaults = (
        {} if semantics is None else {"semantics": one("semantics", semantics, OWN.entries["semantics"].rule, None)}
    )
    reading = GENERATE.read(rest, where=where, known=(*special, *NAMES), defaults=defaults, lenient=lenient)
    return Sampling(reading=reading, special=special, where=where)


def read_mode(value: Any, *, stream: bool) -> str:
    """Whether events hold all the text so far, as SGLang's do, or what is new."""
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
    return one("stream_options.mode", value.get("mode"), MODE, "cumulative")


def read_ask(prompt: Prompt, sampling: Sampling, given: dict[str, Any], options: Options) -> GenerateRequest:
    """One prompt's request."""
    reading, special, where = sampling.reading, sampling.special, sampling.where
    reference, arguments = given["custom_logit_processor"], reading.given.get("custom_params")
    params = with_named(reading.params, reference, arguments, options, where)
    check_limit(options.limits, "max_logprob_ids", len(given["token_ids_logprob"]), "number of token_ids_logprob")
    params, start = with_logprobs(params, given, mode=reading.given.get("logprobs_mode"))
    if start is not None and prompt.embeds is not None:
        raise DialectError(
            "logprob_start_len must be -1 for input_embeds, whose prompt has no tokens; leave it out",
            "logprob_start_len",
        )
    ask = GenerateRequest(
        prompt=replace(prompt, adapter=adapter_of(given["lora_path"])),
        params=params,
        rid=given["rid"],
        logprobs=given["return_logprob"],
        start=start,
        ids=given["token_ids_logprob"],
        hidden_states=given["return_hidden_states"],
        interval=one(f"{where}stream_interval", special["stream_interval"], INTERVAL, None) or 1,
        limited=reading.given.get("max_new_tokens") is not None,
        patterns=tuple(reading.given.get("stop_regex") or ()),
        where=where,
    )
    return with_beams(ask, special["beam_width"], "n" in reading.given)


def adapter_of(name: str | None) -> str | None:
    """The adapter's name; what could be a path is refused before anything looks for it."""
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
"""What SGLang's clients send although they ask for no log-probabilities."""


def with_logprobs(params: SamplingParams, given: Mapping[str, Any], *, mode: Any) -> tuple[SamplingParams, int | None]:
    """The parameters with the log-probabilities that are asked for, and where in the prompt they begin."""
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


def with_beams(ask: GenerateRequest, width: Any, limited: bool) -> GenerateRequest:
    """The request as a beam search, where `beam_width` is given; `n` is then how many hypotheses come back."""
    checked = one(f"{ask.where}beam_width", width, BEAM_WIDTH, None)
    if checked is None:
        return ask
    params = ask.params
    if params.max_tokens is None:
        place = f"{ask.where}max_new_tokens"
        raise DialectError(f"{place} must be a number with beam_width, got null; give a limit", place)
    if limited and params.n > checked:
        raise DialectError(f"{ask.where}n must be at most beam_width, {checked}, got {params.n}", f"{ask.where}n")
    beams = BeamSearchParams(
        beam_width=checked,
        max_tokens=params.max_tokens,
        ignore_eos=params.ignore_eos,
        temperature=params.temperature,
        include_stop_str_in_output=params.include_stop_str_in_output,
        early_stopping="never",
        num_return_sequences=params.n if limited else None,
    )
    return replace(ask, beams=beams, params=params.replace(n=1))


def body_schema() -> dict[str, Any]:
    """JSON Schema of the request body, for the OpenAPI document."""
    sampling = GENERATE.schema()
    sampling["properties"] |= {name: each.schema() for name, each in GENERATE.unsupported.items()} | {
        "beam_width": field_schema(BEAM_WIDTH, None, "beams of a beam search; null for none"),
        "stream_interval": field_schema(INTERVAL, None, "tokens per event of a stream, at least"),
    }
    ids, vector = {"type": "array", "items": {"type": "integer", "minimum": 0}}, {"type": "array", "items": _NUMBER}
    vectors = {"type": "array", "items": vector}
    properties: dict[str, Any] = {
        **{name: each.schema() for name, each in SGLANG_GENERATE.items()},
        "text": one_or_list({"type": "string"}),
        "input_ids": one_or_list(ids),
        "input_embeds": one_or_list(vectors),
        "image_data": {"description": "images as data URIs or base64; names and URLs where the operator allows them"},
        "audio_data": {"description": "sounds, given like images"},
        "sampling_params": one_or_list(sampling),
        "stream_options": nullable({"type": "object", "properties": {"mode": {"enum": list(MODE.values)}}}),
        "semantics": nullable({"type": "string"}),
    }
    for name, (rule, default, meaning) in EACH.items():
        properties[name] = one_or_list(schema_of(rule)) | {"description": meaning, "default": default}
    for name, (rule, default, meaning) in WHOLE.items():
        properties[name] = field_schema(rule, default, meaning)
    return {"type": "object", "properties": properties, "additionalProperties": False}


_NUMBER = {"type": "number"}


def field_schema(rule: Rule, default: Any, meaning: str) -> dict[str, Any]:
    return {**nullable(schema_of(rule)), "description": meaning, "default": default}


def one_or_list(schema: dict[str, Any]) -> dict[str, Any]:
    """A value for all prompts, or a list with one for each."""
    return {"anyOf": [schema, {"type": "array", "items": nullable(schema), "minItems": 1}, {"type": "null"}]}
