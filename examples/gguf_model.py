"""A GGUF file

Give the path of a file: `python examples/gguf_model.py model.gguf`. llama.cpp computes the logits; drawing, stops and
constraints are tirage's, here with the meaning that llama.cpp's own server gives the parameters.
"""

import sys

import tirage
from tirage.dialects import from_llamacpp

params = from_llamacpp({"n_predict": 16, "seed": 7})
print(params.temperature, params.top_k, params.top_p, params.min_p, params.semantics)
with tirage.LLM(sys.argv[1]) as llm:
    for delta in llm.stream("Once upon a time", params):
        print(delta.text, end="", flush=True)
print()
