"""The operator's settings: one table, from which flags, defaults, help and ranges are derived."""

from __future__ import annotations

import dataclasses
import math
import re
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from tirage.errors import ParamsError, nearest
from tirage.params import REASONING_PARSERS
from tirage.server.tool_call_parsers import TOOL_CALL_PARSERS

SAMPLING_METHODS = ("base", "base_non_truncated", "air", "rejection")
"""FastDeploy's sampling classes; the environment variable FD_SAMPLING_CLASS names the server's default."""
MIB = 1 << 20
_HOST = r"[A-Za-z0-9_]([A-Za-z0-9._-]*[A-Za-z0-9_-])?"
# As browsers write it: in lower case, and without the port that its scheme has by itself.
_ORIGIN = r"(?!http://.*:80$)(?!https://.*:443$)[a-z][a-z0-9+.-]*://([a-z0-9._-]+|\[[0-9a-f:.]+\])(:\d{1,5})?"
_ROOT_PATH = re.compile(r"(/[A-Za-z0-9._~-]+)+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """How a setting is given and checked. `low` and `high` are inclusive; `choices` are all its values.

    A text matches `pattern`, if there is one, which `form` puts into words.
    """

    name: str
    help: str
    flags: tuple[str, ...]
    kind: type
    many: bool = False
    optional: bool = False
    low: float | None = None
    high: float | None = None
    choices: tuple[str, ...] = ()
    pattern: str | None = None
    form: str = ""
    metavar: str | None = None
    default: Any = None

    @property
    def flag(self) -> str:
        """The spelling that error messages use."""
        return self.flags[0]

    def check(self, value: Any) -> Any:
        """The value in the setting's type; raises ParamsError, which names the flag."""
        if value is None and self.optional:
            return None
        if self.many and isinstance(value, (list, tuple)):
            return tuple(self._check_one(each) for each in value)
        return (self._check_one(value),) if self.many else self._check_one(value)

    def _check_one(self, value: Any) -> Any:
        if self.kind is Path and isinstance(value, str):
            value = Path(value)
        if self.kind is float and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if not isinstance(value, self.kind) or (isinstance(value, bool) and self.kind is not bool):
            raise ParamsError(f"{self.flag} must be {self._rule}, got {value!r:.80}")
        if self.pattern is not None and re.fullmatch(self.pattern, str(value)) is None:
            raise ParamsError(f"{self.flag} must be {self.form}, got {value!r:.80}")
        if self.choices and value not in self.choices:
            hint = nearest(str(value), self.choices)
            raise ParamsError(f"{self.flag} must be {self._rule}, got {value!r:.80}{hint}")
        if self.kind in (int, float) and not self._in_range(value):
            raise ParamsError(f"{self.flag} must be {self._rule}, got {value!r}")
        return value

    def _in_range(self, value: float) -> bool:
        low, high = -math.inf if self.low is None else self.low, math.inf if self.high is None else self.high
        return low <= value <= high and math.isfinite(value)

    @property
    def _rule(self) -> str:
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        names = {int: "an integer", float: "a number", str: "a text", Path: "a path", bool: "true or false"}
        low, high = self.low, self.high
        if low is None and high is None:
            return names[self.kind]
        return f"{names[self.kind]} " + (f"of at least {low:g}" if high is None else f"in [{low:g}, {high:g}]")


def option(default: Any, meaning: str, *flags: str, **rules: Any) -> Any:
    """A field of the table; `flags` are further spellings of its flag."""
    return field(default=default, metadata={"help": meaning, "flags": flags, **rules})


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one request and of the server as a whole. A refusal names the flag that raises the limit."""

    max_body: int = option(32 * MIB, "largest request body, in bytes", low=1024, high=1 << 34)
    max_pending_body: int = option(512 * MIB, "bytes of all bodies that are held at once", low=1024, high=1 << 40)
    max_json_depth: int = option(64, "deepest nesting of a JSON body", low=4, high=512)
    max_chars_per_token: int = option(
        16, "characters of a text per token of the context; longer ones are refused unread", low=1, high=1 << 20
    )
    max_prompts: int = option(128, "prompts of a request", low=1, high=1 << 16)
    max_n: int = option(128, "n of a request", low=1, high=1 << 16)
    max_best_of: int = option(20, "best_of of a request", low=1, high=1 << 16)
    max_beams: int = option(128, "beams of a search", low=1, high=1 << 16)
    max_samples: int = option(256, "samples of a request: prompts times n, best_of or beams", low=1, high=1 << 20)
    max_top_logprobs: int = option(20, "logprobs of a request, per token", low=0, high=1 << 20)
    max_stop: int = option(32, "stop strings and patterns of a request", low=0, high=1 << 16)
    max_stop_chars: int = option(256, "characters of a stop string or pattern", low=1, high=1 << 16)
    max_bad_words: int = option(128, "bad words of a request", low=0, high=1 << 16)
    max_bad_word_chars: int = option(256, "characters of a bad word", low=1, high=1 << 16)
    max_logprob_ids: int = option(1024, "tokens whose logprobs a request names", low=0, high=1 << 20)
    max_logprob_entries: int = option(
        500_000, "logprobs in all of an answer, of prompts, outputs and named tokens", low=1024, high=1 << 40
    )
    max_kept_ids: int = option(
        1 << 22, "kept ids that the records of an answer may hold: tokens times max_kept_ids", low=1, high=1 << 40
    )
    max_prompt_tokens: int = option(1 << 22, "tokens of all prompts of a request", low=1, high=1 << 40)
    max_output_tokens: int = option(
        1 << 22, "tokens that all samples of a request may have: max_tokens, else the context", low=1, high=1 << 40
    )
    max_phrase_chars: int = option(
        1 << 16, "characters of all different stops and bad words of a request", low=1, high=1 << 30
    )
    max_stop_states: int = option(
        1 << 16, "states of a request's stop patterns, times its samples", low=1, high=1 << 30
    )
    max_constraints: int = option(16, "different constraints of a request", low=1, high=1 << 16)
    max_constraint_seconds: float = option(
        60.0, "processor seconds that all samples of a prompt may take for their constraint", low=0.001, high=1e6
    )
    max_mask_seconds: float = option(
        0.25,
        "processor seconds of one mask of a constraint; half as many for one token that it takes",
        low=0.0001,
        high=1e6,
    )
    max_constraint_chars: int = option(1 << 17, "characters of all constraints of a request", low=1, high=1 << 40)
    max_followed_chars: int = option(
        1 << 22, "characters of constraints, times the samples that follow them", low=1, high=1 << 40
    )
    max_logit_bias: int = option(1024, "entries of logit_bias", low=0, high=1 << 20)
    max_rid: int = option(128, "characters of a request's own id", low=1, high=4096)
    max_loaded_loras: int = option(8, "adapters loaded at once while the server runs", low=1, high=4096)
    max_stored_bytes: int = option(
        64 * MIB, "bytes of all responses that /v1/responses keeps; 0 keeps none", low=0, high=1 << 40
    )
    max_media: int = option(16, "images and audio items of a request", low=0, high=4096)
    max_media_bytes: int = option(32 * MIB, "bytes of one image or audio item", low=1024, high=1 << 34)
    max_media_pixels: int = option(32_000_000, "pixels of one image", low=1, high=1 << 34)
    max_request_pixels: int = option(64_000_000, "pixels of all images of a request", low=1, high=1 << 34)
    max_audio_seconds: float = option(600.0, "seconds of one audio item", low=0.1, high=1e6)
    max_running: int = option(256, "samples that run at once", "--max-running-requests", low=1, high=1 << 16)
    max_queue: int = option(1024, "requests that may wait; more get 503", "--max-queued-requests", low=0, high=1 << 20)
    request_timeout: float = option(600.0, "seconds a request may take in all", low=0.1, high=1e7)
    header_timeout: float = option(10.0, "seconds the head of a request may take", low=0.1, high=1e6)
    body_timeout: float = option(30.0, "seconds the body of a request may take", low=0.1, high=1e6)
    stall_timeout: float = option(30.0, "seconds a client may leave its stream unread", low=0.1, high=1e6)
    keep_alive: float = option(5.0, "seconds an idle connection stays open", low=0.1, high=1e6)
    health_timeout: float = option(5.0, "seconds without progress after which /health says 503", low=0.1, high=1e6)
    processor_cool_down: float = option(
        30.0, "seconds in which a client's processor that failed three times is not run", low=0.0, high=1e6
    )
    processor_timeout: float = option(
        1.0, "seconds that a call of a custom logits processor may take; then its request ends", low=0.001, high=1e6
    )
    drain_timeout: float = option(30.0, "seconds that requests may take to end after SIGTERM", low=0.0, high=1e6)
    max_connections: int = option(4096, "open connections; more are closed at once", low=1, high=1 << 20)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The settings of a server. Every field but `limits`, and every field of `limits`, is a flag of `tirage serve`."""

    model: str = option("tiny", "a bundled model, a local Hugging Face folder or a GGUF file", "--model-path")
    host: str = option("127.0.0.1", "address to listen on; others than this machine's own need --api-key to be safe")
    port: int = option(30000, "port to listen on; 0 takes a free one", low=0, high=65535)
    served_model_name: str | None = option(None, "name of the model in answers; the folder's name if not given")
    root_path: str | None = option(
        None, "path below which a proxy serves this server, such as /llm", "--fastapi-root-path"
    )
    ssl_certfile: Path | None = option(None, "certificate of the server, in PEM; it then speaks HTTPS alone")  # noqa: RUF009
    ssl_keyfile: Path | None = option(None, "private key of the certificate, in PEM")  # noqa: RUF009
    ssl_keyfile_password: str | None = option(None, "password of the private key")
    ssl_ca_certs: Path | None = option(None, "certificates that sign those of clients, in PEM")  # noqa: RUF009
    ssl_cert_reqs: int | None = option(
        None,
        "whether clients show a certificate: 0 no, 1 if they have one, 2 always; 2 with --ssl-ca-certs",
        low=0,
        high=2,
    )
    backend: str = option("auto", "what computes the model", choices=("auto", "torch", "numpy", "vllm"))
    dtype: str | None = option(
        None, "number type of the weights", choices=("auto", "float32", "bfloat16", "float16", "int8")
    )
    device: str | None = option(None, "device of the model, as PyTorch names it")
    threads: int | None = option(
        None, "threads of the model on the CPU; OMP_NUM_THREADS or all cores without it", low=1, high=4096
    )
    engine_arg: tuple[str, ...] = option((), "an argument of vLLM's engine, on the vllm backend", metavar="NAME=VALUE")
    prefix_bytes: int | None = option(None, "memory for prefixes that later requests share; 0 is off", low=0)
    prefill_batch_tokens: int | None = option(
        None, "tokens in one pass over several short prompts; 0 prefills each prompt alone", low=0, high=1 << 20
    )
    speculative_config: str | None = option(
        None, 'drafts that the model reads ahead, which change no token: {"method": "ngram"}', metavar="JSON"
    )
    draft: str | None = option(None, "a smaller model of the same vocabulary that makes the drafts", metavar="MODEL")
    chat_template: Path | None = option(None, "Jinja file instead of the model's template")  # noqa: RUF009
    lora: tuple[str, ...] = option(
        (),
        "a LoRA adapter by the name that requests give",
        "--lora-paths",
        metavar="NAME=PATH",
        pattern="[^=]+=(?s:.+)",
        form="NAME=PATH, such as french=adapters/french",
    )
    lora_root: Path | None = option(  # noqa: RUF009
        None, "folder below which adapters may be loaded while the server runs; without it none may be"
    )
    grammar_backend: str = option("auto", "compiler of constraints", choices=("auto", "llguidance", "xgrammar"))
    sampling_method: str | None = option(
        None, "FastDeploy's sampling method as default of the OpenAI routes", choices=SAMPLING_METHODS
    )
    watermark: Path | None = option(  # noqa: RUF009
        None, "JSON file with the watermark of texts whose requests name none"
    )
    reasoning_parser: str | None = option(
        None,
        "tags of the reasoning, which chats return as reasoning_content and before which no constraint holds",
        choices=tuple(REASONING_PARSERS),
    )
    tool_call_parser: str | None = option(
        None,
        "format of tool calls, otherwise the chat template's; with it, calls that a request forces keep it too",
        choices=tuple(TOOL_CALL_PARSERS),
    )
    logits_processor: tuple[str, ...] = option(
        (),
        "a logits processor by the name that requests give",
        metavar="NAME=MODULE:OBJECT",
        pattern="[^=]+=[^:]+:.+",
        form="NAME=MODULE:OBJECT, such as shift=processors:Shift",
    )
    enable_custom_logit_processor: bool = option(False, "let requests name logits processors (custom_logit_processor)")
    media_root: Path | None = option(None, "folder of the files that requests may name as images and audio")  # noqa: RUF009
    allowed_media_domain: tuple[str, ...] = option(
        (),
        "domain from which images and audio may be fetched",
        pattern=rf"(\*\.)?{_HOST}",
        form="a domain alone, such as example.org, or *.example.org for the names below it",
    )
    api_key: tuple[str, ...] = option((), "key that clients must send; one of them if given several times")
    key_weight: tuple[int, ...] = option(
        (),
        "share of an --api-key against others that wait, in their order; 1 each without it",
        low=1,
        high=1000,
    )
    admin_key: str | None = option(None, "key for /flush_cache and abort_all, which are off without it")
    tenant_by: str = option(
        "key",
        "what tells clients without a known key apart: nothing but the key, or their address",
        choices=("key", "address"),
    )
    requests_per_minute: int | None = option(None, "requests of a tenant per minute; more get 429", low=1, high=1 << 30)
    tokens_per_minute: int | None = option(
        None, "tokens of a tenant's prompts and answers per minute; more get 429", low=1, high=1 << 40
    )
    protect_metrics: bool = option(False, "want a key for /metrics too, where there are keys")
    allowed_host: tuple[str, ...] = option(
        (),
        "host name that clients may use, besides localhost and IP addresses",
        pattern=rf"\*|{_HOST}",
        form="a host name without a port, such as models.example.org, or * for all",
    )
    cors_origin: tuple[str, ...] = option(
        (),
        "web origin whose pages may call the server, such as https://example.org",
        pattern=rf"\*|null|{_ORIGIN}",
        form="an origin as browsers send it, such as https://example.org or http://localhost:3000, or * for all",
    )
    no_playground: bool = option(False, "leave out the page at /")
    ignore_unknown_fields: bool = option(False, "ignore fields that no route knows; a header of the answer lists them")
    log_format: str = option("plain", "form of the log on stderr", choices=("plain", "json"))
    log_level: str = option("info", "least weight of what is logged", choices=("debug", "info", "warning", "error"))
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        check(self, OPTION_FLAGS)
        if self.root_path is not None and _ROOT_PATH.fullmatch(self.root_path) is None:
            raise ParamsError(f"--root-path must begin with / and not end with it, got {self.root_path!r:.80}")
        if self.key_weight and len(self.key_weight) != len(self.api_key):
            counts = f"{len(self.key_weight)} for {len(self.api_key)} keys"
            raise ParamsError(f"--key-weight must be given once for each --api-key or not at all, got {counts}")
        for flag, keys in (("--api-key", self.api_key), ("--admin-key", (self.admin_key,))):
            for key in keys:
                if key is not None and (not key.strip() or key != key.strip()):
                    # An empty key would be that of everyone who sends none.
                    raise ParamsError(f"{flag} must be a text without spaces around it, got an empty or padded one")

    @classmethod
    def of(cls, **settings: Any) -> Options:
        """Options from settings by name, those of `Limits` included; raises ParamsError for a wrong one."""
        for name in settings:
            if name not in FLAGS:
                raise ParamsError(f"option must be a known name, got {name!r}{nearest(name, FLAGS)}")
        limits = {name: value for name, value in settings.items() if name in LIMIT_FLAGS}
        rest = {name: value for name, value in settings.items() if name not in LIMIT_FLAGS}
        made = Limits(**limits)
        check(made, LIMIT_FLAGS)
        return cls(**rest, limits=made)

    @property
    def model_name(self) -> str:
        """The name of the model in answers."""
        return self.served_model_name or Path(self.model).name


def flags_of(kind: type) -> Iterator[Flag]:
    """The flags of a class of settings, in its order."""
    hints = get_type_hints(kind)
    for each in dataclasses.fields(kind):
        if not each.metadata:
            continue
        rules = dict(each.metadata)
        spellings = (f"--{each.name.replace('_', '-')}", *rules.pop("flags"))
        yield Flag(name=each.name, flags=spellings, default=each.default, **rules, **shape_of(hints[each.name]))


def shape_of(hint: Any) -> dict[str, Any]:
    """The type of one value, and whether there may be several or none, from a field's type."""
    if typing.get_origin(hint) is tuple:
        return {"kind": typing.get_args(hint)[0], "many": True}
    if isinstance(hint, types.UnionType):
        kind = next(each for each in typing.get_args(hint) if each is not type(None))
        return {"kind": kind, "optional": True}
    return {"kind": hint}


def check(settings: Any, flags: Mapping[str, Flag]) -> None:
    """Checks every setting and stores it in its type, in place; raises ParamsError for a wrong one."""
    for name, flag in flags.items():
        object.__setattr__(settings, name, flag.check(getattr(settings, name)))


LIMIT_FLAGS = {flag.name: flag for flag in flags_of(Limits)}
OPTION_FLAGS = {flag.name: flag for flag in flags_of(Options)}
FLAGS = OPTION_FLAGS | LIMIT_FLAGS
"""Every flag of `tirage serve`, by the name of its setting."""


def from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    """Settings from FastDeploy's environment variables; raises ParamsError for an unknown sampling class."""
    method = environ.get("FD_SAMPLING_CLASS", "").strip()
    if not method:
        return {}
    if method not in SAMPLING_METHODS:
        known = ", ".join(SAMPLING_METHODS)
        raise ParamsError(
            f"FD_SAMPLING_CLASS must be one of {known}, got {method!r}{nearest(method, SAMPLING_METHODS)}"
        )
    return {"sampling_method": method}


class OverLimitError(ParamsError):
    """A request above the operator's limit with the name `limit`."""

    def __init__(self, message: str, *, limit: str) -> None:
        super().__init__(message)
        self.limit = limit


def check_limit(limits: Limits, name: str, value: float, what: str) -> None:
    """Raises OverLimitError, which names the flag, for a value above the limit `name`; clients know it as `what`."""
    most = getattr(limits, name)
    if value > most:
        flag = LIMIT_FLAGS[name].flag
        text = f"{what} must be at most {most}, got {value}; the operator can raise it with {flag}"
        raise OverLimitError(text, limit=name)
