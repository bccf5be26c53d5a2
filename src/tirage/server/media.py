"""Images and audio of a request, in any of the forms that the routes accept.

Data URIs and base64 are always accepted. File names need the operator's `--media-root`, URLs `--allowed-media-domain`.
The format is detected from the bytes, never from a name or a declared type, and another process decodes them
(media_worker.py).
"""

from __future__ import annotations

import asyncio
import binascii
import os
import re
import stat
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import numpy as np

from tirage.errors import ParamsError
from tirage.server.client import Client, current_client
from tirage.server.errors import Refusal
from tirage.server.media_url import Fetcher, FetchError
from tirage.server.media_workers import DecodeError, Kind, MediaWorkers, missing
from tirage.server.options import Options, check_limit

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from PIL.Image import Image

    from tirage.llm import LLM

Detail = Literal["auto", "low", "high"]
_SOURCES = "a data URI, base64, a file name or a URL"
_THREADS = 4
_ECHO = 60
_LONGEST_NAME = 4096
_LARGER = "the operator can raise it with --max-media-bytes"
_SIGNATURES: dict[Kind, tuple[tuple[str, str], ...]] = {
    "image": (("PNG", r"\x89PNG\r\n\x1a\n"), ("JPEG", r"\xff\xd8\xff"), ("GIF", "GIF8[79]a"), ("WEBP", "RIFF.{4}WEBP")),
    "audio": (("WAV", "RIFF.{4}WAVE"), ("FLAC", "fLaC"), ("Ogg", "OggS")),
}
_FORMATS: dict[Kind, str] = {"image": "PNG, JPEG, WebP or GIF", "audio": "WAV, FLAC or Ogg"}
_WORDS: dict[Kind, str] = {"image": "an image", "audio": "a sound"}
_DATA = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?:;[\w.-]+=[\w.-]+)*;base64,", re.IGNORECASE | re.ASCII)
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]{0,30}):", re.IGNORECASE | re.ASCII)


class MediaError(ParamsError):
    """An image or an audio item that is refused; `param` is its place in the request."""

    def __init__(self, name: str, rule: str) -> None:
        super().__init__(f"{name} must be {rule}")
        self.param = name


@dataclass(frozen=True, slots=True)
class MediaItem:
    """One image or audio item as a request gives it: `source` is a data URI, base64, a file name or a URL.

    `name` is its place in the request, for messages. With `detail` "low" an image is scaled to at most 512 x 512.
    """

    kind: Kind
    name: str
    source: str
    detail: Detail = "auto"


def read_item(kind: Kind, name: str, value: Any) -> MediaItem:
    """The item in a value: a text, or an object with `url` and perhaps `detail`. Raises MediaError for others."""
    given = value if isinstance(value, Mapping) else {"url": value}
    for key in given:
        if key not in {"url", "detail"}:
            raise MediaError(name, f"a text or an object of url and detail, got the key {str(key)[:_ECHO]!r}")
    if "url" not in given:
        raise MediaError(name, f"an object with a url ({_SOURCES}), got one without")
    source, detail = given["url"], given.get("detail") or "auto"
    if not isinstance(source, str):
        raise MediaError(name, f"a text: {_SOURCES}, got {'null' if source is None else type(source).__name__}")
    if detail not in ("auto", "low", "high"):
        raise MediaError(name, f"given with the detail auto, low or high, got {str(detail)[:_ECHO]!r}")
    return MediaItem(kind, name, source, detail)


def read_sglang(kind: Kind, name: str, value: Any, *, prompts: int, batch: bool) -> list[list[MediaItem]]:
    """One list of items per prompt, from `image_data` or `audio_data` as SGLang accepts them; raises MediaError.

    A single item goes to every prompt. A list holds the items of the prompt, or in a batch one entry per prompt: an
    item, a list of items, or None.
    """
    if value is None:
        return [[] for _ in range(prompts)]
    if not isinstance(value, list):
        return [[read_item(kind, name, value)] for _ in range(prompts)]
    if not batch and not any(isinstance(each, list) for each in value):
        value = [value]
    if len(value) != prompts:
        raise MediaError(name, f"as many as the prompts ({prompts}), got {len(value)}; null stands for none")
    return [read_entry(kind, f"{name}[{i}]" if batch else name, each) for i, each in enumerate(value)]


def read_entry(kind: Kind, name: str, value: Any) -> list[MediaItem]:
    """The items of one prompt, from an item, a list of items, or None."""
    if value is None:
        return []
    if isinstance(value, list):
        return [read_item(kind, f"{name}[{i}]", each) for i, each in enumerate(value)]
    return [read_item(kind, name, value)]


def read_part(name: str, part: Mapping[str, Any]) -> MediaItem | None:
    """The item of an OpenAI content part; None for a part of another type, such as text.

    The types are `image_url`, `input_audio` (base64 and its `format`) and `audio_url`. Raises MediaError.
    """
    word = part.get("type")
    if word not in ("image_url", "audio_url", "input_audio"):
        return None
    unknown = set(part) - {"type", word}
    if unknown:
        raise MediaError(name, f"a part of type and {word}, got the key {sorted(map(str, unknown))[0][:_ECHO]!r}")
    where, value = f"{name}.{word}", part.get(word)
    if word != "input_audio":
        return read_item("image" if word == "image_url" else "audio", where, value)
    if not isinstance(value, Mapping) or set(value) - {"data", "format"} or not isinstance(value.get("data"), str):
        raise MediaError(where, "an object of data, a text of base64, and format")
    if value.get("format", "wav") not in ("wav", "flac", "ogg"):
        raise MediaError(where, f"in the format wav, flac or ogg, got {str(value['format'])[:_ECHO]!r}")
    return MediaItem("audio", where, value["data"])


async def load_messages(loader: MediaLoader, messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The messages with their media loaded, as parts `{"type": "image", "image": ...}` and the same for audio.

    A part may be a MediaItem, for a route that reads parts of its own. Other messages and parts stay as they are.
    Raises MediaError.
    """
    found: dict[tuple[int, int], MediaItem] = {}
    for i, message in enumerate(messages):
        content = message.get("content") if isinstance(message, Mapping) else None
        for j, part in enumerate(content if isinstance(content, list) else ()):
            item = part if isinstance(part, MediaItem) else None
            if isinstance(part, Mapping):
                item = read_part(f"messages[{i}].content[{j}]", part)
            if item is not None:
                found[i, j] = item
    if not found:
        return list(messages)
    loaded = dict(zip(found, await loader.load(list(found.values())), strict=True))
    parts = {place: {"type": found[place].kind, found[place].kind: media} for place, media in loaded.items()}
    return [
        {**message, "content": [parts.get((i, j), part) for j, part in enumerate(message["content"])]}
        if any(place[0] == i for place in parts)
        else message
        for i, message in enumerate(messages)
    ]


class MediaLoader:
    """Loads the media of requests within the operator's limits; there is one for the server.

    `sampling_rate` is that of the model's audio input, None for a model without one; with `takes_images` False images
    are refused unread. `fetcher` downloads URLs.
    """

    def __init__(
        self,
        options: Options,
        *,
        sampling_rate: int | None,
        takes_images: bool = True,
        fetcher: Fetcher | None = None,
    ) -> None:
        self._limits, self._rate, self._takes_images = options.limits, sampling_rate, takes_images
        self._root = None if options.media_root is None else Path(os.path.realpath(options.media_root))
        self._fetcher = fetcher or Fetcher(options.allowed_media_domain)
        self._decoders = MediaWorkers()
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tirage-media")

    async def load(self, items: Sequence[MediaItem]) -> list[Any]:
        """PIL images (RGB) and float32 arrays [samples] at the model's rate, in the order of the items.

        `items` are all those of an HTTP request: their number and their pixels together are limited. Equal items are
        loaded once. Raises MediaError, a ParamsError, for the first one that is refused.
        """
        if not items:
            return []
        check_limit(self._limits, "max_media", len(items), "images and sounds of a request")
        client = current_client()
        return await asyncio.get_running_loop().run_in_executor(self._pool, self.load_now, items, client)

    def load_now(self, items: Sequence[MediaItem], client: Client | None = None) -> list[Any]:
        """The same, for use in a thread; raises MediaError, and Refusal when the client has disconnected."""
        loaded: list[Any] = []
        found: dict[tuple[Kind, str, Detail], Any] = {}
        pixels = self._limits.max_request_pixels
        for item in items:
            if client is not None and client.disconnected:
                raise Refusal(499, "the client has left")
            key = (item.kind, item.source, item.detail)
            if key not in found:
                found[key] = self._load_one(item, pixels)
            loaded.append(found[key])
            pixels -= found[key].width * found[key].height if item.kind == "image" else 0
            if pixels < 0:
                most = self._limits.max_request_pixels
                rule = f"at most {most} pixels together with those before it, got more"
                raise MediaError(item.name, f"{rule}; the operator can raise it with --max-request-pixels")
        return loaded

    def close(self) -> None:
        """Ends the threads and the worker processes."""
        self._pool.shutdown(wait=False, cancel_futures=True)
        self._decoders.close()

    def _load_one(self, item: MediaItem, pixels: int) -> Image | NDArray[np.float32]:
        if item.kind == "audio" and self._rate is None:
            raise MediaError(item.name, "left out, this model takes no sounds")
        if item.kind == "image" and not self._takes_images:
            raise MediaError(item.name, "left out, this model takes no images")
        if package := missing(item.kind):
            raise MediaError(item.name, f"left out, the server lacks {package}; its operator can install tirage[serve]")
        try:
            data = self._read(item)
            name = format_of(item.kind, data)
            if item.kind == "image":
                return self._decode_image(data, name, item.detail, pixels)
            return self._decode_audio(data, name)
        except (DecodeError, FetchError) as error:
            raise MediaError(item.name, str(error)) from None

    def _decode_image(self, data: bytes, name: str, detail: Detail, pixels: int) -> Image:
        from PIL import Image

        most = self._limits.max_media_pixels
        flag = "--max-media-pixels" if most <= pixels else "--max-request-pixels"
        task = {"format": name, "detail": detail, "pixels": min(pixels, most), "flag": flag}
        head, made = self._decoders.decode("image", data, **task)
        return Image.frombytes("RGB", (head["width"], head["height"]), made)

    def _decode_audio(self, data: bytes, name: str) -> NDArray[np.float32]:
        seconds = self._limits.max_audio_seconds
        _, made = self._decoders.decode("audio", data, format=name, rate=self._rate, seconds=seconds)
        return np.frombuffer(made, np.float32)

    def _read(self, item: MediaItem) -> bytes:
        """The bytes of a source; raises DecodeError or FetchError."""
        source, most = item.source, self._limits.max_media_bytes
        if found := _DATA.match(source):
            return from_base64(source[found.end() :], most)
        scheme = _SCHEME.match(source)
        if scheme is None and "." not in source:
            return from_base64(source, most)
        if scheme is None or scheme[1].lower() == "file":
            return self._read_file(source)
        if scheme[1].lower() not in ("http", "https"):
            raise DecodeError(f"a data URI of base64, base64, a file name or a URL, got {source[:_ECHO]!r}")
        if not self._fetcher.domains:
            raise DecodeError(
                "a data URI or base64, got a URL; the operator can allow its domain with --allowed-media-domain"
            )
        return self._fetcher.fetch(source, most=most)

    def _read_file(self, source: str) -> bytes:
        if self._root is None:
            raise DecodeError("a data URI or base64, got a file name; the operator can allow files with --media-root")
        data = read_below(self._root, file_name(source), self._limits.max_media_bytes)
        if data is None:
            # The same message whether it is absent, outside the folder, not a file, too large or unreadable.
            most = self._limits.max_media_bytes
            raise DecodeError(f"the name of a file under --media-root of at most {most} bytes, got {source[:_ECHO]!r}")
        return data


def takes_images(llm: LLM) -> bool:
    """Whether the model takes images."""
    return "image" in llm.engine.model.media_marks


def sampling_rate_of(llm: LLM) -> int | None:
    """The sampling rate of a model's audio input, in Hz; None for a model without one."""
    return llm.engine.model.sampling_rate


def file_name(source: str) -> str:
    """The file name in a text or a `file:` URI."""
    if not source.lower().startswith("file:"):
        return source
    path = source[5:]
    if path.startswith("//"):
        host, slash, rest = path[2:].partition("/")
        path = slash + rest if host in ("", "localhost") else ""
    return unquote(path, errors="surrogateescape")


def read_below(root: Path, name: str, most: int) -> bytes | None:
    """The bytes of a regular file below a folder; None when there is no such file, or it has more than `most` bytes.

    A name that leads out of the folder is not looked up at all. Links are resolved and must stay inside; then the
    resolved path is opened without following any link, so that none can be placed there in between.
    """
    if "\0" in name or not 0 < len(name) <= _LONGEST_NAME:
        return None
    wanted = os.path.normpath(root / name)
    if not is_below(wanted, root):
        return None
    real = os.path.realpath(wanted)
    if not is_below(real, root):
        return None
    try:
        return read_regular(root, Path(real).relative_to(root).parts, most)
    except OSError:
        return None


def is_below(path: str, root: Path) -> bool:
    """Whether a path is inside a folder, without looking at the file system."""
    return Path(path) != root and Path(path).is_relative_to(root)


def read_regular(root: Path, parts: Sequence[str], most: int) -> bytes | None:
    """The bytes of a regular file, opened folder by folder without following a link; None for anything else."""
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = inner
        # Without O_NONBLOCK opening a pipe would block until it has a writer.
        file = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)
    with os.fdopen(file, "rb") as opened:
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size > most:
            return None
        data = opened.read(most + 1)
    return data if len(data) <= most else None


def from_base64(text: str, most: int) -> bytes:
    """The bytes of standard base64, line breaks allowed; raises DecodeError for invalid or too long text."""
    if len(text) > most // 3 * 4 + most // 16 + 16:
        raise DecodeError(f"at most {most} bytes, got {len(text)} characters of base64; {_LARGER}")
    try:
        data = binascii.a2b_base64(text.replace("\r", "").replace("\n", ""), strict_mode=True)
    except ValueError:
        raise DecodeError(f"a data URI, base64, a file name or a URL, got {text[:_ECHO]!r}") from None
    if len(data) > most:
        raise DecodeError(f"at most {most} bytes, got {len(data)}; {_LARGER}")
    return data


def format_of(kind: Kind, data: bytes) -> str:
    """The format, detected from the first bytes; raises DecodeError for an unknown one."""
    for name, shape in _SIGNATURES[kind]:
        if re.match(shape.encode(), data, re.DOTALL):
            return name
    got = "nothing" if not data else "another format"
    raise DecodeError(f"{_WORDS[kind]} in {_FORMATS[kind]}, got {got}")
