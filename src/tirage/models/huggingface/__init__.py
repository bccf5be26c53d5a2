"""Models of Hugging Face folders through `transformers`: any causal language model, on PyTorch.

`open_folder` loads one, `wrap_module` takes one that is in memory, `HuggingFaceModel` runs it: every prompt is
read by the model's own forward pass, and rows in flight take their decode steps together where the model allows.
"""

from tirage.models.huggingface.folder import open_folder, wrap_module
from tirage.models.huggingface.model import HuggingFaceModel

__all__ = ["HuggingFaceModel", "open_folder", "wrap_module"]
