"""Drawing inside SGLang: a custom logit processor for requests that bring parameters, and a sampling backend.

SGLang loads `register` as the plugin `tirage` in each of its processes. A request opts in with the fields of
`request_fields`; the server needs `--enable-custom-logit-processor`. `--sampling-backend tirage` draws all other
requests as well, with SGLang's own parameters.
"""

# SGLang is not installed where the code is checked.
# pyright: reportMissingImports=false

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from functools import lru_cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from itertools import count
from typing import Any
from weakref import finalize

import torch
from sglang.srt.layers.sampler import Sampler, register_sampler_backend
from sglang.srt.sampling.custom_logit_processor import CustomLogitProcessor
from sglang.srt.sampling.sampling_params import TOP_K_ALL

from tirage.draw import Status
from tirage.errors import ParamsError
from tirage.integrations.params import read_params
from tirage.integrations.rows import EngineRows
from tirage.params import SamplingParams
from tirage.sampling import sample

KNOWN_VERSION = "0.5.23"
"""The release whose classes this was tested with; any other is refused."""

Given = SamplingParams | Mapping[str, Any] | str

_log = logging.getLogger(__name__)
_STATE = "__tirage__"
_keys = count()


def register() -> None:
    """The plugin: SGLang's `--sampling-backend` knows `tirage`, and wrong parameters of a request are a 400."""
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    register_sampler_backend("tirage", TirageSampler)
    target = "sglang.srt.sampling.sampling_params.SamplingParams.verify"
    HookRegistry.register(target, _check_request, HookType.AFTER)


def request_fields(params: Given, *, tokenizer: Any = None) -> dict[str, Any]:
    """What a request to SGLang gets besides its own fields: `custom_logit_processor` and `sampling_params`.

    Merge `sampling_params`, whose `custom_params` hold `params` as JSON text, into those of the request. `tokenizer` is
    for parameters that hold words. Raises ParamsError for parameters that break a rule or belong to SGLang itself.
    """
    checked = read_params(params, "SGLang", tokenizer=tokenizer)
    return {
        "custom_logit_processor": TirageLogitProcessor.to_str(),
        "sampling_params": {"custom_params": {"tirage": checked.to_json()}},
    }


class TirageLogitProcessor(CustomLogitProcessor):
    """A custom logit processor that leaves each row its drawn token alone: 0 there, -inf elsewhere.

    `custom_params={"tirage": ...}` has the fields of SamplingParams, as JSON text or as a mapping. Penalties, bias and
    the mask of a grammar that SGLang applies itself are in the logits already; its temperature, top_p, top_k and min_p
    have no effect. A request without a seed gets one that follows from its id, the same in every process of it. One
    that cannot be drawn is aborted with a message; nothing is raised where the scheduler would die of it.
    """

    def __call__(self, logits: torch.Tensor, custom_param_list: list[dict[str, Any]] | None = None) -> torch.Tensor:
        """Logits [n, V], of the requests of `custom_param_list`, with one finite value in each row."""
        asked = [(at, given) for at, given in enumerate(custom_param_list or []) if given and "tirage" in given]
        drawn = {at: token for at, given in asked if (token := _token(logits[at : at + 1], given)) is not None}
        if not drawn:
            return logits
        rows = torch.tensor(list(drawn), device=logits.device)
        left = logits.index_fill(0, rows, -torch.inf)
        left[rows, torch.tensor(list(drawn.values()), device=logits.device)] = 0.0
        return left


class TirageSampler(Sampler):
    """The sampling backend `tirage`: SGLang's temperature, top_k, top_p and min_p with tirage's rule for the draw.

    The uniforms come from torch's generator, as SGLang's own draws do. Where a row has a `sampling_seed`, its uniform
    follows from that and its position, but SGLang 0.5.23 puts its own backend in the place of others where it gives
    seeds to samplers (`--enable-deterministic-inference`).
    """

    def __init__(self) -> None:
        """Raises ParamsError in a server that would not ask it for every token, or is of another version."""
        super().__init__()
        _check_engine()

    def forward(
        self,
        logits_output: Any,
        sampling_info: Any,
        return_logprob: bool,
        top_logprobs_nums: list[int],
        token_ids_logprobs: list[list[int]],
        positions: torch.Tensor,
        **given: Any,
    ) -> torch.Tensor:
        """Token ids int32 [B] for logits [B, V]; logprobs, if asked for, of the logits over the temperature."""
        logits = self._preprocess_logits(logits_output.next_token_logits, sampling_info)
        tokens = draw(logits, sampling_info, positions).to(torch.int32)
        if return_logprob:
            logprobs = torch.log_softmax(logits.float() / sampling_info.temperatures, dim=-1)
            asked = self.output_logprob_processor.compute_logprobs(
                logprobs, top_logprobs_nums, token_ids_logprobs, tokens
            )
            asked.write_output_to(logits_output)
        self._sync_token_ids_across_tp(tokens, sampling_info)
        return tokens


def draw(logits: torch.Tensor, sampling_info: Any, positions: torch.Tensor) -> torch.Tensor:
    """Token ids int64 [B] for logits [B, V], by the values of SGLang's SamplingBatchInfo; a bad row gets token 0.

    `positions` int64 [B] key the uniforms.
    """
    seeds = sampling_info.sampling_seed
    if seeds is None:
        seeds = torch.randint(1 << 62, (len(logits),))
    columns = (sampling_info.temperatures.view(-1), sampling_info.top_ks, sampling_info.top_ps, sampling_info.min_ps)
    params = [_own(*row) for row in zip(*(column.tolist() for column in (*columns, seeds)), strict=True)]
    drawn = sample(logits, params, step=positions.tolist())
    for row, status in enumerate(drawn.status.tolist()):
        if status:
            _log.warning("row %d cannot be drawn: %s", row, Status(status).name)
    return drawn.token_ids.clamp(min=0)


@lru_cache(maxsize=4096)
def _own(temperature: float, top_k: int, top_p: float, min_p: float, seed: int) -> SamplingParams:
    """SGLang's parameters as ours; it writes a temperature of 0 as top_k 1."""
    return SamplingParams(
        semantics="sglang",
        temperature=temperature,
        top_k=0 if top_k == TOP_K_ALL else top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
    )


class _RequestState:
    """What a request's own `custom_params` keep between its draws; it goes when the request does."""

    def __init__(self, request: Any, params: SamplingParams, vocab_size: int) -> None:
        seed = _seed_of(request.rid) if params.seed is None else params.seed
        self.key = next(_keys)
        self.rows = _rows(vocab_size)
        self.rows.add(self.key, params.replace(seed=seed), request.origin_input_ids)
        self.last: tuple[int, int] = (-1, -1)
        finalize(self, self.rows.remove, self.key)

    def output(self, request: Any) -> list[int]:
        """The ids put out so far; with overlapped scheduling the last is one that SGLang has not been told yet."""
        known = list(request.output_ids)
        length = _committed(request) - len(request.origin_input_ids)
        return known[:length] + [self.last[1] if at == self.last[0] else -1 for at in range(len(known), length)]


def _token(logits: torch.Tensor, given: dict[str, Any]) -> int | None:
    """The token of one request's row [1, V]; None while its prompt is read, and for one that is aborted."""
    request = given["__req__"]
    try:
        if _committed(request) < len(request.origin_input_ids):
            return None
        if _STATE not in given:
            _check_engine()
            given[_STATE] = _RequestState(request, read_params(given["tirage"], "SGLang"), logits.shape[1])
        state: _RequestState = given[_STATE]
        output = state.output(request)
        drawn = state.rows.draw(logits, [state.key], [output])
    except Exception as error:  # SGLang's scheduler ends with whatever leaves a processor
        _abort(request, f"tirage: {error}")
        return None
    if status := int(drawn.status[0]):
        _abort(request, f"tirage: the row cannot be drawn: {Status(status).name}")
        return None
    state.last = len(output), int(drawn.token_ids[0])
    return state.last[1]


def _abort(request: Any, message: str) -> None:
    """Ends one request as SGLang ends those that it refuses."""
    from sglang.srt.managers.schedule_batch import FINISH_ABORT

    _log.warning("%s", message)
    request.to_finish = FINISH_ABORT(message, 400, "BadRequestError")


def _committed(request: Any) -> int:
    """Tokens in the cache when a row is drawn: those of the prompt, or of its part read so far, and of the output."""
    found = getattr(getattr(request, "kv", request), "kv_committed_len", None)
    if found is None:
        raise _unknown_version("it counts tokens otherwise")
    return found


def _check_request(result: Any, params: Any, vocab_size: int, *_: Any, **__: Any) -> Any:
    """After SGLang has checked a request: raises ParamsError, a ValueError, for what tirage refuses, which is a 400."""
    if isinstance(params.custom_params, dict) and "tirage" in params.custom_params:
        checked = read_params(params.custom_params["tirage"], "SGLang")
        _check_engine()
        _check_own(params, checked)
        _rows(vocab_size).check(checked)
    return result


def _check_own(own: Any, params: SamplingParams) -> None:
    """Raises ParamsError for what SGLang's own parameters ask for and its processors cannot give."""
    if (own.beam_width or 1) > 1:
        raise ParamsError(f"beam_width of SGLang must be 1 where tirage draws, got {own.beam_width}")
    if own.n > 1 and params.seed is not None:
        raise ParamsError(
            f"n must be 1 where tirage is given a seed, got {own.n}, as SGLang does not tell its samples apart; "
            "leave the seed out, or send a request for each with a seed of its own"
        )


def _check_engine() -> None:
    """Raises ParamsError for an SGLang that is not known, or that would not ask for every token."""
    if not re.match(re.escape(KNOWN_VERSION) + r"(?!\d)", _installed()):
        raise _unknown_version("it was not tried")
    if algorithm := _speculative_algorithm():
        raise ParamsError(
            f"speculative decoding must be off where tirage draws in SGLang, got {algorithm}: SGLang accepts drafts "
            "without asking for a draw, or without telling the places of its rows"
        )
    if _uses_mlx():
        raise ParamsError(
            "SGLANG_USE_MLX must be off where tirage draws in SGLang, which asks for draws at some steps only there"
        )


def _speculative_algorithm() -> str | None:
    """The algorithm of the server that this process belongs to; None without one, and outside of a server."""
    from sglang.srt.runtime_context import get_context, get_spec

    if not get_context().is_config_namespace_published("spec"):
        return None
    return get_spec().speculative_algorithm


def _uses_mlx() -> bool:
    from sglang.srt.environ import envs

    return envs.SGLANG_USE_MLX.get()


def _unknown_version(reason: str) -> ParamsError:
    return ParamsError(
        f"tirage's logit processor must run in SGLang {KNOWN_VERSION}, got {_installed()} ({reason}); "
        "install that one, or a tirage that knows this one"
    )


@lru_cache(maxsize=8)
def _rows(vocab_size: int) -> EngineRows:
    return EngineRows(vocab_size)


def _seed_of(request_id: str) -> int:
    return int.from_bytes(blake2b(request_id.encode(), digest_size=8).digest(), "big") >> 1


@lru_cache(maxsize=1)
def _installed() -> str:
    try:
        return version("sglang")
    except PackageNotFoundError:
        return "no version"
