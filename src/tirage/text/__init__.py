"""Text: incremental detokenisation, stop conditions, bad words, tokenizers and chat templates."""

from tirage.text.bad_words import BadWords, enforceable_phrases
from tirage.text.chat import ChatTemplate
from tirage.text.continued import final_text, generation_prompt
from tirage.text.decoder_rule import DecoderRule
from tirage.text.detokenizer import Detokenizer, open_detokenizer, take_characters
from tirage.text.stops import Stop, StopChecker, StopKind
from tirage.text.tokenizer import SpelledTokenizer, Tokenizer, load_tokenizer, wrap_tokenizer

__all__ = [
    "BadWords",
    "ChatTemplate",
    "DecoderRule",
    "Detokenizer",
    "SpelledTokenizer",
    "Stop",
    "StopChecker",
    "StopKind",
    "Tokenizer",
    "enforceable_phrases",
    "final_text",
    "generation_prompt",
    "load_tokenizer",
    "open_detokenizer",
    "take_characters",
    "wrap_tokenizer",
]
