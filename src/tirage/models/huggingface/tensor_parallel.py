"""Hugging Face folders cut over the processes of a `torch.distributed` group, by the model's own tensor-parallel plan.

The output layer is not gathered, as the plans have it: each process keeps the logits of its part of the vocabulary.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from transformers.models.auto import AutoConfig

from tirage.backends.sharded.communicators import Distributed
from tirage.backends.sharded.shards import ReadyShard, Shard
from tirage.errors import ModelError, ParamsError
from tirage.models.huggingface.folder import LOCAL, auto_class, load_module, refuse_code
from tirage.models.huggingface.model import HuggingFaceModel
from tirage.models.huggingface.probe import choose_path
from tirage.models.sharded import ShardedModel
from tirage.models.weights import weight_files

_GATHERED = ("colwise_gather_output", "colwise_rep")
"""The rules, newer and older, by which plans gather the logits of an output layer that is cut by columns."""


class ProcessShards:
    """The logits of this process, of token ids `start` on, among those of the default process group."""

    def __init__(self, width: int) -> None:
        self.group = Distributed()
        widths = self.group.gather(torch.tensor([width], dtype=torch.int64)).flatten().tolist()
        self.start, self.vocab_size = sum(widths[: self.group.rank]), sum(widths)

    def join(self, parts: Sequence[Any]) -> ReadyShard:
        """This process's shard of rows, of NumPy logits float32 [k, n]."""
        logits = torch.from_numpy(np.concatenate(parts))
        return Shard(logits=logits, start=self.start, vocab_size=self.vocab_size, group=self.group).ready()

    def agree(self, digest: int) -> bool:
        """Whether every process has given the same 64 bits."""
        found = self.group.gather(torch.tensor([digest], dtype=torch.int64))
        return bool((found == digest).all())

    def share(self, value: int) -> int:
        """The value of the first process, 63 bits, on every process."""
        return int(self.group.gather(torch.tensor([value], dtype=torch.int64))[0])


def open_sharded(folder: Path, *, tp_plan: str, dtype: str = "auto", **others: Any) -> ShardedModel:
    """The model of a folder, of which this process of a `torch.distributed` group holds its part.

    Raises ParamsError for another plan than "auto" and for options that do not go with it; ModelError without a group,
    for a folder that cannot be loaded, and for a model that has no plan.
    """
    if tp_plan != "auto":
        raise ParamsError(f"tp_plan must be 'auto', the model's own, got {tp_plan!r}")
    for name in others:
        raise ParamsError(f"{name} must be left out with tp_plan, got {others[name]!r:.60}")
    if dtype == "int8":
        raise ParamsError("dtype must not be 'int8' with tp_plan; leave it out")
    join_group()
    refuse_code(folder)
    weight_files(folder)
    module = load_module(folder, dtype, **distributed_options(folder)).eval()
    model = HuggingFaceModel(module, prefix_bytes=0, prefill_batch_tokens=0)
    model.vocab_size = local_width(model)
    choose_path(model, folder.name)
    return ShardedModel(model, ProcessShards(model.vocab_size))


def join_group() -> None:
    """Joins the process group that torchrun's environment names, if there is none yet. Raises ModelError without."""
    if dist.is_initialized():
        return
    if "WORLD_SIZE" not in os.environ:
        raise ModelError(
            "tp_plan must go with a process group: start every process with torchrun, "
            "or call torch.distributed.init_process_group first"
        )
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def distributed_options(folder: Path) -> dict[str, Any]:
    """The options of `from_pretrained` that cut a model over the group, its output layer too, and leave the logits so.

    Raises ModelError for a model whose class has no plan that cuts its output layer.
    """
    from transformers.distributed.configuration_utils import DistributedConfig

    config = AutoConfig.from_pretrained(folder, **LOCAL)
    plan = getattr(auto_class(config)._model_mapping[type(config)], "_tp_plan", None) or {}
    heads = {name: "colwise" for name, rule in plan.items() if rule in _GATHERED}
    if not heads:
        raise ModelError(f"tp_plan must go with a model that has one, got {config.model_type!r} without")
    return {"distributed_config": DistributedConfig(tp_size=dist.get_world_size(), tp_plan=heads)}


@torch.inference_mode()
def local_width(model: HuggingFaceModel) -> int:
    """The number of tokens whose logits this process computes."""
    ids = torch.zeros((1, 1), dtype=torch.long, device=model.device)
    return int(model.module(input_ids=ids).logits.shape[-1])
