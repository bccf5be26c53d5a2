"""A model inside vLLM's engine, moved on step by step: a `BatchingModel`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tirage.errors import ModelError
from tirage.models.protocol import DrawTokens, Inputs, RowOutput
from tirage.models.text_only import TextOnly
from tirage.models.vllm import installed
from tirage.models.vllm.logits_processor import KEY, VllmRow

_log = logging.getLogger("tirage")


class VllmModel(TextOnly):
    """vLLM's `LLMEngine` with its core in this process; requests are keyed by integers.

    Every request is greedy to vLLM and has no stops: which token is the largest, and when the text ends, is decided
    outside.
    """

    described = "a model on the vLLM backend"

    def __init__(self, engine: Any, numerics: Mapping[str, Any]) -> None:
        self.engine, self._numerics = engine, dict(numerics)
        config = engine.vllm_config.model_config
        self.vocab_size, self.max_length = int(config.get_vocab_size()), int(config.max_model_len)
        self._scheduler = engine.engine_core.engine_core.scheduler
        self._rows: dict[int, VllmRow] = {}
        self._draw: DrawTokens | None = None
        self.closed = False

    def numerics(self) -> dict[str, Any]:
        """What the last bits of the logits depend on, besides the weights and the other rows of a step."""
        return dict(self._numerics)

    def add(self, key: int, inputs: Inputs, *, limit: int, prompt_logprobs: int | None = None) -> None:
        """Queues a request. Raises ModelError for one that vLLM refuses."""
        row = VllmRow(key, self._on_logits, top=prompt_logprobs or 0)
        params = installed.find(installed.SamplingParams)(
            temperature=0.0,
            max_tokens=limit,
            ignore_eos=True,
            detokenize=False,
            prompt_logprobs=prompt_logprobs,
            output_kind=installed.find(installed.RequestOutputKind).DELTA,
            extra_args={KEY: row},
        )
        prompt: dict[str, Any] = {"prompt_token_ids": list(inputs.token_ids), "type": "token"}
        if inputs.salt:
            prompt["cache_salt"] = inputs.salt
        try:
            row.request_id = self.engine.add_request(str(key), prompt, params) or str(key)
        except ValueError as error:
            raise ModelError(f"vLLM refuses the request: {error}") from error
        self._rows[key] = row

    def remove(self, key: int) -> None:
        """Ends a request; one that is not there is none."""
        if self._rows.pop(key, None) is not None:
            self.engine.abort_request([str(key)])

    def step(self, draw: DrawTokens) -> list[RowOutput]:
        """One step of vLLM's engine."""
        self._draw = draw
        try:
            return [self._output_of(each) for each in self.engine.step()]
        finally:
            self._draw = None

    def forget(self) -> None:
        """Clears vLLM's prefix cache; what running requests use stays."""
        self.engine.reset_prefix_cache()

    def close(self) -> None:
        """Ends vLLM's engine and frees its memory; closing twice does no harm."""
        self._rows.clear()
        if not self.closed:
            self.closed = True
            self.engine.engine_core.shutdown()

    def _output_of(self, found: Any) -> RowOutput:
        """What vLLM says of a request."""
        key, output = int(found.request_id), found.outputs[0]
        row = self._rows.pop(key, None) if found.finished else self._rows.get(key)
        ids = list(output.token_ids)
        return RowOutput(
            key=key,
            token_id=ids[-1] if ids else None,
            cached_tokens=found.num_cached_tokens or 0,
            prompt_logprobs=[] if row is None else new_prompt_logprobs(found, row),
            ended=str(output.finish_reason) if found.finished else None,
        )

    def _on_logits(self, logits: Any, rows: list[tuple[int, VllmRow]]) -> None:
        """Draws for the rows of logits float32 [B, V] whose prompts are complete, and leaves the tokens alone in them.

        Never raises, as vLLM's engine would not survive it.
        """
        ready = [(index, row) for index, row in rows if self._is_complete(row)]
        if not ready or self._draw is None:
            return
        indices, keys = [index for index, _ in ready], [row.key for _, row in ready]
        try:
            tokens = self._draw(keys, shared(logits, indices))
        except BaseException as error:
            _log.error("a draw failed", exc_info=error)
            tokens = [-1] * len(keys)
        keep_alone(logits, indices, tokens)

    def _is_complete(self, row: VllmRow) -> bool:
        """Whether this step computes the last of a request's tokens; of a chunk before it the token is not taken."""
        request = self._scheduler.requests.get(row.request_id)
        return request is not None and request.num_computed_tokens >= request.num_tokens


def new_prompt_logprobs(found: Any, row: VllmRow) -> list[list[tuple[int, float, int]] | None]:
    """The logprobs that vLLM has newly given for prompt tokens, as `RowOutput` has them."""
    new = found.prompt_logprobs or ()
    ids = found.prompt_token_ids[row.scored : row.scored + len(new)]
    row.scored += len(new)
    return [None if each is None else listed(each, i, row.top) for each, i in zip(new, ids, strict=True)]


def listed(found: Mapping[int, Any], token_id: int, top: int) -> list[tuple[int, float, int]]:
    """vLLM's logprobs for a prompt token as (token id, logprob, rank): its own, then those of the `top` likeliest."""
    every = [(int(i), float(each.logprob), int(each.rank)) for i, each in found.items()]
    own = next(each for each in every if each[0] == token_id)
    # vLLM lists the token itself too where it is none of the likeliest.
    likeliest = sorted((each for each in every if each[2] <= top), key=lambda each: each[2])
    return [own, *likeliest[:top]]


def shared(logits: Any, indices: list[int]) -> Any:
    """Rows of torch logits [B, V]: on the CPU as NumPy float32, not copied where all are asked for."""
    if indices != list(range(len(logits))):
        logits = logits[indices]
    logits = logits.float().contiguous()
    return logits.numpy() if logits.is_cpu else logits


def keep_alone(logits: Any, indices: list[int], tokens: Sequence[int]) -> None:
    """Makes a token the only candidate of each row of torch logits [B, V]; of a row without one, id 0."""
    chosen = np.maximum(np.asarray(tokens, np.int64), 0).tolist()
    if not logits.is_cpu or any(token < 0 for token in tokens):
        logits[indices] = float("-inf")
        logits[indices, chosen] = 0.0
    else:  # one number for each row, where a whole one would be as slow as the draw
        logits[indices, chosen] = float("inf")
