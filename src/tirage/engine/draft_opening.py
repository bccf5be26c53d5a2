"""Opens the draft model of a config, and checks that its vocabulary is that of the model it drafts for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tirage.engine.speculative_config import SpeculativeConfig
from tirage.errors import ModelError
from tirage.models import Model, find_model, is_gguf, open_model, read_tokenizer_settings
from tirage.text import Tokenizer, load_tokenizer


def open_draft(
    config: SpeculativeConfig | None, tokenizer: Tokenizer, *, vocab_size: int, backend: str, options: Mapping[str, Any]
) -> Model | None:
    """The draft model of a config; None without one. `options` are those of folders on PyTorch.

    Raises ModelError for one that cannot be opened, and for one with another vocabulary.
    """
    draft = None if config is None else config.model
    if draft is None:
        return None
    if isinstance(draft, (str, Path)):
        return _open_path(find_model(draft), tokenizer, backend, options)
    if not all(hasattr(draft, name) for name in ("prefill", "decode", "vocab_size", "max_length")):
        raise ModelError(f"draft must be a name, a folder, a GGUF file or a tirage.models.Model, got {draft!r:.60}")
    if draft.vocab_size != vocab_size:
        raise ModelError(f"draft must have the model's vocabulary of {vocab_size} tokens, got {draft.vocab_size}")
    return draft


def _open_path(path: Path, tokenizer: Tokenizer, backend: str, options: Mapping[str, Any]) -> Model:
    if is_gguf(path):
        from tirage.models.gguf import open_gguf

        opened: Any = open_gguf(path)
        check_vocabulary(Tokenizer(opened.tokenizer, opened.tokenizer.settings(opened.header.metadata)), tokenizer)
        return opened
    check_vocabulary(load_tokenizer(path / "tokenizer.json", read_tokenizer_settings(path)), tokenizer)
    given: dict[str, Any] = (
        {} if backend in ("numpy", "jax") else {name: options.get(name) for name in ("dtype", "device")}
    )
    found: Any = open_model(path, backend=backend, **given)
    return found


def check_vocabulary(draft: Any, tokenizer: Tokenizer) -> None:
    """Raises ModelError unless the tokens of a draft model spell what those of the model spell."""
    other = draft if isinstance(draft, Tokenizer) else Tokenizer(draft)
    sizes = other.vocab_size, tokenizer.vocab_size
    for token_id in range(min(size for size in sizes if size is not None) if any(sizes) else 0):
        spelled, own = other.token_bytes(token_id), tokenizer.token_bytes(token_id)
        if spelled != own:
            raise ModelError(
                f"draft must have the model's vocabulary, got one in which token {token_id} is {spelled!r:.40} "
                f"and not {own!r:.40}"
            )
    if None not in sizes and sizes[0] != sizes[1]:
        raise ModelError(f"draft must have the model's vocabulary of {sizes[1]} tokens, got {sizes[0]}")
