"""Loading of models from local Hugging Face folders; nothing is downloaded, and no code in them is executed."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers.models.auto import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
)
from transformers.utils import logging as transformers_logging

from tirage.errors import ModelError, ParamsError, nearest
from tirage.models.counts import checked_count
from tirage.models.huggingface.batched_prefill import PREFILL_BATCH_TOKENS
from tirage.models.huggingface.declared_size import check_declared_size
from tirage.models.huggingface.device import checked_device
from tirage.models.huggingface.int8 import with_int8
from tirage.models.huggingface.media import MediaProcessor, open_media
from tirage.models.huggingface.model import HuggingFaceModel
from tirage.models.huggingface.probe import choose_path
from tirage.models.json_file import check_layers, read_json_object, read_optional_json_object
from tirage.models.weights import is_compact, read_weights, weight_files

DTYPES = ("auto", "float32", "bfloat16", "float16", "int8")
_SETTINGS = ("config.json", "tokenizer_config.json", "processor_config.json", "preprocessor_config.json")
_CLASSES = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM)
LOCAL: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
"""Options of `from_pretrained`: nothing is downloaded, and no code of a folder is run."""
_log = logging.getLogger("tirage")


def open_folder(
    folder: Path,
    *,
    dtype: str = "auto",
    device: str | None = None,
    adapters: Mapping[str, Any] | None = None,
    enable_lora: bool = False,
    prefix_bytes: int = 256 << 20,
    prefill_batch_tokens: int = PREFILL_BATCH_TOKENS,
) -> HuggingFaceModel:
    """The model of a local folder with config.json and safetensors weights, ready to run.

    `dtype` is "auto" (as the weights are stored), "float32", "bfloat16", "float16" or "int8": linear layers stored and
    multiplied in int8 on the CPU, close to float32. `device` is a torch device, by default CUDA if there is one.
    `adapters` are folders of LoRA adapters by name; `enable_lora` and `prefill_batch_tokens` are those of
    HuggingFaceModel.

    Raises ParamsError for an unknown dtype, a device that cannot be used here, `enable_lora` with "int8", and for
    `prefill_batch_tokens` and `prefix_bytes` that are no integers of at least 0. Raises ModelError, which names the
    folder, for missing or damaged files, weights that are not safetensors, classes that come as code in the folder
    (`auto_map`) and models that cannot run.
    """
    if dtype not in DTYPES:
        raise ParamsError(f"dtype must be one of {', '.join(DTYPES)}, got {dtype!r}{nearest(str(dtype), DTYPES)}")
    if enable_lora and dtype == "int8":
        raise ParamsError("enable_lora must be False with dtype 'int8', whose layers take no more adapters, got True")
    checked_count("prefix_bytes", prefix_bytes)
    checked_count("prefill_batch_tokens", prefill_batch_tokens)
    target = checked_device(
        device if device is not None else "cuda" if torch.cuda.is_available() and dtype != "int8" else "cpu"
    )
    refuse_code(folder)
    weight_files(folder)
    module = load_module(folder, "float32" if dtype == "int8" else dtype)
    module = module.to(target).eval()
    media = open_media(folder, module.config)
    int8 = dtype == "int8"
    model = HuggingFaceModel(
        module,
        adapters=adapters,
        enable_lora=enable_lora,
        prefix_bytes=prefix_bytes,
        prefill_batch_tokens=prefill_batch_tokens,
        quantized=int8,
        packed=not int8,
        media=media,
    )
    if int8:
        # After the adapters, which only know the layers of PyTorch.
        with_int8(module, *model.adapters.trees)
    choose_path(model, folder.name)
    return model


def wrap_module(module: Any, *, processor: Any = None, **options: Any) -> HuggingFaceModel:
    """A `transformers` model in memory as a model for `tirage.LLM(model, tokenizer=...)`.

    `processor` prepares images and audio; `options` are those of HuggingFaceModel. Raises ModelError for a model that
    cannot run.
    """
    media = None if processor is None else MediaProcessor(processor, module.config)
    model = HuggingFaceModel(module.eval(), media=media, **options)
    choose_path(model, type(module).__name__)
    return model


def refuse_code(folder: Path) -> None:
    """Raises ModelError for a folder whose settings name Python code to run, or more parts than can be built."""
    check_layers(read_json_object(folder / "config.json"), folder / "config.json")
    for name in _SETTINGS:
        settings = read_optional_json_object(folder / name)
        if "auto_map" in settings:
            raise ModelError(
                f"{folder / name}: auto_map must be absent, it names code in the folder, which tirage never "
                "executes; use a folder whose model_type transformers knows"
            )


def load_module(folder: Path, dtype: str, **more: Any) -> Any:
    """The `transformers` module of a folder in that dtype, with `more` options of `from_pretrained`.

    Raises ModelError if it cannot be loaded or weights are missing.
    """
    options: dict[str, Any] = {**LOCAL, **more}
    try:
        config = AutoConfig.from_pretrained(folder, **LOCAL)
        auto = auto_class(config)
        with quiet():
            check_declared_size(auto._model_mapping[type(config)], config, folder)
            source: Path | None = folder
            if is_compact(folder):
                options["state_dict"] = {name: torch.from_numpy(a) for name, a in read_weights(folder).items()}
                source, auto = None, auto._model_mapping[type(config)]
            options |= {"config": config, "dtype": dtype, "use_safetensors": True, "output_loading_info": True}
            module, info = auto.from_pretrained(source, **options)
    except ModelError:
        raise
    except Exception as error:  # transformers reports a bad folder in many ways
        text = str(error).strip().splitlines() or [""]
        raise ModelError(f"{folder} cannot be loaded by transformers: {type(error).__name__}: {text[0]}") from error
    # transformers fills missing weights with random numbers and only warns about it.
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            names = sorted(map(str, info[kind]))
            raise ModelError(f"{folder}: {len(names)} tensors are {kind.split('_')[0]}, first {names[0]}")
    return module


def auto_class(config: Any) -> Any:
    """The Auto class that knows a configuration; ModelError for a model that does not generate text."""
    if getattr(config, "is_encoder_decoder", False):
        # transformers would load the decoder alone, which writes nonsense without its encoder.
        raise ModelError(
            f"model_type must be a decoder that goes on from a prompt, got {config.model_type!r} with its encoder"
        )
    for auto in _CLASSES:
        if type(config) in auto._model_mapping:
            return auto
    raise ModelError(f"model_type must be one that transformers can generate text with, got {config.model_type!r}")


@contextmanager
def quiet() -> Iterator[None]:
    """Keeps transformers' progress bars and warnings off stderr while a folder is loaded."""
    level, bars = transformers_logging.get_verbosity(), transformers_logging.is_progress_bar_enabled()
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if bars:
            transformers_logging.enable_progress_bar()
