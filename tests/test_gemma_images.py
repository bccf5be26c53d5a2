"""Images through Gemma's door: where they stand in a prompt, in later turns, and which are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from small_transformers import IMAGE, SeeingConfig, SmallTransformer, reply, small

from tirage import ParamsError
from tirage.compat.gemma import Sampler


def seeing(library: str = "numpy", **options: Any) -> Sampler:
    return small(model=SmallTransformer(library, config=SeeingConfig()), **options)


def pictures(count: int) -> np.ndarray:
    brightness = np.array([40, 250, 90])[:count, None, None, None]
    return np.broadcast_to(brightness, (count, 4, 4, 3)).astype(np.uint8)


LOOK = [2, 65, IMAGE, 66, 67, IMAGE, 68]


def slow_look(images: np.ndarray, count: int, prompt: list[int] = LOOK) -> list[int]:
    """Greedy tokens after a prompt, everything read anew for each, soft tokens of an image seeing each other."""
    model, ids = SmallTransformer(config=SeeingConfig()), list(prompt)
    for _ in range(count):
        n = len(ids) + len(images) * 5
        mask = np.tril(np.ones((n, n), bool))[None]
        for block in (slice(4, 6), slice(12, 14))[: len(images)]:
            mask[0, block, block] = True
        cache = model.init_cache(batch_size=1, dtype="float32", cache_length=n)
        options = {"positions": np.arange(n)[None], "attention_mask": mask, "images": images[None]}
        out = model.apply({"params": model.params()}, np.array([ids]), cache=cache, **options)
        row = out.logits[0, -1].copy()
        row[[3, IMAGE]] = -np.inf
        ids.append(int(row.argmax()))
    return ids[len(prompt) :]


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "jax"])
def test_images_take_their_places_in_a_prompt(library: str) -> None:
    images, sampler = pictures(2), seeing(library, pad_length=32)
    assert slow_look(images, 6) == reply(sampler, LOOK, images=images, max_new_tokens=6)
    assert slow_look(images[::-1], 6) == reply(sampler, LOOK, images=images[::-1], max_new_tokens=6)
    assert slow_look(images, 6) != slow_look(images[::-1], 6)


@pytest.mark.parametrize("library", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_a_prompt_may_end_with_an_image_and_be_continued(library: str) -> None:
    images, sampler, prompt = pictures(1), seeing(library, pad_length=32), [2, 65, IMAGE]
    expected = slow_look(images, 5, prompt)
    assert reply(sampler, prompt, images=images, max_new_tokens=5) == expected
    state = sampler.sample(prompt, images=images, max_new_tokens=2, return_state=True).state
    assert state.last_token_pos.tolist() == [3 + 5 + 1]
    assert reply(sampler, "", last_state=state, max_new_tokens=3) == expected[2:]
    both = reply(sampler, [prompt, LOOK, "hi"], images=[images, pictures(2), None], max_new_tokens=5)
    assert both == [expected, slow_look(pictures(2), 5), reply(sampler, "hi", max_new_tokens=5)]


def test_a_model_never_writes_an_image_token_itself() -> None:
    eager = SmallTransformer(config=SeeingConfig(), bonus=(IMAGE, 90.0))
    assert IMAGE not in reply(small(model=eager), "hello")


@pytest.mark.parametrize("library", ["numpy", pytest.param("jax", marks=pytest.mark.slow)])
def test_images_of_a_later_turn_and_of_several_prompts_are_seen_as_at_once(library: str) -> None:
    sampler, images = seeing(library), pictures(2)
    state = sampler.sample("hi", return_state=True, max_new_tokens=3).state
    turn = sampler.sample(LOOK[1:], images=images, last_state=state, return_state=True, max_new_tokens=5)
    row = turn.state.rows[0]
    assert list(row.output_ids) == reply(sampler, list(row.token_ids[:-5]), images=images, max_new_tokens=5)
    assert turn.state.used_cache_length == len(row.token_ids) - 1 + 2 * 5
    expected = [reply(sampler, LOOK, images=images), reply(sampler, "hi"), reply(sampler, LOOK[:4], images=images[0])]
    assert expected == reply(sampler, [LOOK, "hi", LOOK[:4]], images=[images, None, images[:1]])


@pytest.mark.parametrize(
    ("prompt", "images", "message"),
    [
        (LOOK, pictures(1), r"as many as the prompt has image tokens \(7\), which is 2, got 1"),
        (LOOK, None, "which is 2, got 0"),
        ("a", pictures(1)[0], "which is 0, got 1"),
        (LOOK, pictures(2).astype(np.float32), "images must be a uint8 array"),
        (LOOK, pictures(2)[None], "images must be a uint8 array"),
        (LOOK, [pictures(1)[0], pictures(1)[0, :2]], "images of a prompt must be of one size"),
        ([LOOK, LOOK], [pictures(2)], "one entry per prompt, which is 2"),
    ],
)
def test_images_that_do_not_fit_the_prompt_are_refused(prompt: Any, images: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        seeing().sample(prompt, images=images)
