"""Parameters of beam search."""

# ruff: noqa: RUF009 - param() returns a dataclass field, as dataclasses.field() does.

from __future__ import annotations

from dataclasses import MISSING, dataclass

from tirage.errors import ParamsError
from tirage.fields.accepts import Accepts, Boolean, Integer, Number
from tirage.fields.record import Record, check_fields, param
from tirage.fields.rules import Bool, Float, Int, OneOf


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class BeamSearchParams(Record):
    """How a beam search runs: `beam_width` hypotheses, at most `max_tokens` tokens each.

    A hypothesis scores its cumulative log-probability divided by its length to the power `length_penalty`.
    """

    beam_width: Accepts[int, Integer] = param(
        MISSING,
        Int(low=1),
        "hypotheses kept at each step",
        source="EasyDeL",
        remedy="give a width of 1 or more",
    )
    max_tokens: Accepts[int, Integer] = param(
        MISSING,
        Int(low=0),
        "largest number of new tokens of a hypothesis",
        source="EasyDeL",
        remedy="give a number of tokens of 0 or more",
    )
    ignore_eos: Accepts[bool, Boolean] = param(
        False, Bool(), "EOS is an ordinary token and ends nothing", source="EasyDeL", off=False
    )
    temperature: Accepts[float, Number] = param(
        0.0,
        Float(low=1e-20, high=1e20, zero=True),
        "divides the logits before they are scored; 0 scores them as they are, like 1",
        source="EasyDeL",
    )
    length_penalty: Accepts[float, Number] = param(
        1.0,
        Float(low=-30.0, high=30.0),
        "exponent of the length that a score is divided by: above 0 favours long hypotheses, 0 is off",
        source="EasyDeL, Hugging Face",
        off=0.0,
    )
    include_stop_str_in_output: Accepts[bool, Boolean] = param(
        False, Bool(), "the text keeps the stop string that ended it", source="EasyDeL", off=False
    )
    early_stopping: bool | str = param(
        False,
        OneOf((False, True, "never")),
        "True stops at the first `beam_width` finished hypotheses; False when no running one looks better; "
        "'never' when none can become better",
        source="Hugging Face",
    )
    num_return_sequences: Accepts[int | None, Integer | None] = param(
        None,
        Int(low=1, optional=True),
        "hypotheses that come back, the best of those that were found; None is `beam_width`",
        source="Hugging Face",
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.returned > self.beam_width:
            raise ParamsError(
                f"num_return_sequences must be at most beam_width, which is {self.beam_width}, got {self.returned}; "
                "widen the search or leave it out"
            )

    @property
    def returned(self) -> int:
        """How many hypotheses come back at most."""
        return self.beam_width if self.num_return_sequences is None else self.num_return_sequences
