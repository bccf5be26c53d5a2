"""Small tokenizers of every family in use, made by hand or trained here."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as FastTokenizer
from tokenizers.models import BPE, Unigram, WordPiece

from tirage.text import Tokenizer, wrap_tokenizer
from tirage.text.decoder_rule import byte_level_alphabet

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


CORPUS = [
    "the cat sat on the mat, the end. he lived and learned; she asked: why?\n" * 4,
    "bad badly, don't do it! a shy girl helped an old man, one day. é日本語 über\n" * 4,
]


def metaspace_tokenizer() -> Tokenizer:
    """Llama-2-like: a trained BPE whose pieces mark the space before a word; every text begins with such a mark."""
    raw = FastTokenizer(BPE(unk_token="<unk>"))
    raw.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    raw.decoder = decoders.Metaspace(prepend_scheme="always")
    raw.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=180, special_tokens=["<unk>"], show_progress=False))
    return wrap_tokenizer(raw)


def gemma_tokenizer() -> Tokenizer:
    """Gemma-like: no mark before the text, byte tokens for what has no piece, and a newline that is a piece too."""
    marked = [text.replace(" ", "▁") for text in CORPUS]
    trained = FastTokenizer(BPE())
    trained.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    trained.train_from_iterator(marked, trainers.BpeTrainer(vocab_size=160, show_progress=False))
    learned = json.loads(trained.to_str())["model"]
    bytes_ = [f"<0x{byte:02X}>" for byte in range(256)]
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *bytes_, *learned["vocab"]]
    merges = [tuple(merge) for merge in learned["merges"]]
    vocab = {piece: i for i, piece in enumerate(pieces)}
    raw = FastTokenizer(BPE(vocab, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    raw.normalizer = normalizers.Replace(" ", "▁")
    raw.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    raw.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in pieces[:4]])
    return wrap_tokenizer(raw)


def unigram_tokenizer() -> Tokenizer:
    """T5-like: a trained Unigram model over normalised text; it has no bytes to fall back to."""
    raw = FastTokenizer(Unigram())
    raw.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])
    raw.pre_tokenizer = pre_tokenizers.Metaspace()
    raw.decoder = decoders.Metaspace()
    special = ["<pad>", "</s>", "<unk>"]
    trainer = trainers.UnigramTrainer(vocab_size=120, special_tokens=special, unk_token="<unk>", show_progress=False)
    raw.train_from_iterator(CORPUS, trainer)
    return wrap_tokenizer(raw)


def wordpiece_tokenizer() -> Tokenizer:
    """BERT-like: small letters only, and `##` before what goes on with a word."""
    letters = sorted({letter for text in CORPUS for letter in text.lower() if not letter.isspace()} | set("aq0'"))
    words = ["the", "cat", "bad", "live", "learn", "ask", "help", "##ed", "##ly", "##d", "##at", "day", "old", "end"]
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{letter}" for letter in letters), *words]
    raw = FastTokenizer(WordPiece({p: i for i, p in enumerate(dict.fromkeys(pieces))}, unk_token="[UNK]"))
    raw.normalizer, raw.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    raw.decoder = decoders.WordPiece()
    raw.add_special_tokens([AddedToken(t, special=True) for t in pieces[:4]])
    return wrap_tokenizer(raw)


def every_family() -> dict[str, Tokenizer]:
    """A small tokenizer of each family in use, made of the library's own parts."""
    return {
        "byte-level": trained_byte_level(),
        "fallback": fallback_tokenizer(),
        "metaspace": metaspace_tokenizer(),
        "gemma": gemma_tokenizer(),
        "unigram": unigram_tokenizer(),
        "wordpiece": wordpiece_tokenizer(),
    }
