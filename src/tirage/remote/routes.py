"""The routes of other engines' servers: the sampling fields of each, and the parameters that it honours.

The fields are those of `tirage.dialects`: a route is a dialect's table, without what its requests do not have and with
what they have beside it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from tirage.compiled_params import compiled
from tirage.dialects import Dialect, DialectError, FieldMapping, join, same
from tirage.dialects.llamacpp import LLAMACPP
from tirage.dialects.openai import OPENAI, OPENAI_COMPLETIONS
from tirage.dialects.own import OWN
from tirage.dialects.sglang import SGLANG
from tirage.dialects.table import Fields, Inexpressible
from tirage.dialects.vllm import VLLM
from tirage.errors import OnlyValueError, ParamsError
from tirage.fields.rules import Bool, Ids, Int, shown
from tirage.history import History
from tirage.params import FIELDS, SamplingParams
from tirage.semantics import FILTERS

Form = Literal["openai", "generate", "completion"]
"""The form of a route's requests and answers: that of OpenAI's completions and chats, SGLang's, llama.cpp's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRoute:
    """A route: its path, the form of its requests and answers, and the table of its sampling fields.

    `fixed` are fields that are always sent. `tells_stop` says whether its answers tell what ended a text, `continues`
    whether it has `continue_final_message`.
    """

    path: str
    form: Form
    dialect: Dialect
    fixed: Mapping[str, Any]
    tells_stop: bool = True
    has_salt: bool = False
    continues: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteDialect:
    """How an engine's server is spoken to: the routes for prompts and for chats.

    `owners` are the names by which such a server calls itself in `/v1/models`; () for any.
    """

    prompts: RemoteRoute
    chats: RemoteRoute
    owners: tuple[str, ...]


# --- log-probabilities of SGLang's route, which stand beside its sampling_params -----------------------------------


def _scored(given: Mapping[str, Any], ours: Fields) -> Fields:
    if not given.get("return_logprob"):
        return ours
    top = given.get("top_logprobs_num", 0)
    prompt = top if given.get("logprob_start_len") == 0 else None
    mode = "logprobs_mode" if "logprobs_mode" in given else None
    return {**ours, "logprobs": top, "prompt_logprobs": prompt} | ({} if mode else {"logprobs_mode": "processed"})


def _start(params: SamplingParams) -> int:
    return -1 if params.prompt_logprobs is None else 0


_RETURN_LOGPROB = FieldMapping(
    name="return_logprob",
    rule=Bool(),
    default=False,
    into=lambda value: {},
    out_of=lambda params: params.lists_logprobs,
    ours=("logprobs",),
)
_LOGPROB_FIELDS = (
    _RETURN_LOGPROB,
    replace(_RETURN_LOGPROB, name="top_logprobs_num", rule=Int(low=0), default=0, out_of=lambda p: p.logprobs or 0),
    replace(
        _RETURN_LOGPROB,
        name="logprob_start_len",
        rule=Int(low=-1),
        default=-1,
        out_of=_start,
        ours=("prompt_logprobs",),
    ),
    FieldMapping(
        name="token_ids_logprob",
        rule=Ids(),
        default=None,
        into=lambda value: {"logprob_token_ids": value or ()},
        out_of=lambda params: list(params.logprob_token_ids) or None,
        ours=("logprob_token_ids",),
    ),
)
OURS = "tirage"
"""What this project's own server calls itself."""
BESIDE = frozenset(entry.name for entry in _LOGPROB_FIELDS)
"""Fields of `/generate` that are no members of `sampling_params`."""


# --- the tables --------------------------------------------------------------------------------------------------


def _processed(given: Mapping[str, Any], ours: Fields) -> Fields:
    """SGLang reports log-probabilities after penalties, masks and temperature, in its chats too."""
    return ours if ours.get("logprobs") is None else {**ours, "logprobs_mode": "processed"}


_PROMPTS, _CHATS = "/v1/completions", "/v1/chat/completions"
_ONLY_IN_PYTHON = ("detokenize", "output_kind")
_OLDER = ("guided_json", "guided_regex", "guided_choice", "guided_grammar", "guided_json_object")
# With these ids vLLM's lists of likeliest tokens become others, which hold no ids.
_VLLM = VLLM.without(*_ONLY_IN_PYTHON, *_OLDER, "logprob_token_ids")
_VLLM_CHAT = _VLLM.without("max_tokens", "logprobs")
_OPENAI = replace(OPENAI_COMPLETIONS, name="OpenAI")
_OPENAI_CHAT = OPENAI.without("max_tokens")
_SGLANG = SGLANG.without("custom_params")
_NOT_IN_CHATS = ("max_new_tokens", "min_new_tokens", "sampling_seed", "json_schema", "structural_tag")
_SGLANG_CHAT = _SGLANG.without(*_NOT_IN_CHATS, "spaces_between_special_tokens")
_MIN_TOKENS = Dialect.of("SGLang", "sglang", [same("min_tokens")], adjust=_processed)
_LOGPROBS = Dialect.of("SGLang", "sglang", _LOGPROB_FIELDS, adjust=_scored)
_STOP_REGEX = Dialect.of("SGLang", "sglang", [SGLANG.entries["stop_regex"]])
_LLAMACPP = LLAMACPP.without("max_tokens", "max_completion_tokens", "n", "logprobs")
# A server may be started with Mirostat on, or with another order of its stages.
_LLAMACPP_STAGES = {
    "mirostat": 0,
    "adaptive_target": -1.0,
    "samplers": ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc", "temperature"],
}
# A remote completion has no records of its tokens, so that none are asked for.
_OWN = OWN.without("return_kept", "max_kept_ids")
_OWN_LEFT = _OWN.without(*(name for entry in SGLANG.entries.values() for name in entry.ours))


def _chats(dialect: Dialect, **options: Any) -> RemoteRoute:
    return RemoteRoute(path=_CHATS, form="openai", dialect=dialect, **{"fixed": {"return_token_ids": True}, **options})


REMOTE_DIALECTS: Mapping[str, RemoteDialect] = {
    "vllm": RemoteDialect(
        prompts=RemoteRoute(
            path=_PROMPTS, form="openai", dialect=_VLLM, fixed={"return_token_ids": True}, has_salt=True
        ),
        chats=_chats(join("vLLM", _VLLM_CHAT, _OPENAI_CHAT.without("response_format")), has_salt=True, continues=True),
        owners=("vllm",),
    ),
    "sglang": RemoteDialect(
        prompts=RemoteRoute(
            path="/generate",
            form="generate",
            dialect=join("SGLang", _SGLANG, _LOGPROBS),
            fixed={"return_text_in_logprobs": True, "return_prompt_token_ids": True},
            has_salt=True,
        ),
        chats=_chats(join("SGLang", _SGLANG_CHAT, _OPENAI_CHAT, _MIN_TOKENS), has_salt=True, continues=True),
        owners=("sglang",),
    ),
    "openai": RemoteDialect(
        prompts=RemoteRoute(path=_PROMPTS, form="openai", dialect=_OPENAI, fixed={}, tells_stop=False),
        chats=_chats(_OPENAI_CHAT, fixed={}, tells_stop=False),
        owners=(),
    ),
    "llamacpp": RemoteDialect(
        prompts=RemoteRoute(
            path="/completion",
            form="completion",
            dialect=_LLAMACPP,
            fixed={"return_tokens": True, **_LLAMACPP_STAGES},
        ),
        chats=_chats(_LLAMACPP, fixed=_LLAMACPP_STAGES, tells_stop=False),
        owners=("llamacpp",),
    ),
    "tirage": RemoteDialect(
        prompts=RemoteRoute(
            path="/generate",
            form="generate",
            dialect=replace(join("tirage", _SGLANG, _LOGPROBS, _OWN_LEFT), preset="canonical"),
            fixed={"return_text_in_logprobs": True, "return_prompt_token_ids": True},
            has_salt=True,
        ),
        chats=_chats(
            join("tirage", _OWN, _VLLM_CHAT, _OPENAI_CHAT.without("response_format"), _STOP_REGEX),
            has_salt=True,
            continues=True,
        ),
        owners=(OURS,),
    ),
}
"""Every engine whose server can be spoken to, by its name."""


# --- what is honoured, and the fields that say it ------------------------------------------------------------------


def honoured(route: RemoteRoute) -> tuple[str, ...]:
    """The names of the fields of SamplingParams that a route's server can be asked for, in their order."""
    found = {name for entry in route.dialect.entries.values() for name in entry.ours} | {"output_kind"}
    return tuple(name for name, spec in FIELDS.items() if spec.public and name in found)


def fields_of(route: RemoteRoute, params: SamplingParams) -> dict[str, Any]:
    """The fields that say what `params` say, all of them: what is left out, a server takes from its own defaults.

    Raises ParamsError that names the first of our fields for which there are none, or whose value they cannot express,
    and where the server would read them in another meaning than that of `semantics`.
    """
    dialect = route.dialect
    try:
        plain, lost = dialect.written(params, explicit=True)
    except DialectError as error:
        raise ParamsError(f"the request must be one that {dialect.name} can express; {error}") from error
    if params.logprobs is None and params.prompt_logprobs is None:
        lost = [name for name in lost if name != "logprobs_mode"]
    theirs = dialect.read(plain).params
    if lost:
        check_range(dialect, params, lost[0])
        more = f" (nor {', '.join(lost[1:])})" if lost[1:] else ""
        value, only = getattr(params, lost[0]), getattr(theirs, lost[0])
        has_field = any(lost[0] in entry.ours for entry in dialect.entries.values())
        lacks = "cannot express this one" if has_field else "has no field for other values"
        rule = "another value" if has_field else shown(only)
        raise OnlyValueError(
            f"{lost[0]} must be {rule} for {dialect.name}, whose {route.path} {lacks}, got {shown(value)}{more}",
            name=lost[0],
            only=only,
        )
    check_meaning(params, theirs, dialect)
    return plain


def check_range(dialect: Dialect, params: SamplingParams, name: str) -> None:
    """Raises ParamsError where an engine has a field for one of ours, and its value is out of that field's range."""
    for entry in dialect.entries.values():
        if name in entry.ours:
            try:
                entry.check(entry.out_of(params), "")
            except DialectError as error:
                raise ParamsError(f"{name} must be a value that {dialect.name} takes: {error}") from None
            except Inexpressible as error:
                if str(error):
                    raise ParamsError(f"{name} must be a value that {dialect.name} takes: {error}") from None


def engine_defaults(route: RemoteRoute, **ours: Any) -> tuple[SamplingParams, dict[str, Any]]:
    """The parameters of a request that leaves sampling to the server, and the fields that say the rest, `ours`.

    Raises ParamsError for a seed that the server has no field for.
    """
    params = route.dialect.read({}).params.replace(**ours)
    plain, lost = route.dialect.written(params)
    if lost:
        raise ParamsError(f"{lost[0]} must be a value that {route.dialect.name} can express, got {ours[lost[0]]}")
    return params, plain


_PAST = History.of([1, 2, 2, 3], [3, 4, 4], vocab_size=8)


def check_meaning(params: SamplingParams, theirs: SamplingParams, dialect: Dialect) -> None:
    """Raises ParamsError unless the parameters do the same under their own semantics as under the server's."""
    if _meaning(params) != _meaning(theirs):
        own = shown(params.semantics)
        raise OnlyValueError(
            f"semantics must be {dialect.preset!r} for these parameters, as {dialect.name} reads them in its own order "
            f"and by its own rules, got {own}",
            name="semantics",
            only=dialect.preset,
        )


def _meaning(params: SamplingParams) -> tuple[Any, ...]:
    """What a draw with these parameters does, whatever its semantics are called."""
    found = compiled(params.unwrapped)
    semantics = found.semantics
    # The likeliest token is there after every filter but XTC, so for a greedy draw the others do nothing.
    idle = set(FILTERS) - {"xtc"} if params.temperature == 0.0 else set[str]()
    masked = params.guided_decoding is not None or params.allowed_token_ids is not None
    return (
        tuple(step for step in found.lower(_PAST, 3).steps if step.stage not in idle),
        semantics.penalty_window if found.needs_counts else None,
        semantics.mask_mode if masked else None,
        semantics.bad_words_history if params.bad_words or params.bad_words_token_ids else None,
    )
