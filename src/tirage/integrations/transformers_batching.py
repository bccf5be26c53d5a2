"""Drawing inside transformers' continuous batching, where each request has parameters of its own."""

from __future__ import annotations

import logging
import secrets
from typing import Any

import torch
import transformers
from transformers.generation.continuous_batching import cb_logits_processors

from tirage.draw import Status
from tirage.errors import ParamsError
from tirage.integrations.params import read_params
from tirage.integrations.rows import EngineRows
from tirage.params import SamplingParams

KNOWN_VERSIONS = "5.23"
"""The release whose manager this was tested with."""

_log = logging.getLogger(__name__)


def draw_with_tirage(manager: Any, params: Any = None, *, tokenizer: Any = None) -> None:
    """Has a ContinuousBatchingManager draw with tirage: call it between `init_continuous_batching` and `start`.

    `params`, by default `SamplingParams()`, are for requests that bring none; `add_request(ids, tirage={...})` brings
    its own, as a mapping of fields, SamplingParams or JSON text. One that breaks a rule fails its own request, with the
    error's text, as does a row that cannot be drawn. `num_return_sequences` copies are the samples 0, 1, ... of the
    request.
    Raises ParamsError for a manager that has started, draws on its own as well, batches asynchronously or with CUDA
    graphs or compilation (tokens are drawn by the host, and each must be there before the next), and for a release of
    transformers that lacks what this needs.
    """
    found = getattr(manager, "logit_processor", None)
    if not isinstance(found, cb_logits_processors.ContinuousBatchingLogitsProcessorList):
        raise ParamsError(f"transformers must be {KNOWN_VERSIONS} or batch as it does, got {transformers.__version__}")
    if manager.batch_processor is not None:
        raise ParamsError("manager must not have started; make another with init_continuous_batching")
    if found.do_processing:
        names = [type(processor).__name__ for processor in found.logits_processor]
        raise ParamsError(f"generation_config must leave sampling to tirage, got {', '.join(names)}")
    _refuse_graphs(manager.continuous_batching_config)
    vocab_size = manager.model.config.get_text_config().vocab_size
    default = read_params(SamplingParams() if params is None else params, "the manager", tokenizer=tokenizer)
    manager.logit_processor = _RequestProcessorList(_RequestProcessor(vocab_size, default), tokenizer)


def _refuse_graphs(config: Any) -> None:
    for name in ("use_async_batching", "varlen_compile_config", "decode_compile_config"):
        if getattr(config, name, None):
            raise ParamsError(f"{name} must be off, got {getattr(config, name)}; ContinuousBatchingConfig has it")
    if any(config.use_cuda_graph if isinstance(config.use_cuda_graph, tuple) else (config.use_cuda_graph,)):
        raise ParamsError("use_cuda_graph must be False, got True; ContinuousBatchingConfig has it")


class _RequestProcessor(cb_logits_processors.ContinuousBatchingLogitsProcessor):
    """Draws the requests that the manager names before each forward pass."""

    def __init__(self, vocab_size: int, default: SamplingParams) -> None:
        self.supported_kwargs = {"tirage": object}
        self.ignored_kwargs = ()
        self.default = default
        self.rows = EngineRows(vocab_size)
        self.rows.check(default)
        self.states: list[Any] = []

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.fill_(0)

    def prepare_tensor_args(self, requests_with_new_token: list[Any]) -> torch.Tensor:
        """Int32 zeros [n]: what the draw needs of the n requests stays here."""
        states = [request.state for request in requests_with_new_token]
        for gone in {state.request_id for state in self.states} - {state.request_id for state in states}:
            self.rows.remove(gone)
        for state in states:
            if state.request_id not in self.rows:
                self.rows.add(state.request_id, _params(state, self.default), _prompt(state), sample_index=_copy(state))
        self.states = states
        return torch.zeros(len(states), dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Scores [B, V] with the token of each row alone: 0 there, -inf elsewhere.

        The rows of requests that are to get a token come first; those that still read their prompt are not used.
        """
        count = len(self.states)
        tokens = torch.zeros(len(scores), dtype=torch.long, device=scores.device)
        tokens[:count] = torch.tensor(self._tokens(scores[:count], self.states), dtype=torch.long)
        return torch.full_like(scores, -torch.inf).scatter_(1, tokens[:, None], 0.0)

    def _tokens(self, scores: torch.Tensor, states: list[Any]) -> list[int]:
        """The token of each row of scores [n, V]; a request that cannot be drawn for is ended, alone, with token 0."""
        try:
            draw = self.rows.draw(scores, [state.request_id for state in states], list(map(_output, states)))
        except ParamsError as error:
            if len(states) == 1:
                _end(states[0], str(error))
                return [0]
            return [self._tokens(scores[at : at + 1], [state])[0] for at, state in enumerate(states)]
        for state, status in zip(states, draw.status.tolist(), strict=True):
            if status:
                _end(state, f"the row cannot be drawn: {Status(status).name}")
        return draw.token_ids.clamp(min=0).tolist()


class _RequestProcessorList(cb_logits_processors.ContinuousBatchingLogitsProcessorList):
    """The manager's list with `_RequestProcessor` alone; it reads the parameters of a request as it comes."""

    def __init__(self, processor: _RequestProcessor, tokenizer: Any) -> None:
        super().__init__(transformers.LogitsProcessorList([processor]))
        self.tensors_required = 1
        self._processor = processor
        self._tokenizer = tokenizer

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """Puts the SamplingParams into the request's `kwargs`, seeded. Raises ParamsError, which fails it alone."""
        super().check_kwargs(kwargs)
        params = read_params(kwargs.get("tirage", self._processor.default), "the manager", tokenizer=self._tokenizer)
        self._processor.rows.check(params)
        kwargs["tirage"] = params if params.seed is not None else params.replace(seed=secrets.randbits(63))


def _params(state: Any, default: SamplingParams) -> SamplingParams:
    return state.logit_processor_kwargs.get("tirage", default)


def _prompt(state: Any) -> list[int]:
    """The ids of the prompt, without the output that a preempted request reads again."""
    return state.initial_tokens[: state._true_initial_tokens or None]


def _output(state: Any) -> list[int]:
    again = state.initial_tokens[state._true_initial_tokens :] if state._true_initial_tokens else []
    return again + state.generated_tokens


def _copy(state: Any) -> int:
    """The index of a copy, which the manager writes into its id."""
    _, found, index = state.request_id.rpartition("__child#")
    return int(index) + 1 if found else 0


def _end(state: Any, reason: str) -> None:
    """Ends one request: its next token is its last."""
    state.error = reason
    _log.warning("request %s: %s", state.request_id, state.error)
    state._new_tokens_limit = 0
