"""Models that vLLM runs: its scheduler, its KV cache and its kernels, while tirage draws every token.

vLLM's engine runs in this process and is moved on by the engine's own thread, one step at a time. In each step it
computes logits and calls its logits processors; ours hands the rows to tirage's engine, which draws from them under the
very objects that it keeps for each sample (parameters, history, constraint, logprobs), and leaves the drawn token as
the only candidate. So nothing of a request has to travel to another process and back, and text, stops, logprobs and
deltas are made where they are for every other model. Stops end a request inside vLLM before its next step.

What that costs: no step overlaps with the work on the tokens of the step before, and the model must fit on one device,
because the workers of several would be processes of their own.
"""

from tirage.models.vllm.engine_args import parse_engine_args
from tirage.models.vllm.folder import open_folder
from tirage.models.vllm.installed import require_vllm

__all__ = ["open_folder", "parse_engine_args", "require_vllm"]
