"""Drawing inside transformers' `generate`: a logits processor, and a decoding method for `custom_generate`."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from transformers import LogitsProcessor, LogitsProcessorList

from tirage.draw import Draw, Status
from tirage.errors import ParamsError, RowError
from tirage.integrations.params import read_params, readers
from tirage.integrations.rows import EngineRows
from tirage.params import SamplingParams

Given = SamplingParams | Mapping[str, Any] | str
Ids = NDArray[np.int64]

KNOWN_VERSIONS = "5.23"
"""The release whose decoding methods `custom_generate` was tested with."""

_log = logging.getLogger(__name__)
_WARPERS = {
    "TemperatureLogitsWarper": "temperature",
    "TopHLogitsWarper": "top_h",
    "TopKLogitsWarper": "top_k",
    "TopPLogitsWarper": "top_p",
    "MinPLogitsWarper": "min_p",
    "TypicalLogitsWarper": "typical_p",
    "EpsilonLogitsWarper": "epsilon_cutoff",
    "EtaLogitsWarper": "eta_cutoff",
}
"""What `generate` samples with where `do_sample` is set, and the parameter that asks for each."""

_DECODING = {"greedy_search": "_sample", "sample": "_sample", "assisted_generation": "_assisted_decoding"}


class TirageLogitsProcessor(LogitsProcessor):
    """A LogitsProcessor that draws each row's token and leaves it alone in the row: 0 there, -inf elsewhere.

    It is the last of `logits_processor` and serves one call of `generate` at a time, with `do_sample` True or False:
    what follows can choose nothing else. Processors before it, as those of `repetition_penalty=` or `bad_words_ids=`,
    have done their work on the scores that it draws from; `temperature=`, `top_p=` and the like come after it and
    have no effect. Rows that are finished are not drawn. Candidates of an assistant model or of prompt lookup are
    judged by the token that is drawn in their place, so the text is the one without them.
    """

    def __init__(
        self,
        params: Given | Sequence[Given],
        *,
        attention_mask: Any = None,
        num_return_sequences: int = 1,
        eos_token_id: int | None = None,
        tokenizer: Any = None,
    ) -> None:
        """`params` for all prompts, or one per prompt: SamplingParams, a mapping of their fields, or JSON text.

        `attention_mask` [N, T], as the tokenizer returns it with the ids of N prompts: 0 marks padding, which is no
        part of a prompt. Without it every id is; several prompts whose tokens a parameter reads need it. For an
        encoder-decoder model it is the decoder's. `num_return_sequences` as given to `generate`: the copies of a
        prompt are the samples 0, 1, ... of its request. `eos_token_id` ends a row that cannot be drawn, with a warning
        in the log; without it such a row is a RowError. `tokenizer` is for parameters that hold words.
        Raises ParamsError for parameters that break a rule or belong to `generate` itself.
        """
        each = list(params) if isinstance(params, Sequence) and not isinstance(params, str) else [params]
        self._params = [read_params(one, "generate", tokenizer=tokenizer) for one in each]
        self._one_for_all = not isinstance(params, Sequence) or isinstance(params, str)
        self._mask = None if attention_mask is None else _on_host(attention_mask)
        self._copies = num_return_sequences
        self._eos = eos_token_id
        self._rows = EngineRows(0)
        self._prompt: Ids = np.zeros((0, 0), np.int64)
        self._length = 0
        self._drawn: Ids = np.zeros(0, np.int64)
        self._padding: dict[int, int] = {}

    @property
    def seeds(self) -> list[int]:
        """The seed of each row of the last call of `generate`, given or fresh."""
        return [self._rows.seed(row) for row in range(len(self._rows))]

    def __call__(self, input_ids: torch.LongTensor, scores: torch.Tensor) -> torch.Tensor:
        """Scores [B, V] of the same dtype, 0 for the token of each row and -inf elsewhere, for input_ids [B, T].

        Raises ParamsError where rows are not those of prompts, as with beams; RowError as the class says.
        """
        if input_ids.dim() != 2:
            raise ParamsError(
                f"input_ids must be [B, T], got {list(input_ids.shape)}; for continuous batching use "
                "tirage.integrations.transformers_batching"
            )
        if _asks_what_is_forbidden(scores):
            return scores
        if len(self._rows) and scores.shape[1] != self._rows.vocab_size:
            raise ParamsError(
                f"scores must be over {self._rows.vocab_size} tokens as before, got {scores.shape[1]}; an assistant "
                "model must have the model's vocabulary, and another model a processor of its own"
            )
        ids = _on_host(input_ids)
        if not self._goes_on(ids):
            if self._copies > 1:
                _refuse_logprobs(scores)
            self._start(ids, scores.shape[1])
        elif ids.shape[0] > 1:
            self._see_what_was_taken(ids)
        self._length = ids.shape[1]
        self._draw(ids, scores)
        left = torch.full_like(scores, -torch.inf)
        return left.scatter_(1, torch.from_numpy(self._drawn).to(scores.device)[:, None], 0.0)

    def _draw(self, ids: Ids, scores: torch.Tensor) -> None:
        """Puts the token of each row into `_drawn`; a finished row keeps its padding."""
        which = [row for row in range(len(ids)) if row not in self._padding]
        some = scores if len(which) == len(ids) else scores[which]
        draw = self._rows.draw(some, which, [ids[row, self._prompt.shape[1] :] for row in which])
        self._drawn[which] = self._ended(which, draw)

    def _ended(self, which: list[int], draw: Draw) -> Ids:
        tokens, status = _on_host(draw.token_ids), _on_host(draw.status)
        for at in np.flatnonzero(status):
            reason = f"row {which[at]} cannot be drawn: {Status(int(status[at])).name}"
            if self._eos is None:
                raise RowError(f"{reason}; eos_token_id ends such a row alone")
            _log.warning("%s; it ends with token %d", reason, self._eos)
        return tokens if self._eos is None else np.where(status == 0, tokens, self._eos)

    def _goes_on(self, ids: Ids) -> bool:
        """True for the ids of the call before, shorter or with one token more: those of the same generation."""
        prompt = self._prompt.shape[1]
        if len(ids) != len(self._prompt) or not prompt < ids.shape[1] <= self._length + 1:
            return False
        return bool((ids[:, :prompt] == self._prompt).all())

    def _see_what_was_taken(self, ids: Ids) -> None:
        """Notes the rows that are finished: their tokens are not those drawn, but the same padding from then on."""
        if ids.shape[1] != self._length + 1:
            return
        for row in np.flatnonzero(ids[:, -1] != self._drawn).tolist():
            token = int(ids[row, -1])
            if self._padding.setdefault(row, token) != token:
                raise ParamsError(
                    f"row {row} must take the token that was drawn for it, {self._drawn[row]}, got {token}; "
                    "num_beams must be 1, and no other processor may choose tokens"
                )
            self._drawn[row] = token

    def _start(self, ids: Ids, vocab_size: int) -> None:
        """Begins a generation: one request for each row, copies of a prompt beside each other."""
        count = self._prompts(ids)
        params = self._params * count if self._one_for_all else self._params
        self._rows = EngineRows(vocab_size)
        for row, tokens in enumerate(ids):
            prompt, sample = divmod(row, self._copies)
            kept = tokens if self._mask is None else tokens[self._mask[prompt] != 0]
            self._rows.add(row, params[prompt], kept, sample_index=sample)
        self._prompt, self._padding = ids, {}
        self._drawn = np.zeros(len(ids), np.int64)

    def _prompts(self, ids: Ids) -> int:
        """The number of prompts, checked against the number of rows."""
        count = len(ids) // self._copies
        if self._mask is not None:
            count = len(self._mask)
        elif not self._one_for_all:
            count = len(self._params)
        if count * self._copies != len(ids) or not (self._one_for_all or len(self._params) == count):
            raise ParamsError(
                f"rows must be {count} prompts times num_return_sequences {self._copies}, with one params for each "
                f"prompt or for all, got {len(ids)} rows and {len(self._params)} params; num_beams must be 1"
            )
        if self._mask is not None and self._mask.shape != (count, ids.shape[1]):
            raise ParamsError(f"attention_mask must be [{count}, {ids.shape[1]}], got {list(self._mask.shape)}")
        if self._mask is None and count > 1:
            self._require_no_mask(ids[:: self._copies])
        return count

    def _require_no_mask(self, prompts: Ids) -> None:
        """Raises ParamsError where only a mask could tell what several prompts are."""
        if names := sorted({name for params in self._params for name in readers(params)}):
            raise ParamsError(f"attention_mask must be given where {', '.join(names)} read the tokens of prompts")
        if self._one_for_all and (prompts[1:] == prompts[:-1]).all(axis=1).any():
            raise ParamsError(
                "attention_mask must be given where prompts are equal, as it tells them from num_return_sequences, "
                "which must be given too, and from num_beams, which must be 1"
            )


def custom_generate(
    model: Any,
    input_ids: torch.LongTensor,
    logits_processor: LogitsProcessorList,
    stopping_criteria: Any,
    generation_config: Any,
    params: Given | Sequence[Given] | None = None,
    **model_kwargs: Any,
) -> Any:
    """What `generate` returns, drawn with `params`: `model.generate(..., custom_generate=custom_generate, params=...)`.

    Token ids [B, T], or the output object that `return_dict_in_generate` asks for. Padding, copies and the end of a row
    that cannot be drawn follow from what `generate` was given; `do_sample` may be either. Processors that `generate`
    makes itself run first. The sampling parameters of transformers that stand in the model's own generation config
    have no effect; those given beside `params` are refused. `generate` hands neither `streamer` nor `assistant_model`
    to such a function: TirageLogitsProcessor works with both. Raises ParamsError for these, for beams and other ways of
    decoding, and for a release that lacks what this one calls.
    """
    if params is None:
        raise ParamsError("params must be given to generate beside custom_generate")
    method = getattr(type(model), _decoding_of(generation_config), None)
    if method is None:
        raise ParamsError(f"transformers must be {KNOWN_VERSIONS} or decode as it does, got {transformers.__version__}")
    _refuse_own_sampling(generation_config, model.generation_config)
    copies, eos = generation_config.num_return_sequences or 1, generation_config.eos_token_id
    mask = model_kwargs.get("decoder_attention_mask" if model.config.is_encoder_decoder else "attention_mask")
    if mask is None or mask.shape != input_ids.shape:
        mask = torch.ones_like(input_ids)
    processor = TirageLogitsProcessor(
        params,
        attention_mask=mask[::copies],
        num_return_sequences=copies,
        eos_token_id=eos[0] if isinstance(eos, list) else eos,
    )
    config = copy.copy(generation_config)
    config.do_sample = False
    before = [one for one in logits_processor if not (generation_config.do_sample and type(one).__name__ in _WARPERS)]
    return method(
        model,
        input_ids,
        logits_processor=LogitsProcessorList([*before, processor]),
        stopping_criteria=stopping_criteria,
        generation_config=config,
        **model_kwargs,
    )


def _decoding_of(config: Any) -> str:
    """The name of the decoding method for a generation config."""
    if (config.num_beams or 1) > 1:
        raise ParamsError(f"num_beams must be 1, got {config.num_beams}; tirage.LLM has beam search")
    mode = config.get_generation_mode().value
    if mode not in _DECODING:
        raise ParamsError(f"the generation mode must be {', '.join(_DECODING)}, got {mode}")
    return _DECODING[mode]


def _refuse_own_sampling(config: Any, of_model: Any) -> None:
    """Raises ParamsError for a sampling parameter of transformers' own that was given to this call."""
    usual = getattr(of_model, "_get_default_generation_params", dict)()
    for name in _WARPERS.values():
        value, default = getattr(config, name, None), getattr(of_model, name, None)
        if value != (usual.get(name) if default is None else default):
            raise ParamsError(f"{name} must be left to params, got {name}={value} beside them")


def _asks_what_is_forbidden(scores: torch.Tensor) -> bool:
    """True for the row of ones with which prompt lookup asks whether processors forbid a candidate.

    To answer with a token would refuse every candidate but that one. No model has such logits.
    """
    return scores.shape[0] == 1 and bool(scores[0, 0] == 1.0) and bool((scores == 1.0).all())


def _refuse_logprobs(scores: torch.Tensor) -> None:
    """Raises ParamsError for rows of logprobs: those of beams, which may be as many as the copies asked for."""
    if bool((scores.float().logsumexp(dim=1).abs() < 1e-4).all()):
        raise ParamsError("scores must be logits where num_return_sequences > 1, got logprobs; num_beams must be 1")


def _on_host(array: Any) -> Ids:
    """Integers of any tensor as NumPy int64."""
    return np.asarray(array.cpu() if isinstance(array, torch.Tensor) else array, np.int64)
