"""Hostile rows drawn by the Triton kernels under its interpreter, each checked against the plain path.

Run as a program, as Triton reads TRITON_INTERPRET when it is imported; prints what each job compared as JSON.
"""

from __future__ import annotations

import json
import math
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import fields, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import MagicMock, Mock, patch

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import recorded_triton
import torch
import typical_rows
from behind_rows import BEHIND, behind_job
from counted_shapes import OTHERS, SHAPES, SIZE, logits_of
from numpy.typing import NDArray
from steady_steps import Steps
from torch_worlds import TorchWorld, stepped_by
from triton_jobs import DTYPES, Job, bound_job, likely_job, preset_job, program_job, set_job, shaped_logits, summed_job

import tirage
from tirage import SamplingParams
from tirage.backends.numpy import distribution
from tirage.backends.numpy.dispatch import draw_rows
from tirage.backends.torch import as_logits, kernels, plan, triton
from tirage.backends.torch.device import launches, ops
from tirage.backends.torch.dispatch import draw_on_device
from tirage.backends.torch.kernels.layout import MASS_FROM, MASS_TO
from tirage.exact.keys import keys
from tirage.exact.weights import exponents, weights
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata
from tirage.semantics import PRESETS

Compared = dict[str, int]


class Tiled:
    """The kernels with blocks and tiles of these sizes, as `draw_on_device` takes them; counts the rows they draw."""

    def __init__(self, tiles: tuple[int, int]) -> None:
        self.block, self.tile = tiles
        self.drawn = 0

    supports = staticmethod(triton.supports)

    def draw_into(self, out: Drawn, logits: torch.Tensor, rows: SamplingMetadata, which: NDArray[np.int64]) -> None:
        self.drawn += which.size
        triton.draw_into(out, logits, rows, which, block=self.block, tile=self.tile)


def compared(job: Job) -> Compared:
    """How many rows were drawn, how many of them by the kernels, and how many differ in a bit."""
    x, tiled = as_logits(job.logits), Tiled(job.tiles)
    stand_in: Any = tiled
    rows, own = (replace(job.rows, chances=np.full(job.rows.count, np.nan)) for _ in range(2))
    with np.errstate(all="ignore"):
        expected = distribution.draw(x.numpy(), rows, Drawn.empty(rows), processes=job.processes)
        before = x.clone()
        drawn = draw_on_device(x, own, job.processes, kernels=stand_in).moved(torch.Tensor.numpy)
    assert rows.chances is not None
    assert own.chances is not None
    # The logits that are given are left as they were.
    same = _same(rows.chances, own.chances) & _same(before.numpy(), x.numpy()).all(axis=1)
    for name in {field.name for field in fields(Drawn)} - {"asked_logprobs"}:
        same &= _same(getattr(expected, name), getattr(drawn, name)).reshape(same.size, -1).all(axis=1)
    asked = int((~_same(expected.asked_logprobs, drawn.asked_logprobs)).sum())
    return {"rows": same.size, "by kernels": tiled.drawn, "differences": int((~same).sum()) + asked}


def _same(expected: NDArray, actual: NDArray) -> NDArray[np.bool_]:
    """Where two arrays have the same bits; all NaN are one."""
    same = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
    return same | ((expected != expected) & (actual != actual))


# --- changed kernels --------------------------------------------------------------------------------------------------

KERNELS = {
    triton: ("measure", "bound", "split", "split_first", "resolve", "general"),
    launches: ("measure_slots", "edit", "append", "view_ends", "view_weigh"),
}
"""The kernels by the module that launches them."""
SEED_AS_UNIFORM = ("return (a.to(tl.uint64) << 32) | b.to(tl.uint64)", "return seed.to(tl.uint64)")


@contextmanager
def changed(pieces: Sequence[Sequence[str]], folder: Path) -> Iterator[None]:
    """The kernels with pieces of their source replaced, each in the one module where it stands."""
    package = Path(str(kernels.__file__)).parent
    name = f"kernels_{len(list(folder.iterdir()))}"
    sources = {path.relative_to(package): path.read_text() for path in package.rglob("*.py")}
    for right, wrong in pieces:
        found = [each for each, source in sources.items() if right in source]
        assert [sources[each].count(right) for each in found] == [1], f"{right!r} stands in {found}"
        sources[found[0]] = sources[found[0]].replace(right, wrong)
    for each, source in sources.items():
        (folder / name / each).parent.mkdir(parents=True, exist_ok=True)
        (folder / name / each).write_text(source.replace(kernels.__name__, name))
    with patch.object(sys, "path", [str(folder), *sys.path]):
        module = import_module(name)
    with ExitStack() as stack:
        for home, names in KERNELS.items():
            for each in names:
                stack.enter_context(patch.object(home, f"_{each.upper()}", getattr(module, each)))
        yield


def at_programs(
    jobs: Sequence[int],
    rows: int,
    pieces: Sequence[Sequence[str]],
    folder: Path,
    *,
    job: Callable[[int, int], Job] = program_job,
) -> Iterator[Compared]:
    with changed(pieces, folder):
        yield from (compared(job(number, rows)) for number in jobs)


def at_averages(jobs: Sequence[int], rows: int, pieces: Sequence[Sequence[str]], folder: Path) -> list[Compared]:
    with changed(pieces, folder):
        return averages(jobs, rows)


def at_bounds(jobs: Sequence[int], rows: int, pieces: Sequence[Sequence[str]], folder: Path) -> Iterator[Compared]:
    """The same where both paths take a row's seed for its uniform."""
    seed = patch.object(distribution, "uniform64", lambda seed, *_: seed % (1 << 64))
    with changed([SEED_AS_UNIFORM, *pieces], folder), seed:
        yield from (compared(bound_job(number, rows)) for number in jobs)


def at_sets(jobs: Sequence[int], rows: int, pieces: Sequence[Sequence[str]], folder: Path) -> Iterator[Compared]:
    """Rows of any filters, all drawn as sets."""
    with patch.object(plan, "can_run", lambda programs: np.zeros(len(programs), bool)):
        yield from at_programs(jobs, rows, pieces, folder, job=set_job)


def until_seen(comparisons: Iterable[Compared]) -> Iterator[Compared]:
    """The comparisons up to the first that differs: what a mistake does to later rows says nothing more."""
    for each in comparisons:
        yield each
        if each["differences"]:
            return


def masses(jobs: Sequence[int], rows: int) -> list[Compared]:
    """How many rows there are whose masses the first pass bounds, how many bounds are narrow, and how many wrong."""
    found = []
    for number in jobs:
        job = program_job(number, rows)
        x, drawing, bound = as_logits(job.logits), plan.DrawPlan.of(job.rows), MagicMock()
        rest = {name: MagicMock() for name in ("_SPLIT_FIRST", "_SPLIT", "_RESOLVE", "_GENERAL")}
        needs, bad = {**drawing.needs, "draws": True, "filters": True}, torch.zeros(rows, dtype=torch.bool)
        with patch.multiple(triton, _BOUND=bound, **rest), np.errstate(all="ignore"):
            *_, status = triton.launch(x, bad, torch.from_numpy(drawing.meta), **needs, block=job.tiles[0])
            exact = [masses_of(row, meta) for row, meta in zip(x.numpy(), drawing.meta, strict=True)]
        able = (status.numpy() == 0) & (drawing.meta[:, plan.IS_GREEDY] == plan.BY_PASSES)
        low, high = bound.__getitem__().call_args.args[1][able][:, [MASS_FROM.value, MASS_TO.value]].numpy().T
        mass = np.array(exact)[able]
        narrow = int((high - low <= mass / 2**12 + 2 * x.shape[1]).sum())
        found.append({"rows": mass.size, "narrow": narrow, "wrong": int(((mass < low) | (mass > high)).sum())})
    return found


def averages(jobs: Sequence[int], rows: int) -> list[Compared]:
    """How many rows are cut where sums over them say, how many of them leave few tokens open, and how many keep one
    below their open range, or none above it."""
    found = []
    for number in jobs:
        job = summed_job(number, rows, alone=True)
        x, drawing, split = as_logits(job.logits), plan.DrawPlan.of(job.rows), MagicMock()
        bad, counts = torch.zeros(rows, dtype=torch.bool), Counter[str](rows=0, few=0, wrong=0)
        with patch.multiple(triton, _SPLIT=split, _RESOLVE=MagicMock()), np.errstate(all="ignore"):
            *_, status = triton.launch(x, bad, torch.from_numpy(drawing.meta), **drawing.needs, block=job.tiles[0])
            for row in np.flatnonzero(status.numpy() == 0).tolist():
                cut = distribution.request_of(x.numpy(), job.rows, row).run(coin=False)
                lowest, top = split.__getitem__().call_args.args[2][row, 2:4].tolist()
                there = np.flatnonzero(cut.key > keys(np.float32(-np.inf)))
                gone = np.setdiff1d(there, cut.ids)
                is_wrong = (cut.key[cut.ids] < lowest).any() or (cut.key[gone] >= top).any()
                is_open = (cut.key[there] >= lowest) & (cut.key[there] < top)
                counts.update(rows=1, few=is_open.sum() <= 2 + there.size // 8, wrong=int(is_wrong))
        found.append({name: int(number) for name, number in counts.items()})
    return found


def masses_of(x: NDArray[np.float32], meta: NDArray[np.int64]) -> int:
    """The mass of a row of logits [V] under its first temperature, 0 where it has none."""
    c = np.int32(meta[3]).view(np.float32)
    return int(weights(exponents(x, x.max(), c)).sum(dtype=np.uint64)) if np.isfinite(x.max()) else 0


# --- counts -----------------------------------------------------------------------------------------------------------

COUNTED_PARAMS = {
    "greedy": SamplingParams(temperature=0.0),
    "plain": SamplingParams(),
    "top-k": SamplingParams(top_k=50),
    "top-p": SamplingParams(top_p=0.9),
    "half": SamplingParams(top_p=0.5),
    "top-k, top-p and min-p": SamplingParams(temperature=0.8, top_k=50, top_p=0.9, min_p=0.05),
    "temperature last": SamplingParams(temperature=0.7, top_k=40, top_p=0.95, semantics="llamacpp"),
    "top-h": SamplingParams(top_h=0.4),
    "top-p and top-h": SamplingParams(top_p=0.9, top_h=0.4),
}
TEMPERATURES = {
    "dynamic": SamplingParams(dynatemp_range=0.5),
    "dynamic, top-p": SamplingParams(dynatemp_range=0.5, top_p=0.9, min_p=0.02),
    "behind top-k": SamplingParams(
        temperature=0.8, dynatemp_range=0.3, top_k=40, top_p=0.95, min_p=0.05, semantics="llamacpp"
    ),
    "behind min-p": SamplingParams(temperature=0.8, dynatemp_range=0.3, min_p=0.05, semantics="llamacpp"),
}
"""Requests whose temperature follows from the entropy of a set."""
EXCLUSIONS = {
    "XTC": SamplingParams(xtc_probability=0.5),
    "low XTC": SamplingParams(xtc_probability=0.5, xtc_threshold=1e-3, temperature=0.7),
    "top-p and XTC": SamplingParams(xtc_probability=0.5, xtc_threshold=0.01, top_p=0.9, min_p=0.02),
    "llama.cpp's XTC before its temperature": SamplingParams(
        xtc_probability=0.5, xtc_threshold=1e-3, min_p=0.02, temperature=0.7, semantics="llamacpp"
    ),
    "its filters, XTC and temperature": SamplingParams(
        xtc_probability=0.5, xtc_threshold=0.01, top_k=40, top_p=0.95, min_p=0.05, temperature=0.7, semantics="llamacpp"
    ),
    "only XTC before a temperature": SamplingParams(
        xtc_probability=0.5, xtc_threshold=1e-3, temperature=0.7, semantics="llamacpp"
    ),
    "XTC that spares": SamplingParams(xtc_probability=0.5, xtc_threshold=1e-3, xtc_protected_ids=(7, 1000, 9000)),
    "XTC that spares before a temperature": SamplingParams(
        xtc_probability=0.5,
        xtc_threshold=1e-3,
        xtc_protected_ids=(7,),
        min_p=0.02,
        temperature=0.7,
        semantics="llamacpp",
    ),
}
"""Requests that remove the likeliest tokens."""
THRESHOLDS = {
    "epsilon": SamplingParams(epsilon_cutoff=3e-4),
    "eta": SamplingParams(eta_cutoff=2e-3),
    "top-a": SamplingParams(top_a=0.2),
    "p-less": SamplingParams(p_less="plain"),
    "p-less, norm": SamplingParams(p_less="norm"),
    "sigma": SamplingParams(top_n_sigma=1.0),
    "logit ratio": SamplingParams(min_p=0.5, semantics="easydel-strict"),
    "least": SamplingParams(min_p=0.5, min_keep=1000),
    "top-k and eta": SamplingParams(top_k=50, eta_cutoff=2e-3, semantics="hf"),
    "sigma, top-p and epsilon": SamplingParams(top_n_sigma=2.0, top_p=0.9, epsilon_cutoff=1e-6),
}
"""Requests whose thresholds follow from the mass of a set, or from sums over it."""
AS_SETS = {
    "tail-free": SamplingParams(tfs=0.95),
    "tail-free behind top-p": SamplingParams(top_p=0.9, tfs=0.95),
    "top-p and typical": SamplingParams(semantics="hf", top_p=0.9, typical_p=0.9),
    "smoothing, top-p and min-p": SamplingParams(smoothing_factor=0.3, top_p=0.9, min_p=0.02),
    "smoothing, min-p and XTC": SamplingParams(smoothing_factor=0.2, min_p=0.02, xtc_probability=0.5),
    "Mirostat 1": SamplingParams(mirostat=1),
    "adaptive-p": SamplingParams(adaptive_target=0.3),
}
"""Requests that are drawn as sets, in a thread block each."""
OF_OTHER_SHAPES = {
    **{name: COUNTED_PARAMS[name] for name in [*COUNTED_PARAMS][3:7]},
    "top-p and top-h": COUNTED_PARAMS["top-p and top-h"],
    **{name: THRESHOLDS[name] for name in ("epsilon", "eta", "p-less", "sigma, top-p and epsilon")},
    **{name: typical_rows.LEVELS[name] for name in ("typical", "low typical", "typical behind others")},
    "top-p and XTC": EXCLUSIONS["top-p and XTC"],
    "dynamic, top-p": TEMPERATURES["dynamic, top-p"],
}
"""Requests that are counted for shapes that the kernels were not written for, too."""


def nbytes(call: Any) -> int:
    """Bytes of a tensor that was asked for."""
    return math.prod(call.args) * call.kwargs["dtype"].itemsize


def counts(
    rows: int, requests: dict[str, SamplingParams], shapes: Iterable[str] = SHAPES, which: Sequence[int] = ()
) -> dict[str, dict[str, float]]:
    """What the kernels read of rows of each shape, or of `which`, and request, and what they need besides."""
    found, every = {}, [*shapes]
    for shape in [every[at] for at in which] or every:
        x = torch.from_numpy(logits_of(shape, rows))
        for name, params in requests.items():
            found[f"{shape}, {name}"] = counted_draw(x, [params] * rows)
    return found


def mixed_counts(rows: int) -> dict[str, dict[str, float]]:
    """What the kernels read of batches with rows of several shapes beside each other, for requests that also differ."""
    x = np.concatenate([logits_of(shape, rows // 4) for shape in ("peaked", "medium", "flat", "constant")])
    requests = [*(COUNTED_PARAMS | THRESHOLDS).values()]
    params = [requests[row % len(requests)] for row in range(rows)]
    greedy = [COUNTED_PARAMS["greedy"]] * rows
    logits = torch.from_numpy(x)
    return {"all, greedy": counted_draw(logits, greedy), "all, mixed": counted_draw(logits, params)}


def counted_draw(x: torch.Tensor, params: list[SamplingParams]) -> dict[str, float]:
    """What the kernels read of rows, in reads of the logits, and what they need besides."""
    shape = len(params), x.shape[1]
    batch = SamplingBatch.of(row_states(shape, params, [((), ())] * len(params), None, 7), x.shape[1])
    packed = batch.metadata(None)
    made = Mock(wraps=torch.empty)
    before = replace(recorded_triton.counted)
    stand_in: Any = Tiled((triton.BLOCK, triton.TILE))
    with patch.object(triton.torch, "empty", made):
        drawn = draw_on_device(x, packed, None, kernels=stand_in).moved(torch.Tensor.numpy)
    expected = draw_rows(x.numpy(), packed)
    now = recorded_triton.counted
    longest, now.longest_loop = now.longest_loop, 0
    return {
        "reads": round((now.bytes_read - before.bytes_read) / x.nbytes, 3),
        "launches": now.launches - before.launches,
        "additions": round((now.additions - before.additions) / x.numel(), 3),
        "longest loop": longest,
        "scratch": round(sum(map(nbytes, made.call_args_list)) / x.nbytes, 3),
        "differences": int((drawn.token_ids != expected.token_ids).sum()),
    }


EDITED = {
    "mask": {"allowed_token_ids": range(0, SIZE, 2)},
    "penalties": {"repetition_penalty": 1.2, "frequency_penalty": 0.3, "presence_penalty": 0.1},
    "bias and penalties": {"repetition_penalty": 1.2, "logit_bias": {at * 7: 0.5 for at in range(300)}},
    "DRY and bigrams": {"dry_multiplier": 0.5, "dry_sequence_breakers": (), "no_repeat_ngram_size": 2},
    "logprobs": {"logprobs": 20},
    "logprobs of named tokens": {"logprob_token_ids": range(0, 50_000, 50)},
}
"""What rows ask for of which the reads are counted, with a prompt of 500 tokens."""


def edited_counts() -> dict[str, dict[str, float]]:
    """What one step over a row of each request reads, in reads of its float32 logits, and allocates."""
    from tirage.batch.torch import TorchBatch

    found, x = {}, torch.from_numpy(logits_of("medium", 1))
    for name, asked in EDITED.items():
        batch: Any = TorchBatch(SIZE, 1, like=x, history_capacity=1024)
        batch.add(SamplingParams(**asked, seed=1), [at * 251 for at in range(500)])
        rows, made, stepped = batch.device_rows(), Mock(wraps=torch.empty), Launched()
        before = replace(recorded_triton.counted)
        with patch.object(torch, "empty", made), stepped_by(stepped):
            (token, *_), *_ = rows.step_reported(x, most=20) if "logprobs" in name else (rows.step(x),)
        expected = tirage.sample(x, SamplingParams(**asked, seed=1), history=[([at * 251 for at in range(500)], ())])
        now = recorded_triton.counted
        found[name] = {
            "reads": round((now.bytes_read - before.bytes_read) / x.nbytes, 3),
            "launches": now.launches - before.launches,
            "scratch": round(sum(map(nbytes, made.call_args_list)) / x.nbytes, 3),
            "differences": int((token != expected.token_ids).sum()),
        }
    return found


class Launched:
    """The steps of rows on a device by the kernels, as they are launched on CUDA."""

    report = staticmethod(launches.report)

    def draw(self, x: Any, words: Any, slots: Any, tables: Any, order: Any, **options: bool) -> Any:
        return launches.draw(x, words, slots, tables, **options)

    def append(self, token: Any, slots: Any, tables: Any, room: int, size: int) -> None:
        launches.append(token, slots, tables, room=room, size=size)


# --- lives of a batch -------------------------------------------------------------------------------------------------


_FOUND = ("token", "logprob", "support", "status", "seed", "logits", "state")
_BY_TENSORS, _APPEND_BY_TENSORS, _REPORT = ops.by_tensors, ops.append_by_tensors, ops.report_by_tensors


class Stepped:
    """The steps of rows on a device by the kernels, in small blocks: compared with tensor operations, and counted."""

    def __init__(self, dtypes: Sequence[torch.dtype] = ()) -> None:
        self.dtypes = dtypes
        self.draws, self.appends, self.most = 0, 0, Counter[str]()

    def counts(self) -> dict[str, int]:
        """How many steps there were, and the most that the device was given to do in one."""
        told = {f"launches of {name}": most for name, most in self.most.items()}
        return {"draws": self.draws, "appends": self.appends, **told}

    def draw(self, x: torch.Tensor, words: Any, slots: Any, tables: Any, order: Any, **options: Any) -> Any:
        """What `ops.by_tensors` gives; logits of each type are drawn from."""
        for dtype in self.dtypes:
            self._draw(x.to(dtype), words, slots, tables, order, **{**options, "copies": True})
        self.draws += 1
        return self._draw(x, words, slots, tables, order, **options)

    def _draw(self, x: torch.Tensor, words: Any, slots: Any, tables: Any, order: Any, **options: Any) -> Any:
        apart = {**tables, "carry": tables["carry"].clone()}
        expected = _BY_TENSORS(x, words, slots, apart, order, **options)
        found = self._counted(
            "draw", lambda: launches.draw(x, words, slots, tables, **options, block=8, tile=16, part=8)
        )
        ok = expected[0][3] == 0
        # What is told of the sets that rows were drawn from, the last two of both, shows in what is reported.
        for name, one, other in zip(_FOUND, (*expected[0], *expected[1:-2]), (*found[0], *found[1:-2]), strict=True):
            # What becomes of logits that no token comes from is nobody's.
            one, other = (each[ok] if name == "logits" else each for each in (one, other))
            assert _same(one.numpy(), other.numpy()).all(), (name, one, other)
        np.testing.assert_array_equal(apart["carry"].numpy(), tables["carry"].numpy())
        return found

    def append(self, token: torch.Tensor, slots: torch.Tensor, tables: Any, room: int, size: int) -> None:
        """What `ops.append_by_tensors` does."""
        expected = {name: table.clone() for name, table in tables.items()}
        _APPEND_BY_TENSORS(token, slots, expected, room, size)
        self._counted("append", lambda: launches.append(token, slots, tables, room=room, size=size, ids=8))
        for name, table in tables.items():
            one, other = expected[name].numpy(), table.numpy()
            if name in ("count_ids", "in_prompt", "in_output"):
                # Past a row's last entry the kernels leave, and find, anything; tensor operations need the first again.
                there = np.arange(one.shape[1]) < expected["distinct"].numpy()[:, None]
                one, other = one[there], other[there]
            np.testing.assert_array_equal(one, other, name)
            table.copy_(expected[name])
        self.appends += 1

    def report(self, given: torch.Tensor, *rest: Any, **wide: int) -> Any:
        """What `ops.report_by_tensors` gives."""
        for dtype in (*self.dtypes, torch.float32):
            x = given.to(dtype)
            expected = _REPORT(x, *rest, **wide)
            found = self._counted("report", lambda x=x: launches.report(x, *rest, **wide, block=8))
            for one, other in zip(expected, found, strict=True):
                assert _same(one.numpy(), other.numpy()).all(), (one, other)
        return expected

    def _counted(self, name: str, launch: Callable[[], Any]) -> Any:
        before = recorded_triton.counted.launches
        with Steps() as steps:
            found = launch()
        own = sum(count for operation, count in steps.operations.items() if not operation.startswith("aten.empty"))
        self.most[name] = max(self.most[name], recorded_triton.counted.launches - before + own)
        return found


def lives(seeds: Sequence[int]) -> list[dict[str, int]]:
    """Random lives of a batch whose rows lie on a device, stepped by the kernels; an AssertionError where one differs.

    Every request is one that a batch of its own draws with NumPy. Counts what the device is given to do.
    """
    from schedules import live

    stepped = Stepped()
    with stepped_by(stepped), patch.object(launches, "IDS", 8):
        for seed in seeds:
            live("torch", seed, TorchWorld)
    return [stepped.counts()]


def pasts(steps: int) -> list[dict[str, int]]:
    """The same for requests whose steps follow from the order of their tokens, and logits of each type."""
    from test_batch_torch_past import IN_A_RING, same

    stepped = Stepped(DTYPES[1:])
    with stepped_by(stepped), patch.object(launches, "IDS", 4):
        same(steps)
        same(3 * steps, **IN_A_RING)
    return [stepped.counts()]


def views(steps: int) -> list[dict[str, int]]:
    """The same for requests that report logprobs."""
    from test_batch_torch_views import AS_SETS, CUT, DRAWN_AS_SETS, MIXED, NAMED, OF_DRAWS, same

    stepped = Stepped(DTYPES[1:])
    with stepped_by(stepped):
        same(steps)
        same(4, AS_SETS)
        same(steps, NAMED)
        same(steps, (*(each.replace(logprobs_mode="sampled") for each in OF_DRAWS[:7]), AS_SETS[0], OF_DRAWS[9]))
        for asked in (DRAWN_AS_SETS, (*MIXED, CUT[2]), (*CUT[:2], *MIXED[:3], OF_DRAWS[0])):
            same(min(steps, 4), tuple(each.replace(logprobs_mode="sampled") for each in asked))
    return [stepped.counts()]


def carried(steps: int) -> list[dict[str, int]]:
    """The same for requests that carry a state from token to token, beside others."""
    from test_batch_torch_carry import same

    stepped = Stepped(DTYPES[1:])
    with stepped_by(stepped):
        same(steps)
    return [stepped.counts()]


def in_turn(rows: int) -> None:
    """Hostile rows, and steps without and with edits, whose programs run one after the other, the last one first.

    An AssertionError where one differs. New memory holds the largest integers and NaN, which no kernel may rely on.
    """
    from tirage.batch.torch import TorchBatch

    torch.use_deterministic_algorithms(True)
    builder = recorded_triton.interpreter.interpreter_builder
    forwards = builder.set_grid_idx
    builder.set_grid_idx = lambda *at: forwards(*np.subtract(builder.grid_dim, np.add(at, 1)).tolist())
    assert all(compared(program_job(number, rows))["differences"] == 0 for number in (10, 40))
    x, slots = shaped_logits(np.random.default_rng(1), rows, 40, 0), torch.arange(rows)
    stages = (stage for stage in PRESETS["canonical"].stages if stage != "smoothing")
    first = replace(PRESETS["canonical"], name="first", stages=("smoothing", *stages))
    smooth: dict[str, Any] = {"semantics": first, "smoothing_factor": 0.3, "repetition_penalty": 1.3}
    for asked in ({"top_p": 0.9}, {"temperature": 0.0, "repetition_penalty": 1.3}, smooth):
        batch: Any = TorchBatch(40, rows, like=x, history_capacity=16)
        for seed in range(rows):
            batch.add(SamplingParams(**asked, logprobs=2, logprob_token_ids=[1, 39], seed=seed), [1, 2])
        with stepped_by(Stepped()):
            for _ in range(2):
                batch.device_rows().step_reported(x, most=2)
            # More rows than there are slots.
            batch.device_rows().draw(x.repeat(2, 1), None, slots.repeat(2))


def mistake_in(
    run: Callable[[int], object], steps: int, pieces: Sequence[Sequence[str]], folder: Path
) -> list[dict[str, bool]]:
    """Whether some step differs where pieces of the kernels are replaced."""
    try:
        with changed(pieces, folder):
            run(steps)
    except AssertionError:
        return [{"seen": True}]
    return [{"seen": False}]


def main() -> None:
    """Print what jobs of a kind compared, with so many rows each; a mistake comes from the standard input."""
    kind, rows, *jobs = sys.argv[1], *map(int, sys.argv[2:])
    if kind != "in turn":
        recorded_triton.install()
    torch.set_num_threads(1)
    with TemporaryDirectory() as name:
        folder = Path(name)
        results: dict[str, Callable[[], list[Any]]] = {
            "programs": lambda: [*at_programs(jobs, rows, [], folder)],
            "likely": lambda: [*at_programs(jobs, rows, json.load(sys.stdin), folder, job=likely_job)],
            "behind": lambda: [*at_programs(jobs, rows, json.load(sys.stdin) or [], folder, job=behind_job)],
            "bounds": lambda: [*at_bounds(jobs, rows, [], folder)],
            "sets": lambda: [*at_sets(jobs, rows, [], folder)],
            "set mistake": lambda: [*until_seen(at_sets(jobs, rows, [json.load(sys.stdin)], folder))],
            "counted levels": lambda: [counts(rows, typical_rows.LEVELS)],
            "counted sets": lambda: [counts(rows, AS_SETS, [*SHAPES][:4] + [*SHAPES][6:9] + ["five plateaus"], jobs)],
            "counts": lambda: [counts(rows, COUNTED_PARAMS)],
            "mixed counts": lambda: [mixed_counts(rows)],
            "counted thresholds": lambda: [counts(rows, THRESHOLDS)],
            "counted behind": lambda: [counts(rows, BEHIND)],
            "counted temperatures": lambda: [counts(rows, TEMPERATURES)],
            "counted exclusions": lambda: [counts(rows, EXCLUSIONS)],
            "counts of others": lambda: [counts(rows, OF_OTHER_SHAPES, OTHERS, jobs)],
            "edited counts": lambda: [edited_counts()],
            "lives": lambda: lives(jobs),
            "pasts": lambda: pasts(rows),
            "views": lambda: views(rows),
            "carried": lambda: carried(rows),
            "past mistake": lambda: mistake_in(pasts, rows, [json.load(sys.stdin)], folder),
            "carry mistake": lambda: mistake_in(carried, rows, [json.load(sys.stdin)], folder),
            "view mistake": lambda: mistake_in(views, rows, [json.load(sys.stdin)], folder),
            "in turn": lambda: mistake_in(in_turn, rows, json.load(sys.stdin), folder),
            "masses": lambda: masses(jobs, rows),
            "averages": lambda: at_averages(jobs, rows, json.load(sys.stdin), folder),
            "presets": lambda: [compared(preset_job(number, rows)) for number in jobs],
        }
        if kind == "mistake":
            mistake = [json.load(sys.stdin)]
            rows_of_both = (run(jobs, rows, mistake, folder) for run in (at_bounds, at_programs))
            print(json.dumps([*until_seen(chain.from_iterable(rows_of_both))]))
        else:
            print(json.dumps(results[kind]()))


if __name__ == "__main__":
    main()
