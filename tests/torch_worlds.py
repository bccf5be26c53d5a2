"""Random lives of a batch whose rows lie on a device, here the CPU: requests that it draws itself, and some that it
must leave to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from schedules import FEATURES, PASTS, Pick, Request, V, World

from tirage import Batch, ParamsError, SamplingParams
from tirage.backends.torch import draw_op
from tirage.backends.torch.device import ops
from tirage.backends.torch.device.row_form import form_of
from tirage.backends.torch.dispatch import draw_on_device
from tirage.backends.torch.plan import metadata_of
from tirage.batch.torch import TorchBatch
from tirage.history import History
from tirage.sampling_batch import SamplingRow
from tirage.semantics import PRESETS

_VALUES: dict[str, tuple[Any, ...]] = {
    "temperature": (0.7, 1.0, 0.0, 1.7),
    "top_k": (7, 2, 0, 40),
    "top_p": (0.9, 0.6, 1.0, 0.3),
    "min_p": (0.0, 0.05, 0.3),
    "repetition_penalty": (1.3, 1.0, 0.6),
    "frequency_penalty": (0.0, 0.7, -1.5),
    "presence_penalty": (0.4, 0.0),
    "logit_bias": (None, {1: 4.0, 5: -3.0, 7: -np.inf}, {2: -np.inf}, {0: 1e-40, 3: 90.0}),
    "min_tokens": (0, 3),
    "stop_token_ids": ((), (1, 2, 9)),
    "allowed_token_ids": (None, tuple(range(0, V, 2)), None),
    "bad_words_token_ids": ((), (), ((3,), (8,)), ((3,), (8, 9), (4, 6, 5))),
    "no_repeat_ngram_size": (0, 0, 0, 0, 2, 1, 3),
    "sequence_bias": (None, None, (((5, 2), 3.0), ((4,), -1.5), ((7, 0, 1), -np.inf))),
    "dry_multiplier": (0.0, 0.0, 1.5),
    "dry_allowed_length": (2, 1),
    "dry_last_n": (-1, 5),
    "dry_sequence_breakers": ((),),
    "dry_breaker_token_ids": ((), (4, 9)),
    "dynatemp_range": (0.0, 0.0, 0.4),
    "dynatemp_exponent": (1.0, 2.5),
    "xtc_probability": (0.0, 0.0, 0.5),
    "xtc_threshold": (0.1, 0.02),
    "xtc_protected_ids": ((), (1, 5, 9, 23)),
}
"""Fields of the requests, each with values that take turns."""


def _taken(name: str, r: np.random.Generator) -> SamplingParams:
    """Parameters of a preset with as many of the fields as it takes."""
    params = SamplingParams(semantics=name)
    for field, values in _VALUES.items():
        try:
            params = params.replace(**{field: values[int(r.integers(len(values)))]})
        except ParamsError:
            continue
    return params


@cache
def features() -> tuple[SamplingParams, ...]:
    """What requests ask for: five mixtures of each preset, and everything that other batches are tried with."""
    r = np.random.default_rng(5)
    return (*(_taken(name, r) for name in PRESETS for _ in range(5)), *FEATURES)


class TorchRequest(Request):
    """The request number `key`, over the features above."""

    @property
    def params(self) -> SamplingParams:
        return features()[self.key % len(features())].replace(seed=self.key * 1000 - 3)

    @property
    def prompt(self) -> tuple[int, ...]:
        return PASTS[self.key // len(features())][0]

    @property
    def brought(self) -> tuple[int, ...]:
        return PASTS[self.key // len(features())][1]


@cache
def on_device() -> tuple[int, ...]:
    """The requests that have a form on the device."""
    rows = (SamplingRow.of(TorchRequest(key).params, History.of((), (), vocab_size=V)) for key in range(_REQUESTS))
    return tuple(key for key, row in enumerate(rows) if form_of(row) is not None)


_REQUESTS = len(features()) * len(PASTS)


class TorchWorld(World):
    """Every request is drawn on the device."""

    others = 0

    def _empty(self) -> Batch:
        return TorchBatch(V, self.capacity, like=torch.zeros(1, V))

    def _request(self, pick: Pick) -> Request:
        hosted = pick([False] * 9 + [True]) if self.others else False
        return TorchRequest(pick(range(_REQUESTS) if hosted else on_device()))


class MixedWorld(TorchWorld):
    """Now and then a request comes that the host must draw, and goes again."""

    others = 1


def by_tensors(
    x: torch.Tensor, bad: torch.Tensor, meta: torch.Tensor, chances: Any = None, spared: Any = None
) -> draw_op.DrawnRows:
    """What `draw_op.on_host` gives, from plain tensor operations where those have a step for every filter."""
    out: Any = draw_on_device(x, metadata_of(meta.numpy(), chances, spared))
    status = torch.where(bad, 1, out.status).to(torch.int8)
    token, support = (torch.where(bad, fill, each) for each, fill in ((out.token_ids, -1), (out.support, 0)))
    return token, torch.where(bad, torch.nan, out.sampled_logprobs), support, status


@contextmanager
def drawn_by(function: Callable[..., draw_op.DrawnRows]) -> Iterator[None]:
    """Rows on the CPU drawn by another function than the NumPy backend's."""
    with patch.object(draw_op, "on_host", function), np.errstate(all="ignore"):
        yield


@contextmanager
def stepped_by(stepper: Any) -> Iterator[None]:
    """Rows on the CPU drawn, moved on and reported by other functions than those of tensor operations."""
    given = {"by_tensors": stepper.draw, "append_by_tensors": stepper.append, "report_by_tensors": stepper.report}
    with patch.multiple(ops, **given), np.errstate(all="ignore"):
        yield
