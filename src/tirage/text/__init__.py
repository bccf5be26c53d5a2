"""Text: tokens to characters as they arrive, where a text ends, and chats as prompts."""

from tirage.text.badwords import BadWords, followed
from tirage.text.chat import ChatTemplate
from tirage.text.detokenizer import Detokenizer, open_detokenizer
from tirage.text.stops import Stop, StopChecker
from tirage.text.tokenizer import Tokenizer, load_tokenizer, wrap_tokenizer

__all__ = [
    "BadWords",
    "ChatTemplate",
    "Detokenizer",
    "Stop",
    "StopChecker",
    "Tokenizer",
    "followed",
    "load_tokenizer",
    "open_detokenizer",
    "wrap_tokenizer",
]
