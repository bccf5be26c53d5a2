"""Models: token ids in, logits out.

`Model` is the small protocol every engine loop speaks; `load` reads a Hugging Face folder into one.
"""

from tirage.models.folder import (
    bundled,
    find_folder,
    load,
    open_model,
    read_generation_config,
    read_template,
    read_tokenizer_settings,
)
from tirage.models.protocol import CachedRow, Inputs, Model, StepModel

__all__ = [
    "CachedRow",
    "Inputs",
    "Model",
    "StepModel",
    "bundled",
    "find_folder",
    "load",
    "open_model",
    "read_generation_config",
    "read_template",
    "read_tokenizer_settings",
]
