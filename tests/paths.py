"""Every way to draw a token, in one table: a backend that joins it is held to the same vectors and properties."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import reference
import torch
from numpy.typing import NDArray
from strategies import Case

import tirage
from tirage.backends import sharded
from tirage.backends.numpy import dispatch, distribution, kernels
from tirage.backends.torch.dispatch import draw_on_device
from tirage.history import History
from tirage.sampling_batch import SamplingBatch, SamplingRow
from tirage.sampling_metadata import Drawn, SamplingMetadata


@dataclass(frozen=True, slots=True)
class Answer:
    """What a path says about one row; floats as bits, so that equal means equal in every bit."""

    token: int
    status: int
    support: int
    sampled_logprob: int
    logprob: int
    rank: int
    top: tuple[tuple[int, int], ...]
    given: tuple[int, ...]


def bits(value: float) -> int:
    """The bits of a binary32 number; every NaN is 0x7fc00000."""
    return 0x7FC00000 if np.isnan(value) else int(np.float32(value).view(np.uint32))


def mask_words(case_masks: Sequence[Sequence[bool] | None], size: int) -> NDArray[np.int32] | None:
    """Boolean masks as the bitmask that `sample` takes; None when no row has one."""
    if all(mask is None for mask in case_masks):
        return None
    flags = np.ones((len(case_masks), -(-size // 32) * 32), np.uint8)
    for row, mask in zip(flags, case_masks, strict=True):
        if mask is not None:
            row[:size] = mask
    return np.packbits(flags, axis=1, bitorder="little").view(np.int32)


def two_shards(x: NDArray[np.float32]) -> sharded.Shards:
    """Logits [B, V] as the shards of two ranks, of which the first has 25 columns."""
    whole = torch.from_numpy(x)
    return sharded.Shards([whole[:, :25].contiguous(), whole[:, 25:].contiguous()])


def by_reference(cases: Sequence[Case]) -> list[Answer]:
    """Answers of the executable spec."""
    return [answer_of(reference_result(case), case) for case in cases]


def reference_result(case: Case) -> reference.Result:
    """The full Result of the executable spec for one case."""
    return reference.draw(
        case.logits.tolist(),
        case.params,
        case.prompt,
        case.output,
        seed=case.seed,
        step=case.step,
        sample_index=case.sample_index,
        mask=case.mask,
        state=case.carried,
    )


def answer_of(result: reference.Result, case: Case) -> Answer:
    """The Answer in a Result of the executable spec."""
    return Answer(
        result.token,
        result.status,
        len(result.support),
        bits(result.sampled_logprob),
        bits(result.logprob),
        result.rank,
        tuple((t, bits(v)) for t, v in result.top),
        tuple(bits(v) for v in result.given),
    )


def by_sample(cases: Sequence[Case], array: Callable[[NDArray], Any] = np.asarray) -> list[Answer]:
    """Answers of `tirage.sample` for arrays made by `array`, all cases in one call: one width."""
    words = mask_words([case.mask for case in cases], cases[0].logits.size)
    drawn = tirage.sample(
        array(np.stack([case.logits for case in cases])),
        [case.params.replace(seed=case.seed) for case in cases],
        history=[(case.prompt, case.output) for case in cases],
        step=[case.at for case in cases],
        sample_index=[case.sample_index for case in cases],
        mask=None if words is None else array(words),
        state=[case.carried for case in cases],
    )
    return [_of_draw(drawn, r, case) for r, case in enumerate(cases)]


def _of_draw(drawn: tirage.Draw, r: int, case: Case) -> Answer:
    asks = _asks(case)
    top = zip(drawn.top_token_ids[r].tolist(), drawn.top_logprobs[r].tolist(), strict=True) if asks else ()
    return Answer(
        int(drawn.token_ids[r]),
        int(drawn.status[r]),
        int(drawn.support_sizes[r]),
        bits(float(drawn.sampled_logprobs[r])),
        bits(float(drawn.logprobs[r]) if asks else np.nan),
        int(drawn.ranks[r]) if asks else 0,
        tuple((t, bits(v)) for t, v in top if t >= 0),
        tuple(bits(v) for v in drawn.given_logprobs[r]) if asks and drawn.given_logprobs else (),
    )


def by_plain(cases: Sequence[Case]) -> list[Answer]:
    """Answers of the plain NumPy path, called below the dispatch that may prefer another."""
    return _by_rows(cases, lambda logits, rows: distribution.draw(logits, rows, Drawn.empty(rows)))


def by_numba(cases: Sequence[Case]) -> list[Answer]:
    """Answers of the compiled kernels, with plain NumPy for the rows that they leave to it."""
    kernels.start()
    kernels.wait()
    assert kernels.ready()
    return _by_rows(cases, dispatch.draw_rows)


def _by_rows(cases: Sequence[Case], draw: Callable[[NDArray[np.float32], SamplingMetadata], Drawn]) -> list[Answer]:
    size = cases[0].logits.size
    states = [
        SamplingRow.of(
            case.params.replace(seed=case.seed),
            History.of(case.prompt, case.output, vocab_size=size),
            sample_index=case.sample_index,
            step=case.at,
        )
        for case in cases
    ]
    for row, case in zip(states, cases, strict=True):
        row.state = case.carried
    rows = SamplingBatch.of(states, size).metadata(mask_words([case.mask for case in cases], size))
    out = draw(np.stack([case.logits for case in cases]), rows)
    return [_of_drawn(out, rows, r, case) for r, case in enumerate(cases)]


def _of_drawn(out: Drawn, rows: SamplingMetadata, r: int, case: Case) -> Answer:
    asked = slice(int(rows.asked_start[r]), int(rows.asked_start[r + 1]))
    top = zip(out.top_ids[r].tolist(), out.top_logprobs[r].tolist(), strict=True)
    return Answer(
        int(out.token_ids[r]),
        int(out.status[r]),
        int(out.support[r]),
        bits(out.sampled_logprobs[r]),
        bits(out.logprobs[r]),
        int(out.ranks[r]),
        tuple((t, bits(v)) for t, v in top if t >= 0) if _asks(case) else (),
        tuple(bits(v) for v in out.asked_logprobs[asked].tolist()),
    )


def _asks(case: Case) -> bool:
    return case.params.logprobs is not None or bool(case.params.logprob_token_ids)


def by_torch(cases: Sequence[Case]) -> list[Answer]:
    """Answers of `tirage.sample` for torch tensors on the CPU."""
    return by_sample(cases, torch.from_numpy)


def by_torch_eager(cases: Sequence[Case]) -> list[Answer]:
    """Answers of plain tensor operations, as on a device without kernels."""
    return _by_rows(
        cases, lambda logits, rows: draw_on_device(torch.from_numpy(logits), rows).moved(torch.Tensor.numpy)
    )


PATHS: dict[str, Callable[[Sequence[Case]], list[Answer]]] = {
    "plain": by_plain,
    "numba": by_numba,
    "sample": by_sample,
    "torch": by_torch,
    "torch_eager": by_torch_eager,
}
"""Paths that must agree with the reference bit for bit on every field; a new backend adds its line here."""
