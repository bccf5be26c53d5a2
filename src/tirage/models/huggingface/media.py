"""Images and audio, prepared by the model's own processor."""

from __future__ import annotations

import hashlib
import importlib.util
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.auto import AutoFeatureExtractor, AutoImageProcessor, AutoProcessor, AutoTokenizer
from transformers.models.auto.processing_auto import PROCESSOR_MAPPING, processor_class_from_name

from tirage.errors import ModelError, ParamsError
from tirage.models.json_file import read_optional_json_object
from tirage.models.protocol import Inputs

_FILES = ("processor_config.json", "preprocessor_config.json")
_KINDS = {"images": "image", "audio": "audio"}
_LOCAL: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
_log = logging.getLogger("tirage")


class MediaProcessor:
    """Turns texts with images or audio into inputs, with the processor of a model."""

    def __init__(self, processor: Any, config: Any) -> None:
        self.processor, self._config = processor, config

    @property
    def sampling_rate(self) -> int | None:
        """The sampling rate in Hz of the audio that it takes; None if it takes none."""
        return getattr(getattr(self.processor, "feature_extractor", None), "sampling_rate", None)

    @property
    def marks(self) -> dict[str, str]:
        """The placeholders of "image" and "audio" in a text, for those kinds that the model takes."""
        found = {kind: getattr(self.processor, f"{kind}_token", None) for kind in _KINDS.values()}
        return {kind: mark for kind, mark in found.items() if isinstance(mark, str)}

    def read(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """The inputs for a text with placeholders for the given `images` and `audio`, in order.

        Images are PIL images or uint8 [H, W, 3], audio is float [samples]. With `special=False` the text already
        contains BOS and the like. Raises ParamsError if there are not as many items as placeholders, and for what the
        processor refuses.
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
        """The position after the last placeholder, from which a prompt can be continued without its media."""
        names = [f"{kind}_token_{suffix}" for kind in _KINDS.values() for suffix in ("id", "index")]
        marks = {getattr(source, name, None) for source in (self.processor, self._config) for name in names}
        return max((position + 1 for position, i in enumerate(ids) if i in marks), default=len(ids))


class MissingMediaProcessor(MediaProcessor):
    """Stands for a processor that lacks a package; the model then takes text only."""

    def __init__(self, reason: str) -> None:
        super().__init__(None, None)
        self._reason = reason

    def read(self, text: str, given: Mapping[str, Sequence[Any]], *, special: bool = True) -> Inputs:
        """Raises ParamsError that names what is missing."""
        name = next(name for name, items in given.items() if len(items))
        raise ParamsError(f"prompt {name} must not be given, the model's processor cannot be loaded: {self._reason}")


def open_media(folder: Path, config: Any) -> MediaProcessor | None:
    """The processor of a folder; None for a model that takes text only.

    If packages of the processor are not installed, the model takes text only and the log says what is missing. Raises
    ModelError for a processor that cannot be loaded.
    """
    if not any((folder / name).is_file() for name in _FILES):
        return None
    try:
        processor = open_processor(folder, config)
    except ImportError as error:
        reason = str(error).strip().partition("\n")[0].partition(". ")[0]
        _log.warning("%s takes text alone, its processor cannot be loaded: %s", folder.name, reason)
        return MissingMediaProcessor(reason)
    except Exception as error:  # transformers reports a bad processor in many ways
        text = str(error).strip().splitlines() or [""]
        raise ModelError(f"{folder}: the processor cannot be loaded: {type(error).__name__}: {text[0]}") from error
    return MediaProcessor(processor, config) if hasattr(processor, "tokenizer") else None


def open_processor(folder: Path, config: Any) -> Any:
    """The processor as transformers loads it; without torchvision, its video part is left out."""
    kind = processor_class(folder, config)
    names = () if kind is None else kind.get_attributes()
    whole = importlib.util.find_spec("torchvision") is not None or not any("video" in name for name in names)
    if kind is None or whole:
        return AutoProcessor.from_pretrained(folder, **_LOCAL)
    settings, _ = kind.get_processor_dict(folder, **_LOCAL)
    try:
        return without_videos(kind).from_args_and_dict([open_part(name, folder) for name in names], settings)
    except AttributeError as error:
        raise ImportError(f"{kind.__name__} needs torchvision") from error


def without_videos(kind: Any) -> Any:
    """A subclass of a processor class that accepts None as its video processor, which would need torchvision."""

    def check(self: Any, name: str, part: Any) -> Any:
        return None if "video" in name else kind.check_argument_for_proper_class(self, name, part)

    return type(kind.__name__, (kind,), {"check_argument_for_proper_class": check})


def processor_class(folder: Path, config: Any) -> Any:
    """The processor class that the folder names, else that of its model_type; None if there is neither."""
    for name in (*_FILES, "tokenizer_config.json"):
        found = read_optional_json_object(folder / name).get("processor_class")
        if isinstance(found, str):
            return processor_class_from_name(found)
    return PROCESSOR_MAPPING.get(type(config), None)


def open_part(name: str, folder: Path) -> Any:
    """A part of a processor, by the name that the processor class has for it."""
    if "video" in name:
        return None
    if "tokenizer" in name:
        return AutoTokenizer.from_pretrained(folder, **_LOCAL)
    auto = AutoImageProcessor if "image" in name else AutoFeatureExtractor
    return auto.from_pretrained(folder, **_LOCAL)


def check_item(name: str, index: int, item: Any) -> None:
    """Raises ParamsError for an item that is no image or audio; paths and URLs are never opened.

    Images are PIL images or uint8 [H, W, 3], audio is float [samples].
    """
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
    """A hash of the names, dtypes, shapes and bytes of tensors [...] of any shape."""
    found = hashlib.sha256()
    for name in sorted(tensors):
        array = tensors[name].detach().cpu().contiguous()
        found.update(f"{name}{array.dtype}{tuple(array.shape)}".encode())
        found.update(array.view(torch.uint8).numpy().tobytes() if array.ndim else repr(array.item()).encode())
    return found.digest()
