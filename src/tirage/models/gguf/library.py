"""libllama through the ctypes of llama-cpp-python: imported when a GGUF file is opened, checked, and made silent."""

from __future__ import annotations

import logging
import weakref
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

from tirage.errors import ModelError

TESTED = ("0.3.36", "0.3.36")
"""The oldest and newest release of llama-cpp-python with which the tests were run."""
NEEDED = (
    *("llama_model_load_from_file", "llama_init_from_model", "llama_get_memory", "llama_memory_seq_cp"),
    *("llama_memory_seq_rm", "llama_decode", "llama_get_logits", "llama_state_get_data", "llama_state_set_data"),
    *("llama_state_seq_get_size", "llama_state_seq_get_data", "llama_state_seq_set_data"),
    *("llama_tokenize", "llama_token_to_piece", "llama_vocab_get_attr", "llama_vocab_is_eog"),
    *("llama_model_n_swa", "llama_model_is_hybrid", "llama_model_is_diffusion", "llama_log_set"),
)
"""The functions of llama-cpp-python that are called."""
_ERROR = 4
_log = logging.getLogger("tirage")
_errors: deque[str] = deque(maxlen=8)
_keep: list[Any] = []


@cache
def load_library() -> Any:
    """The module `llama_cpp.llama_cpp`, whose messages go to the log of tirage from now on.

    Raises ModelError if llama-cpp-python is not installed, cannot be loaded, or lacks a function that is needed.
    """
    try:
        import llama_cpp  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ModelError('GGUF models need llama-cpp-python, which is missing: pip install "tirage[gguf]"') from error
    except (OSError, RuntimeError) as error:
        raise ModelError(f"llama-cpp-python cannot be loaded: {error}; install it again") from error
    library = llama_cpp.llama_cpp
    known = {name for name, _ in library.llama_context_params._fields_}
    missing = [name for name in NEEDED if not hasattr(library, name)] + [
        name for name in ("kv_unified", "flash_attn_type") if name not in known
    ]
    if missing:
        raise ModelError(
            f"llama-cpp-python {llama_cpp.__version__} has no {missing[0]}; tirage knows {' to '.join(TESTED)}"
        )
    _silence(library)
    library.llama_backend_init()
    return library


class LoadedModel:
    """A model that libllama has loaded; it is freed once nothing refers to it, be it a tokenizer or a context."""

    def __init__(self, library: Any, path: Path, *, gpu_layers: int | None = None) -> None:
        """Loads a GGUF file; `gpu_layers` None is libllama's default. Raises ModelError with libllama's reason."""
        params = library.llama_model_default_params()
        if gpu_layers is not None:
            params.n_gpu_layers = gpu_layers
        forget_errors()
        self.library, self.pointer = library, library.llama_model_load_from_file(str(path).encode(), params)
        if not self.pointer:
            reason = last_errors() or "no reason given"
            raise ModelError(f"{path} cannot be loaded by llama-cpp-python {version()}: {reason}")
        # At the end of the process a thread may still be computing, and the memory is freed anyway.
        weakref.finalize(self, library.llama_model_free, self.pointer).atexit = False

    @property
    def vocab(self) -> Any:
        """The pointer of its vocabulary."""
        return self.library.llama_model_get_vocab(self.pointer)


def version() -> str:
    """The version of llama-cpp-python."""
    import llama_cpp  # pyright: ignore[reportMissingImports]

    return llama_cpp.__version__


def last_errors() -> str:
    """What libllama has reported since `forget_errors`, in one line; empty if nothing."""
    return "; ".join(_errors)


def forget_errors() -> None:
    """Forgets what was reported before, so that `last_errors` belongs to the next call."""
    _errors.clear()


def _silence(library: Any) -> None:
    @library.llama_log_callback
    def listen(level: int, text: bytes | None, _: Any) -> None:
        line = (text or b"").decode("utf-8", "replace").strip()
        if line:
            _log.debug("libllama: %s", line)
        if line and level == _ERROR:
            _errors.append(line)

    # The library keeps a bare pointer to the callback.
    _keep.append(listen)
    library.llama_log_set(listen, None)
