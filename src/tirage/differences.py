"""What an engine still does in another way than the preset of its name, as data.

Kept beside `semantics.py`, whose presets carry it. A line is here because it was seen in the engine (`make peers`) or
read in its source; what a preset has an option for is no difference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineDifference:
    """One thing that an engine does in another way: the rule of SPEC.md that holds here, and what the engine does."""

    rule: str
    engine: str


RELEASES_ELSEWHERE: Mapping[str, str] = {
    "fastdeploy-gpu 2.2.0": "pip install fastdeploy-gpu==2.2.0 -i "
    "https://www.paddlepaddle.org.cn/packages/stable/fastdeploy-gpu-86_89/ (`fastdeploy` on PyPI is another project)",
    "MindIE 2.2.RC1": "the image mindie:2.2.RC1-800I-A2-py311-openeuler24.03-lts of Ascend's registry",
    "text-generation-inference 3.3.7": "docker pull ghcr.io/huggingface/text-generation-inference:3.3.7",
    "nano-vllm 0.2.0": "pip install git+https://github.com/GeeeekExplorer/nano-vllm@bc2a37acd7b8ddfe1b439bd41549b146f80d5b06",
}
"""How to install the releases of presets that are not on PyPI."""

_RACE = EngineDifference(
    "S-W7", "the uniform comes from the engine's own generator: the law is the same, the tokens are not"
)
_SORTED = EngineDifference("S-W3", "which of equal logits stays at the top-p cut is up to the sort, not the lowest id")
_MASKED = EngineDifference("S-P2", "a banned token is set to -1e10, not removed: a row with nothing else draws it")
_BEYOND = EngineDifference(
    "S-O2", "where less than p is left of the mass, what is missing goes to the most likely token"
)
_NO_BIAS = EngineDifference("S-N7", "logit_bias is taken, kept with the request and read by nothing")
_FASTDEPLOY = (_MASKED, _RACE)
_LATER = EngineDifference("S-P8", "releases of 2026 read top_k in every sampling class")

DIFFERENCES: Mapping[str, tuple[EngineDifference, ...]] = {
    "hf": (
        EngineDifference("S-P3", "temperature 0 is refused; do_sample=False is what it means here"),
        _SORTED,
        _RACE,
    ),
    "hf-cb": (EngineDifference("S-P3", "temperature 0 is refused"), _SORTED, _RACE),
    "vllm": (
        EngineDifference("S-O1", "where top-k cuts at the smallest logit, its kernel drops all tokens that equal it"),
        EngineDifference(
            "S-O2",
            "top-p's kernel for large batches drops the smallest logits too where it must keep all, may keep all ties "
            "at its cut, and keeps a row whole where exp(x - mean - 10 deviations) is 0 in binary32 for every token "
            "(seen in Triton's interpreter)",
        ),
        _RACE,
    ),
    "vllm-v1": (_SORTED, _RACE),
    "vllm-flashinfer": (
        EngineDifference("S-S1", "rows with a seed are drawn by the torch path, whose preset is vllm-v1"),
        EngineDifference("S-O2", "top-p keeps tokens by probabilities in binary32, found by bisection"),
        _RACE,
    ),
    "sglang": (
        EngineDifference("S-O2", "the whole batch is judged in sequence as soon as one of its rows has min_p"),
        EngineDifference("S-O1", "top_k = 1 keeps all ties in a batch where another row is not greedy"),
        EngineDifference("S-P3", "a temperature below 1e-6 is greedy"),
        _RACE,
    ),
    "sglang-pytorch": (EngineDifference("S-P3", "a temperature below 1e-6 is greedy"), _SORTED, _RACE),
    "flashinfer": (_RACE,),
    "fastdeploy-base": (_BEYOND, _LATER, *_FASTDEPLOY),
    "fastdeploy-base_non_truncated": (
        EngineDifference(
            "S-W5", "beyond 20 tokens the draw is biased: one generator is shared by the threads of a block"
        ),
        _LATER,
        *_FASTDEPLOY,
    ),
    "fastdeploy-air": (
        EngineDifference("S-W5", "a draw that misses the 20 most likely tokens is made again over all of them"),
        EngineDifference("S-W3", "of equal probabilities the last writer wins"),
        _LATER,
        *_FASTDEPLOY,
    ),
    "fastdeploy-rejection": (
        EngineDifference(
            "S-O2", "without top_k, the mass that min_p took away goes to the highest token id that is left"
        ),
        *_FASTDEPLOY,
    ),
    "mindie": (EngineDifference("S-W5", "its method `exponential` draws greedily"), _RACE),
    "mindie-npu": (_RACE,),
    "gemma-topk": (_RACE,),
    "gemma-topp": (_RACE,),
    "easydel": (
        EngineDifference(
            "S-O3", "min_p compares logits with min_p times the largest logit, as the preset easydel-strict does"
        ),
        EngineDifference("S-P3", "a greedy row in a batch with others is drawn at temperature -1"),
        _NO_BIAS,
        _RACE,
    ),
    "easydel-strict": (
        EngineDifference(
            "S-O3",
            "where the largest logit is negative and min_p below 1, the draw is uniform over the vocabulary",
        ),
        EngineDifference("S-P3", "a greedy row in a batch with others is drawn at temperature -1"),
        _NO_BIAS,
        _RACE,
    ),
    "llamacpp": (
        EngineDifference("S-W3", "which of equal logits stays at a cut is up to an unstable sort, not the lowest id"),
        EngineDifference(
            "S-P3", "temperature 0 with a dynatemp_range is no greedy draw: it moves between 0 and the range"
        ),
        EngineDifference(
            "S-O15", "adaptive-p runs only where `samplers` lists it; here adaptive_target alone asks for it"
        ),
        EngineDifference(
            "S-O14", "version 1 keeps one token where its k exceeds 2^31; of equal logits above mu one stays, not all"
        ),
        EngineDifference(
            "S-C2",
            "under a grammar Mirostat's state moves with a token that is drawn again too, not with the last alone",
        ),
        EngineDifference(
            "S-O4",
            "with candidates at -inf the entropy is not a number: its sort takes all for equal, typical_p keeps those "
            "that come first in what it leaves; which these are is seen with GCC's libstdc++, whose std::sort the law "
            "of such rows follows, and another C++ library may leave others",
        ),
        _RACE,
    ),
    "mlx": (
        EngineDifference(
            "S-O1", "which of equal logits stays at the top-k cut is up to argpartition, not the lowest id"
        ),
        EngineDifference("S-O1", "top_k of the vocabulary's size or more is refused"),
        EngineDifference("S-O8", "xtc_threshold above 0.5 is refused"),
        _RACE,
    ),
    "trtllm": (
        EngineDifference("S-O2", "releases of 2026 close the set when its mass reaches p, which is the rule lt"),
        _SORTED,
        _RACE,
    ),
    "trtllm-legacy": (EngineDifference("S-N2", "logits are divided by the temperature plus 1e-6"), _RACE),
    "tgi": (
        EngineDifference(
            "S-H2", "a request alone in its batch is penalised by another formula: the sign of the logit counts"
        ),
        _SORTED,
        _RACE,
    ),
    "nanovllm": (_RACE,),
}
"""By preset; `canonical` and `openai` describe no engine's code."""
