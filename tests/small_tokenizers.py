"""Small tokenizers of the two families in use, made by hand."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE

from tirage.text import Tokenizer, wrap_tokenizer
from tirage.text.pieces import byte_level_alphabet

WORDS = ["▁", "▁a", "▁the", "l", "ll", "▁▁", "é", "日", "<", "0x41"]


def fallback_tokenizer() -> Tokenizer:
    """SentencePiece-like: ids 0-2 special, 3-258 the bytes, then pieces."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    raw = FastTokenizer(BPE({p: i for i, p in enumerate(pieces)}, [("l", "l")], unk_token="<unk>", byte_fallback=True))
    raw.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    raw.decoder = decoders.Sequence(steps)
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    return wrap_tokenizer(raw)


def byte_level_tokenizer() -> Tokenizer:
    """GPT-2-like: ids 0-255 the bytes, some merges, one special and one ordinary added token."""
    letters = {byte: letter for letter, byte in byte_level_alphabet().items()}
    vocab = {letters[byte]: byte for byte in range(256)}
    space = letters[0x20]
    for merged in (f"{space}a", letters[0xE6] + letters[0x97], letters[0x97] + letters[0xA5], "ll"):
        vocab[merged] = len(vocab)
    raw = FastTokenizer(BPE(vocab, [(m[0], m[1]) for m in list(vocab)[256:]]))
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    raw.add_special_tokens([AddedToken("<|end|>", special=True)])
    raw.add_tokens([AddedToken("two words é", special=False)])
    return wrap_tokenizer(raw)


class Letters:
    """A user's own tokenizer: one id per letter, and nothing else."""

    def encode(self, text: str) -> list[int]:
        return [ord(letter) for letter in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(map(chr, ids))


def trained_byte_level() -> Tokenizer:
    """A byte-level BPE of 421 tokens, trained here: 256 bytes, merges across bytes of characters, 420 special."""
    raw = FastTokenizer(BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=420, initial_alphabet=alphabet, show_progress=False)
    numbers = " ".join(str(i**3) for i in range(200))
    raw.train_from_iterator(
        ["the cat sat on the mat, the end: é日本語😀 über 日本\n" * 3, "bad badly", numbers], trainer
    )
    raw.add_special_tokens([AddedToken("<|end|>", special=True)])
    return wrap_tokenizer(raw)
