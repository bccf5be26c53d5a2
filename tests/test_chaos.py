"""The chaos gate's short form: it counts failures, tokens and memory, and does not judge by the clock.

`make chaos` runs the same at length, and judges by the clock too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from subprocess import CompletedProcess

import pytest
from chaos import fuzz_run, maxima, soak
from chaos.__main__ import options, save
from chaos.bad_requests import bad_requests
from chaos.faults import drained, full_disk, killed
from chaos.isolation import MODELS, isolation
from chaos.known_attacks import KNOWN_ATTACKS
from chaos.load import storm
from chaos.maxima import EXPLAIN, ROUTES, Growth, fields_of, growths, ladder, largest
from chaos.neighbour import Neighbour, Sighting
from chaos.probe import FLAGS, NEIGHBOUR, Limits, Probe, accepts, joined, known, pairs, single
from servers import Server

needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are watched in /proc")


# --- the tables ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("route", ROUTES)
def test_every_field_that_changes_an_answer_grows_in_some_way(route: str) -> None:
    still = {"sampling_params", "extra_body", "stream", "stream_options"}
    grown = {growth.field for growth in growths(route)}
    assert {field for field in fields_of(route) if maxima.schema_of(route, field) is not None} - grown <= still
    assert len({growth.name for growth in growths(route)}) == len(growths(route))


def test_the_largest_accepted_size_is_found_to_within_a_quarter() -> None:
    growth = Growth(route="/generate", field="sampling_params.n", way="number", make=lambda size: size, most=1 << 20)
    for most in (1, 7, 128, 5000, 1 << 20):
        found = largest(growth, lambda body, most=most: body["sampling_params"]["n"] <= most)
        assert found is not None
        assert 0.75 * most <= found.size <= most
    assert largest(growth, lambda body: False) is None
    assert 128 in ladder(1 << 20)


def seen(**values: float) -> Sighting:
    return Sighting(**{
        "began": 0,
        "ended": 1,
        "first": 0.1,
        "gap": 0.1,
        "first_spent": 0.1,
        "gap_spent": 0.1,
        **values,
    })


@pytest.mark.parametrize(
    ("clock", "sighting", "failed"),
    [
        ("wall", seen(), False),
        ("wall", seen(first=1.2), True),
        ("wall", seen(gap=0.3), True),
        ("spent", seen(gap=0.3), False),
        ("spent", seen(gap=0.4, gap_spent=0.3), True),
        ("spent", seen(gap=2.6), True),
        ("none", seen(gap=9.0, gap_spent=9.0), False),
    ],
)
def test_a_wait_is_judged_by_the_clock_that_was_chosen(clock: str, sighting: Sighting, failed: bool) -> None:
    assert bool(Limits(clock=clock).waits([sighting])) is failed


def test_the_slope_of_memory_leaves_out_what_caches_take_at_first() -> None:
    growing = [int(1e8 + 2e6 * number) for number in range(100)]
    assert soak.slope_of(growing, 1000) == pytest.approx(2.0)
    assert soak.slope_of([int(1e8), *[int(2e8)] * 99], 1000) == pytest.approx(0.0)


def test_a_case_in_parts_keeps_the_rows_of_parts_that_did_not_run(tmp_path: Path) -> None:
    given = options(["--results", str(tmp_path / "chaos.json"), "--scale", "0.5"])
    for case, failures in (("fuzz regex", ["crash"]), ("fuzz gbnf", []), ("fuzz request_parser", [])):
        save("fuzz", [{"case": case, "failures": failures}], given)
    save("storm", [{"case": "storm", "failures": ["late"]}], given)
    given.scale = 1.0
    save("fuzz", [{"case": "fuzz gbnf", "failures": ["slow"]}], given)
    save("storm", [{"case": "storm again", "failures": []}], given)
    saved = json.loads(given.results.read_text())["cases"]
    rows = [(row["case"], row["scale"], row["failures"]) for row in saved["fuzz"]["rows"]]
    assert rows == [("fuzz request_parser", 0.5, []), ("fuzz regex", 0.5, ["crash"]), ("fuzz gbnf", 1.0, ["slow"])]
    assert all(row["commit"] == given.commit for row in saved["fuzz"]["rows"])
    assert (saved["fuzz"]["failed"], saved["storm"]["failed"]) == (2, 0)
    assert [row["case"] for row in saved["storm"]["rows"]] == ["storm again"]


def test_a_crash_is_told_without_the_folder_of_the_machine(tmp_path: Path) -> None:
    log = f"artifact_prefix='{tmp_path}/gbnf-'; written to {tmp_path}/gbnf-1\nSUMMARY: libFuzzer: timeout"
    done = CompletedProcess([], 70, stdout="", stderr=log)
    told = "artifact_prefix='gbnf-'; written to gbnf-1 / SUMMARY: libFuzzer: timeout"
    assert fuzz_run.crash(done, tmp_path) == [told]
    assert fuzz_run.crash(CompletedProcess([], 0, stdout="", stderr=log), tmp_path) == []


def test_schedules_end_when_their_minutes_are_over() -> None:
    row = next(isolation(count=1000, names=["tiny"], minutes=1e-9))
    assert (row["schedules"], row["failures"]) == (0, [])


# --- beside a neighbour --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probe() -> Iterator[Probe]:
    """A server with a neighbour, whose tokens when it is alone are known."""
    with Server("tiny", *FLAGS) as server, Neighbour(server, key=NEIGHBOUR, pause_s=0.1) as neighbour:
        made = Probe(server=server, neighbour=neighbour, limits=Limits(clock="none"), seconds=0.5, attempts=1)
        made.alone(0.5)
        yield made


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN_ATTACKS)
def test_a_neighbour_gets_its_tokens_beside_what_was_an_attack(probe: Probe, name: str) -> None:
    case = next(case for case in known() if case.name == name)
    assert probe.run(case)["failures"] == []


SOME = ("text count", "sampling_params.n number", "top_logprobs_num number", "token_ids_logprob count")


@needs_proc
@pytest.mark.slow
def test_a_neighbour_gets_its_tokens_beside_some_maxima_and_their_pairs(probe: Probe) -> None:
    def taken(body: dict[str, object]) -> bool:
        return accepts(probe.server, "/generate", body)

    chosen = [growth for growth in growths("/generate") if growth.name.removeprefix("/generate ") in SOME]
    found = [maximum for growth in chosen if (maximum := largest(growth, taken)) is not None]
    assert len(found) == len(SOME)
    cases = [*map(single, found), *(joined(probe.server, *pair) for pair in pairs(found))]
    assert [row for case in cases if case is not None and (row := probe.run(case))["failures"]] == []


EXPLAINED = ("output_ids tokens", "follow count", "top number", "sampling_params count", "sampling_params.ebnf rules")


@needs_proc
@pytest.mark.slow
def test_a_neighbour_gets_its_tokens_beside_the_largest_explanations(probe: Probe) -> None:
    def taken(body: dict[str, object]) -> bool:
        return accepts(probe.server, EXPLAIN, body)

    chosen = [growth for growth in growths(EXPLAIN) if growth.name.removeprefix(f"{EXPLAIN} ") in EXPLAINED]
    found = [maximum for growth in chosen if (maximum := largest(growth, taken)) is not None]
    assert {maximum.growth.name for maximum in found} == {f"{EXPLAIN} {name}" for name in EXPLAINED}
    assert [row for maximum in found if (row := probe.run(single(maximum, copies=2)))["failures"]] == []


# --- faults, in short ----------------------------------------------------------------------------------------------


@needs_proc
@pytest.mark.slow
def test_a_server_that_is_killed_leaves_nothing_behind() -> None:
    assert killed(times=1)["failures"] == []


@needs_proc
@pytest.mark.slow
def test_streams_are_written_to_their_end_after_sigterm() -> None:
    assert drained(count=8)["failures"] == []


@needs_proc
@pytest.mark.exhaustive  # all kernels are compiled anew
def test_requests_are_answered_while_no_file_can_be_written() -> None:
    assert full_disk()["failures"] == []


@needs_proc
@pytest.mark.slow
def test_nothing_stays_of_clients_who_leave_at_once() -> None:
    # A busy machine takes its time; what counts is that nothing stays.
    assert storm(count=200, within=30.0)["failures"] == []


@needs_proc
@pytest.mark.slow
def test_a_few_hundred_bad_requests_get_no_5xx() -> None:
    assert bad_requests(count=400, clock="spent")["failures"] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "count"),
    [("tiny", 1), ("tiny, one by one", 1), *(pytest.param(name, 4, marks=pytest.mark.exhaustive) for name in MODELS)],
)
def test_requests_of_random_schedules_draw_what_they_draw_alone(name: str, count: int) -> None:
    assert [row["failures"] for row in isolation(count=count, names=[name])] == [[]]
