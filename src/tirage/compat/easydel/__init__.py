"""EasyDeL's `sampling_params` module: the same names, argument order and pytree fields.

The host classes are tirage's own, which are checked and never change. `JitableSamplingParams` holds the part
of them that a compiled program reads, one JAX array per field. Importing this package needs JAX.
"""

from tirage.compat.easydel.forcing import (
    EmptyProcessor,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    ForceTokensLogitsProcessor,
    MinLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from tirage.compat.easydel.host import BeamSearchParams, GuidedDecodingParams, SamplingParams, register_pytrees
from tirage.compat.easydel.jitable import JitableSamplingParams
from tirage.compat.easydel.processors import (
    AllowedTokensLogitsProcessor,
    BadWordsLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    LogitsProcessorList,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from tirage.compat.easydel.warpers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from tirage.params import RequestOutputKind, SamplingType

register_pytrees()

__all__ = [
    "AllowedTokensLogitsProcessor",
    "BadWordsLogitsProcessor",
    "BeamSearchParams",
    "EmptyProcessor",
    "ForceTokensLogitsProcessor",
    "ForcedBOSTokenLogitsProcessor",
    "ForcedEOSTokenLogitsProcessor",
    "FrequencyPenaltyLogitsProcessor",
    "GuidedDecodingParams",
    "JitableSamplingParams",
    "LogitsProcessorList",
    "MinLengthLogitsProcessor",
    "MinPLogitsWarper",
    "NoRepeatNGramLogitsProcessor",
    "PresencePenaltyLogitsProcessor",
    "RepetitionPenaltyLogitsProcessor",
    "RequestOutputKind",
    "SamplingParams",
    "SamplingType",
    "SuppressTokensAtBeginLogitsProcessor",
    "SuppressTokensLogitsProcessor",
    "TemperatureLogitsWarper",
    "TopKLogitsWarper",
    "TopPLogitsWarper",
]
