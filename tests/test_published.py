"""Folders as their makers publish them open, read images and sounds, and write what transformers writes from them."""

from __future__ import annotations

import importlib.util
import logging
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from published import SEEING, publish
from transformers.models.auto import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
    AutoProcessor,
    AutoTokenizer,
)

from tirage import LLM, ParamsError, Prompt, SamplingParams

RNG = np.random.default_rng(0)
PICTURES = [RNG.integers(0, 255, shape, dtype=np.uint8) for shape in ((60, 84, 3), (90, 60, 3))]
SOUND = RNG.standard_normal(8000).astype(np.float32)
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
NEEDS = {"pixtral": "torchvision", "smolvlm": "num2words"}
"""Families whose processor transformers builds with another package only."""
FEW = ("pixtral", "qwen2_vl")
QWEN = ("qwen2_vl", "qwen2_5_vl", "qwen3_vl")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("published")


@cache
def opened(name: str, root: Path) -> tuple[LLM, Path]:
    folder = publish(name, root / name)
    return LLM(folder), folder


def qwen_inputs(folder: Path, text: str, images: list[Any]) -> dict[str, Any]:
    """The inputs that Qwen's processor documents, made without it: a mark for every four patches of a picture."""
    made: dict[str, Any] = {}
    if images:
        reader = AutoImageProcessor.from_pretrained(folder, backend="pil")
        made = dict(reader(images, return_tensors="pt"))
        for grid in made["image_grid_thw"].tolist():
            text = text.replace("<|image_pad|>", "<|seen|>" * (int(np.prod(grid)) // 4), 1)
    ids = AutoTokenizer.from_pretrained(folder)(text.replace("<|seen|>", "<|image_pad|>"), return_tensors="pt")
    seen = ids["input_ids"] == AutoConfig.from_pretrained(folder).image_token_id
    return {**ids, **made, "mm_token_type_ids": seen.int()}


def onevision_inputs(folder: Path, text: str, images: list[Any]) -> dict[str, Any]:
    """The inputs of LLaVA-OneVision, made without its processor: a mark for every feature of a picture."""
    made: dict[str, Any] = {}
    if images:
        made = dict(AutoImageProcessor.from_pretrained(folder, backend="pil")(images, return_tensors="pt"))
        with torch.inference_mode():
            features = load_published(folder).get_image_features(**made)
        for each in features.pooler_output:
            text = text.replace("<image>", "<seen>" * len(each), 1)
    return {**AutoTokenizer.from_pretrained(folder)(text.replace("<seen>", "<image>"), return_tensors="pt"), **made}


def inputs_of(name: str, folder: Path, prompt: Prompt) -> dict[str, Any]:
    """A prompt as transformers' own processor reads it, from the same folder."""
    given: dict[str, Any] = {n: list(getattr(prompt, n)) for n in ("images", "audio") if getattr(prompt, n)}
    if name in QWEN:
        return qwen_inputs(folder, prompt.text or "", given.get("images", []))
    if name == "llava_onevision":
        return onevision_inputs(folder, prompt.text or "", given.get("images", []))
    more = {"sampling_rate": 16000} if "audio" in given else {}
    return dict(AutoProcessor.from_pretrained(folder)(text=[prompt.text], return_tensors="pt", **given, **more))


def load_published(folder: Path) -> Any:
    """The folder's model as transformers loads it."""
    kind = type(AutoConfig.from_pretrained(folder))
    auto: Any = next(a for a in (AutoModelForImageTextToText, AutoModelForMultimodalLM) if kind in a._model_mapping)
    return auto.from_pretrained(folder).eval()


def lone(name: str, folder: Path, prompt: Prompt) -> list[int]:
    """The ids that transformers writes after one prompt, from the same folder."""
    inputs = inputs_of(name, folder, prompt)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    with torch.inference_mode():
        written = load_published(folder).generate(**inputs, **options)
    return written[0, inputs["input_ids"].shape[1] :].tolist()


def prompts_with(mark: str) -> list[Prompt]:
    return [
        Prompt(text=f"See {mark} now", images=PICTURES[:1]),
        Prompt(text=f"See {mark} now", images=PICTURES[1:]),
        Prompt(text="plain words here"),
        Prompt(text=f"A {mark} and {mark} are what?", images=PICTURES),
    ]


def missing(name: str) -> str | None:
    """The package that the family's processor lacks here."""
    needed = NEEDS.get(name)
    return needed if needed is not None and importlib.util.find_spec(needed) is None else None


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FEW else pytest.mark.slow) for name in sorted(SEEING)]
)
def test_a_published_folder_that_sees_opens_and_answers(
    name: str, root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "tirage"):
        llm, folder = opened(name, root)
    prompts = prompts_with(SEEING[name][1])
    needed = missing(name)
    if needed is None:
        expected = [lone(name, folder, prompt) for prompt in prompts]
        assert expected[0] != expected[1]
        for _ in range(2):
            # The second time the pictures' keys and values come from the first, where layers let them.
            assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected
        return
    # Without the package such a folder answers texts, and says why it takes nothing else.
    assert needed in caplog.text.lower()
    assert len(llm.generate("plain words here", GREEDY)[0].token_ids) == 8
    with pytest.raises(ParamsError, match=f"(?i)prompt images must not be given, .* cannot be loaded: .*{needed}"):
        llm.generate(prompts[0], GREEDY)


@pytest.mark.slow
def test_a_published_folder_that_hears_opens_and_answers(root: Path) -> None:
    llm, folder = opened("qwen2_audio", root)
    prompts = [Prompt(text="<|audio_bos|><|AUDIO|><|audio_eos|> is what?", audio=[SOUND]), Prompt(text="plain words")]
    expected = [lone("qwen2_audio", folder, prompt) for prompt in prompts]
    assert [list(done.token_ids) for done in llm.generate(prompts, GREEDY)] == expected


@pytest.mark.slow
@pytest.mark.parametrize("place", ["own file", "processor_config"])
def test_settings_for_videos_do_not_keep_a_folder_shut(place: str, tmp_path: Path) -> None:
    folder = publish("qwen2_5_vl", tmp_path / "model")
    settings = (folder / "preprocessor_config.json").read_text()
    videos = settings.replace(
        '"image_processor_type": "Qwen2VLImageProcessor"', '"video_processor_type": "Qwen2VLVideoProcessor"'
    )
    if place == "own file":
        (folder / "video_preprocessor_config.json").write_text(videos)
    else:
        # As transformers 5 saves a processor.
        (folder / "preprocessor_config.json").unlink()
        text = (
            f'{{"processor_class": "Qwen2_5_VLProcessor", "image_processor": {settings}, "video_processor": {videos}}}'
        )
        (folder / "processor_config.json").write_text(text)
    prompt = Prompt(text=f"See {SEEING['qwen2_5_vl'][1]}", images=PICTURES[:1])
    assert list(LLM(folder).generate(prompt, GREEDY)[0].token_ids) == lone("qwen2_5_vl", folder, prompt)


def test_a_chat_with_a_picture_follows_the_published_template(root: Path) -> None:
    llm, folder = opened("qwen2_vl", root)
    content = [{"type": "image", "image": PICTURES[0]}, {"type": "text", "text": "Describe this image."}]
    done = llm.chat([{"role": "user", "content": content}], GREEDY)
    text = (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n"
        "<|vision_start|><|image_pad|><|vision_end|>Describe this image.<|im_end|>\n<|im_start|>assistant\n"
    )
    assert list(done.token_ids) == lone("qwen2_vl", folder, Prompt(text=text, images=PICTURES[:1]))
