"""The golden vectors, and the check of somebody else's sampler against them, in whatever language it is written.

`tirage conformance` is the command; the format of the vectors and of the lines is on the page `docs/vectors.md`.
"""

from tirage.conformance.comparison import WrongField, differences
from tirage.conformance.program import ProgramError, SamplerProgram
from tirage.conformance.report import ConformanceReport, Verdict, check_program
from tirage.conformance.vectors import Vector, read_vectors, schema

__all__ = [
    "ConformanceReport",
    "ProgramError",
    "SamplerProgram",
    "Vector",
    "Verdict",
    "WrongField",
    "check_program",
    "differences",
    "read_vectors",
    "schema",
]
