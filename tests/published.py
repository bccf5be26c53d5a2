"""Folders in the form in which model makers publish them: their settings, sizes and weights apart, as on the Hub."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE
from transformers.models.auto import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMultimodalLM,
)
from transformers.utils import logging as transformers_logging

transformers_logging.set_verbosity_error()
_CLASSES = (AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForMultimodalLM)
# Of GPT-2's family: a contraction, letters, a digit, other signs, line ends, blanks.
_QWEN_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CORPUS = ["The capital of France is Paris. You are a helpful assistant.\nHello, how are you? Describe this image."] * 3
_CLIP: dict[str, Any] = {
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
_HALF: dict[str, Any] = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}
_CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
_QWEN_VL_CHAT = (
    "{% set image_count = namespace(value=0) %}{% set video_count = namespace(value=0) %}"
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}<|im_start|>system\n"
    "You are a helpful assistant.<|im_end|>\n{% endif %}<|im_start|>{{ message['role'] }}\n"
    "{% if message['content'] is string %}{{ message['content'] }}<|im_end|>\n{% else %}"
    "{% for content in message['content'] %}"
    "{% if content['type'] == 'image' or 'image' in content or 'image_url' in content %}"
    "{% set image_count.value = image_count.value + 1 %}{% if add_vision_id %}Picture {{ image_count.value }}: "
    "{% endif %}<|vision_start|><|image_pad|><|vision_end|>{% elif content['type'] == 'video' or 'video' in content %}"
    "{% set video_count.value = video_count.value + 1 %}{% if add_vision_id %}Video {{ video_count.value }}: "
    "{% endif %}<|vision_start|><|video_pad|><|vision_end|>{% elif 'text' in content %}{{ content['text'] }}{% endif %}"
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_QWEN_SPECIAL = (
    "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>",
    "<|box_end|>", "<|quad_start|>", "<|quad_end|>", "<|vision_start|>", "<|vision_end|>", "<|vision_pad|>",
    "<|image_pad|>", "<|video_pad|>",
)  # fmt: skip
_QWEN_AUDIO_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|AUDIO|>", "<|audio_bos|>", "<|audio_eos|>")
_SIZES: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 1024,
}  # fmt: skip


def byte_level(special: tuple[str, ...], *, words: Mapping[str, int] | None = None) -> FastTokenizer:
    """A byte-level BPE as Qwen's and GPT-2's, trained on a few lines; the special tokens come last.

    `words` are tokens with ids of their own, far up; what lies between is never written.
    """
    raw = FastTokenizer(BPE())
    split = pre_tokenizers.Split(Regex(_QWEN_SPLIT), "isolated")
    raw.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    raw.train_from_iterator(
        _CORPUS, trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, show_progress=False)
    )
    if words:
        raw.model = with_words(json.loads(raw.to_str())["model"], words)
    raw.normalizer, raw.decoder = normalizers.NFC(), decoders.ByteLevel()
    raw.add_special_tokens([AddedToken(token, special=True) for token in special])
    return raw


def with_words(model: Mapping[str, Any], words: Mapping[str, int]) -> BPE:
    """A BPE with more words, each one token of its id, and tokens that no text has in between."""
    vocab, merges = dict(model["vocab"]), list[tuple[str, str]]()
    for word, index in words.items():
        letters = word.replace(" ", "Ġ")
        for end in range(2, len(letters) + 1):
            vocab.setdefault(letters[:end], index if end == len(letters) else len(vocab))
            merges.append((letters[: end - 1], letters[end - 1]))
    taken = set(vocab.values())
    vocab |= {f"unused {index}": index for index in range(max(taken)) if index not in taken}
    # The first merges win, so that each word comes out whole.
    return BPE(vocab, list(dict.fromkeys([*merges, *((first, second) for first, second in model["merges"])])))


def sentencepiece(special: tuple[str, ...], *, first: tuple[str, ...], bos: str, lead: bool) -> FastTokenizer:
    """A BPE with byte fallback as Llama's and Gemma's tokenizer.json has it; `lead` puts a blank before a text."""
    pieces = [*first, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghijklmnopqrstuvwxyz", "th"]
    vocab = {piece: index for index, piece in enumerate(pieces)}
    raw = FastTokenizer(BPE(vocab, [("t", "h")], unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    blanks = normalizers.Replace(" ", "▁")
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), blanks]) if lead else blanks
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    raw.decoder = decoders.Sequence([*steps, decoders.Strip(" ", 1, 0)] if lead else steps)
    raw.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (*first, *special)])
    return with_bos(raw, bos)


def with_bos(raw: FastTokenizer, bos: str) -> FastTokenizer:
    """The tokenizer with the step that puts BOS before a text."""
    ids = [(bos, raw.token_to_id(bos))]
    raw.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos} $B", ids)
    return raw


def write_tokenizer(folder: Path, raw: FastTokenizer, settings: Mapping[str, Any]) -> None:
    """tokenizer.json and tokenizer_config.json, with the added tokens listed in both."""
    raw.save(str(folder / "tokenizer.json"))
    added = {
        str(index): {
            "content": token.content, "lstrip": token.lstrip, "normalized": token.normalized, "rstrip": token.rstrip,
            "single_word": token.single_word, "special": token.special,
        }
        for index, token in raw.get_added_tokens_decoder().items()
    }  # fmt: skip
    write(folder / "tokenizer_config.json", {"added_tokens_decoder": added, **settings})


def write(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2), encoding="utf-8")


def qwen_tokenizer(
    folder: Path, special: tuple[str, ...] = _QWEN_SPECIAL, *, words: Mapping[str, int] | None = None, **more: Any
) -> FastTokenizer:
    """The tokenizer of a Qwen2 or Qwen2.5 folder."""
    raw = byte_level(special, words=words)
    settings = {
        "add_bos_token": False, "add_prefix_space": False, "additional_special_tokens": list(special[1:]),
        "bos_token": None, "chat_template": _CHATML, "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>", "errors": "replace", "model_max_length": 32768, "pad_token": "<|endoftext|>",
        "split_special_tokens": False, "tokenizer_class": "Qwen2Tokenizer", "unk_token": None, **more,
    }  # fmt: skip
    write_tokenizer(folder, raw, settings)
    return raw


def llama_tokenizer(folder: Path, special: tuple[str, ...], **more: Any) -> FastTokenizer:
    """The tokenizer of a Llama 2 folder."""
    raw = sentencepiece(special, first=("<unk>", "<s>", "</s>"), bos="<s>", lead=True)
    settings = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<s>", "clean_up_tokenization_spaces": False,
        "eos_token": "</s>", "legacy": False, "model_max_length": 1000000000000000019884624838656,
        "pad_token": "</s>", "sp_model_kwargs": {}, "tokenizer_class": "LlamaTokenizer", "unk_token": "<unk>", **more,
    }  # fmt: skip
    write_tokenizer(folder, raw, settings)
    return raw


# --- families ------------------------------------------------------------------------------------------------------


def chat_model(folder: Path, *, context: int = 1024, words: Mapping[str, int] | None = None) -> dict[str, Any]:
    """Qwen2.5-Instruct: text alone. `words` become one token each, with the ids given."""
    raw = qwen_tokenizer(folder, words=words)
    stop, pad = raw.token_to_id("<|im_end|>"), raw.token_to_id("<|endoftext|>")
    generation = {
        "bos_token_id": pad, "pad_token_id": pad, "do_sample": True, "eos_token_id": [stop, pad],
        "repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "transformers_version": "4.37.0",
    }  # fmt: skip
    write(folder / "generation_config.json", generation)
    return {
        "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "bos_token_id": pad, "eos_token_id": stop,
        "hidden_act": "silu", **_SIZES, "initializer_range": 0.02, "max_position_embeddings": context,
        "max_window_layers": 2, "model_type": "qwen2", "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
        "sliding_window": context, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "transformers_version": "4.43.1", "use_cache": True, "use_sliding_window": False,
        "vocab_size": raw.get_vocab_size() + 2,
    }  # fmt: skip


def qwen_vl(folder: Path, kind: str, vision: dict[str, Any], preprocessor: dict[str, Any]) -> dict[str, Any]:
    raw = qwen_tokenizer(folder)
    names = {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>", "vision": "<|vision_pad|>"}
    names |= {"image": "<|image_pad|>", "video": "<|video_pad|>", "bos": "<|endoftext|>", "eos": "<|im_end|>"}
    write(folder / "preprocessor_config.json", preprocessor)
    write(folder / "chat_template.json", {"chat_template": _QWEN_VL_CHAT})
    return {
        **{f"{name}_token_id": raw.token_to_id(token) for name, token in names.items()},
        "attention_dropout": 0.0, "hidden_act": "silu", **_SIZES, "initializer_range": 0.02, "model_type": kind,
        "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "use_sliding_window": False, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "use_cache": True, "vision_config": vision,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "vocab_size": raw.get_vocab_size() + 2,
    }  # fmt: skip


def qwen2_vl(folder: Path) -> dict[str, Any]:
    vision = {
        "depth": 2, "embed_dim": 32, "mlp_ratio": 4, "num_heads": 2, "in_chans": 3, "hidden_size": 64,
        "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14, "temporal_patch_size": 2,
    }  # fmt: skip
    preprocessor = {
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        **_CLIP, "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2VLProcessor",
    }  # fmt: skip
    return {"architectures": ["Qwen2VLForConditionalGeneration"], **qwen_vl(folder, "qwen2_vl", vision, preprocessor)}


def qwen2_5_vl(folder: Path) -> dict[str, Any]:
    vision = {
        "depth": 2, "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 48, "num_heads": 2, "in_chans": 3,
        "out_hidden_size": 64, "patch_size": 14, "spatial_merge_size": 2, "spatial_patch_size": 14,
        "window_size": 56, "fullatt_block_indexes": [1], "tokens_per_second": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    preprocessor = {
        "min_pixels": 3136, "max_pixels": 12845056, "patch_size": 14, "temporal_patch_size": 2, "merge_size": 2,
        **_CLIP, "image_processor_type": "Qwen2VLImageProcessor", "processor_class": "Qwen2_5_VLProcessor",
    }  # fmt: skip
    config = qwen_vl(folder, "qwen2_5_vl", vision, preprocessor)
    return {"architectures": ["Qwen2_5_VLForConditionalGeneration"], **config}


def qwen3_vl(folder: Path) -> dict[str, Any]:
    """Its settings for videos lie in a file of their own."""
    raw = qwen_tokenizer(folder)
    common = {
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        **_HALF,
        "processor_class": "Qwen3VLProcessor",
    }
    images = {"size": {"longest_edge": 16777216, "shortest_edge": 4096}, **common}
    videos = {"size": {"longest_edge": 25165824, "shortest_edge": 4096}, **common}
    write(folder / "preprocessor_config.json", {**images, "image_processor_type": "Qwen2VLImageProcessorFast"})
    write(folder / "video_preprocessor_config.json", {**videos, "video_processor_type": "Qwen3VLVideoProcessor"})
    names = {"image": "<|image_pad|>", "video": "<|video_pad|>"}
    names |= {"vision_start": "<|vision_start|>", "vision_end": "<|vision_end|>"}
    text = {
        "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": raw.token_to_id("<|endoftext|>"),
        "dtype": "bfloat16", "eos_token_id": raw.token_to_id("<|im_end|>"), "head_dim": 16, "hidden_act": "silu",
        **_SIZES, "initializer_range": 0.02, "model_type": "qwen3_vl_text", "rms_norm_eps": 1e-06,
        "rope_scaling": {"mrope_interleaved": True, "mrope_section": [2, 3, 3], "rope_type": "default"},
        "rope_theta": 5000000, "tie_word_embeddings": False, "use_cache": True,
        "vocab_size": raw.get_vocab_size() + 2,
    }  # fmt: skip
    vision = {
        "deepstack_visual_indexes": [0], "depth": 2, "hidden_act": "gelu_pytorch_tanh", "hidden_size": 32,
        "in_channels": 3, "initializer_range": 0.02, "intermediate_size": 48, "model_type": "qwen3_vl",
        "num_heads": 2, "num_position_embeddings": 64, "out_hidden_size": 64, "patch_size": 16,
        "spatial_merge_size": 2, "temporal_patch_size": 2,
    }  # fmt: skip
    return {
        "architectures": ["Qwen3VLForConditionalGeneration"], "model_type": "qwen3_vl", "tie_word_embeddings": False,
        **{f"{name}_token_id": raw.token_to_id(token) for name, token in names.items()},
        "text_config": text, "vision_config": vision, "transformers_version": "4.57.0.dev0",
    }  # fmt: skip


def llava(folder: Path) -> dict[str, Any]:
    raw = llama_tokenizer(folder, ("<image>", "<pad>"), processor_class="LlavaProcessor")
    preprocessor = {
        "crop_size": {"height": 28, "width": 28}, "do_center_crop": True, "do_convert_rgb": True,
        "do_normalize": True, "do_rescale": True, "do_resize": True, **_CLIP,
        "image_processor_type": "CLIPImageProcessor", "processor_class": "LlavaProcessor", "resample": 3,
        "rescale_factor": 0.00392156862745098, "size": {"shortest_edge": 28},
    }  # fmt: skip
    processor = {
        "image_token": "<image>", "num_additional_image_tokens": 1, "patch_size": 14,
        "processor_class": "LlavaProcessor", "vision_feature_select_strategy": "default",
    }  # fmt: skip
    write(folder / "preprocessor_config.json", preprocessor)
    write(folder / "processor_config.json", processor)
    width = raw.get_vocab_size() + 2
    vision = {
        "hidden_size": 32, "image_size": 28, "intermediate_size": 48, "model_type": "clip_vision_model",
        "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 14, "projection_dim": 24, "vocab_size": 32000,
    }  # fmt: skip
    text = {**_SIZES, "model_type": "llama", "rms_norm_eps": 1e-05, "torch_dtype": "float16", "vocab_size": width}
    return {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100,
        "image_token_index": raw.token_to_id("<image>"), "model_type": "llava",
        "pad_token_id": raw.token_to_id("<pad>"), "projector_hidden_act": "gelu", "text_config": text,
        "tie_word_embeddings": False, "torch_dtype": "float16", "vision_config": vision,
        "vision_feature_layer": -2, "vision_feature_select_strategy": "default", "vocab_size": width,
    }  # fmt: skip


def pixtral(folder: Path) -> dict[str, Any]:
    special = ("[INST]", "[/INST]", "[IMG]", "[IMG_BREAK]", "[IMG_END]", "<pad>")
    raw = with_bos(byte_level(("<unk>", "<s>", "</s>", *special)), "<s>")
    tokenizer = {
        "add_prefix_space": False, "bos_token": "<s>", "clean_up_tokenization_spaces": False, "eos_token": "</s>",
        "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>",
        "processor_class": "PixtralProcessor", "tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>",
    }  # fmt: skip
    write_tokenizer(folder, raw, tokenizer)
    preprocessor = {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True, **_CLIP,
        "image_processor_type": "PixtralImageProcessor", "patch_size": {"height": 16, "width": 16},
        "processor_class": "PixtralProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
        "size": {"longest_edge": 64},
    }  # fmt: skip
    processor = {
        "image_break_token": "[IMG_BREAK]", "image_end_token": "[IMG_END]", "image_token": "[IMG]", "patch_size": 16,
        "processor_class": "PixtralProcessor",
    }  # fmt: skip
    write(folder / "preprocessor_config.json", preprocessor)
    write(folder / "processor_config.json", processor)
    vision = {
        "head_dim": 8, "hidden_act": "silu", "hidden_size": 32, "image_size": 64, "intermediate_size": 48,
        "model_type": "pixtral", "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 16,
        "rope_theta": 10000.0, "tie_word_embeddings": False,
    }  # fmt: skip
    text = {
        **_SIZES, "head_dim": 16, "is_composition": True, "model_type": "mistral", "rms_norm_eps": 1e-05,
        "rope_theta": 1000000000.0, "sliding_window": None, "vocab_size": raw.get_vocab_size() + 2,
    }  # fmt: skip
    return {
        "architectures": ["LlavaForConditionalGeneration"], "ignore_index": -100, "image_seq_length": 1,
        "image_token_index": raw.token_to_id("[IMG]"), "model_type": "llava", "projector_hidden_act": "gelu",
        "text_config": text, "torch_dtype": "bfloat16", "vision_config": vision, "vision_feature_layer": -1,
        "vision_feature_select_strategy": "full",
    }  # fmt: skip


def gemma3(folder: Path) -> dict[str, Any]:
    names = {"image_token": "<image_soft_token>", "boi_token": "<start_of_image>", "eoi_token": "<end_of_image>"}
    special = ("<start_of_turn>", "<end_of_turn>", *names.values())
    raw = sentencepiece(special, first=("<pad>", "<eos>", "<bos>", "<unk>"), bos="<bos>", lead=False)
    tokenizer = {
        "add_bos_token": True, "add_eos_token": False, "bos_token": "<bos>", "clean_up_tokenization_spaces": False,
        "eos_token": "<eos>", **names, "extra_special_tokens": names,
        "model_max_length": 1000000000000000019884624838656, "pad_token": "<pad>",
        "processor_class": "Gemma3Processor", "sp_model_kwargs": None, "spaces_between_special_tokens": False,
        "tokenizer_class": "GemmaTokenizer", "unk_token": "<unk>", "use_default_system_prompt": False,
    }  # fmt: skip
    write_tokenizer(folder, raw, tokenizer)
    preprocessor = {
        "do_convert_rgb": None, "do_normalize": True, "do_pan_and_scan": None, "do_rescale": True, "do_resize": True,
        **_HALF, "image_processor_type": "Gemma3ImageProcessor", "image_seq_length": 4,
        "pan_and_scan_max_num_crops": None, "pan_and_scan_min_crop_size": None,
        "pan_and_scan_min_ratio_to_activate": None, "processor_class": "Gemma3Processor", "resample": 2,
        "rescale_factor": 0.00392156862745098, "size": {"height": 28, "width": 28},
    }  # fmt: skip
    write(folder / "preprocessor_config.json", preprocessor)
    write(folder / "processor_config.json", {"image_seq_length": 4, "processor_class": "Gemma3Processor"})
    vision = {
        "hidden_size": 32, "image_size": 28, "intermediate_size": 48, "model_type": "siglip_vision_model",
        "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 7, "vision_use_head": False,
    }  # fmt: skip
    text = {
        **_SIZES, "head_dim": 16, "model_type": "gemma3_text", "num_hidden_layers": 6, "sliding_window": 16,
        "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "vocab_size": raw.get_vocab_size() + 2,
    }  # fmt: skip
    return {
        "architectures": ["Gemma3ForConditionalGeneration"], "initializer_range": 0.02, "mm_tokens_per_image": 4,
        "boi_token_index": raw.token_to_id("<start_of_image>"), "eoi_token_index": raw.token_to_id("<end_of_image>"),
        "eos_token_id": [raw.token_to_id("<eos>"), raw.token_to_id("<end_of_turn>")], "model_type": "gemma3",
        "image_token_index": raw.token_to_id("<image_soft_token>"), "text_config": text, "torch_dtype": "bfloat16",
        "vision_config": vision,
    }  # fmt: skip


def tiled(folder: Path, name: str, special: tuple[str, ...], text: dict[str, Any]) -> dict[str, Any]:
    """What Idefics3 and SmolVLM have in common: a picture is cut into tiles, each with its mark."""
    grid = tuple(f"<row_{row}_col_{column}>" for row in range(1, 3) for column in range(1, 3))
    raw = byte_level((*special, "<global-img>", *grid, "<fake_token_around_image>", "<image>"))
    tokenizer = {
        "add_prefix_space": False, "bos_token": special[1], "clean_up_tokenization_spaces": False,
        "eos_token": special[2], "model_max_length": 8192, "pad_token": special[2], "truncation_side": "left",
        "processor_class": f"{name}Processor", "tokenizer_class": "GPT2Tokenizer", "unk_token": special[0],
    }  # fmt: skip
    write_tokenizer(folder, raw, tokenizer)
    preprocessor = {
        "do_convert_rgb": True, "do_image_splitting": True, "do_normalize": True, "do_pad": True, "do_rescale": True,
        "do_resize": True, **_HALF, "image_processor_type": f"{name}ImageProcessor",
        "max_image_size": {"longest_edge": 28}, "processor_class": f"{name}Processor", "resample": 1,
        "rescale_factor": 0.00392156862745098, "size": {"longest_edge": 56},
    }  # fmt: skip
    write(folder / "preprocessor_config.json", preprocessor)
    write(folder / "processor_config.json", {"image_seq_len": 4, "processor_class": f"{name}Processor"})
    vision = {
        "hidden_size": 32, "image_size": 28, "intermediate_size": 48, "max_image_size": {"longest_edge": 28},
        "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 7, "size": {"longest_edge": 56},
    }  # fmt: skip
    width = raw.get_vocab_size() + 2
    return {
        "architectures": [f"{name}ForConditionalGeneration"], "image_token_id": raw.token_to_id("<image>"),
        "model_type": name.lower(), "pad_token_id": raw.token_to_id(special[2]), "scale_factor": 2,
        "text_config": {**_SIZES, **text, "model_type": "llama", "vocab_size": width}, "torch_dtype": "bfloat16",
        "use_cache": True, "vision_config": vision, "vocab_size": width, "tie_word_embeddings": False,
    }  # fmt: skip


def idefics3(folder: Path) -> dict[str, Any]:
    special = ("<|reserved_special_token_0|>", "<|begin_of_text|>", "<|end_of_text|>")
    return tiled(folder, "Idefics3", special, {"rope_theta": 500000.0, "rms_norm_eps": 1e-05})


def smolvlm(folder: Path) -> dict[str, Any]:
    """Its processor reads videos too, and asks for a package that spells numbers."""
    special = ("<|endoftext|>", "<|im_start|>", "<end_of_utterance>")
    return tiled(folder, "SmolVLM", special, {"rope_theta": 100000, "rms_norm_eps": 1e-05})


def llava_onevision(folder: Path) -> dict[str, Any]:
    """Qwen2's words, and a processor that reads videos too."""
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>", "<video>")
    raw = qwen_tokenizer(folder, special, processor_class="LlavaOnevisionProcessor")
    grid = [[28, 56], [56, 28], [56, 56]]
    preprocessor = {
        "do_convert_rgb": True, "do_normalize": True, "do_rescale": True, "do_resize": True,
        "image_grid_pinpoints": grid, **_CLIP, "image_processor_type": "LlavaOnevisionImageProcessor",
        "processor_class": "LlavaOnevisionProcessor", "resample": 3, "rescale_factor": 0.00392156862745098,
        "size": {"height": 28, "width": 28},
    }  # fmt: skip
    processor = {
        "image_token": "<image>", "num_image_tokens": 16, "processor_class": "LlavaOnevisionProcessor",
        "video_token": "<video>", "vision_feature_select_strategy": "full",
    }  # fmt: skip
    write(folder / "preprocessor_config.json", preprocessor)
    write(folder / "processor_config.json", processor)
    vision = {
        "hidden_size": 32, "image_size": 28, "intermediate_size": 48, "model_type": "siglip_vision_model",
        "num_attention_heads": 4, "num_hidden_layers": 2, "patch_size": 7, "vision_use_head": False,
    }  # fmt: skip
    text = {
        **_SIZES, "bos_token_id": raw.token_to_id("<|endoftext|>"), "eos_token_id": raw.token_to_id("<|im_end|>"),
        "model_type": "qwen2", "rope_theta": 1000000.0, "tie_word_embeddings": False,
        "vocab_size": raw.get_vocab_size() + 2,
    }  # fmt: skip
    return {
        "architectures": ["LlavaOnevisionForConditionalGeneration"], "ignore_index": -100,
        "image_grid_pinpoints": grid, "image_token_index": raw.token_to_id("<image>"),
        "model_type": "llava_onevision", "projector_hidden_act": "gelu", "text_config": text,
        "tie_word_embeddings": False, "torch_dtype": "float16", "use_image_newline_parameter": True,
        "video_token_index": raw.token_to_id("<video>"), "vision_aspect_ratio": "anyres_max_9",
        "vision_config": vision, "vision_feature_layer": -1, "vision_feature_select_strategy": "full",
    }  # fmt: skip


def qwen2_audio(folder: Path) -> dict[str, Any]:
    raw = qwen_tokenizer(folder, _QWEN_AUDIO_SPECIAL, processor_class="Qwen2AudioProcessor")
    preprocessor = {
        "chunk_length": 1, "feature_extractor_type": "WhisperFeatureExtractor", "feature_size": 16,
        "hop_length": 160, "n_fft": 400, "n_samples": 16000, "nb_max_frames": 100, "padding_side": "right",
        "padding_value": 0.0, "processor_class": "Qwen2AudioProcessor", "return_attention_mask": True,
        "sampling_rate": 16000,
    }  # fmt: skip
    write(folder / "preprocessor_config.json", preprocessor)
    audio = {
        "activation_dropout": 0.0, "activation_function": "gelu", "attention_dropout": 0.0, "d_model": 32,
        "dropout": 0.0, "encoder_attention_heads": 2, "encoder_ffn_dim": 48, "encoder_layerdrop": 0.0,
        "encoder_layers": 2, "max_source_positions": 50, "model_type": "qwen2_audio_encoder", "num_mel_bins": 16,
        "scale_embedding": False,
    }  # fmt: skip
    width = raw.get_vocab_size() + 2
    text = {**_SIZES, "model_type": "qwen2", "rms_norm_eps": 1e-05, "rope_theta": 10000, "vocab_size": width}
    return {
        "architectures": ["Qwen2AudioForConditionalGeneration"], "audio_config": audio, "ignore_index": -100,
        "audio_token_index": raw.token_to_id("<|AUDIO|>"), "model_type": "qwen2_audio", "text_config": text,
        "torch_dtype": "bfloat16", "vocab_size": width,
    }  # fmt: skip


SEEING = {
    "gemma3": (gemma3, "<start_of_image>"),
    "idefics3": (idefics3, "<image>"),
    "llava": (llava, "<image>"),
    "llava_onevision": (llava_onevision, "<image>"),
    "pixtral": (pixtral, "[IMG]"),
    "qwen2_vl": (qwen2_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
    "qwen2_5_vl": (qwen2_5_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
    "qwen3_vl": (qwen3_vl, "<|vision_start|><|image_pad|><|vision_end|>"),
    "smolvlm": (smolvlm, "<image>"),
}
"""Families that see, each with its mark for a picture."""
BUILDERS = {name: builder for name, (builder, _) in SEEING.items()} | {"qwen2_audio": qwen2_audio, "chat": chat_model}


def publish(name: str, folder: Path, **options: Any) -> Path:
    """A folder of a family with random weights, equal for equal names."""
    folder.mkdir(parents=True, exist_ok=True)
    config = BUILDERS[name](folder, **options)
    made = AutoConfig.for_model(**json.loads(json.dumps(config)))
    auto = next(a for a in _CLASSES if type(made) in a._model_mapping)
    torch.manual_seed(0)
    settings = {path.name: path.read_bytes() for path in folder.glob("*.json")}
    module = auto.from_config(made, dtype=torch.float32)
    with torch.no_grad():
        # Larger than at the start of a training, so that every input changes the words.
        for name, weight in module.named_parameters():
            if weight.ndim > 1:
                weight.normal_(std=(0.3 if "embed_tokens" in name else 1.5) * weight[0].numel() ** -0.5)
    module.save_pretrained(folder)
    for file, content in settings.items():
        (folder / file).write_bytes(content)
    write(folder / "config.json", {**config, "torch_dtype": "float32"})
    return folder
