"""The bodies of OpenAI's two routes: OpenAI's fields, and beside them vLLM's, SGLang's, FastDeploy's and our own.

The sampling fields are those of the dialects. FastDeploy's defaults hold when the request or the operator has chosen
one of its sampling methods, OpenAI's otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tirage.dialects import Dialect, DialectError, join, same
from tirage.dialects.fastdeploy import EXTRAS, fastdeploy_defaults, preset_of
from tirage.dialects.openai import OPENAI, OPENAI_COMPLETIONS, RESPONSE_FORMAT_WITH_TAGS
from tirage.dialects.own import OWN
from tirage.dialects.sglang import CONSTRAINTS, STOP_REGEX
from tirage.dialects.unsupported import OPENAI_ROUTES
from tirage.dialects.vllm import VLLM
from tirage.errors import nearest
from tirage.fields.rules import Bool, Int, Text, shown
from tirage.llm import LLM
from tirage.params import BeamSearchParams, RequestOutputKind, SamplingParams
from tirage.params.updates import ADOPTED
from tirage.server.options import Options
from tirage.server.plugins import with_named
from tirage.server.routes.fields import (
    ANY_LIST,
    ANY_OBJECT,
    ANYTHING,
    CACHE_SALT,
    METADATA,
    NOTED,
    SHORT_TEXT,
    Field,
    check_streamed_samples,
    json_body,
    object_schema,
    only,
    read_fields,
    table,
)
from tirage.server.routes.openai_beams import BEAM_FIELDS, read_beams, without_draws

_STREAM_OPTIONS = table([
    Field("include_usage", Bool(), False, "end with a chunk without choices that holds the usage"),
    Field("continuous_usage_stats", Bool(), False, "every chunk holds the usage so far (vLLM)"),
    Field("include_obfuscation", only(False, because="nothing is added to hide lengths"), False),
])

_EXTRA_BODY = Field("extra_body", ANY_OBJECT, None, "further fields, which count as if they stood beside the others")

COMMON_FIELDS = (
    _EXTRA_BODY,
    Field(
        "model",
        SHORT_TEXT,
        None,
        "any name, as this server has one model; where it has adapters, its own or one of theirs",
    ),
    Field("stream", Bool(), False, "answer with server-sent events"),
    Field("stream_options", ANY_OBJECT, None, "options of a stream"),
    Field("user", SHORT_TEXT, None, NOTED),
    Field("return_token_ids", Bool(), False, "the answer holds the token ids (vLLM, FastDeploy)"),
    Field("return_effective_params", Bool(), False, "the answer holds the parameters in force"),
    Field("rid", SHORT_TEXT, None, "the client's name for the request, for /abort_request"),
    Field("request_id", SHORT_TEXT, None, "the same (vLLM)"),
    Field("priority", only(0, because="requests have equal shares, and none goes before another"), 0),
    Field("return_tokens_as_token_ids", Bool(), False, "logprobs spell tokens as token_id:N (vLLM)"),
    Field("service_tier", only("auto", "default", because="there is one tier"), None),
    Field("max_streaming_response_tokens", Int(low=1, high=4096), 1, "tokens put together in a chunk (FastDeploy)"),
    Field("stream_interval", Int(low=1, high=4096), 1, "the same (vLLM)"),
    Field("collect_metrics", only(False, because="GET /metrics has them"), False),
    Field("lora_path", SHORT_TEXT, None, "an adapter's name (SGLang)"),
    Field("cache_salt", CACHE_SALT, None, "only requests with the same text share cached prefixes (vLLM, SGLang)"),
    Field("custom_logit_processor", Text(max_bytes=4096), None, "a processor that the operator registered (SGLang)"),
    Field("custom_params", ANY_OBJECT, None, "its arguments (SGLang)"),
    *BEAM_FIELDS,
    Field("session_id", SHORT_TEXT, None, NOTED),
)
"""Fields that are no sampling parameters, of chats and completions alike."""

COMPLETION_FIELDS = table([
    *COMMON_FIELDS,
    Field("add_special_tokens", only(True, because="send token ids for a prompt without them"), True),
    Field("prompt", ANYTHING, None, "a text, a list of texts, token ids or a list of such lists"),
    Field("prompt_token_ids", ANYTHING, None, "token ids instead of a prompt (FastDeploy)"),
    Field("echo", Bool(), False, "the text begins with the prompt"),
    Field("suffix", only("", because="the model does not fill in the middle"), None),
])

CHAT_FIELDS = table([
    *COMMON_FIELDS,
    Field("add_special_tokens", only(False, because="the chat template writes them"), False),
    Field("messages", ANY_LIST, None, "the conversation"),
    Field("prompt_token_ids", ANY_LIST, None, "token ids instead of messages (FastDeploy)"),
    Field("tools", ANYTHING, None, "functions that the model may call"),
    Field("tool_choice", ANYTHING, None, "none, auto, required, or one function"),
    Field("parallel_tool_calls", ANYTHING, None, "whether there may be several calls"),
    Field("chat_template_kwargs", ANY_OBJECT, None, "variables of the chat template"),
    Field("enable_thinking", Bool(), None, "a variable of the chat template (FastDeploy)"),
    Field("reasoning_effort", SHORT_TEXT, None, "a variable of the chat template"),
    Field("chat_template", only(because="templates come from the operator, by --chat-template"), None),
    Field("disable_chat_template", only(False, because="/v1/completions takes a plain prompt"), False),
    Field("add_generation_prompt", Bool(), None, "the prompt ends with the header of the assistant's message (vLLM)"),
    Field("continue_final_message", Bool(), False, "go on with the last message, an assistant's (vLLM, SGLang)"),
    Field("modalities", only(["text"], because="the model answers in text"), None),
    Field("metadata", METADATA, None, NOTED),
    Field("store", only(False, because="nothing is stored"), False),
    Field("safety_identifier", SHORT_TEXT, None, NOTED),
    Field("prompt_cache_key", SHORT_TEXT, None, NOTED),
    Field("prompt_cache_retention", only("in_memory", "in-memory", because="prefixes are kept in memory"), None),
    Field("functions", only(because="use tools"), None),
    Field("function_call", only(because="use tool_choice"), None),
    *(Field(name, only(because="the model has no such output or tool"), None) for name in ("audio", "prediction")),
    *(Field(name, only(because="the model has no such option"), None) for name in ("web_search_options", "verbosity")),
    *(Field(name, only(because="this server has none")) for name in ("prompt_cache_options", "moderation")),
    Field("echo", only(False, because="/v1/completions has it"), False),
    Field("documents", only(because="write them into messages"), None),
    Field("separate_reasoning", Bool(), None, "reasoning goes to reasoning_content, or stays in the content (SGLang)"),
    Field("stream_reasoning", only(True, because="reasoning is streamed as it comes"), True),
    Field("include_reasoning", Bool(), True, "the answer holds the reasoning that was separated (vLLM)"),
    Field("reasoning_max_tokens", Int(low=0, optional=True), None, "FastDeploy's name of thinking_budget"),
])

_SGLANG_EXTRAS = Dialect.of(
    "SGLang", "sglang", [STOP_REGEX, *CONSTRAINTS, same("no_stop_trim", "include_stop_str_in_output")]
)
_COUNT_OR_ALL = Int(low=-1, optional=True)
"""How many of the likeliest tokens, as far as the operator allows; -1 is the whole vocabulary, as in vLLM."""
MORE = (
    Dialect.of("vLLM", "vllm", [same("prompt_logprobs", rule=_COUNT_OR_ALL)]),
    Dialect.of("vLLM", "vllm", [], unsupported=OPENAI_ROUTES),
    VLLM.without("max_tokens", "logprobs", "n", "seed", "top_k", "output_kind"),
    EXTRAS,
    _SGLANG_EXTRAS,
    OWN,
)
"""The sampling fields that vLLM, SGLang, FastDeploy and we have beside OpenAI's."""
_LOGPROBS = Dialect.of("vLLM", "vllm", [same("logprobs", rule=_COUNT_OR_ALL)])
_TOP_LOGPROBS = Dialect.of("vLLM", "vllm", [replace(OPENAI.entries["top_logprobs"], rule=_COUNT_OR_ALL)])
_SAMPLES = Dialect.of(
    "OpenAI", "openai", [same("n", rule=Int(low=1)), same("best_of", default=None, rule=Int(low=1, optional=True))]
)
"""How many samples, as far as the operator allows, who may allow more than OpenAI does."""
# OpenAI's comes first: what a request means where it names no semantics is that of the first.
_CHAT = (OPENAI.without("response_format", "top_logprobs", "n"), _SAMPLES, _TOP_LOGPROBS)
_RESPONSE_FORMAT = Dialect.of("OpenAI", "openai", [RESPONSE_FORMAT_WITH_TAGS])

_NEUTRAL = SamplingParams()


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """A route's own fields and, for each of the two sets of defaults, its sampling fields.

    With `adopts_defaults` the sampling parameters of the model's generation config hold where a request is silent.
    `stream_options` are the fields of that object.
    """

    name: str
    fields: Mapping[str, Field]
    openai: Dialect
    fastdeploy: Dialect
    adopts_defaults: bool
    stream_options: Mapping[str, Field] = field(default_factory=lambda: _STREAM_OPTIONS)

    @property
    def body(self) -> dict[str, Any]:
        """What the route's OpenAPI entry says of the body."""
        return json_body(object_schema(self.openai.unsupported, self.openai.entries, self.fields))


CHAT = Route(
    name="chat completions",
    fields=CHAT_FIELDS,
    openai=join("chat completions", *_CHAT, _RESPONSE_FORMAT, *MORE),
    fastdeploy=join("chat completions", EXTRAS, _RESPONSE_FORMAT, *_CHAT, *MORE),
    adopts_defaults=True,
)
_OPENAI_COMPLETIONS = OPENAI_COMPLETIONS.without("logprobs", "n", "best_of")
_COMPLETIONS = (_LOGPROBS, _SAMPLES, _OPENAI_COMPLETIONS, _RESPONSE_FORMAT)
COMPLETIONS = Route(
    name="completions",
    fields=COMPLETION_FIELDS,
    openai=join("completions", _OPENAI_COMPLETIONS, *_COMPLETIONS, *MORE),
    fastdeploy=join("completions", EXTRAS, *_COMPLETIONS, *MORE),
    adopts_defaults=False,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAIRequest:
    """A request that was read: the values of the route's own fields, the sampling parameters, and what was ignored.

    `sources` tells of each sampling field that was sent which of our parameters it sets.
    """

    fields: Mapping[str, Any]
    stream_options: Mapping[str, Any]
    params: SamplingParams
    beams: BeamSearchParams | None
    fastdeploy: bool
    ignored: Sequence[str]
    sources: Mapping[str, Sequence[str]]

    @property
    def rid(self) -> str | None:
        """The client's id of the request."""
        return self.fields["rid"] or self.fields["request_id"]

    @property
    def interval(self) -> int:
        """How many tokens a chunk of a stream holds, at least."""
        return max(self.fields["max_streaming_response_tokens"], self.fields["stream_interval"])


def read_request(route: Route, body: Mapping[str, Any], options: Options, llm: LLM, *, lenient: bool) -> OpenAIRequest:
    """The request in a body; raises DialectError with the name of a field that breaks its rule."""
    flat = with_extra_body(body)
    own = read_fields(route.fields, flat)
    sampling = {name: value for name, value in flat.items() if name not in route.fields}
    fastdeploy = sampling.get("sampling_method") is not None or options.sampling_method is not None
    dialect = route.fastdeploy if fastdeploy else route.openai
    defaults = defaults_of(route, options, llm, fastdeploy=fastdeploy)
    if own["use_beam_search"]:
        defaults = without_draws(defaults)
    defaults["output_kind"] = RequestOutputKind.DELTA if own["stream"] else RequestOutputKind.FINAL_ONLY
    sampling = with_vocabulary_for_all(sampling, dialect, llm.model.vocab_size)
    parsed = dialect.read(sampling, defaults=defaults, known=tuple(route.fields), lenient=lenient)
    check_logprob_ids(parsed.params, own)
    check_streamed(parsed.params, own)
    stream_options, ignored = read_stream_options(route, own, lenient=lenient)
    beams, params = read_beams(own, clipped(parsed.params, llm) if fastdeploy else parsed.params, llm)
    return OpenAIRequest(
        fields=own,
        stream_options=stream_options,
        beams=beams,
        params=with_named(params, own["custom_logit_processor"], own["custom_params"], options),
        fastdeploy=fastdeploy,
        ignored=(*parsed.ignored, *ignored),
        sources={name: dialect.entries[name].ours for name in parsed.given},
    )


def with_vocabulary_for_all(sampling: Mapping[str, Any], dialect: Dialect, vocab_size: int) -> dict[str, Any]:
    """The sampling fields with the size of the vocabulary where -1 stands for all of its log-probabilities."""
    return {
        name: vocab_size if type(value) is int and value == -1 and counts_or_all(dialect, name) else value
        for name, value in sampling.items()
    }


def counts_or_all(dialect: Dialect, name: str) -> bool:
    """Whether the dialect knows a field of that name, and -1 stands for all in it."""
    entry = dialect.entries.get(name)
    return entry is not None and entry.rule is _COUNT_OR_ALL


def check_logprob_ids(params: SamplingParams, own: Mapping[str, Any]) -> None:
    """Raises DialectError for `logprob_token_ids` without `logprobs`, and with `echo`."""
    ids = params.logprob_token_ids
    if ids and params.logprobs is None:
        raise DialectError(
            f"logprob_token_ids must go with logprobs, got {shown(list(ids))} without; set logprobs",
            "logprob_token_ids",
        )
    if ids and own["echo"]:
        raise DialectError(
            f"logprob_token_ids must be left out with echo, got {shown(list(ids))}; leave one out", "logprob_token_ids"
        )


def check_streamed(params: SamplingParams, own: Mapping[str, Any]) -> None:
    """Raises DialectError when a stream is to have what is known at the end only."""
    if not own["stream"]:
        return
    check_streamed_samples(params)
    if params.prompt_logprobs is not None:
        raise DialectError(
            f"prompt_logprobs must be left out of a stream, got {params.prompt_logprobs}; ask without stream=true, or "
            "for completions set echo and logprobs",
            "prompt_logprobs",
        )


def with_extra_body(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with the fields of a literal `extra_body` beside its own; raises DialectError for a field in both."""
    extra = _EXTRA_BODY.read(body) or {}
    twice = next((name for name in extra if name in body), None)
    if twice is not None:
        raise DialectError(f"{twice} must be given once, got it in extra_body too; leave one out", twice)
    return {**{name: value for name, value in body.items() if name != "extra_body"}, **extra}


def read_stream_options(
    route: Route, own: Mapping[str, Any], *, lenient: bool
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """The options of a stream, and the unknown ones that were ignored; raises DialectError without a stream."""
    given = own["stream_options"] or {}
    if own["stream_options"] is not None and not own["stream"]:
        raise DialectError("stream_options must go with stream=true; leave them out", "stream_options")
    unknown = [f"stream_options.{name}" for name in given if name not in route.stream_options]
    if unknown and not lenient:
        known = [f"stream_options.{name}" for name in route.stream_options]
        raise DialectError(
            f"stream_options must hold known names, got {shown(unknown[0])}{nearest(unknown[0], known)}; leave it out",
            "stream_options",
        )
    return read_fields(route.stream_options, given, where="stream_options."), tuple(unknown)


def defaults_of(route: Route, options: Options, llm: LLM, *, fastdeploy: bool) -> dict[str, Any]:
    """The parameters of fields that the request leaves out: the model's own for a chat, FastDeploy's where chosen."""
    found = model_defaults(llm) if route.adopts_defaults else {}
    if fastdeploy:
        found |= fastdeploy_defaults(llm.generation_config)
        found["semantics"] = preset_of(options.sampling_method or "base")
    return found


def model_defaults(llm: LLM) -> dict[str, Any]:
    """The sampling parameters of the model's generation config."""
    adopted = _NEUTRAL.update_with_generation_config(llm.generation_config, adopt_sampling=True)
    values = {name: getattr(adopted, name) for name in ADOPTED}
    return {name: value for name, value in values.items() if value != getattr(_NEUTRAL, name)}


def clipped(params: SamplingParams, llm: LLM) -> SamplingParams:
    """The parameters with a `top_k` above the size of the vocabulary lowered to it, as FastDeploy does."""
    most = llm.model.vocab_size
    return params if params.top_k <= most else params.replace(top_k=most)
