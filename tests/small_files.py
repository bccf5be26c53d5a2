"""Images and sounds as files, sane and hostile, made on the spot."""

from __future__ import annotations

import base64
import io
import struct
import zlib
from typing import Any

import numpy as np
from PIL import Image

PICTURE = np.random.default_rng(0).integers(0, 255, (40, 60, 3), dtype=np.uint8)


def image_file(kind: str = "PNG", image: Any = None, **options: Any) -> bytes:
    """An image in a file format."""
    file = io.BytesIO()
    (Image.fromarray(PICTURE) if image is None else image).save(file, kind, **options)
    return file.getvalue()


def sound_file(kind: str = "WAV", seconds: float = 0.5, rate: int = 44100, channels: int = 1) -> bytes:
    """A tone of 440 Hz in a file format."""
    import soundfile

    file = io.BytesIO()
    tone = 0.5 * np.sin(2 * np.pi * 440 * np.arange(int(seconds * rate)) / rate)
    soundfile.write(file, np.repeat(tone[:, None], channels, axis=1), rate, format=kind)
    return file.getvalue()


def base64_of(data: bytes) -> str:
    return base64.b64encode(data).decode()


def data_uri(data: bytes, kind: str = "image/png") -> str:
    return f"data:{kind};base64,{base64_of(data)}"


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png_of(width: int, height: int) -> bytes:
    """A PNG that claims a size and holds next to nothing."""
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def png_with_text_bomb() -> bytes:
    """A small PNG with a comment that unpacks to 200 MB."""
    packed = zlib.compress(bytes(200 << 20), 9)
    head = struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)
    rows = zlib.compress(b"".join(b"\0" + bytes(24) for _ in range(8)))
    parts = ((b"IHDR", head), (b"zTXt", b"Comment\0\0" + packed), (b"IDAT", rows), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts)


def flac_of(frames: int, seconds: float = 0.1) -> bytes:
    """A FLAC file at 8 kHz that claims a number of frames, 0 for an unknown one."""
    data = bytearray(sound_file("FLAC", seconds=seconds, rate=8000))
    # The count is the last 36 of the 64 bits that begin at byte 18.
    shape = int.from_bytes(data[18:26], "big") >> 36 << 36
    data[18:26] = (shape | frames).to_bytes(8, "big")
    return bytes(data)


def wav_of(frames: int, rate: int = 8000, channels: int = 1) -> bytes:
    """A silent WAV file of 16 bits."""
    size = frames * 2 * channels
    shape = struct.pack("<HHIIHH", 1, channels, rate, rate * 2 * channels, 2 * channels, 16)
    head = b"WAVEfmt " + struct.pack("<I", 16) + shape + b"data" + struct.pack("<I", size)
    return b"RIFF" + struct.pack("<I", size + 36) + head + bytes(size)
