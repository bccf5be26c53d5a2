"""docs/coming_from/mlx.md lists the parameters that mlx-lm's samplers have."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import pytest
from mlx_lm import sample_utils

sys.path.insert(0, str(Path(__file__).parents[3] / "scripts"))
import coming_from


@pytest.mark.parametrize(("owner", "parameters"), coming_from.PEERS["mlx"])
def test_the_page_lists_every_parameter_with_its_default(
    owner: str, parameters: tuple[coming_from.Parameter, ...]
) -> None:
    found = inspect.signature(getattr(sample_utils, owner)).parameters
    assert {each.name: each.default for each in parameters} == {name: repr(one.default) for name, one in found.items()}
