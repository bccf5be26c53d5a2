"""`Gemma4Sampler`: prompts with images of any size and audio."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tirage.compat.gemma.batched_runner import BatchedRunner
from tirage.compat.gemma.images import is_gemma4
from tirage.compat.gemma.media import MediaPreparation, per_prompt, with_media
from tirage.compat.gemma.methods import SamplingMethod
from tirage.compat.gemma.runner import ModelRunner
from tirage.compat.gemma.sampler import Prompt, Sampler, check_integer
from tirage.compat.gemma.state import SamplingState
from tirage.errors import ParamsError

_MEDIA = ("images", "audio", "audio_lengths")
_ENCODERS = {"images": "vision_encoder", "audio": "audio_encoder"}


@dataclass(frozen=True, kw_only=True, eq=False)
class Gemma4Sampler(MediaPreparation, Sampler):
    """A Gemma 4 that continues texts, images and audio, as `gm.text.Gemma4Sampler`; holds nothing between calls.

    Takes what `Sampler` and `MediaPreparation` take. Images are prepared by the `gemma` package, and images and audio
    need JAX parameters; text needs neither.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in MediaPreparation.__dataclass_fields__:
            object.__setattr__(self, name, check_integer(getattr(self, name), name, low=1))

    def sample(
        self,
        prompt: Any,
        *,
        images: Sequence[Any] | None = None,
        audio: Sequence[Any] | None = None,
        audio_lengths: Sequence[Any] | None = None,
        max_new_tokens: int | None = None,
        stream: bool = False,
        sampling: SamplingMethod | None = None,
        rng: Any = None,
        return_state: bool = False,
        last_state: SamplingState | None = None,
        sharding: Any = None,
    ) -> Any:
        """The text that follows a prompt, or a list of texts for a list of prompts; see `Sampler.sample`.

        `images`: uint8 arrays [H, W] or [H, W, C] or PIL images, of any size, one for each `<|image|>` of the prompt.
        `audio`: float arrays [samples] in [-1, 1], one for each `<|audio|>`; `audio_lengths`, how many samples of each
        count, None all. For a list of prompts each is a list with one such list, or None, per prompt. Raises
        ParamsError, before the model runs, for anything else and for a model without the encoder.
        """
        run = self.start(
            prompt,
            images=images,
            audio=audio,
            audio_lengths=audio_lengths,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            rng=rng,
            last_state=last_state,
            sharding=sharding,
        )
        return self._output(run, stream=stream, return_state=return_state)

    def _with_images(
        self, prompts: list[list[int]], options: dict[str, Any], runner: ModelRunner, *, batched: bool
    ) -> list[Prompt]:
        """The ids of each prompt with the places of its images and audio, and the images and audio."""
        given = {name: None if is_empty(options[name]) else options[name] for name in _MEDIA}
        for name in _ENCODERS:
            if given[name] is not None:
                self._check_model(name, runner, is_first=options["last_state"] is None)
        columns = [per_prompt(value, name, len(prompts), batched=batched) for name, value in given.items()]
        special = getattr(self.tokenizer, "special_tokens", None)
        return [
            with_media(
                ids,
                images=images,
                audio=audio,
                audio_lengths=lengths,
                special=special,
                preparation=self,
            )
            for ids, images, audio, lengths in zip(prompts, *columns, strict=True)
        ]

    def _check_model(self, name: str, runner: ModelRunner, *, is_first: bool) -> None:
        """Raises ParamsError where the model cannot take images or audio."""
        encoder, config = _ENCODERS[name], self.model.config if hasattr(self.model, "config") else None
        if not is_gemma4(self.model):
            raise ParamsError(f"{name} must be None with this model, which is no Gemma 4 (use Sampler), got a value")
        if getattr(config, encoder, None) is None:
            raise ParamsError(f"{name} must be None with this model, which has no {encoder}; make it text_only=False")
        if not isinstance(runner, BatchedRunner):
            raise ParamsError(f"{name} must be None unless params are JAX arrays, got a value")
        if getattr(config, "use_bidirectional_attention", None) is not None and not is_first:
            raise ParamsError(
                f"{name} must come with the first prompt of a conversation with this model, whose "
                "use_bidirectional_attention does not reach over turns, got a later one"
            )


def is_empty(values: Any) -> bool:
    """Whether `values` is an empty list, which stands for None."""
    return isinstance(values, (list, tuple)) and not values
