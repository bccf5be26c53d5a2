"""The one media loader: what a request may give as an image or a sound, and what becomes of the rest."""

from __future__ import annotations

import asyncio
import base64
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_files import (
    PICTURE,
    base64_of,
    data_uri,
    flac_of,
    image_file,
    png_of,
    png_with_text_bomb,
    sound_file,
    wav_of,
)

from tirage import ParamsError
from tirage.server import media_worker, media_workers
from tirage.server.client import Client
from tirage.server.errors import Refusal
from tirage.server.media import (
    MediaError,
    MediaItem,
    MediaLoader,
    load_messages,
    read_item,
    read_part,
    read_sglang,
)
from tirage.server.options import Options

RATE = 16_000


@pytest.fixture(scope="module")
def loader() -> Iterator[MediaLoader]:
    made = MediaLoader(Options(), sampling_rate=RATE)
    yield made
    made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A media root with a picture in it and traps around it."""
    root = tmp_path / "media"
    (root / "inner").mkdir(parents=True)
    (root / "a.png").write_bytes(image_file())
    (root / "inner" / "b.png").write_bytes(image_file())
    (root / "text.png").write_text("no picture")
    (root / "empty.png").touch()
    (tmp_path / "outside.png").write_bytes(image_file())
    (root / "out.png").symlink_to(tmp_path / "outside.png")
    (root / "way").symlink_to(tmp_path)
    (root / "loop.png").symlink_to(root / "loop.png")
    (root / "zero.png").symlink_to("/dev/zero")
    (root / "in.png").symlink_to(root / "inner" / "b.png")
    os.mkfifo(root / "pipe.png")
    (root / "folder.png").mkdir()
    return root


def rooted(folder: Path, **limits: Any) -> MediaLoader:
    return MediaLoader(Options.of(media_root=folder, **limits), sampling_rate=None)


def image(source: str, detail: Any = "auto") -> MediaItem:
    return MediaItem("image", "image_data[0]", source, detail)


def sound(data: bytes) -> MediaItem:
    return MediaItem("audio", "audio_data", base64_of(data))


# --- what is taken -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP", "GIF"])
def test_an_image_of_each_format_becomes_rgb(loader: MediaLoader, kind: str) -> None:
    data = image_file(kind, quality=95) if kind in {"JPEG", "WEBP"} else image_file(kind)
    for source in (base64_of(data), data_uri(data), base64.encodebytes(data).decode()):
        (found,) = loader.load_now([image(source)])
        assert (found.mode, found.size) == ("RGB", (60, 40))
    if kind == "PNG":
        assert np.array_equal(np.asarray(found), PICTURE)


def test_transparency_is_laid_on_white_and_16_bits_are_scaled(loader: MediaLoader) -> None:
    clear = image_file(image=Image.new("RGBA", (8, 8), (200, 0, 0, 0)))
    deep = image_file(image=Image.fromarray(np.full((8, 8), 128 * 256, np.uint16)))
    for data, colour in ((clear, (255, 255, 255)), (deep, (128, 128, 128))):
        (found,) = loader.load_now([image(base64_of(data))])
        assert found.getpixel((4, 4)) == colour


def test_a_photo_is_turned_upright(loader: MediaLoader) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    (found,) = loader.load_now([image(base64_of(image_file("JPEG", exif=exif)))])
    assert found.size == (40, 60)


def test_low_detail_makes_an_image_small(loader: MediaLoader) -> None:
    data = base64_of(image_file(image=Image.new("RGB", (2000, 1000))))
    low, high = loader.load_now([image(data, "low"), image(data, "high")])
    assert (low.size, high.size) == ((512, 256), (2000, 1000))


def test_the_first_frame_of_an_animation_is_the_image(loader: MediaLoader) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    for kind in ("GIF", "WEBP"):
        data = image_file(kind, frames[0], save_all=True, append_images=frames[1:])
        (found,) = loader.load_now([image(base64_of(data))])
        red, _, blue = found.getpixel((4, 4))
        assert red > 200 > 50 > blue


@pytest.mark.parametrize("kind", ["WAV", "FLAC", "OGG"])
def test_a_sound_comes_in_one_channel_at_the_models_rate(loader: MediaLoader, kind: str) -> None:
    (found,) = loader.load_now([sound(sound_file(kind, seconds=1.0, channels=2))])
    assert (found.dtype, found.shape) == (np.float32, (RATE,))
    spectrum = np.abs(np.fft.rfft(found))
    assert abs(int(spectrum.argmax()) - 440) <= 1


def test_a_file_under_the_root_is_read_by_any_of_its_names(folder: Path) -> None:
    names = ("a.png", "./a.png", "inner/b.png", "inner/../a.png", "in.png", str(folder / "a.png"))
    uris = (f"file://{folder}/a.png", f"file://localhost{folder}/a.png", "file:a.png", "file:%61.png")
    loader = rooted(folder)
    for found in loader.load_now([image(name) for name in (*names, *uris)]):
        assert np.array_equal(np.asarray(found), PICTURE)


# --- what is refused ---------------------------------------------------------------------------------------------

NO_MEDIA = {
    "empty": ("", "got nothing"),
    "text": ("no base64 at all", "a data URI, base64, a file name or a URL"),
    "padding": ("aGVsbG8", "a data URI, base64"),
    "url-safe base64": ("_-_-", "a data URI, base64"),
    "a text in base64": (base64_of(b"hello"), "PNG, JPEG, WebP or GIF, got another format"),
    "EPS": (base64_of(b"%!PS-Adobe-3.0 EPSF-3.0\n"), "another format"),
    "EPS as PNG": (data_uri(b"%!PS-Adobe-3.0 EPSF-3.0\n"), "another format"),
    "EPS behind a PNG's signature": (base64_of(b"\x89PNG\r\n\x1a\n%!PS-Adobe"), "got a damaged PNG file"),
    "BMP": (base64_of(image_file("BMP")), "another format"),
    "TIFF": (base64_of(image_file("TIFF")), "another format"),
    "SVG": (base64_of(b"<svg xmlns='http://www.w3.org/2000/svg'/>"), "another format"),
    "cut short": (base64_of(image_file()[:-500]), "got a damaged PNG file"),
    "cut JPEG": (base64_of(image_file("JPEG")[:300]), "got a damaged JPEG file"),
    "20,000 x 20,000": (base64_of(png_of(20_000, 20_000)), "at most 32000000 pixels, got 20000 x 20000"),
    "largest of all": (base64_of(png_of(2**31 - 1, 2**31 - 1)), "at most 32000000 pixels|damaged"),
    "1 x 1": (base64_of(image_file(image=Image.new("RGB", (1, 1)))), "at least 4 pixels on each side"),
    "a line": (base64_of(png_of(8_000_000, 4)), "200 times as long"),
    "text bomb": (base64_of(png_with_text_bomb()), "damaged PNG"),
    "data URI without base64": ("data:image/png,abc", "a data URI of base64"),
    "a script": ("javascript:alert(1)", "a data URI of base64"),
    "FTP": ("ftp://example.org/a.png", "a data URI of base64"),
    "a file": ("a.png", "the operator can allow files with --media-root"),
    "a file as URI": ("file:///etc/passwd", "the operator can allow files with --media-root"),
    "a URL": ("http://example.org/a.png", "the operator can allow its domain with --allowed-media-domain"),
}  # fmt: skip


@pytest.mark.parametrize("name", NO_MEDIA)
def test_what_is_no_image_is_refused_at_its_place(loader: MediaLoader, name: str) -> None:
    source, message = NO_MEDIA[name]
    with pytest.raises(MediaError, match=message) as caught:
        loader.load_now([image(source)])
    assert str(caught.value).startswith("image_data[0] must be ")
    assert caught.value.param == "image_data[0]"
    assert "0x" not in str(caught.value)
    assert len(str(caught.value)) < 250


NO_SOUND = {
    "24 hours": (
        flac_of(24 * 3600 * 8000),
        "seconds long, got 86400; .* --max-audio-seconds",
    ),
    "unknown length": (flac_of(0, seconds=2.0), "damaged FLAC"),
    "many channels": (wav_of(10, channels=200), "in at most 8 channels"),
    "a fast clock": (wav_of(10, rate=1_000_000), "at 4000 to 192000 Hz"),
    "cut short": (b"fLaC" + bytes(50), "damaged FLAC"),
    "an image": (image_file(), "a sound in WAV, FLAC or Ogg, got another format"),
    "nothing inside": (b"RIFF\x24\0\0\0WAVEfmt ", "damaged WAV"),
}


@pytest.mark.parametrize("name", NO_SOUND)
def test_what_is_no_sound_is_refused(loader: MediaLoader, name: str) -> None:
    data, message = NO_SOUND[name]
    with pytest.raises(MediaError, match=message):
        loader.load_now([sound(data)])


def test_a_model_that_hears_nothing_takes_no_sounds() -> None:
    loader = MediaLoader(Options(), sampling_rate=None)
    with pytest.raises(MediaError, match="audio_data must be left out, this model takes no sounds"):
        loader.load_now([sound(wav_of(10))])


def test_a_model_that_takes_no_images_refuses_them_unread() -> None:
    loader = MediaLoader(Options(), sampling_rate=None, takes_images=False)
    with pytest.raises(MediaError, match=r"^image_data must be left out, this model takes no images$"):
        loader.load_now([MediaItem("image", "image_data", "data:image/png;base64,!")])
    assert not loader._decoders.children.idle("image")


def test_a_long_sound_is_counted_and_its_header_not_believed() -> None:
    loader = MediaLoader(Options.of(max_audio_seconds=1.0), sampling_rate=RATE)
    for data in (sound_file("OGG", seconds=2.0), sound_file("WAV", seconds=1.1)):
        with pytest.raises(MediaError, match="at most 1 seconds long, got"):
            loader.load_now([sound(data)])
    assert len(loader.load_now([sound(sound_file("WAV", seconds=1.0))])[0]) == RATE


FORBIDDEN = (
    "../outside.png", "inner/../../outside.png", "/etc/passwd.png", "/dev/zero", "zero.png", "out.png",
    "way/outside.png",
    "way/media/a.png/..", "loop.png", "pipe.png", "folder.png", ".", "..", "./", "inner/..", "absent.png",
    "a.png\0.png", "file:////etc/passwd", "file:///etc/passwd", "file://host/a.png", "file:%2e%2e/outside.png",
    "file:..%2foutside.png", "file:%00.png", "file:%ff.png", "%2e%2e/outside.png", "..\\outside.png", "~/a.png",
    "a" * 300 + ".png", "../" * 5000 + "etc/passwd.png", "．．/outside.png",
)  # fmt: skip


@pytest.mark.parametrize("name", FORBIDDEN)
def test_no_name_leads_out_of_the_root_or_to_anything_but_a_file(folder: Path, name: str) -> None:
    started = time.monotonic()
    with pytest.raises(MediaError) as caught:
        rooted(folder).load_now([image(name)])
    said = str(caught.value)
    rule = "image_data[0] must be the name of a file under --media-root of at most 33554432 bytes, got "
    assert said.startswith((rule, "image_data[0] must be a data URI, base64")), said
    assert str(folder) not in said
    assert time.monotonic() - started < 10


def test_the_words_for_absent_forbidden_and_large_are_the_same(folder: Path) -> None:
    (folder / "large.png").write_bytes(image_file() + bytes(5000))
    loader, said = rooted(folder, max_media_bytes=5000), set()
    for name in ("absent.png", "../outside.png", "../absent.png", "large.png", "pipe.png", "out.png"):
        with pytest.raises(MediaError) as caught:
            loader.load_now([image(name)])
        said.add(str(caught.value).replace(name, "NAME"))
    assert len(said) == 1


def test_names_outside_are_not_even_looked_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = rooted(folder)
    looked: list[str] = []
    monkeypatch.setattr(os, "lstat", lambda *args, **kwargs: looked.append(str(args)))
    for name in ("../outside.png", "/etc/passwd.png", "inner/../../absent.png"):
        with pytest.raises(MediaError):
            loader.load_now([image(name)])
    assert looked == []


def test_a_file_that_is_no_image_is_refused_like_any_bytes(folder: Path) -> None:
    for name, words in (("text.png", "got another format"), ("empty.png", "got nothing")):
        with pytest.raises(MediaError, match=words):
            rooted(folder).load_now([image(name)])


# --- limits ------------------------------------------------------------------------------------------------------


def test_the_items_of_a_request_are_limited(loader: MediaLoader) -> None:
    item = image(base64_of(image_file()))
    assert len(asyncio.run(loader.load([item] * 16))) == 16
    with pytest.raises(ParamsError, match="at most 16, got 17; the operator can raise it with --max-media"):
        asyncio.run(loader.load([item] * 17))
    assert asyncio.run(loader.load([])) == []


def test_nothing_is_loaded_for_a_client_that_has_left() -> None:
    loader, looks = MediaLoader(Options(), sampling_rate=None), iter([False, True])
    items = [image(base64_of(image_file())), image("nothing of the kind")]
    with pytest.raises(Refusal, match="the client has left"):
        loader.load_now(items, Client(lambda: next(looks)))


_PORTRAIT = base64_of(image_file(image=Image.new("RGB", (40, 60))))


def test_pixels_and_bytes_are_limited_together() -> None:
    data = base64_of(image_file())
    loader = MediaLoader(Options.of(max_request_pixels=5000, max_media_pixels=3000), sampling_rate=None)
    assert len(loader.load_now([image(data), image(data)])) == 2
    with pytest.raises(MediaError, match="at most 5000 pixels together with those before it"):
        loader.load_now([image(data)] * 3)
    with pytest.raises(MediaError, match="got 40 x 60; the operator can raise it with --max-request-pixels"):
        loader.load_now([image(base64_of(image_file(image=Image.new("RGB", (50, 60))))), image(_PORTRAIT)])
    wide = base64_of(image_file(image=Image.new("RGB", (100, 50))))
    with pytest.raises(MediaError, match=r"at most 3000 pixels, got 100 x 50; .* --max-media-pixels"):
        loader.load_now([image(wide)])
    small = MediaLoader(Options.of(max_media_bytes=1024), sampling_rate=None)
    for source in (base64_of(bytes(1025)), base64_of(bytes(100_000))):
        with pytest.raises(MediaError, match=r"at most 1024 bytes, got .*; .* --max-media-bytes"):
            small.load_now([image(source)])


@pytest.mark.slow
def test_a_decoder_that_hangs_is_killed_and_the_next_file_gets_a_new_one(
    loader: MediaLoader, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = image(base64_of(image_file()))
    loader.load_now([good])
    child = loader._decoders.children.idle("image")[-1]
    monkeypatch.setattr(loader._decoders, "_seconds", 0.2)
    os.kill(child.process.pid, 19)
    with pytest.raises(MediaError, match=r"decoded within 0\.2 s and 1 GB"):
        loader.load_now([good])
    assert child.process.poll() is not None
    monkeypatch.undo()
    assert loader.load_now([good])[0].size == (60, 40)


def test_a_package_that_is_missing_is_named(loader: MediaLoader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(media_workers._NEEDS, "image", ("no_such_package",))
    with pytest.raises(MediaError, match=r"lacks no_such_package; its operator can install tirage\[serve\]"):
        loader.load_now([image(base64_of(image_file()))])


@pytest.mark.slow
def test_a_decoder_that_died_is_replaced(loader: MediaLoader) -> None:
    good = image(base64_of(image_file()))
    loader.load_now([good])
    child = loader._decoders.children.idle("image")[-1]
    child.process.kill()
    child.process.wait()
    assert loader.load_now([good])[0].size == (60, 40)


RIGHTS = """
import os, socket, subprocess, sys
from tirage.server import media_worker
media_worker.prepare("image")
media_worker.drop_rights(media_worker.GROWTH)
def refused(act):
    try:
        act()
    except (OSError, MemoryError):
        return True
    return False
acts = [lambda: open(os.devnull), socket.socket, lambda: bytearray(2 << 30), lambda: subprocess.run([sys.executable])]
print([refused(act) for act in acts])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are Linux's")
def test_a_decoder_can_open_no_file_and_no_socket_and_is_bounded_in_memory() -> None:
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run([sys.executable, "-c", RIGHTS], env=environ, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[True, True, True, True]"


def test_running_out_of_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def exhausted(data: bytes, task: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(media_worker.READERS, "image", exhausted)
    head, made = media_worker.answer({"kind": "image", "format": "PNG"}, b"")
    assert head == {"error": "small enough to decode in 1 GB, got one that is not"}
    assert made == b""


# --- shapes of requests ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "prompts", "batch", "expected"),
    [
        (None, 2, True, [[], []]),
        ("a", 1, False, [["a"]]),
        ("a", 2, True, [["a"], ["a"]]),
        (["a", "b"], 1, False, [["a", "b"]]),
        ([["a", "b"]], 1, False, [["a", "b"]]),
        (["a", "b"], 2, True, [["a"], ["b"]]),
        ([["a", "b"], ["c"]], 2, True, [["a", "b"], ["c"]]),
        ([["a"], None], 2, True, [["a"], []]),
        (["a", ["b", "c"]], 2, True, [["a"], ["b", "c"]]),
        ({"url": "a", "detail": "low"}, 1, False, [["a"]]),
        ([], 1, False, [[]]),
    ],
)
def test_sglangs_shapes_give_each_prompt_its_items(value: Any, prompts: int, batch: bool, expected: Any) -> None:
    found = read_sglang("image", "image_data", value, prompts=prompts, batch=batch)
    assert [[item.source for item in items] for items in found] == expected


@pytest.mark.parametrize(
    ("value", "prompts", "batch", "message"),
    [
        (["a", "b"], 3, True, "image_data must be as many as the prompts .3., got 2"),
        ([["a"], ["b"]], 1, False, "image_data must be as many as the prompts .1., got 2"),
        (7, 1, False, "image_data must be a text.*got int"),
        (True, 1, False, "got bool"),
        (["a", 7], 1, False, r"image_data\[1\] must be a text.*got int"),
        ([["a"], ["b", [1]]], 2, True, r"image_data\[1\]\[1\] must be a text.*got list"),
        ({"path": "a"}, 1, False, "object of url and detail, got the key 'path'"),
        ({"url": "a", "detail": "best"}, 1, False, "auto, low or high, got 'best'"),
        ({"detail": "low"}, 1, False, r"image_data must be an object with a url .*, got one without"),
        ([{}], 1, False, r"image_data\[0\] must be an object with a url .*, got one without"),
        ([{"url": None}], 1, False, r"image_data\[0\] must be a text: .*, got null"),
        ([["a", None]], 1, False, r"image_data\[1\] must be a text: .*, got null"),
    ],
)
def test_other_shapes_are_refused_at_their_place(value: Any, prompts: int, batch: bool, message: str) -> None:
    with pytest.raises(MediaError, match=message):
        read_sglang("image", "image_data", value, prompts=prompts, batch=batch)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ({"type": "text", "text": "a"}, None),
        (
            {"type": "image_url", "image_url": {"url": "u", "detail": "high"}},
            MediaItem("image", "p.image_url", "u", "high"),
        ),
        ({"type": "image_url", "image_url": "u"}, MediaItem("image", "p.image_url", "u")),
        ({"type": "audio_url", "audio_url": {"url": "u"}}, MediaItem("audio", "p.audio_url", "u")),
        (
            {"type": "input_audio", "input_audio": {"data": "d", "format": "wav"}},
            MediaItem("audio", "p.input_audio", "d"),
        ),
    ],
)
def test_openais_parts_are_items(part: dict[str, Any], expected: MediaItem | None) -> None:
    assert read_part("p", part) == expected


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "image_url"}, "p.image_url must be a text"),
        ({"type": "image_url", "image_url": {"url": "u"}, "path": "a"}, "got the key 'path'"),
        ({"type": "input_audio", "input_audio": "d"}, "an object of data"),
        ({"type": "input_audio", "input_audio": {"data": 1}}, "an object of data"),
        ({"type": "input_audio", "input_audio": {"data": "d", "format": "mp3"}}, "wav, flac or ogg, got 'mp3'"),
    ],
)
def test_bad_parts_are_refused(part: dict[str, Any], message: str) -> None:
    with pytest.raises(MediaError, match=message):
        read_part("p", part)


def test_messages_are_loaded_where_they_hold_media(loader: MediaLoader) -> None:
    uri = data_uri(image_file())
    plain = {"role": "system", "content": "be brief"}
    words = {"type": "text", "text": "what is this?"}
    seen = {"role": "user", "content": [words, {"type": "image_url", "image_url": {"url": uri}}]}
    first, second, third = asyncio.run(load_messages(loader, [plain, seen, {"role": "user", "content": [words]}]))
    assert first is plain
    assert third == {"role": "user", "content": [words]}
    assert second["content"][0] is words
    assert second["content"][1]["type"] == "image"
    assert second["content"][1]["image"].size == (60, 40)
    assert seen["content"][1]["type"] == "image_url"
    bad = [{"role": "user", "content": [words, {"type": "image_url", "image_url": {"url": "x"}}]}]
    with pytest.raises(MediaError, match=r"messages\[0\]\.content\[1\]\.image_url must be"):
        asyncio.run(load_messages(loader, bad))


@pytest.mark.slow
def test_an_item_is_a_text_or_an_object() -> None:
    assert read_item("image", "x", "a") == read_item("image", "x", {"url": "a", "detail": None})
