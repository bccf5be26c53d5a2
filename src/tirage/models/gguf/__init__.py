"""Models of GGUF files, quantised or not, run by libllama through llama-cpp-python.

libllama computes logits, tokenises and keeps the keys and values of sequences; drawing, stops, constraints, beams and
the server are those of every other model.
"""

from tirage.models.gguf.model import GGUFModel
from tirage.models.gguf.open import open_gguf

__all__ = ["GGUFModel", "open_gguf"]
