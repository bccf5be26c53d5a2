"""What each process of a gloo group does in `test_sharded.py`; little is imported, since every process pays for it."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams
from tirage.backends import sharded
from tirage.errors import ParamsError

REPORTED = (
    "token_ids",
    "sampled_logprobs",
    "support_sizes",
    "status",
    "logprobs",
    "ranks",
    "top_token_ids",
    "top_logprobs",
)
EDGES = [0, 20, 20, 57]
PAST = [((1, 25), (25, 50))] * 6
tirage.register_processor("gloo test: reversed", lambda logits, args: logits[:, ::-1])
ROWS = [
    SamplingParams(seed=1, top_p=0.9, logprobs=3),
    SamplingParams(seed=2, top_k=5, logprobs=2, logprobs_mode="sampled", logprob_token_ids=[3]),
    SamplingParams(seed=3, temperature=0, repetition_penalty=1.5, logprobs=1, logprobs_mode="processed"),
    SamplingParams(seed=4, min_p=0.2, frequency_penalty=0.7),
    SamplingParams(seed=5, top_k=4, top_p=0.8, semantics="sglang"),
    SamplingParams(seed=6, typical_p=0.6, logits_processors=(("gloo test: reversed", {}),)),
]


def rows_to_share() -> NDArray[np.float32]:
    logits = np.round(np.random.default_rng(11).standard_normal((len(ROWS), 57)) * 4).astype(np.float32)
    logits[3, 50] = np.nan
    return logits


def wrong_arguments(rank: int) -> list[dict[str, Any]]:
    """What ranks pass that others do not: seeds of their own, then rank 1 alone what is wrong or just different."""
    wrong: list[dict[str, Any]] = [
        {"params": [*ROWS, ROWS[0]]},
        {"mask": np.zeros((len(ROWS), 3), np.int32)},
        {"history": [((1, 25), (25, 49))] * len(ROWS)},
        {"params": [p.replace(stop=["end"]) for p in ROWS]},
    ]
    return [{"params": [p.replace(seed=rank) for p in ROWS]}, *[each if rank == 1 else {} for each in wrong]]


def draw_and_tell(rank: int, folder: str) -> None:
    """One rank of a gloo group: is refused in several ways, draws, and writes down what it saw."""
    torch.set_num_threads(1)
    # They meet over a file: a port that was free a moment ago may be another program's by now.
    where = (Path(folder) / "meeting").as_uri()
    dist.init_process_group("gloo", init_method=where, rank=rank, world_size=3, timeout=timedelta(seconds=60))
    start, stop = EDGES[rank : rank + 2]
    own = torch.from_numpy(rows_to_share()[:, start:stop].copy())
    shard = sharded.Shard(logits=own, start=start, vocab_size=57)
    complaints = []
    for wrong in ({"start": start + rank}, *wrong_arguments(rank)):
        given: dict[str, Any] = {"start": start, "params": ROWS, "history": PAST, **wrong}
        own_shard = sharded.Shard(logits=own, start=given.pop("start"), vocab_size=57, group=dist.group.WORLD)
        try:
            tirage.sample(own_shard, **given)
        except ParamsError as error:
            complaints.append(str(error))
    drawn = tirage.sample(shard, ROWS, history=PAST)
    fields = {name: np.asarray(getattr(drawn, name)) for name in REPORTED}
    np.savez(Path(folder) / f"{rank}.npz", complaints=np.array(complaints), **fields)
    dist.destroy_process_group()
