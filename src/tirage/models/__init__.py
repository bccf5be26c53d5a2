"""Models: token ids in, logits out.

`Model` is the protocol that the engine requires; `load` makes a NumPy model of a Hugging Face folder.
"""

from tirage.models.folder import (
    bundled,
    find_folder,
    find_model,
    is_gguf,
    load,
    open_model,
    read_generation_config,
    read_template,
    read_tokenizer_settings,
)
from tirage.models.protocol import (
    BatchingModel,
    BatchPrefillModel,
    CachedRow,
    ExtendModel,
    Inputs,
    Model,
    RowOutput,
    SingleStepModel,
    SpeculativeModel,
    StepModel,
)
from tirage.models.sharded import LogitShards, ShardedModel

__all__ = [
    "BatchPrefillModel",
    "BatchingModel",
    "CachedRow",
    "ExtendModel",
    "Inputs",
    "LogitShards",
    "Model",
    "RowOutput",
    "ShardedModel",
    "SingleStepModel",
    "SpeculativeModel",
    "StepModel",
    "bundled",
    "find_folder",
    "find_model",
    "is_gguf",
    "load",
    "open_model",
    "read_generation_config",
    "read_template",
    "read_tokenizer_settings",
]
