"""Gemma 4's images of any size and its audio: checked, prepared for the model, and placed in the prompt's ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError, ParamsError

# What the package puts where the model's soft tokens go: ids that no vocabulary has.
IMAGE_SOFT, AUDIO_SOFT = -2, -4
_LINE_BREAKS = 108
_FRAME_MS, _HOP_MS = 20.0, 10.0
_IMAGE_RULE = "a list of uint8 arrays [H, W] or [H, W, 1, 3 or 4], or of PIL images"


@dataclass(frozen=True, slots=True, kw_only=True)
class Media:
    """The images and audio of one prompt, as keyword inputs of its model: arrays [1, ...].

    `audio_token_counts` holds the number of soft tokens of each piece of audio, which is compiled into the call.
    """

    inputs: Mapping[str, Any]
    audio_token_counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MediaPreparation:
    """How images and audio are prepared, under the names of `gm.text.Gemma4Sampler`.

    Images are scaled to at most `max_soft_tokens` tokens, their aspect ratio kept, in patches of `patch_size` pixels of
    which `pooling_kernel_size` in each direction make a token; both must be the vision encoder's own. Audio has
    `audio_sample_rate` samples per second, and a piece at most `audio_seq_length` tokens.
    """

    patch_size: int = 16
    max_soft_tokens: int = 1120
    pooling_kernel_size: int = 3
    audio_sample_rate: int = 16000
    audio_seq_length: int = 750

    def vision_input(self, images: Sequence[Any]) -> tuple[Any, tuple[int, ...]]:
        """The images as Gemma 4's vision input, and the soft tokens of each; ModelError without the `gemma` package."""
        try:
            from gemma.gm.nn.gemma4 import _transformer  # pyright: ignore[reportMissingImports]
            from gemma.gm.nn.gemma4.vision import _preprocessing  # pyright: ignore[reportMissingImports]
        except ImportError as error:
            raise ModelError(
                "images of Gemma 4 are prepared by the gemma package, 4.0 or later; pip install gemma"
            ) from error
        patches, places, counts = _preprocessing.preprocess_and_patchify(
            images,
            patch_size=self.patch_size,
            max_soft_tokens=self.max_soft_tokens,
            pooling_kernel_size=self.pooling_kernel_size,
        )
        # The model takes the patches of all images as one row, and splits it by the number of images.
        rows = (each.reshape(1, -1, each.shape[-1]) for each in (patches, places))
        return _transformer.PreprocessedVisionInput(*rows, soft_token_counts=tuple(counts)), tuple(counts)

    def audio_tokens(self, samples: int) -> int:
        """Soft tokens of `samples` samples: a spectrum every 10 ms, halved twice; below 1 where they are too few."""
        frame, hop = (round(self.audio_sample_rate * length / 1000.0) for length in (_FRAME_MS, _HOP_MS))
        spectra = (samples - (frame + 1)) // hop + 1
        return min((((spectra - 1) // 2 + 1) - 1) // 2 + 1, self.audio_seq_length)


def with_media(
    ids: Sequence[int],
    *,
    images: Any,
    audio: Any,
    audio_lengths: Any,
    special: Any,
    preparation: MediaPreparation,
) -> tuple[list[int], Media | None]:
    """A prompt's ids with a soft token for each place of its images and audio, and the images and audio.

    `special` names the tokenizer's ids. ParamsError for what is no image or audio, and where the prompt has another
    number of tokens for them.
    """
    pictures, clips = check_images(images), check_audio(audio)
    lengths = check_lengths(audio_lengths, clips, preparation)
    for name, token, given in (("images", "IMAGE_PLACEHOLDER", pictures), ("audio", "AUDIO_PLACEHOLDER", clips)):
        check_places(ids, name, getattr(special, token, None), len(given))
    inputs, audio_token_counts = {}, tuple(preparation.audio_tokens(length) for length in lengths)
    if pictures:
        inputs["images"], image_token_counts = preparation.vision_input(pictures)
        image = SimpleNamespace(start=special.START_OF_IMAGE, end=special.END_OF_IMAGE, soft=IMAGE_SOFT)
        blocks = [[_LINE_BREAKS, *block(image, count), _LINE_BREAKS] for count in image_token_counts]
        ids = expanded(ids, special.IMAGE_PLACEHOLDER, blocks)
    if clips:
        inputs["audio"] = padded(clips)[None]
        inputs["audio_lengths"] = np.array([lengths], np.int32)
        sound = SimpleNamespace(start=special.START_OF_AUDIO, end=special.END_OF_AUDIO, soft=AUDIO_SOFT)
        ids = expanded(ids, special.AUDIO_PLACEHOLDER, [block(sound, count) for count in audio_token_counts])
    return list(ids), Media(inputs=inputs, audio_token_counts=audio_token_counts) if inputs else None


def block(kind: Any, count: int) -> list[int]:
    """`count` soft tokens between the tokens that begin and end them."""
    return [int(kind.start), *[kind.soft] * count, int(kind.end)]


def expanded(ids: Sequence[int], token: int, blocks: Sequence[Sequence[int]]) -> list[int]:
    """The ids with each block in the place of one `token`, in their order."""
    left = iter(blocks)
    return [each for found in ids for each in (next(left) if found == token else [found])]


def padded(clips: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    """Audio as rows [n, longest], zeros after the end."""
    out = np.zeros((len(clips), max(map(len, clips))), np.float32)
    for clip, row in zip(clips, out, strict=True):
        row[: len(clip)] = clip
    return out


# --- checks --------------------------------------------------------------------------------------------------------


def check_places(ids: Sequence[int], name: str, token: Any, count: int) -> None:
    """Raises ParamsError unless the prompt has a token for each image or piece of audio."""
    if token is None:
        if count:
            raise ParamsError(f"{name} need a tokenizer of Gemma 4, whose special_tokens name their place in a prompt")
        return
    places = list(ids).count(int(token))
    if places != count:
        raise ParamsError(
            f"{name} must be as many as the prompt has tokens for them ({int(token)}), which is {places}, got {count}"
        )


def check_images(images: Any) -> list[Any]:
    """The images of one prompt; raises ParamsError for anything that is not an image."""
    if images is None:
        return []
    if not isinstance(images, (list, tuple)) and getattr(images, "ndim", 0) != 4:
        raise ParamsError(f"images must be {_IMAGE_RULE}, got {type(images).__name__}; put one image into a list")
    return [check_image(image) for image in images]


def check_image(image: Any) -> Any:
    """A NumPy or PIL image; ParamsError for another object."""
    if hasattr(image, "convert") and hasattr(image, "resize"):
        return image
    array = np.asarray(image)
    shaped = array.ndim == 2 or (array.ndim == 3 and array.shape[-1] in {1, 3, 4})
    if array.dtype != np.uint8 or not shaped or 0 in array.shape:
        raise ParamsError(f"images must be {_IMAGE_RULE}, got {array.dtype} of shape {list(array.shape)}")
    return array


def check_audio(audio: Any) -> list[NDArray[np.float32]]:
    """The pieces of audio of one prompt, each float32 [samples]; raises ParamsError for anything else."""
    if audio is None:
        return []
    if not isinstance(audio, (list, tuple)) and getattr(audio, "ndim", 0) != 2:
        raise ParamsError(
            f"audio must be a list of float arrays [samples], got {type(audio).__name__}; put one piece into a list"
        )
    return [check_clip(clip) for clip in audio]


def check_lengths(lengths: Any, clips: Sequence[Any], preparation: MediaPreparation) -> list[int]:
    """The number of samples of each piece of audio, None for all; ParamsError for more than there are, or too few."""
    given = [len(clip) for clip in clips] if lengths is None else list(lengths)
    if len(given) != len(clips):
        raise ParamsError(f"audio_lengths must hold one length per piece, which is {len(clips)}, got {len(given)}")
    for clip, length in zip(clips, given, strict=True):
        whole = isinstance(length, (int, np.integer)) and not isinstance(length, bool)
        if not whole or length > len(clip) or preparation.audio_tokens(int(length)) < 1:
            raise ParamsError(
                f"audio_lengths must be samples that the piece has, which is {len(clip)}, and enough for one token, "
                f"got {length!r} at {preparation.audio_sample_rate} samples per second"
            )
    return [int(length) for length in given]


def check_clip(clip: Any) -> NDArray[np.float32]:
    """One piece of audio as float32 [samples]; ParamsError for another type, such as 16-bit integers."""
    array = np.asarray(clip)
    if array.ndim != 1 or array.dtype.kind != "f" or not np.isfinite(array).all():
        raise ParamsError(
            f"audio must be finite floats [samples] in [-1, 1], got {array.dtype} of shape {list(array.shape)}; "
            "divide int16 by 32768"
        )
    return array.astype(np.float32)


def per_prompt(values: Any, name: str, count: int, *, batched: bool) -> list[Any]:
    """The images, audio or lengths of each prompt of a call; ParamsError for another number of entries.

    A list of one prompt may come with its images in one list, as the package wants them.
    """
    if values is None:
        return [None] * count
    if not batched:
        return [values]
    if not isinstance(values, (list, tuple)):
        raise ParamsError(f"{name} must be a list with one entry per prompt, got {type(values).__name__}")
    if count == 1 and values and not any(each is None or isinstance(each, (list, tuple)) for each in values):
        return [values]
    if len(values) != count:
        raise ParamsError(f"{name} must hold one entry per prompt, which is {count}, got {len(values)}")
    return list(values)
