"""Drawing inside vLLM: a request that gives `extra_args={"tirage": {...}}` is drawn by tirage, others by vLLM itself.

vLLM finds `TirageLogitsProcessor` by the entry point `tirage` of its group `vllm.logits_processors`, or by
`--logits-processors tirage.integrations.vllm:TirageLogitsProcessor`.
"""

from tirage.integrations.vllm.processor import TirageLogitsProcessor

__all__ = ["TirageLogitsProcessor"]
