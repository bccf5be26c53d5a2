"""The contract of `tests/peers/fields/*.csv`: what becomes of every field of ten peers' requests.

It works, is taken at the values at which it changes nothing, or is refused with its reason.
"""

from __future__ import annotations

import ast
import json
import sys
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from field_answers import ask, body_of
from field_effects import EFFECTS, PLACES, SAMPLING, Elsewhere
from peer_contract import DIALECTS, FOLDER, ROUTES, STATUSES, Row, known_fields, read_rows, standing
from test_openai import tiny

from tirage.dialects import DIALECTS as REGISTERED
from tirage.dialects import DialectError
from tirage.dialects.gemma import ARGUMENTS
from tirage.dialects.unsupported import Unsupported
from tirage.server.options import Options
from tirage.server.routes.fields import NOTED
from tirage.server.routes.openai_request import read_request
from tirage.server.routes.sglang_request import read_body

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import peer_fields

TESTS = Path(__file__).parent
ROWS = read_rows()
KINDS = sorted({(row.peer, row.kind, row.place) for row in ROWS})
LIMITED = [row for row in ROWS if row.standing.reason]
OF_ITS_OWN_FORM = {"metadata", "betas"}
"""Fields that nobody notes, and that must have their form all the same."""
PROBES: list[Any] = [True, 7, "x", [1], {"a": 1}, 2.5]
FROM = {place: REGISTERED[name].read for place, (name, _) in DIALECTS.items()}
METHODS = {kind: {"sampling": kind} for kind in ARGUMENTS}
"""What the arguments of a method of Gemma's need beside them."""


def named(row: Row) -> str:
    return f"{row.peer}-{row.kind}-{row.field}"


def understood(place: str, fields: dict[str, Any], *, stream: bool) -> Any:
    """What a place reads from a request; DialectError for one that it refuses."""
    if place in FROM:
        return FROM[place](fields)
    body = body_of(place, fields, stream=stream)
    if place in ROUTES:
        return read_request(ROUTES[place], body, Options(), tiny(), lenient=False)
    return read_body(body, Options())


# --- the files -----------------------------------------------------------------------------------------------------


def test_the_files_say_what_the_code_does() -> None:
    """They are written by scripts/peer_fields.py --write."""
    for row in ROWS:
        assert standing(row.place, row.field) == row.standing, named(row)
        assert row.standing.status in STATUSES


def test_every_field_is_in_one_row() -> None:
    assert [each for each, count in Counter(map(named, ROWS)).items() if count > 1] == []
    counts = {path.stem: len(path.read_text().splitlines()) for path in FOLDER.glob("*.csv")}
    assert set(counts) == set(peer_fields.PEERS) == set(peer_fields.versions())
    assert sum(counts.values()) - len(counts) == len(ROWS)
    assert {(peer, kind.name, kind.place) for peer, kinds in peer_fields.PEERS.items() for kind in kinds} == set(KINDS)


@pytest.mark.parametrize("place", PLACES)
def test_every_field_that_a_route_takes_has_a_test_of_its_effect(place: str) -> None:
    known = known_fields(place)
    taken = {name for name, found in known.items() if not isinstance(found, Unsupported) and found != NOTED}
    assert taken == set(EFFECTS[place])


@cache
def functions_of(file: str) -> frozenset[str]:
    return frozenset(
        node.name for node in ast.parse((TESTS / file).read_text()).body if isinstance(node, ast.FunctionDef)
    )


def test_the_tests_of_effects_are_there() -> None:
    named = {row.standing.effect for row in ROWS if row.standing.status == "enforced"}
    named |= {each.test for effects in EFFECTS.values() for each in effects.values() if isinstance(each, Elsewhere)}
    for test in named:
        file, _, name = test.partition("[")[0].partition("::")
        assert name in functions_of(file), test


# --- values at which nothing changes, and others ---------------------------------------------------------------------


@pytest.mark.parametrize("row", LIMITED, ids=named)
def test_a_field_without_a_part_here_is_taken_where_it_changes_nothing_and_refused_elsewhere(row: Row) -> None:
    inert = [None, *(json.loads(row.standing.inert) if row.standing.inert else [])]
    for stream in (False, True):
        for value in inert:
            understood(row.place, {row.field: value}, stream=stream)
        for value in PROBES:
            if any(value == one and type(value) is type(one) for one in inert):
                continue
            with pytest.raises(DialectError) as caught:
                understood(row.place, {row.field: value}, stream=stream)
            assert str(caught.value.param).removeprefix("sampling_params.") == row.field
            assert row.standing.reason in str(caught.value)


def test_true_is_not_one_and_zero_not_false() -> None:
    limit = Unsupported("there is none", (0, False))
    assert [limit.takes(value) for value in (None, 0, 0.0, False, 1, True, "0")] == [True] * 4 + [False] * 3
    limit = Unsupported("there is none", (1,))
    assert [limit.takes(value) for value in (1, 1.0, True, [1])] == [True, True, False, False]


NO_DEFAULT = {"messages", "model", "prompt", "stream"}


def defaults(peer: str, kind: str) -> dict[str, Any]:
    """The fields of a class at its defaults, those aside that are written as no literal."""
    found = {}
    for row in ROWS:
        if (row.peer, row.kind) == (peer, kind) and row.field not in NO_DEFAULT and row.default:
            try:
                found[row.field] = json.loads(json.dumps(ast.literal_eval(row.default)))
            except ValueError:
                continue
    return found


@pytest.mark.parametrize(("peer", "kind", "place"), KINDS)
@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_sends_every_field_at_its_default_is_answered(
    peer: str, kind: str, place: str, stream: bool
) -> None:
    sent = {name: value for name, value in defaults(peer, kind).items() if value is not None or place in DIALECTS}
    if place in DIALECTS:
        method = METHODS.get(kind, {})
        assert understood(place, {**method, **sent}, stream=stream) == understood(place, method, stream=stream)
        return
    plain = {
        "seed",
        "max_tokens",
        "max_completion_tokens",
        "max_new_tokens",
        "max_output_tokens",
        "sampling_seed",
        "sampling_params",
        "text",
    }
    sent = {name: value for name, value in sent.items() if name not in plain}
    assert ask(place, sent, stream=stream) == ask(place, {}, stream=stream)
    nulls = {name: None for name in defaults(peer, kind) if name not in plain}
    assert ask(place, nulls, stream=stream) == ask(place, {}, stream=stream)


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("stream", [False, True])
def test_all_inert_values_together_change_nothing(place: str, stream: bool) -> None:
    found = known_fields(place)
    inert = {name: one.inert[0] for name, one in found.items() if isinstance(one, Unsupported) and one.inert}
    noted = {name: "me" for name, meaning in found.items() if meaning == NOTED and name not in OF_ITS_OWN_FORM}
    assert len(inert) > (1 if place == SAMPLING else 10)
    assert ask(place, {**inert, **noted}, stream=stream) == ask(place, {}, stream=stream)


# --- the script ------------------------------------------------------------------------------------------------------

SOURCE = """
class Base(BaseModel):
    seed: Optional[int] = None
    _private: int = 3

class CompletionRequest(Base):
    prompt: str
    n: int = Field(default=1, ge=1)
    stop: list = Field(default_factory=list)
    temperature: float = Field(0.5)
    new_thing: bool = False
"""


def test_the_script_names_what_a_new_version_brings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "fastdeploy" / "entrypoints" / "openai"
    folder.mkdir(parents=True)
    source = SOURCE.replace("CompletionRequest", "ChatCompletionRequest").replace("prompt: str", "messages: list")
    (folder / "protocol.py").write_text(SOURCE + source)
    before = [path.read_bytes() for path in sorted(FOLDER.glob("*.csv"))]
    assert peer_fields.main([f"fastdeploy={tmp_path}", "--write"]) == 1
    told = capsys.readouterr().out
    assert "fastdeploy CompletionRequest.new_thing = False: /v1/completions does not know it" in told
    assert "fastdeploy CompletionRequest.temperature: default None, now 0.5" in told
    assert "fastdeploy CompletionRequest.top_k: gone" in told
    assert "CompletionRequest.seed" not in told
    assert [path.read_bytes() for path in sorted(FOLDER.glob("*.csv"))] == before


def test_the_script_reads_what_peers_write() -> None:
    assert peer_fields.of_classes("CompletionRequest")(SOURCE) == {
        "seed": "None", "prompt": "", "n": "1", "stop": "[]", "temperature": "0.5", "new_thing": "False",
    }  # fmt: skip
    assert peer_fields.popped('self.top_k = kwargs.pop("top_k", None)') == {"top_k": "None"}
    schema = (
        'add((new field_num("top_k", x))\n->add_alias("k"));\n#if 0\nnew field_num("a", x)\n#endif\n  // field_num("b"'
    )
    assert set(peer_fields.declared(schema)) == {"top_k", "k"}
