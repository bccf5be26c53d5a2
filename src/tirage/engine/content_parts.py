"""Images and audio in the messages of a chat: OpenAI's content parts, split from the text for the model.

No file and no URL is opened: a part holds the image or audio itself, as an object, as bytes or as a data URL.
"""

from __future__ import annotations

import binascii
import io
import re
import wave
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError, nearest

Message = Mapping[str, Any]
Kind = Literal["image", "audio"]
# Limits of one item; an image of many more pixels is an attempt to fill the memory.
MAX_BYTES = 32 << 20
MAX_PIXELS = 32_000_000
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF")
_DATA_URL = re.compile(r"data:[\w.+-]+/[\w.+-]+(?:;[\w.-]+=[\w.-]+)*;base64,", re.IGNORECASE | re.ASCII)
# Per type of part: its modality, and the keys under which it holds its item.
_PATHS: dict[str, tuple[Kind, tuple[str, ...]]] = {
    "image": ("image", ("image",)),
    "image_url": ("image", ("image_url", "url")),
    "audio": ("audio", ("audio",)),
    "audio_url": ("audio", ("audio_url", "url")),
    "input_audio": ("audio", ("input_audio", "data")),
}
_BARE_BASE64 = ("input_audio",)
_DTYPES = {1: np.dtype(np.uint8), 2: np.dtype("<i2"), 4: np.dtype("<i4")}


@dataclass(slots=True)
class ContentParts:
    """A conversation split from its images and audio, which are in order; a part `{"type": "image"}` marks each."""

    messages: list[Any] = field(default_factory=list)
    images: list[Any] = field(default_factory=list)
    audio: list[Any] = field(default_factory=list)


def split_parts(messages: Sequence[Message], *, sampling_rate: int | None) -> ContentParts:
    """The messages with their images and audio split off; messages without parts stay as they are.

    `sampling_rate` is that of the model's audio input. Raises ParamsError, which names the part, for an unknown type
    and for an item that is no image or audio.
    """
    parts = ContentParts()
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        return ContentParts(messages)  # type: ignore[arg-type]  # the template says what is wrong
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        if isinstance(content, (list, tuple)):
            shown = [
                take_part(parts, part, f"messages[{i}].content[{j}]", sampling_rate) for j, part in enumerate(content)
            ]
            message = {**message, "content": shown}
        parts.messages.append(message)
    return parts


def take_part(parts: ContentParts, part: Any, name: str, sampling_rate: int | None) -> Any:
    """The part as the template gets it; its image or audio is added to `parts`. Raises ParamsError for a bad part."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind == "text" or not isinstance(kind, str):
        return part
    if kind not in _PATHS:
        known = ("text", *_PATHS)
        raise ParamsError(f"{name}.type must be one of {', '.join(known)}, got {kind[:40]!r}{nearest(kind, known)}")
    modality, path = _PATHS[kind]
    item, where = item_of(part, path, name)
    if isinstance(item, str):
        item = bytes_of(item, where, bare=kind in _BARE_BASE64)
    if modality == "image":
        parts.images.append(read_image(item, where) if isinstance(item, (bytes, bytearray)) else item)
    else:
        parts.audio.append(read_audio(item, where, sampling_rate) if isinstance(item, (bytes, bytearray)) else item)
    return {"type": modality}


def item_of(part: Mapping[str, Any], path: Sequence[str], name: str) -> tuple[Any, str]:
    """The item that a part holds at a path, whose last key may be left out, and its name for errors.

    Raises ParamsError when there is none.
    """
    value: Any = part
    for key in path:
        if isinstance(value, Mapping):
            name, value = f"{name}.{key}", value.get(key)
    if value is None or isinstance(value, Mapping):
        raise ParamsError(f"{name} must hold an image or a sound, got none")
    return value, name


def bytes_of(text: str, name: str, *, bare: bool) -> bytes:
    """The bytes of a data URL or, with `bare`, of base64 alone. Raises ParamsError for other or too long text."""
    found = _DATA_URL.match(text)
    if found is None and not bare:
        raise ParamsError(f"{name} must be a data URL of base64, bytes or the object itself, got {text[:60]!r}")
    encoded = text[found.end() :] if found is not None else text
    if len(encoded) > MAX_BYTES // 3 * 4 + 4:
        raise ParamsError(f"{name} must hold at most {MAX_BYTES} bytes, got {len(encoded)} characters of base64")
    try:
        return binascii.a2b_base64(encoded, strict_mode=True)
    except ValueError as error:
        raise ParamsError(f"{name} must be valid base64: {error}") from None


def read_image(data: bytes | bytearray, name: str) -> Any:
    """The RGB image in PNG, JPEG, WebP or GIF bytes. Raises ParamsError for other bytes and for too large an image."""
    from PIL import Image

    if len(data) > MAX_BYTES:
        raise ParamsError(f"{name} must hold at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        with Image.open(io.BytesIO(data), formats=_FORMATS) as opened:
            pixels = opened.width * opened.height
            image = opened.convert("RGB") if pixels <= MAX_PIXELS else None
    except Exception as error:  # damaged images fail in many ways
        raise ParamsError(f"{name} must be a whole PNG, JPEG, WebP or GIF image: {error}") from None
    if image is None:
        raise ParamsError(f"{name} must have at most {MAX_PIXELS} pixels, got {pixels}")
    return image


def read_audio(data: bytes | bytearray, name: str, sampling_rate: int | None) -> NDArray[np.float32]:
    """The samples of WAV bytes as float32 [samples] in [-1, 1], channels averaged.

    Raises ParamsError for other bytes, and for a sampling rate or width that is not taken.
    """
    if len(data) > MAX_BYTES:
        raise ParamsError(f"{name} must hold at most {MAX_BYTES} bytes, got {len(data)}")
    try:
        with wave.open(io.BytesIO(data)) as opened:
            rate, channels, width = opened.getframerate(), opened.getnchannels(), opened.getsampwidth()
            frames = opened.readframes(opened.getnframes())
    except (wave.Error, EOFError, ValueError) as error:
        raise ParamsError(f"{name} must be a whole WAV file of integers: {error or 'it ends too early'}") from None
    if width not in _DTYPES or (sampling_rate is not None and rate != sampling_rate):
        raise ParamsError(
            f"{name} must have samples of 8, 16 or 32 bits at {sampling_rate} Hz, got {8 * width} bits at {rate} Hz; "
            "resample it, or pass an array of floats"
        )
    samples = np.frombuffer(frames, _DTYPES[width])
    zero, scale = (128, 128) if width == 1 else (0, 1 << (8 * width - 1))
    floats = (samples[: len(samples) // channels * channels].astype(np.float32) - zero) / np.float32(scale)
    return floats.reshape(-1, channels).mean(axis=1).astype(np.float32)
