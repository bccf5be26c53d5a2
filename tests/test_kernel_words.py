"""Where the Triton kernels keep the numbers of a row: no two of them have one place."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from types import ModuleType

from platforms import needs_triton

pytestmark = needs_triton

VALUES = {"WORDS_OF_ROW", "FEW", "ALL", "NEVER", "SEGMENTS", "ONLY_TIED"}
"""Names of numbers that are no places."""
LONG = {
    "SUMS_AT": 5,
    "WITHOUT": 32,
    "MASSES": 64,
    "PLACES": 64,
    "BEFORE_XTC": 32,
    "LANES_AT": 512,
    "SURE_AT": 7,
    "PARTS_AT": 64,
}
"""How many numbers stand at a place, where there are several."""


def words() -> ModuleType:
    return import_module("tirage.backends.torch.kernels.sets.words")


def places() -> dict[str, int]:
    """The places that the module of words names."""
    lines = ast.parse(Path(str(words().__file__)).read_text(encoding="utf-8")).body
    targets = [target for line in lines if isinstance(line, ast.Assign) for target in line.targets]
    names = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
    own = {name: getattr(vars(words())[name], "value", None) for name in names - VALUES if not name.startswith("_")}
    return {name: at for name, at in own.items() if isinstance(at, int)}


def clashes(named: dict[str, int]) -> list[str]:
    """Names whose numbers stand where those of another one do."""
    taken: dict[int, str] = {}
    found = []
    for name, first in named.items():
        for at in range(first, first + LONG.get(name, 1)):
            if at in taken:
                found.append(f"{name} and {taken[at]}")
            taken[at] = name
    return found


def test_the_words_of_a_set_stand_apart() -> None:
    found = places()
    assert clashes(found) == []
    assert len(found) > 120
    assert max(at + LONG.get(name, 1) for name, at in found.items()) <= words().WORDS


def test_a_word_in_the_place_of_another_is_seen() -> None:
    assert clashes({"MASSES": 0, "NUMBER": 63}) == ["NUMBER and MASSES"]
    assert clashes({"MASSES": 0, "NUMBER": 64}) == []
