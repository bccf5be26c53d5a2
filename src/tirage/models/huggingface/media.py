"""Images and audio as a model's own processor prepares them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.auto import AutoProcessor

from tirage.errors import ModelError, ParamsError
from tirage.models.protocol import Inputs

_FILES = ("processor_config.json", "preprocessor_config.json")
_KINDS = {"images": "image", "audio": "audio"}


class Media:
    """Texts with images or audio as inputs, through the processor of a model."""

    def __init__(self, processor: Any, config: Any) -> None:
        self.processor, self._config = processor, config

    @property
    def sampling_rate(self) -> int | None:
        """Samples per second of the sounds it takes; None when it takes none."""
        return getattr(getattr(self.processor, "feature_extractor", None), "sampling_rate", None)

    @property
    def marks(self) -> dict[str, str]:
        """What stands for an "image" and an "audio" in a text, of those that the model takes."""
        found = {kind: getattr(self.processor, f"{kind}_token", None) for kind in _KINDS.values()}
        return {kind: mark for kind, mark in found.items() if isinstance(mark, str)}

    def read(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """The ids and tensors of a text whose marks stand for the `images` and `audio` given, in order.

        Without `special` the text has its BOS and the like already.

        Raises ParamsError when their number is not that of the marks, and for what the processor refuses.
        """
        for name, items in given.items():
            if len(items) and _KINDS[name] not in self.marks:
                raise ParamsError(f"prompt {name} must not be given, this model takes none")
        for name, items in given.items():
            self._check_count(text, name, items)
        present: dict[str, Any] = {name: list(items) for name, items in given.items() if len(items)}
        if "audio" in present and self.sampling_rate is not None:
            present["sampling_rate"] = self.sampling_rate
        try:
            made = dict(self.processor(text=[text], return_tensors="pt", add_special_tokens=special, **present))
        except Exception as error:  # processors refuse in many ways
            raise ParamsError(f"prompt {' and '.join(given)} were refused by the model's processor: {error}") from error
        ids = tuple(made.pop("input_ids")[0].tolist())
        made.pop("attention_mask", None)
        tensors = {name: value for name, value in made.items() if isinstance(value, torch.Tensor)}
        return Inputs(token_ids=ids, media=tensors, media_key=digest(tensors), media_end=self._end(ids))

    def _check_count(self, text: str, name: str, items: Sequence[Any]) -> None:
        mark = self.marks.get(_KINDS[name])
        if mark is None:
            return
        for index, item in enumerate(items):
            check_item(name, index, item)
        if text.count(mark) != len(items):
            raise ParamsError(
                f"prompt {name} must be as many as the marks {mark!r} in the text ({text.count(mark)}), "
                f"got {len(items)}"
            )

    def _end(self, ids: Sequence[int]) -> int:
        """The position after the last placeholder: a prompt may be taken up from there without its media."""
        names = [f"{kind}_token_{suffix}" for kind in _KINDS.values() for suffix in ("id", "index")]
        marks = {getattr(source, name, None) for source in (self.processor, self._config) for name in names}
        return max((position + 1 for position, i in enumerate(ids) if i in marks), default=len(ids))


def open_media(folder: Path, config: Any) -> Media | None:
    """The folder's processor; None for a model of text alone."""
    if not any((folder / name).is_file() for name in _FILES):
        return None
    try:
        processor = AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # transformers reports a bad processor in many ways
        text = str(error).strip().splitlines() or [""]
        raise ModelError(f"{folder}: the processor cannot be loaded: {type(error).__name__}: {text[0]}") from error
    return Media(processor, config) if hasattr(processor, "tokenizer") else None


def check_item(name: str, index: int, item: Any) -> None:
    """Raises ParamsError for an item that is not an image or a sound: no path and no URL is ever opened."""
    if name == "audio":
        array = np.asarray(item) if not isinstance(item, (str, bytes)) else np.empty(0, object)
        if array.ndim != 1 or array.dtype.kind != "f" or not array.size or not np.isfinite(array).all():
            raise ParamsError(f"prompt audio[{index}] must be finite floats [samples], got {type(item).__name__}")
        return
    array = item if isinstance(item, np.ndarray) else None
    if array is not None and array.ndim == 3 and array.dtype == np.uint8 and array.shape[2] == 3 and array.size:
        return
    if array is not None or not hasattr(item, "getpixel"):
        got = type(item).__name__ if array is None else f"{array.dtype} {list(array.shape)}"
        raise ParamsError(f"prompt images[{index}] must be a PIL image or uint8 [H, W, 3], got {got}")


def digest(tensors: Mapping[str, torch.Tensor]) -> bytes:
    """A hash of the tensors' names, shapes and bytes."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}{array.dtype}{tuple(array.shape)}".encode())
        found.update(array.view(torch.uint8).numpy().tobytes() if array.ndim else repr(array.item()).encode())
    return found.digest()
