"""Opening a folder with vLLM's engine."""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tirage.errors import ModelError, ParamsError
from tirage.models.json_file import read_json_object
from tirage.models.vllm import installed
from tirage.models.vllm.engine_args import ONE_WORKER, checked_args
from tirage.models.vllm.llvmlite_names import hide_special_names
from tirage.models.vllm.logits_processor import processor_class
from tirage.models.vllm.model import VllmModel

_ENVIRONMENT = {
    # Before vLLM is imported: its log would go to stdout, which is for generated text, and it would report its use.
    "VLLM_LOGGING_STREAM": "ext://sys.stderr",
    "VLLM_NO_USAGE_STATS": "1",
}
_opening = threading.Lock()
_models = weakref.WeakSet[VllmModel]()


def open_folder(
    folder: Path,
    *,
    max_running: int = 32,
    dtype: str | None = None,
    engine_args: Mapping[str, Any] | None = None,
) -> VllmModel:
    """The model of a folder in vLLM's engine, which runs at most `max_running` requests at once.

    `dtype` is vLLM's, but "auto", the default, leaves float32 weights as they are, where vLLM would round them.
    `engine_args` are fields of vLLM's `EngineArgs`, such as `max_model_len`, `gpu_memory_utilization` or
    `quantization`. Raises ParamsError for one that is unknown or that tirage sets itself, and ModelError where vLLM is
    missing, is of a version without what is used here, or cannot load the folder, and while another model is open:
    what vLLM keeps for the whole process goes when one of two is closed.
    """
    with _opening:
        return _open_alone(folder, max_running=max_running, dtype=dtype, engine_args=engine_args)


def _open_alone(
    folder: Path, *, max_running: int, dtype: str | None, engine_args: Mapping[str, Any] | None
) -> VllmModel:
    if any(not model.closed for model in _models):
        raise ModelError("vLLM must run one model at a time in a process, got a second one; close the first LLM")
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    version = installed.check_version()
    given = checked_args(engine_args or {})
    hide_special_names()
    try:
        engine = start(folder, max_running=max_running, dtype=dtype, given=given)
    except (ParamsError, ModelError):
        raise
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"{folder.name} cannot be opened with vLLM {version}: {reason:.2000}") from error
    model = VllmModel(engine, numerics_of(engine, version))
    _models.add(model)
    return model


def start(folder: Path, *, max_running: int, dtype: str | None, given: Mapping[str, Any]) -> Any:
    """vLLM's engine, with its core in this process. Raises ParamsError for a configuration of several workers."""
    args = installed.find(installed.EngineArgs)(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype=dtype if dtype not in (None, "auto") else stored_dtype(folder),
        max_num_seqs=max_running,
        logits_processors=[processor_class()],
        async_scheduling=False,
        distributed_executor_backend="uni",
        disable_log_stats=True,
        **given,
    )
    with one_process():
        config = args.create_engine_config()
    parallel = config.parallel_config
    if parallel.world_size_across_dp != 1 or parallel.distributed_executor_backend != "uni":
        raise ParamsError(
            f"vLLM must run with one worker in this process, got {parallel.world_size_across_dp} with the executor "
            f"{parallel.distributed_executor_backend!r}; {ONE_WORKER}"
        )
    executor = installed.find(installed.Executor).get_class(config)
    return installed.find(installed.LLMEngine)(
        vllm_config=config, executor_class=executor, log_stats=False, multiprocess_mode=False
    )


def stored_dtype(folder: Path) -> str:
    """vLLM's word for the dtype of a folder: "float32" where its config says so, else "auto", which is as stored."""
    config = read_json_object(folder / "config.json")
    nested = config.get("text_config")
    for each in (config, nested if isinstance(nested, dict) else {}):
        if "float32" in (each.get("dtype"), each.get("torch_dtype")):
            return "float32"
    return "auto"


@contextlib.contextmanager
def one_process() -> Iterator[None]:
    """Lets vLLM be configured without a process for its workers, which on a CPU it decides by the environment."""
    name = "VLLM_ENABLE_V1_MULTIPROCESSING"
    before = os.environ.get(name)
    os.environ[name] = "0"
    try:
        yield
    finally:
        del os.environ[name]
        if before is not None:
            os.environ[name] = before


def numerics_of(engine: Any, version: str) -> dict[str, Any]:
    """What the last bits of the logits depend on, besides the weights and the other rows of a step."""
    import torch

    config = engine.vllm_config
    return {
        "vllm": version,
        "torch": torch.__version__,
        "device": str(config.device_config.device_type),
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
        "cpu": torch.backends.cpu.get_cpu_capability(),
        "threads": torch.get_num_threads(),
    }
