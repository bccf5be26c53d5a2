"""The chaos gate's short form: it counts failures, tokens and memory, and does not judge by the clock.

`make chaos` runs the same at length, and judges by the clock too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import combinations
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
from chaos.maxima import EXPLAIN, ROUTES, Growth, Maximum, body_with, fields_of, growths, ladder, largest
from chaos.neighbour import Neighbour, Sighting
from chaos.probe import FLAGS, NEIGHBOUR, Limits, Probe, accepts, joined, known, names_in_case, pairs, several, single
from chaos.together import Cover, costly_pairs, narrowed
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


def maxima_of(route: str) -> list[Maximum]:
    return [Maximum(growth=growth, size=min(growth.most, 2)) for growth in growths(route)]


def takes(chosen: Sequence[Maximum]) -> bool:
    """Like a server: some fields exclude each other, two ways do, and one request holds only so much."""
    fields = {each.growth.field.removeprefix("sampling_params.") for each in chosen}
    ways = {(each.growth.field, each.growth.way) for each in chosen}
    one_of = {"regex", "ebnf", "json_schema", "structural_tag", "guided_json", "guided_regex", "response_format"}
    return len(fields & one_of) < 2 and len(chosen) <= 60 and not {("ignore_eos", "true"), ("seed", "number")} <= ways


@pytest.mark.parametrize("route", ROUTES)
def test_every_pair_of_a_route_is_in_an_accepted_request_or_is_refused_as_two(route: str) -> None:
    found, asked = maxima_of(route), list[frozenset[str]]()

    def noted(chosen: Sequence[Maximum]) -> bool:
        if len(chosen) == 2 and not takes(chosen):
            asked.append(frozenset(each.name for each in chosen))
        return takes(chosen)

    cover = Cover(found, noted, apart=maxima.WHOLE)
    requests = [*cover.requests()]
    assert all(map(takes, requests))
    together = {frozenset((a.name, b.name)) for request in requests for a, b in combinations(request, 2)}
    for a, b in combinations(found, 2):
        pair = frozenset((a.name, b.name))
        assert a.growth.field == b.growth.field or pair in together or pair in asked, pair
    assert {frozenset((found[i].name, found[j].name)) for i, j in cover.refused} <= {*asked}
    assert all(len({each.growth.field for each in request}) == len(request) for request in requests)
    whole = [request for request in requests if any(each.growth.field in maxima.WHOLE for each in request)]
    assert len(whole) < 80
    # One by one they would be 15,000 to 36,000.
    assert len(requests) < 1000


def test_pairs_of_an_earlier_run_are_not_asked_for_again() -> None:
    found = maxima_of("/generate")
    first = [several(chosen) for chosen in Cover(found, takes, apart=maxima.WHOLE).requests()]
    names = [names_in_case(case.name) for case in first]
    cover = Cover(found, takes, apart=maxima.WHOLE)
    for each in names[:-3]:
        cover.had(each)
    left = [{each.name for each in chosen} for chosen in cover.requests()]
    assert 0 < len(left) <= 3 + 3
    assert all(any(pair <= each for each in (*names, *left)) for pair in map(set, combinations(names[-1], 2)))


def test_a_request_of_many_has_every_maximum_whatever_others_need_beside_them() -> None:
    for route in ROUTES:
        many = {each.growth.field: each for each in maxima_of(route) if not each.growth.field.startswith("sampling_p")}
        body = body_with(*many.values())
        assert all(body[name] == each.growth.make(each.size) for name, each in many.items() if name in body)
        assert {*many} - {*body} <= {"text", "messages", "prompt", "max_tokens", "sampling_seed"}
    inner = [each for each in maxima_of("/generate") if each.growth.field.startswith("sampling_params.")]
    given = {each.growth.field.removeprefix("sampling_params."): each.growth.make(each.size) for each in inner}
    # The last way of each field stands.
    params = body_with(*inner)["sampling_params"]
    assert {name: params[name] for name in given} == given


def test_what_a_field_needs_beside_it_does_not_keep_out_a_constraint() -> None:
    found = {each.growth.name: each for each in maxima_of("/generate")}
    forcing, grammar = (
        found["/generate sampling_params.forcing is canonical"],
        found["/generate sampling_params.ebnf letters"],
    )
    assert "regex" in body_with(forcing)["sampling_params"]
    params = body_with(forcing, grammar)["sampling_params"]
    assert {"forcing", "ebnf"} <= {*params}
    assert "regex" not in params


def test_several_sets_of_parameters_each_have_what_is_asked_beside_them() -> None:
    found = {each.growth.name: each for each in maxima_of(EXPLAIN)}
    body = body_with(found[f"{EXPLAIN} sampling_params count"], found[f"{EXPLAIN} sampling_params.top_k number"])
    assert body["sampling_params"] == [{"sampling_seed": seed, "top_p": 0.9, "top_k": 2} for seed in range(2)]


def test_what_fails_is_narrowed_to_what_it_takes() -> None:
    many = maxima_of("/generate")[:40]
    assert narrowed(many, lambda part: many[3] in part and many[31] in part) == [many[3], many[31]]
    assert narrowed(many, lambda part: many[17] in part) == [many[17]]
    assert narrowed(many, lambda part: len(part) == 40) == many


def test_costly_pairs_are_those_of_two_that_cost_or_of_one_that_is_multiplied() -> None:
    found = maxima_of("/generate")
    by_name = {each.name.split("=")[0]: number for number, each in enumerate(found)}
    n, text, top = (
        by_name[f"/generate {name}"]
        for name in ("sampling_params.n number", "text count", "sampling_params.top_k number")
    )
    pairs_alone = costly_pairs(found, costly={found[text].name, found[top].name}, multiply=["n"])
    assert {*map(frozenset, pairs_alone)} == {frozenset((text, top)), frozenset((n, text)), frozenset((n, top))}


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
    # The heap as users have it, whose memory is counted: 0 takes back the tests' own limit of its arenas.
    with (
        Server("tiny", *FLAGS, environ={"MALLOC_ARENA_MAX": "0"}) as server,
        Neighbour(server, key=NEIGHBOUR, pause_s=0.1) as neighbour,
    ):
        made = Probe(server=server, neighbour=neighbour, limits=Limits(clock="none"), seconds=0.5, attempts=1)
        made.alone(0.5)
        yield made


@needs_proc
@pytest.mark.slow
@pytest.mark.parametrize("name", KNOWN_ATTACKS)
def test_a_neighbour_gets_its_tokens_beside_what_was_an_attack(probe: Probe, name: str) -> None:
    cases = next(cases for cases in known(probe.attempts) if cases[0].name == name)
    assert probe.run(*cases)["failures"] == []


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
