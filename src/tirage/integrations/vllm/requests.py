"""What a request of vLLM asks of tirage: read, checked against vLLM's own parameters, and held while it runs."""

from __future__ import annotations

import logging
import sys
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from tirage.compiled_params import compiled
from tirage.errors import ParamsError
from tirage.fields.rules import shown
from tirage.integrations.params import read_params, readers
from tirage.params import SamplingParams

logger = logging.getLogger("vllm.tirage")
"""Below vLLM's own logger, so that its handlers and levels hold."""

KEY = "tirage"
"""Where in `extra_args` a request puts the fields for tirage."""

OWN_FIELDS: dict[str, tuple[Any, ...]] = {
    "top_p": (1.0,),
    "top_k": (0, -1),
    "min_p": (0.0,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
    "repetition_penalty": (1.0,),
    "thinking_token_budget": (None,),
    "trace_decode_token_ids": (None,),
}
"""Fields of vLLM's SamplingParams that would not take effect, or would replace what was drawn: their off values."""


def asks(own: Any) -> bool:
    """Whether vLLM's SamplingParams `own` ask for tirage."""
    return KEY in (getattr(own, "extra_args", None) or {})


def read(own: Any) -> SamplingParams:
    """What vLLM's SamplingParams `own` ask of tirage. Raises ParamsError for what no draw inside vLLM can do."""
    return read_params(own.extra_args[KEY], "vLLM")


def check(own: Any) -> None:
    """Raises ParamsError where a request asks for what tirage cannot do, or for what vLLM would not do beside it."""
    params = read(own)
    if own.temperature not in {0.0, 1.0}:
        raise ParamsError(
            f"temperature of vLLM must be 0 or 1 where tirage draws, got {own.temperature}; give it to tirage"
        )
    for name, off in OWN_FIELDS.items():
        value = getattr(own, name, off[0])
        if value not in off:
            raise ParamsError(
                f"{name} of vLLM must be {off[0]} where tirage draws, got {shown(value)}; give it to tirage "
                "(--generation-config vllm keeps out what the model's generation_config.json sets)"
            )
    _check_seeds(own, params)
    if (config := engine_config()) is not None:
        _check_engine(own, params, config)


def _check_seeds(own: Any, params: SamplingParams) -> None:
    """The samples of one request are told apart by vLLM's seed alone, which counts up from one to the next."""
    if own.seed is not None and own.seed != params.seed:
        raise ParamsError(f"seed of vLLM must be that of tirage or left out, got {own.seed} and {params.seed}")
    if own.n > 1 and params.seed is not None and own.seed is None:
        raise ParamsError(
            f"n must be 1 where tirage alone is given a seed, got {own.n}; give vLLM the same seed, {params.seed}"
        )


def _check_engine(own: Any, params: SamplingParams, config: Any) -> None:
    compiled(params).check(config.model_config.get_vocab_size())
    if config.speculative_config is not None and not config.use_v2_model_runner:
        raise ParamsError(
            "speculative decoding must be off where tirage draws in vLLM's V1 model runner, "
            "which then leaves out logits processors"
        )
    if getattr(config, "watermark_config", None) is not None and own.watermarking is not False:
        raise ParamsError(f"watermarking must be False where tirage draws, got {own.watermarking}")


def engine_config() -> Any:
    """The VllmConfig of the engine that is asking, None outside of one.

    vLLM hands `validate_params` the parameters alone, in a process of its own that never makes a processor; the engine
    is among the callers.
    """
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_globals.get("__name__", "").startswith("vllm."):
            config = getattr(frame.f_locals.get("self"), "vllm_config", None)
            if config is not None:
                return config
        frame = frame.f_back
    return None


@dataclass(slots=True, eq=False)
class Request:
    """A request that runs: what to draw by, what vLLM has put out for it, and what was drawn.

    `end` is a token that makes vLLM end the request, None where there is none. `alone`: vLLM's sampler draws from the
    row once more, so nothing but the drawn token may be left in it. `failed` says why the request cannot go on.
    """

    params: SamplingParams
    sample_index: int
    output: list[int]
    end: int | None
    alone: bool
    drawn: list[int] = field(default_factory=list)
    failed: str = ""

    @classmethod
    def of(cls, own: Any, output: list[int], *, seed: int | None) -> Request:
        """The request of vLLM's SamplingParams `own`; `seed` is taken where tirage is given none.

        It has failed where its fields cannot be read here: they were checked in another process, which may have custom
        processors that this one lacks.
        """
        ends = [own.eos_token_id, *(own.stop_token_ids or ())]
        end = next((token for token in ends if token is not None), None)
        request = cls(params=SamplingParams(), sample_index=0, output=output, end=end, alone=own.temperature > 0)
        try:
            params = read(own)
        except ParamsError as error:
            request.fail(error)
            return request
        request.sample_index = 0 if own.seed is None or params.seed is None else own.seed - params.seed
        request.params = params if params.seed is not None else params.replace(seed=seed)
        return request

    @property
    def reads(self) -> bool:
        """Whether the draw reads past tokens, not only their number."""
        return bool(readers(self.params))

    def history(self) -> list[int]:
        """All ids that were put out; those that vLLM itself does not know yet, -1, are those that were drawn."""
        if not self.reads or -1 not in self.output:
            return self.output
        drawn = [*self.drawn, *[-1] * len(self.output)]
        return [drawn[at] if token < 0 else token for at, token in enumerate(self.output)]

    def remember(self, at: int, token: int) -> None:
        """Keeps what was drawn at position `at`, and forgets what was drawn there and later before."""
        del self.drawn[at:]
        self.drawn += [-1] * (at - len(self.drawn))
        self.drawn.append(token)

    def fail(self, why: object) -> None:
        """Ends the request: from here on its rows hold its end token alone. The log has the reason."""
        self.failed = str(why) or type(why).__name__
        until = "its end token" if self.end is not None else "max_tokens, as it has no end token"
        logger.error("tirage cannot draw for a request, which is ended by %s: %s", until, self.failed)
