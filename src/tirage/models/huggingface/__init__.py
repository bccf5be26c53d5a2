"""Causal language models of `transformers`, on PyTorch.

`open_folder` loads a Hugging Face folder, `wrap_module` takes a module in memory, and `HuggingFaceModel` runs it:
prompts are prefilled by the model's own forward pass, and rows decode together in one batch if the model allows it.
"""

from tirage.models.huggingface.folder import open_folder, wrap_module
from tirage.models.huggingface.model import HuggingFaceModel

__all__ = ["HuggingFaceModel", "open_folder", "wrap_module"]
