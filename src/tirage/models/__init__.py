"""Models: token ids in, logits out.

`Model` is the small protocol every engine loop speaks; `load` reads a Hugging Face folder into one.
"""

from tirage.models.folder import (
    bundled,
    find_folder,
    load,
    read_generation_config,
    read_template,
    read_tokenizer_settings,
)
from tirage.models.protocol import Model

__all__ = [
    "Model",
    "bundled",
    "find_folder",
    "load",
    "read_generation_config",
    "read_template",
    "read_tokenizer_settings",
]
