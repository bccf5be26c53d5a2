"""Small random models that see and hear, with processors made by hand."""

from __future__ import annotations

from typing import Any

import torch
from small_tokenizers import byte_level_tokenizer
from tokenizers import AddedToken
from transformers import (
    CLIPVisionConfig,
    Gemma3Config,
    Gemma3ForConditionalGeneration,
    Gemma3ImageProcessorPil,
    Gemma3Processor,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaImageProcessorPil,
    LlavaProcessor,
    PaliGemmaConfig,
    PaliGemmaForConditionalGeneration,
    PaliGemmaProcessor,
    PreTrainedTokenizerFast,
    Qwen2AudioConfig,
    Qwen2AudioForConditionalGeneration,
    Qwen2AudioProcessor,
    SiglipImageProcessorPil,
    SiglipVisionConfig,
    WhisperFeatureExtractor,
)
from transformers.utils import logging as transformers_logging

transformers_logging.set_verbosity_error()
_TEXT: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 280, "max_position_embeddings": 512,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 260,
}  # fmt: skip
_EYES: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
IMAGE_MARKS = {
    "llava": "<image>",
    "gemma3": "<start_of_image>",
}
AUDIO_MARK = "<|audio_bos|><|AUDIO|><|audio_eos|>"


def tokenizer_with(*special: str, **names: str) -> Any:
    raw = byte_level_tokenizer().raw
    raw.add_special_tokens([AddedToken(token, special=True) for token in (*special, *names.values())])
    more = {"extra_special_tokens": names} if names else {}
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token="<|end|>", pad_token="<|end|>", **more)


def llava() -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<image>")
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**_EYES, image_size=28, patch_size=14),
        text_config={**_TEXT, "model_type": "llama"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        vision_feature_layer=-1,
    )
    size = {"height": 28, "width": 28}
    processor = LlavaProcessor(
        image_processor=LlavaImageProcessorPil(size={"shortest_edge": 28}, crop_size=size, do_pad=False),
        tokenizer=tokenizer,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    return LlavaForConditionalGeneration(config), processor


def gemma3() -> tuple[Any, Any]:
    """Pictures are blocks that see each other both ways, between sliding windows."""
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    tokenizer = tokenizer_with(**names)
    ids = {f"{name}_index": tokenizer.convert_tokens_to_ids(token) for name, token in names.items()}
    config = Gemma3Config(
        vision_config=SiglipVisionConfig(**_EYES, image_size=28, patch_size=7, vision_use_head=False),
        text_config={**_TEXT, "num_hidden_layers": 6, "sliding_window": 16},
        mm_tokens_per_image=4,
        **ids,
    )
    images = Gemma3ImageProcessorPil(size={"height": 28, "width": 28})
    processor = Gemma3Processor(image_processor=images, tokenizer=tokenizer, image_seq_length=4)
    return Gemma3ForConditionalGeneration(config), processor


def paligemma() -> tuple[Any, Any]:
    """All of a prompt sees all of it; what is written sees what came before."""
    tokenizer = tokenizer_with("<image>", "<bos>")
    tokenizer.bos_token = "<bos>"
    config = PaliGemmaConfig(
        vision_config=SiglipVisionConfig(**_EYES, image_size=28, patch_size=14, vision_use_head=False),
        text_config={**_TEXT, "model_type": "gemma"},
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        projection_dim=64,
    )
    config.vision_config.projection_dim = 64
    images = SiglipImageProcessorPil(size={"height": 28, "width": 28})
    images.image_seq_length = 4
    return PaliGemmaForConditionalGeneration(config), PaliGemmaProcessor(image_processor=images, tokenizer=tokenizer)


def qwen2_audio() -> tuple[Any, Any]:
    tokenizer = tokenizer_with("<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
    config = Qwen2AudioConfig(
        audio_config={
            "model_type": "qwen2_audio_encoder", "d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2,
            "encoder_ffn_dim": 48, "num_mel_bins": 16, "max_source_positions": 50,
        },
        text_config={**_TEXT, "model_type": "qwen2"},
        audio_token_index=tokenizer.convert_tokens_to_ids("<|AUDIO|>"),
    )  # fmt: skip
    ears = WhisperFeatureExtractor(feature_size=16, chunk_length=1, sampling_rate=16000, hop_length=160)
    processor = Qwen2AudioProcessor(feature_extractor=ears, tokenizer=tokenizer)
    return Qwen2AudioForConditionalGeneration(config), processor


BUILDERS = {
    "llava": llava,
    "gemma3": gemma3,
    "paligemma": paligemma,
    "qwen2_audio": qwen2_audio,
}


def build_media(name: str) -> tuple[Any, Any]:
    """A random model and its processor; equal for equal names."""
    torch.manual_seed(0)
    module, processor = BUILDERS[name]()
    return module.eval(), processor
