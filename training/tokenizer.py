"""Train the tokenizer: byte-pair merges over words, every byte in the vocabulary, decoding as Llama's does."""

import argparse
import itertools
import json
from pathlib import Path

from corpus import ASSISTANT, END, SYSTEM, USER, documents
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
MARKERS = [UNK, BOS, EOS, USER, ASSISTANT, SYSTEM, END]
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]
# Words keep the space before them; each digit, each space and each newline stands alone.
PIECES = Regex(r"'\p{L}+|▁?\p{L}+|\p{N}|\n|▁|[^\p{L}\p{N}▁\n]+")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ '<|system|>' }}"
    "{% elif message['role'] == 'user' %}{{ '<|user|>' }}"
    "{% elif message['role'] == 'assistant' %}{{ '<|assistant|>' }}"
    "{% else %}{{ raise_exception('unknown role ' + message['role'] + '; use system, user or assistant') }}{% endif %}"
    "{{ message['content'] }}{{ '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def train_tokenizer(vocab_size: int, texts: int, seed: int) -> Tokenizer:
    """A tokenizer of `vocab_size` tokens: 7 markers, 256 bytes, printable ASCII, then merges learned from `texts`."""
    tokenizer = Tokenizer(models.BPE(unk_token=UNK, byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.pre_tokenizer = pre_tokenizers.Split(PIECES, "isolated")
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
        decoders.Strip(" ", 1, 0),
    ])
    ascii_letters = [chr(code) for code in range(33, 127)]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=MARKERS + BYTES,
        initial_alphabet=[*ascii_letters, "▁", "\n"],
        limit_alphabet=len(ascii_letters) + 2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(itertools.islice(documents(seed), texts), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS}:1 $B:1", special_tokens=[(BOS, id_of(tokenizer, BOS))]
    )
    return _without_byte_markers(tokenizer)


def _without_byte_markers(tokenizer: Tokenizer) -> Tokenizer:
    """The same tokenizer with the bytes as plain vocabulary, so that the text `<0x41>` is not read as a byte."""
    saved = json.loads(tokenizer.to_str())
    saved["added_tokens"] = [token for token in saved["added_tokens"] if token["content"] in MARKERS]
    return Tokenizer.from_str(json.dumps(saved))


def id_of(tokenizer: Tokenizer, marker: str) -> int:
    """The id of a marker, which the tokenizer always has."""
    found = tokenizer.token_to_id(marker)
    if found is None:
        raise KeyError(f"{marker!r} is not in the tokenizer")
    return found


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Write `tokenizer.json`, `tokenizer_config.json` and `generation_config.json` into the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    ids = {marker: id_of(tokenizer, marker) for marker in MARKERS}
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": BOS,
        "eos_token": EOS,
        "unk_token": UNK,
        "add_bos_token": True,
        "clean_up_tokenization_spaces": False,
        "additional_special_tokens": [USER, ASSISTANT, SYSTEM, END],
        "chat_template": CHAT_TEMPLATE,
    }
    generation = {"bos_token_id": ids[BOS], "eos_token_id": [ids[EOS], ids[END]]}
    for name, value in (("tokenizer_config.json", config), ("generation_config.json", generation)):
        (folder / name).write_text(json.dumps(value, indent=2) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train the tokenizer on the corpus.")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=1536)
    parser.add_argument("--texts", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    save(train_tokenizer(options.vocab_size, options.texts, options.seed), options.out)
