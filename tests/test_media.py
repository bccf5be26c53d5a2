"""Images and audio: two such requests in flight beside plain text write what each writes alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from small_media import AUDIO_MARK, IMAGE_MARKS, build_media
from small_torch import build

from tirage import LLM, ParamsError, Prompt, SamplingParams
from tirage.models.huggingface import wrap_module

RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 255, shape, dtype=np.uint8) for shape in ((40, 50, 3), (60, 30, 3))]
SOUNDS = [RNG.standard_normal(count).astype(np.float32) for count in (8000, 5000)]
GREEDY = SamplingParams(temperature=0, max_tokens=14, ignore_eos=True)


def wrapped(name: str) -> tuple[LLM, Any, Any]:
    module, processor = build_media(name)
    return LLM(wrap_module(module, processor=processor), tokenizer=processor.tokenizer), module, processor


def lone(module: Any, processor: Any, prompt: Prompt) -> list[int]:
    """The ids that `generate` writes after one prompt, prepared by the processor itself."""
    given: dict[str, Any] = {name: list(getattr(prompt, name)) for name in ("images", "audio") if getattr(prompt, name)}
    if "audio" in given:
        given["sampling_rate"] = 16000
    inputs = processor(text=[prompt.text], return_tensors="pt", **given)
    options = {"max_new_tokens": 14, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    return module.generate(**inputs, **options)[0, inputs["input_ids"].shape[1] :].tolist()


def prompts_with(kind: str, mark: str, items: list[Any]) -> list[Prompt]:
    return [
        Prompt(text=f"See {mark} now", **{kind: items[:1]}),
        Prompt(text="plain words here"),
        Prompt(text=f"A {mark} and {mark} are what?", **{kind: items}),
        Prompt(text="x"),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("name", IMAGE_MARKS)
def test_images_beside_text_write_what_each_prompt_writes_alone(name: str) -> None:
    llm, module, processor = wrapped(name)
    prompts = prompts_with("images", IMAGE_MARKS[name], PICTURES)
    expected = [lone(module, processor, prompt) for prompt in prompts]
    for _ in range(2):
        # The second time the pictures' keys and values come from the first, where layers let them.
        assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected


@pytest.mark.slow
def test_explanations_are_of_the_logits_after_the_pictures() -> None:
    llm, _, _ = wrapped("llava")
    texts = list[tuple[int, ...]]()
    for picture in PICTURES:
        prompt = Prompt(text="See <image> now", images=[picture])
        params = SamplingParams(seed=4, max_tokens=6, ignore_eos=True)
        texts.append(llm.generate(prompt, params)[0].token_ids)
        assert llm.explain(prompt, params).token_id == texts[-1][0]
        assert [each.token_id for each in llm.compare(prompt, [params, params]).explanations] == [texts[-1][0]] * 2
        found = llm.explain_text(prompt, params)
        assert [(each.token.token_id, each.drawn) for each in found.tokens] == [(each, True) for each in texts[-1]]
    assert texts[0] != texts[1]
    with pytest.raises(
        ParamsError, match="position must be -1 for a prompt with images, audio, embeddings or output_ids"
    ):
        llm.explain(Prompt(text="See <image> now", images=PICTURES[:1]), GREEDY, position=2)


@pytest.mark.slow
def test_audio_beside_text_writes_what_each_prompt_writes_alone(tmp_path: Path) -> None:
    module, processor = build_media("qwen2_audio")
    module.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    llm = LLM(tmp_path)
    prompts = prompts_with("audio", AUDIO_MARK, SOUNDS)
    expected = [lone(module, processor, prompt) for prompt in prompts]
    for _ in range(2):
        assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected
    assert llm.generate(prompts[2], GREEDY)[0].usage.cached_tokens > 0


@pytest.mark.slow
def test_a_folder_with_a_processor_takes_pil_images_and_arrays_alike(tmp_path: Path) -> None:
    module, processor = build_media("llava")
    module.save_pretrained(tmp_path)
    processor.save_pretrained(tmp_path)
    llm = LLM(tmp_path)
    prompts = [Prompt(text="See <image>", images=[image]) for image in (PICTURES[0], Image.fromarray(PICTURES[0]))]
    first, second = llm.generate(prompts, GREEDY)
    assert list(first.token_ids) == list(second.token_ids) == lone(module, processor, prompts[0])


@pytest.mark.slow
def test_another_picture_never_gets_the_cache_of_the_first() -> None:
    llm, module, processor = wrapped("llava")
    text = "Look at this picture, please: <image> what is it?"
    prompts = [Prompt(text=text, images=[picture]) for picture in PICTURES]
    done = [llm.generate(prompt, GREEDY)[0] for prompt in (*prompts, prompts[0])]
    assert [d.usage.cached_tokens > 0 for d in done] == [False, False, True]
    expected = [lone(module, processor, prompt) for prompt in prompts]
    assert [list(d.token_ids) for d in done] == [*expected, expected[0]]


@pytest.mark.slow
def test_a_picture_is_read_again_when_only_the_words_before_it_are_shared() -> None:
    llm, module, processor = wrapped("llava")
    opening = "The same rather long opening words of both prompts, then"
    first = Prompt(text=f"{opening} <image> once", images=PICTURES[:1])
    second = Prompt(text=f"{opening} two: <image>", images=PICTURES[:1])
    llm.generate(first, GREEDY)
    done = llm.generate(second, GREEDY)[0]
    assert done.usage.cached_tokens == 0
    assert list(done.token_ids) == lone(module, processor, second)


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (Prompt(text="none", images=PICTURES[:1]), r"must be as many as the marks '<image>' in the text \(0\), got 1"),
        (Prompt(text="<image> <image>", images=PICTURES[:1]), r"\(2\), got 1"),
        (Prompt(text="a", audio=SOUNDS[:1]), "prompt audio must not be given, this model takes none"),
        (Prompt(token_ids=[1], images=PICTURES[:1]), "must come with a text"),
        (Prompt(text="<image>", images=["cat.png"]), r"images\[0\] must be a PIL image or uint8 \[H, W, 3\], got str"),
        (Prompt(text="<image>", images=["http://example.com/cat.png"]), "got str"),
        (Prompt(text="<image>", images=[np.zeros((2, 2))]), r"got float64 \[2, 2\]"),
        (Prompt(embeds=np.zeros((2, 64), np.float32), images=PICTURES[:1]), "embeds must come without images"),
    ],
)
def test_media_that_do_not_fit_are_refused_before_anything_runs(prompt: Prompt, message: str) -> None:
    llm = wrapped("llava")[0]
    with pytest.raises(ParamsError, match=message):
        llm.generate(["good", prompt], GREEDY)


@pytest.mark.parametrize(
    "sound", ["sound.wav", np.zeros(0, np.float32), np.array([np.nan], np.float32), np.zeros((2, 9))]
)
def test_a_bad_sound_is_refused(sound: Any) -> None:
    llm = wrapped("qwen2_audio")[0]
    with pytest.raises(ParamsError, match=r"prompt audio\[0\] must be finite floats \[samples\]"):
        llm.generate(Prompt(text=AUDIO_MARK, audio=[sound]), GREEDY)


def test_media_cannot_be_cut() -> None:
    llm = wrapped("llava")[0]
    with pytest.raises(ParamsError, match="truncate_prompt_tokens must be None for images"):
        llm.generate(Prompt(text="a <image>", images=PICTURES[:1]), GREEDY.replace(truncate_prompt_tokens=3))


def test_a_model_of_text_alone_refuses_images() -> None:
    llm = LLM(wrap_module(build()), tokenizer=build_media("llava")[1].tokenizer)
    with pytest.raises(ParamsError, match="prompt images must not be given, this model takes text and token ids only"):
        llm.generate(Prompt(text="a", images=PICTURES[:1]), GREEDY)
