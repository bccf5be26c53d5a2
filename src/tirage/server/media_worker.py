"""The worker process that decodes untrusted images and audio.

It reads a line of JSON and as many bytes as that says, and answers with a line of JSON and as many bytes as that says.
Before the first task it gives up the rights to open files and sockets, to start processes and to write files, and its
memory is limited, so that an exploit of a decoder gains nothing. It runs as a script.
"""

from __future__ import annotations

import io
import json
import sys
from typing import Any, BinaryIO

from tirage.workers.child_script import drop_rights

Task = dict[str, Any]
GROWTH = 1 << 30
_SMALLEST_SIDE = 4
_LARGEST_RATIO = 200
_LOW_DETAIL = (512, 512)
_RATES = (4_000, 192_000)
_CHANNELS = 8
_BLOCK = 1 << 16
_LONGER = "the operator can raise it with --max-audio-seconds"


class Refused(Exception):  # noqa: N818  (an answer, not only an error)
    """Why an item is refused, for the client: `rule, got value`."""


def read_image(data: bytes, task: Task) -> tuple[Task, bytes]:
    """The first frame of an image as RGB bytes: rotated as its EXIF data says, on white where it is transparent."""
    from PIL import Image, ImageOps

    with Image.open(io.BytesIO(data), formats=[task["format"]]) as opened:
        check_size(*opened.size, most=task["pixels"], flag=task["flag"])
        turned = ImageOps.exif_transpose(opened)
        image = on_white(turned)
    if task["detail"] == "low":
        image.thumbnail(_LOW_DETAIL)
    return {"width": image.width, "height": image.height}, image.tobytes()


def check_size(width: int, height: int, *, most: int, flag: str) -> None:
    """Raises Refused for a size that takes too much memory, or that a model could misread as another layout."""
    if width * height > most:
        raise Refused(f"at most {most} pixels, got {width} x {height}; the operator can raise it with {flag}")
    if min(width, height) < _SMALLEST_SIDE or max(width, height) > _LARGEST_RATIO * min(width, height):
        raise Refused(
            f"at least {_SMALLEST_SIDE} pixels on each side and at most {_LARGEST_RATIO} times as long as wide, "
            f"got {width} x {height}"
        )


def on_white(image: Any) -> Any:
    """An image of any mode as RGB."""
    from PIL import Image

    if image.mode.startswith("I;16"):
        # Converting 16-bit grey levels directly would clip them at 255 instead of scaling.
        image = image.point(lambda value: value / 256).convert("L")
    if "transparency" in image.info or image.mode in {"RGBA", "LA", "PA", "La", "RGBa"}:
        image = image.convert("RGBA")
        ground = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(ground, image).convert("RGB")
    return image.convert("RGB")


def read_sound(data: bytes, task: Task) -> tuple[Task, bytes]:
    """Audio as float32 bytes, one channel [samples] at the task's rate; raises Refused for too much or too little."""
    import numpy as np
    import soundfile
    import soxr

    with soundfile.SoundFile(io.BytesIO(data)) as sound:
        check_sound(sound, task)
        stream = soxr.ResampleStream(sound.samplerate, task["rate"], 1, dtype="float32")
        left = int(task["seconds"] * sound.samplerate)
        parts = []
        while (block := sound.read(_BLOCK, dtype="float32", always_2d=True)).size:
            left -= len(block)
            if left < 0:
                raise Refused(f"at most {task['seconds']:g} seconds long, got more; {_LONGER}")
            parts.append(stream.resample_chunk(np.nan_to_num(block.mean(axis=1))))
        parts.append(stream.resample_chunk(np.empty(0, np.float32), last=True))
    samples = np.concatenate(parts)
    if not samples.size:
        raise Refused("at least one sample long, got none")
    return {}, samples.tobytes()


def check_sound(sound: Any, task: Task) -> None:
    """Raises Refused for what the header already shows; a header may be wrong, so samples are counted as well."""
    if sound.format not in {"WAV", "WAVEX", "FLAC", "OGG"}:
        raise Refused("WAV, FLAC or Ogg, got another format")
    if not _RATES[0] <= sound.samplerate <= _RATES[1] or sound.channels > _CHANNELS:
        raise Refused(
            f"at {_RATES[0]} to {_RATES[1]} Hz in at most {_CHANNELS} channels, "
            f"got {sound.samplerate} Hz in {sound.channels}"
        )
    if 0 < sound.frames < 1 << 62 and sound.frames > task["seconds"] * sound.samplerate:
        long = sound.frames / sound.samplerate
        raise Refused(f"at most {task['seconds']:g} seconds long, got {long:.0f}; {_LONGER}")


READERS = {"image": read_image, "audio": read_sound}


def prepare(kind: str) -> None:
    """Loads all decoders while files can still be opened."""
    if kind == "image":
        from PIL import Image, ImageOps

        # The size is checked against the operator's limit.
        Image.MAX_IMAGE_PIXELS = None
        for name in ("PNG", "JPEG", "WEBP", "GIF"):
            file = io.BytesIO()
            Image.new("RGB", (8, 8)).save(file, name)
            with Image.open(file, formats=[name]) as image:
                ImageOps.exif_transpose(image).convert("RGBA").thumbnail((4, 4))
    else:
        import numpy as np
        import soundfile
        import soxr

        for name in ("WAV", "FLAC", "OGG"):
            file = io.BytesIO()
            soundfile.write(file, np.zeros(800, np.float32), 8000, format=name)
            file.seek(0)
            samples, _ = soundfile.read(file, dtype="float32")
            soxr.ResampleStream(8000, 16000, 1, dtype="float32").resample_chunk(samples, last=True)


def answer(task: Task, data: bytes) -> tuple[Task, bytes]:
    """The answer to a task: the decoded data, or `error`."""
    try:
        return READERS[task["kind"]](data, task)
    except Refused as refusal:
        return {"error": str(refusal)}, b""
    except MemoryError:
        return {"error": "small enough to decode in 1 GB, got one that is not"}, b""
    except Exception:  # decoders fail in many ways, and their messages may contain memory addresses
        return {"error": f"whole and valid, got a damaged {task['format']} file"}, b""


def main() -> None:
    """Answers tasks until the input ends."""
    source: BinaryIO = sys.stdin.buffer
    out: BinaryIO = sys.stdout.buffer
    prepare(sys.argv[1])
    drop_rights(GROWTH)
    while line := source.readline():
        task = json.loads(line)
        head, data = answer(task, source.read(task["bytes"]))
        out.write(json.dumps(head | {"bytes": len(data)}).encode() + b"\n")
        out.write(data)
        out.flush()


if __name__ == "__main__":
    main()
