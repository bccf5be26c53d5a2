"""Images of prompts: how many each prompt has, and the slots that they take in a cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError

Images = NDArray[np.uint8]

# A line break before, the start token, the image, the end token, a line break after; the start is in the prompt.
_AROUND = 3
_LINE_BREAKS = 108
_RULE = "a uint8 array [H, W, C] or [N, H, W, C] for a prompt, the same with a first axis or a list for several"


@dataclass(frozen=True, slots=True)
class Vision:
    """Images in a model's prompts: the token that stands for one, and how many soft tokens replace it."""

    token: int
    soft_tokens: int

    def slots(self, ids: Sequence[int]) -> int:
        """Slots that ids take, with the soft tokens of their images."""
        return len(ids) + (self.soft_tokens + _AROUND) * list(ids).count(self.token)

    def blocks(self, ids: Sequence[int]) -> list[slice]:
        """The slots of each image's soft tokens, counted from the first of these ids."""
        starts = [place for place, token in enumerate(ids) if token == self.token]
        # Two tokens stand before the soft ones where the image token stood alone.
        first = [place + number * (self.soft_tokens + _AROUND) + 2 for number, place in enumerate(starts)]
        return [slice(place, place + self.soft_tokens) for place in first]

    def split(self, ids: Sequence[int]) -> tuple[list[int], int, int]:
        """The ids that fill a cache, the token whose logits are wanted, and how many slots before the end it stands.

        After a prompt that ends with an image this is the line break that follows the image; it is run once more.
        """
        if ids[-1] == self.token:
            return list(ids), _LINE_BREAKS, 1
        return list(ids[:-1]), ids[-1], 0

    def check(self, ids: Sequence[int], images: Images | None) -> None:
        """Raises ParamsError unless a prompt has one token for each of its images, uint8 [N, H, W, C]."""
        tokens, count = list(ids).count(self.token), 0 if images is None else len(images)
        if tokens != count:
            raise ParamsError(
                f"images must be as many as the prompt has image tokens ({self.token}), which is {tokens}, got {count}"
            )


def vision_of(model: Any) -> Vision | None:
    """The Vision of a TransformerLike; None for one that takes text only.

    Gemma 4, whose images are of any size, counts as one that takes text only.
    """
    config: Any = getattr(model.config, "input_config", None)
    if not getattr(config, "support_images", False) or getattr(config, "already_expanded", False):
        return None
    if is_gemma4(model):
        return None
    return Vision(int(config.special_tokens.IMAGE_PLACEHOLDER), int(config.num_tokens_per_image))


def why_no_images(model: Any) -> str:
    """Why a model takes no images."""
    if is_gemma4(model):
        return "is a Gemma 4 and takes images of any size (use Gemma4Sampler)"
    return "does not support vision"


def is_gemma4(model: Any) -> bool:
    """Whether a model names the tokenizer of Gemma 4."""
    return getattr(getattr(model, "INFO", None), "tokenizer_version", None) == 4


def images_of(images: Any, count: int, *, batched: bool) -> list[Images | None]:
    """The images of each prompt, uint8 [N, H, W, C] or None; ParamsError for another shape, type or number."""
    if images is None:
        return [None] * count
    if not batched:
        return [_stack(images)]
    if not hasattr(images, "__len__") or len(images) != count:
        raise ParamsError(f"images must hold one entry per prompt, which is {count}, got {type(images).__name__}")
    return [None if each is None else _stack(each) for each in images]


def _stack(images: Any) -> Images:
    try:
        array = np.asarray(images)
    except ValueError:
        raise ParamsError("images of a prompt must be of one size, got several; resize them") from None
    if array.dtype != np.uint8 or array.ndim not in {3, 4}:
        raise ParamsError(f"images must be {_RULE}, got {array.dtype} of shape {list(array.shape)}")
    return array if array.ndim == 4 else array[None]
