"""Model folders: bundled models by name, all others by path."""

from __future__ import annotations

import importlib.util
import logging
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tirage.errors import ModelError, ParamsError, nearest
from tirage.models.checkpoint import build_llama
from tirage.models.config import parse_config
from tirage.models.json_file import MAX_BYTES, read_json_object, read_optional_json_object
from tirage.models.llama import LlamaNumpy
from tirage.models.protocol import BatchingModel, Model
from tirage.models.weights import read_weights

BACKENDS = ("auto", "torch", "numpy", "jax", "vllm")
_log = logging.getLogger("tirage")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_BUNDLED = {"tiny": "a small Llama trained for tirage on generated stories, chat turns and JSON"}


def bundled() -> dict[str, str]:
    """The names of the models in the package, each with a one-line description."""
    return dict(_BUNDLED)


def is_gguf(path: Path) -> bool:
    """Whether a path names a GGUF file, by its ending."""
    return path.suffix.lower() == ".gguf" and not path.is_dir()


def find_model(name_or_path: str | Path) -> Path:
    """The path of a GGUF file, which must exist, or else what `find_folder` gives. Raises ModelError as it does."""
    path = Path(name_or_path).expanduser()
    if not is_gguf(path):
        return find_folder(name_or_path)
    if not path.is_file():
        raise ModelError(
            f"model must be a bundled name, a local folder or a GGUF file, got {str(path)!r}: "
            f"no such file{nearby(path)}"
        )
    return path


def find_folder(name_or_path: str | Path) -> Path:
    """The folder of a bundled model, or the path itself when it is a folder.

    A bundled name takes precedence over a folder of the same name; write `./tiny` for the folder. Nothing is
    downloaded. Raises ModelError for anything else, and for a folder that holds other things than regular files.
    """
    if str(name_or_path) in _BUNDLED:
        return Path(str(resources.files("tirage.models").joinpath(str(name_or_path))))
    path = Path(name_or_path).expanduser()
    if not path.is_dir():
        got, names = str(name_or_path), ", ".join(_BUNDLED)
        hint = nearest(got, _BUNDLED) or download_hint(got)
        raise ModelError(f"model must be a bundled name ({names}) or a local folder, got {got!r}{hint}")
    check_files(path)
    return path


def nearby(path: Path) -> str:
    """A hint at the GGUF file of the same folder whose name is nearest, or that there is no such folder."""
    if not path.parent.is_dir():
        return f", as there is no folder {str(path.parent)!r}"
    return nearest(path.name, [each.name for each in path.parent.glob("*.[gG][gG][uU][fF]")])


def download_hint(name: str) -> str:
    """How to get the model of a repository of the Hugging Face Hub; "" for what is no name of one."""
    if not _HUB_ID.fullmatch(name):
        return ""
    folder = name.rpartition("/")[2]
    return (
        f"; nothing is downloaded: `hf download {name} --local-dir {folder}` gets a model of the Hub, "
        "then give that folder"
    )


def check_files(folder: Path) -> None:
    """Raises ModelError for a folder that holds a pipe, a device or a socket: reading one may never end."""
    for path in folder.iterdir():
        if path.exists() and not (path.is_file() or path.is_dir()):
            raise ModelError(f"{path} must be a regular file, got a pipe, a device or a socket; take it away")


def open_model(folder: Path, *, backend: str = "auto", max_running: int = 32, **options: Any) -> Model | BatchingModel:
    """The model of a folder on the requested backend; the log says which one it runs on.

    "auto" is PyTorch if torch and transformers are installed, except for bundled models, which run on NumPy. Without
    PyTorch it is NumPy, which runs Llamas only, as "jax" does. `options` are those of `huggingface.open_folder`, or of
    `vllm.open_folder`, whose model runs at most `max_running` requests at once. Raises ParamsError for an unknown
    backend, and for options that it does not have. Raises ModelError naming the extra to install, or what is wrong with
    the folder.
    """
    if backend not in BACKENDS:
        hint = nearest(backend, BACKENDS)
        raise ParamsError(f"backend must be 'auto', 'torch', 'numpy', 'jax' or 'vllm', got {backend!r}{hint}")
    here = Path(str(resources.files("tirage.models")))
    installed = all(importlib.util.find_spec(name) is not None for name in ("torch", "transformers"))
    asked = {name: value for name, value in options.items() if value is not None}
    if backend == "vllm":
        return open_on_vllm(folder, asked, max_running)
    if "engine_args" in asked:
        raise ParamsError(f"engine_args must not be given on backend {backend!r}, they are vLLM's; use backend='vllm'")
    if backend == "torch" or (backend == "auto" and installed and (folder.parent != here or asked)):
        return open_on_torch(folder, asked)
    if asked:
        raise ParamsError(
            f"{next(iter(asked))} must not be given on the {'JAX' if backend == 'jax' else 'NumPy'} backend; "
            "use backend='torch' (pip install 'tirage[torch]')"
        )
    if backend == "jax":
        return open_on_jax(folder)
    model = load(folder)
    _log.info("%s runs on the NumPy backend", folder.name)
    return model


def open_on_torch(folder: Path, options: Mapping[str, Any]) -> Model | BatchingModel:
    """The model of a folder on PyTorch, with `tp_plan` this process's part of it.

    Raises ModelError if PyTorch is missing or the folder cannot be loaded, and ParamsError for options that do not go
    together.
    """
    try:
        from tirage.models.huggingface import open_folder
    except ImportError as error:
        raise ModelError(
            f"backend 'torch' needs torch and transformers, {error.name} is missing: pip install 'tirage[torch]'"
        ) from error
    if "tp_plan" in options:
        from tirage.models.huggingface.tensor_parallel import open_sharded

        return open_sharded(folder, **options)
    model = open_folder(folder, **options)
    _log.info("%s runs on PyTorch, %s on %s", folder.name, str(model.module.dtype).removeprefix("torch."), model.device)
    return model


def open_on_vllm(folder: Path, options: Mapping[str, Any], max_running: int) -> BatchingModel:
    """The model of a folder in vLLM's engine.

    Raises ModelError if vLLM is missing or cannot load the folder, ParamsError for an option that it does not have.
    """
    from tirage.models.vllm import open_folder

    for name in options:
        if name not in ("dtype", "engine_args"):
            raise ParamsError(
                f"{name} must not be given on the vLLM backend; vLLM's own settings are given in engine_args"
            )
    model = open_folder(folder, max_running=max_running, **options)
    _log.info("%s runs on vLLM: %s", folder.name, ", ".join(f"{k} {v}" for k, v in model.numerics().items()))
    return model


def open_on_jax(folder: Path) -> Model:
    """The Llama of a folder on JAX; ModelError if JAX is missing or the folder cannot be loaded."""
    try:
        from tirage.models.llama_jax import open_jax
    except ImportError as error:
        raise ModelError(f"backend 'jax' needs jax, {error.name} is missing: pip install 'tirage[jax]'") from error
    model = open_jax(load(folder))
    _log.info("%s runs on JAX, for at most %s tokens", folder.name, model.max_length)
    return model


def load(name_or_path: str | Path) -> LlamaNumpy:
    """The NumPy Llama of a Hugging Face folder with config.json and safetensors weights.

    Raises ModelError naming the file that is missing, damaged or not supported.
    """
    folder = find_folder(name_or_path)
    path = folder / "config.json"
    config = parse_config(read_json_object(path), path)
    return build_llama(config, read_weights(folder), folder)


def read_generation_config(folder: Path) -> dict[str, Any]:
    """The content of generation_config.json, with the EOS ids of config.json if it has none.

    Raises ModelError for a file that cannot be read.
    """
    config = read_json_object(folder / "config.json")
    generation = read_optional_json_object(folder / "generation_config.json")
    if generation.get("eos_token_id") is None:
        generation["eos_token_id"] = config.get("eos_token_id")
    return generation


def read_tokenizer_settings(folder: Path) -> dict[str, Any]:
    """The content of tokenizer_config.json, with the template of chat_template.jinja or .json if there is one.

    Raises ModelError for a file that cannot be read.
    """
    settings = read_optional_json_object(folder / "tokenizer_config.json")
    settings |= read_optional_json_object(folder / "chat_template.json")
    path = folder / "chat_template.jinja"
    if path.exists():
        settings["chat_template"] = read_template(path)
    return settings


def read_template(path: Path) -> str:
    """The text of a chat template; ModelError naming the file if it cannot be read."""
    try:
        with path.open(encoding="utf-8") as file:
            # A device has no size that could be asked for.
            found = file.read(MAX_BYTES + 1)
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"{path} cannot be read as a chat template: {error}") from error
    if len(found.encode()) > MAX_BYTES:
        raise ModelError(f"{path} must be at most {MAX_BYTES} bytes of template text")
    return found
