"""The prompt of a completion, and the forms that it is given in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.models import BatchingModel, Inputs, StepModel
from tirage.params import SamplingParams
from tirage.text import Tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a completion continues: exactly one of `text`, `token_ids` and `embeds`.

    `token_ids` are integers [T]. `embeds`, floats [T, hidden], replace the input embeddings. `images` are PIL images or
    uint8 arrays [H, W, 3], one for each image mark of the text; `audio` are float arrays [samples] at the model's own
    rate. `adapter` is the name of one that the LLM was opened with. A model that takes none of these refuses them by
    name. Prompts share cached prefixes only with prompts of the same `salt`, such as the name of a tenant.

    `output_ids`, integers [T], are tokens with which the output begins: it goes on after them as if they had been
    drawn, so that draws, penalties, limits and constraints count them, and the answer has them. No log-probability of
    them is known.
    """

    text: str | None = None
    token_ids: Sequence[int] | NDArray[np.integer[Any]] | None = None
    embeds: Any = None
    images: Sequence[Any] = ()
    audio: Sequence[Any] = ()
    adapter: str | None = None
    salt: str = ""
    output_ids: Sequence[int] = ()


AnyPrompt = str | Sequence[int] | NDArray[np.integer[Any]] | Prompt


def is_one_prompt(prompts: Any) -> TypeGuard[AnyPrompt]:
    """True for a text, a Prompt, an array [T] and a non-empty list of integers."""
    if isinstance(prompts, (str, Prompt)):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], (int, np.integer))


def listed_prompts(prompts: Any) -> list[AnyPrompt]:
    """One prompt as a list, or the prompts of a list, a tuple or another iterable.

    Raises ParamsError for what is neither a prompt nor several.
    """
    if is_one_prompt(prompts):
        return [prompts]
    if isinstance(prompts, (bytes, Mapping)) or not isinstance(prompts, Iterable):
        raise ParamsError(
            f"prompts must be a text, a list of token ids, a Prompt, or a list of these, got {prompts!r:.60}; "
            "give a text such as 'Once upon a time'"
        )
    return list(prompts)


def as_prompt(prompt: Any) -> Prompt:
    """The Prompt of a text, of ids [T], or the Prompt itself.

    Raises ParamsError for anything else, and for a Prompt whose fields contradict or have a wrong type.
    """
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if isinstance(prompt, (np.ndarray, Sequence)) and not isinstance(prompt, bytes):
        return Prompt(token_ids=prompt)  # type: ignore[arg-type]
    if not isinstance(prompt, Prompt):
        raise ParamsError(f"prompt must be a text, a list of token ids or a Prompt, got {type(prompt).__name__}")
    given = [name for name in ("text", "token_ids", "embeds") if getattr(prompt, name) is not None]
    if len(given) != 1:
        raise ParamsError(
            f"prompt must have exactly one of text and token_ids, or embeds alone, got {', '.join(given) or 'none'}"
        )
    for name in ("images", "audio"):
        if not isinstance(getattr(prompt, name), (list, tuple)):
            raise ParamsError(f"prompt {name} must be a list, got {type(getattr(prompt, name)).__name__}")
    if prompt.adapter is not None and not isinstance(prompt.adapter, str):
        raise ParamsError(f"prompt adapter must be a name, got {type(prompt.adapter).__name__}")
    checked_salt(prompt.salt)
    if isinstance(prompt.output_ids, (str, bytes)) or not isinstance(prompt.output_ids, (Sequence, np.ndarray)):
        raise ParamsError(f"prompt output_ids must be a list of token ids, got {type(prompt.output_ids).__name__}")
    if prompt.embeds is not None and (prompt.images or prompt.audio):
        raise ParamsError("prompt embeds must come without images and audio; they are embedded already")
    return prompt


def checked_salt(salt: Any) -> str:
    """The salt itself. Raises ParamsError unless it is a text."""
    if not isinstance(salt, str):
        raise ParamsError(f"prompt salt must be a text, got {type(salt).__name__}")
    return salt


def check_ids(token_ids: Sequence[int] | NDArray[Any], vocab_size: int, *, name: str = "prompt token ids") -> list[int]:
    """The ids [T] as a list of Python integers. Raises ParamsError for one outside the model's vocabulary."""
    for i in token_ids:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)) or not 0 <= i < vocab_size:
            raise ParamsError(f"{name} must be integers in [0, {vocab_size}), got {i!r:.60}")
    return [int(i) for i in token_ids]


def check_embeds(embeds: Any) -> NDArray[np.float32]:
    """The embeddings as finite float32 [T, hidden] in NumPy. Raises ParamsError for anything else."""
    array = np.asarray(embeds.detach().cpu().float() if hasattr(embeds, "detach") else embeds)
    if array.ndim != 2 or array.dtype.kind != "f":
        raise ParamsError(f"prompt embeds must be floats of shape [T, hidden], got {array.dtype} {list(array.shape)}")
    array = array.astype(np.float32)
    if not np.isfinite(array).all():
        raise ParamsError("prompt embeds must be finite, got NaN or infinity")
    return array


def read_prompt(given: Prompt, model: StepModel | BatchingModel, tokenizer: Tokenizer) -> tuple[list[int], Inputs]:
    """The ids of a prompt, and the inputs of the model besides them.

    Raises ParamsError for ids and media that the model does not have, and for media without a text.
    """
    if len(given.images) or len(given.audio):
        if given.text is None:
            raise ParamsError("prompt images and audio must come with a text, whose marks they stand for")
        inputs = model.read_media(given.text, {"images": given.images, "audio": given.audio})
        return list(inputs.token_ids), inputs
    if given.embeds is not None:
        return [], Inputs(token_ids=(), embeds=check_embeds(given.embeds))
    if given.token_ids is not None:
        return check_ids(given.token_ids, model.vocab_size), Inputs(token_ids=())
    return tokenizer.encode(given.text or ""), Inputs(token_ids=())


def one_per_prompt(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> Sequence[SamplingParams | None]:
    """The parameters of each of `count` prompts. Raises ParamsError for another number of them."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, (str, bytes)) or not isinstance(params, Sequence) or len(params) != count:
        got = f"{len(params)} of them" if isinstance(params, Sequence) else type(params).__name__
        hint = "; use SamplingParams(**params)" if isinstance(params, Mapping) else ""
        raise ParamsError(f"params must be one SamplingParams or one per prompt ({count}), got {got}{hint}")
    return params
