"""MindIE-LLM's post-processing interface: `sample(logits, sampling_data, sampling_param)`, as its documentation has it.

    data = SamplingData.from_numpy(all_input_ids, output_ids)
    param = SamplingParam.from_numpy(temperature=temperatures, top_p=top_ps, seed=seeds)
    logprobs, next_tokens = Sampler()(logits, data, param)
    next_tokens = sample(logits, data, param)

Every argument but the logits may be left out, in any combination. Each row has MindIE's order and rules (preset
`mindie`) and tirage's randomness: the token is a function of the row's own arguments, whatever its neighbours are and
however often the call is repeated.
"""

from tirage.compat.mindie.data import SamplingData
from tirage.compat.mindie.param import SamplingParam
from tirage.compat.mindie.sampler import Sampler, sample

__all__ = ["Sampler", "SamplingData", "SamplingParam", "sample"]
