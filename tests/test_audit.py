"""`tirage audit`: honest servers raise no alarm, every planted fault is named, and what cannot be tested is no pass."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from faulty_server import FAULTS, FaultyServer
from scripted_server import ScriptedServer, answer, hang
from servers import shared

import tirage
from tirage import ParamsError
from tirage.audit import CHECKS, AuditLimits, AuditReport, Finding, audit
from tirage.audit.evidence import Evidence, Prediction, bernoulli
from tirage.audit.finding import judged
from tirage.audit.page import audit_page
from tirage.audit.parameters import LAW_CHECKS
from tirage.audit.position import Position, laws, params_of
from tirage.audit.search import PROMPTS
from tirage.cli import main
from tirage.engine import LogprobEntry

PAGE = Path(__file__).parents[1] / "docs" / "audit.md"
PROBABILITIES = (0.4, 0.25, 0.15, 0.1, 0.05, 0.03)
LONG = AuditLimits(seconds=600.0)
QUICK = ("top_k off by one", "seed depends on the batch", "copies", "stop ignored", "a token too many")


def position(probabilities: tuple[float, ...] = PROBABILITIES) -> Position:
    texts = tuple("abcdefgh"[: len(probabilities)])
    return Position(prompt="p", keys=texts, texts=texts, logprobs=np.log(probabilities))


def verdicts(report: AuditReport) -> dict[str, str]:
    return {each.name: each.verdict for each in report.findings}


def disobeyed(report: AuditReport) -> list[str]:
    return [each.name for each in report.findings if each.verdict == "not obeyed"]


# --- evidence ----------------------------------------------------------------------------------------------------


def test_the_stake_is_the_product_of_the_ratios() -> None:
    evidence = Evidence(math.log(100))
    prediction = Prediction(
        low=np.array([0.5, 0.5]), high=np.array([0.5, 0.5]), faults={"biased": np.array([0.75, 0.25])}
    )
    for outcome in (0, 0, 1):
        evidence.add(prediction, outcome)
    expected = 0.75 * 0.75 * 0.25 / (0.5 + 1e-4) ** 3
    assert math.isclose(math.exp(evidence.log_value), expected, rel_tol=1e-9)
    assert math.isclose(evidence.p_value, 1 / (0.75**2 / (0.5 + 1e-4) ** 2), rel_tol=1e-9)
    assert (evidence.fault, evidence.outcomes) == ("biased", 3)


@pytest.mark.parametrize("seed", range(3))
def test_a_promise_that_is_kept_is_rejected_as_rarely_as_the_level_says(seed: int) -> None:
    """1,000 tests of 60 draws at level 0.05: the share of alarms, looked at after every draw, is at most that."""
    rng = np.random.default_rng(seed)
    law = np.array(PROBABILITIES) / sum(PROBABILITIES)
    faults = {"flat": np.full(6, 1 / 6), "sharp": law**2 / (law**2).sum()}
    prediction = Prediction(low=law, high=law, faults=faults, learn="here")
    alarms = 0
    for _ in range(300):
        evidence = Evidence(math.log(1 / 0.05))
        for outcome in rng.choice(6, size=60, p=law):
            evidence.add(prediction, int(outcome))
        alarms += evidence.rejected
    assert alarms / 300 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_a_law_that_nobody_has_thought_of_is_found_by_the_bet_that_learns() -> None:
    rng = np.random.default_rng(1)
    law = np.array(PROBABILITIES) / sum(PROBABILITIES)
    prediction = Prediction(low=law, high=law, faults={"flat": np.full(6, 1 / 6)}, learn="here")
    evidence = Evidence(math.log(2000))
    for outcome in rng.choice(6, size=200, p=law[[1, 0, 2, 3, 4, 5]]):
        evidence.add(prediction, int(outcome))
    assert evidence.rejected
    assert evidence.fault == "another law"


def test_a_broken_promise_about_an_answer_takes_two_answers() -> None:
    evidence = Evidence(math.log(2000))
    prediction = bernoulli(1e-3, {"often": 0.5, "always": 0.95})
    evidence.add(prediction, 1)
    assert not evidence.rejected
    evidence.add(prediction, 1)
    assert evidence.rejected


def test_nothing_found_is_no_pass_before_the_faults_are_out_of_the_question() -> None:
    evidence = Evidence(math.log(2000))
    assert judged("stop", evidence, kept="fine").verdict == "not tested"
    prediction = bernoulli(1e-3, {"often": 0.5})
    for count in range(8):
        finding = judged("stop", evidence, kept="fine")
        assert finding.verdict == ("obeyed" if count > 6 else "not tested")
        evidence.add(prediction, 0)


# --- laws --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", LAW_CHECKS, ids=lambda each: each.parameter)
def test_the_laws_of_parameters_are_those_of_the_library(check: Any) -> None:
    place = position()
    tried = 0
    for value in check.values:
        kept = check.laws(place, value).get("kept")
        if kept is None:
            continue
        [low], [high] = laws(place, [params_of({check.parameter: int(value) if value > 1 else value})])
        if check.parameter == "temperature":
            [low] = tirage.law(place.logprobs[None].astype(np.float32), params_of({"temperature": value}))
            high = low
        np.testing.assert_allclose(kept[: len(low)], low, atol=1e-6)
        np.testing.assert_allclose(kept[: len(high)], high, atol=1e-6)
        tried += 1
    assert tried


def test_a_cut_near_a_threshold_or_between_equals_is_not_used() -> None:
    by_name = {each.parameter: each for each in LAW_CHECKS}
    assert "kept" in by_name["top_p"].laws(position(), 0.5)
    assert by_name["top_p"].laws(position(), 0.651) == {}  # 0.65 is the mass of two tokens
    assert by_name["top_k"].laws(position((0.4, 0.2, 0.2, 0.1, 0.05)), 2) == {}
    assert by_name["top_p"].laws(position(), 0.3) == {}  # one token alone says little


def test_a_token_is_found_by_its_id_or_else_by_its_text() -> None:
    by_id = Position(prompt="p", keys=(7, 9, 4), texts=("a", "a", "b"), logprobs=np.log([0.5, 0.3, 0.1]), by_id=True)
    drawn = LogprobEntry(token_id=9, logprob=-1.0, rank=0, text="a", bytes=b"a")
    assert (by_id.index(drawn), position().index(drawn)) == (1, 0)


# --- servers ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_honest_server_passes() -> None:
    only = ("top_k", "top_p", "seed", "n", "stop", "max_tokens", "json schema")
    report = audit(shared().url, seed=3, limits=LONG, only=only)
    assert disobeyed(report) == []
    assert {name for name, verdict in verdicts(report).items() if verdict == "obeyed"} >= set(only)
    assert report.exit_status == 0
    assert (report.dialect, report.owner) == ("tirage", "tirage")


@pytest.mark.slow
@pytest.mark.parametrize("name", QUICK)
def test_a_fault_is_named(name: str) -> None:
    with FaultyServer(shared().url, FAULTS[name]) as server:
        report = audit(server.url, seed=5, limits=LONG, only=(FAULTS[name].found,))
    assert disobeyed(report) == [FAULTS[name].found]
    assert report.exit_status == 1


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", list(FAULTS)[::4])
def test_a_fault_is_named_among_all_checks(name: str) -> None:
    with FaultyServer(shared().url, FAULTS[name]) as server:
        report = audit(server.url, seed=6, limits=LONG)
    assert disobeyed(report) == [FAULTS[name].found]


@pytest.mark.exhaustive
@pytest.mark.parametrize("seed", range(100, 106))
def test_audits_of_an_honest_server_raise_no_alarm(seed: int) -> None:
    report = audit(shared().url, seed=seed, limits=LONG)
    assert disobeyed(report) == []


@pytest.mark.slow  # tried again for 13 s
def test_a_server_that_is_gone_passes_nothing() -> None:
    report = audit("http://127.0.0.1:9")
    assert set(verdicts(report).values()) == {"not tested"}
    assert len(report.findings) == len(CHECKS)
    assert report.exit_status == 2


def test_a_server_that_never_answers_passes_nothing() -> None:
    with ScriptedServer(hang) as server:
        report = audit(server.url, limits=AuditLimits(seconds=1.0))
    assert set(verdicts(report).values()) == {"not tested"}
    assert "1 seconds are spent" in report.findings[0].detail
    assert report.exit_status == 2


@pytest.mark.parametrize("status", [429, 500])
def test_a_server_that_refuses_for_long_passes_nothing(status: int) -> None:
    with ScriptedServer(answer({"error": "later"}, status=status, headers=["Retry-After: 3600"])) as server:
        report = audit(server.url)
    assert set(verdicts(report).values()) == {"not tested"}
    assert f"status {status}" in report.findings[0].detail


CHOICE = {"index": 0, "text": " a b c d e f", "finish_reason": "length"}


def test_a_server_without_log_probabilities_is_tested_as_far_as_it_goes() -> None:
    """The same text for everything: seeds and limits are broken, laws are not tested."""
    whole = {"choices": [CHOICE], "usage": {"prompt_tokens": 2, "completion_tokens": 6}}
    with ScriptedServer(answer(whole)) as server:
        report = audit(server.url, dialect="vllm")
    found = verdicts(report)
    assert {"another seed", "stop", "max_tokens", "json schema"} <= set(disobeyed(report))
    assert {name for name in ("temperature", "top_p", "n", "logit_bias") if found[name] != "not tested"} == set()
    assert "another seed, which is not obeyed" in {each.name: each for each in report.findings}["top_p"].detail


REFUSED = answer({"error": {"message": "no such model"}}, status=404)


@pytest.mark.parametrize(
    ("told", "to_others", "verdict", "detail"),
    [
        ("small", REFUSED, "obeyed", "a model that it does not have is refused"),
        (
            "small",
            None,
            "not tested",
            "the server answers to any name, so which model answers as 'small' cannot be told",
        ),
        ("large", REFUSED, "not tested", "answers are of 'large', where 'small' was asked"),
    ],
)
def test_a_server_that_may_lie_about_its_model_does_not_pass(
    told: str, to_others: bytes | None, verdict: str, detail: str
) -> None:
    """A name that nobody has is what it is asked for last."""
    whole = answer({"choices": [CHOICE], "model": told, "usage": {"prompt_tokens": 2, "completion_tokens": 6}})
    scripts = [*[whole] * len(PROMPTS), to_others or whole]
    with ScriptedServer(*scripts, models=answer({"data": [{"id": "small", "owned_by": "x"}]})) as server:
        report = audit(server.url, only=("model",))
    [found] = report.findings
    assert (found.verdict, found.detail) == (verdict, detail)
    assert report.exit_status == (0 if verdict == "obeyed" else 2)


@pytest.mark.slow
def test_an_audit_keeps_its_number_of_requests() -> None:
    report = audit(shared().url, seed=1, limits=AuditLimits(requests=60, seconds=600))
    assert report.requests == 60
    assert any("60 requests are spent" in each.detail for each in report.findings)
    assert report.exit_status == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dialect": "vlm"}, "dialect must be one of"),
        ({"preset": "vlllm"}, "preset must be one of"),
        ({"only": ("top_q",)}, "only must name checks"),
        ({"timeout_s": 0.0}, "timeout_s must be a positive number"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        audit("http://127.0.0.1:9", **options)


@pytest.mark.parametrize("options", [{"requests": 0}, {"concurrency": True}, {"seconds": 0.0}, {"level": 1.0}])
def test_wrong_limits_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ParamsError, match=f"{next(iter(options))} must be"):
        AuditLimits(**options)


# --- reports ------------------------------------------------------------------------------------------------------


def report_of(*findings: Finding) -> AuditReport:
    return AuditReport(
        url="http://x",
        dialect="vllm",
        owner="vllm",
        model="<script>",
        findings=findings,
        preset=None,
        limits=AuditLimits(),
        checks=20,
        requests=3,
        seconds=2.0,
        arithmetic_s=0.1,
    )


def test_the_exit_status_says_the_worst() -> None:
    good = Finding(name="top_p", verdict="obeyed", detail="")
    bad = Finding(name="top_k", verdict="not obeyed", detail="")
    unknown = Finding(name="min_p", verdict="not tested", detail="")
    absent = Finding(name="min_p", verdict="not tested", detail="", asked=False)
    assert [report_of(good).exit_status, report_of(good, absent).exit_status] == [0, 0]
    assert [report_of(good, unknown).exit_status, report_of(good, unknown, bad).exit_status] == [2, 1]
    assert [report_of().exit_status, report_of(absent).exit_status] == [2, 2]


def test_a_page_fetches_nothing_and_escapes_what_a_server_says() -> None:
    finding = Finding(name="stop", verdict="not obeyed", detail="<img src=x>", path=(0.0, 1.0, 4.0))
    page = audit_page(report_of(finding))
    assert "<img" not in page
    assert "<script" not in page
    assert "<svg" in page
    assert not [
        word
        for word in ("http:", "https:", "src=x>", "url(")
        if word in page.replace("http://x", "").replace('xmlns="http://www.w3.org/2000/svg"', "")
    ]


def test_the_command_prints_a_table_and_writes_both_files(tmp_path: Path, capsys: Any) -> None:
    files = [tmp_path / "audit.json", tmp_path / "audit.html"]
    command = ["audit", shared().url, "--only", "max_tokens", "--seed", "1", "--json", str(files[0]), "--html"]
    with pytest.raises(SystemExit) as ended:
        main([*command, str(files[1])])
    assert ended.value.code == 0
    shown = capsys.readouterr()
    assert "max_tokens" in shown.out
    assert "1 obeyed, 0 not obeyed, 0 not tested" in shown.err
    assert [each["name"] for each in json.loads(files[0].read_text())["findings"]] == ["max_tokens"]
    assert "max_tokens" in files[1].read_text()


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_report_that_cannot_be_written_is_refused_before_the_server_is_asked(option: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["audit", "http://127.0.0.1:1", option, "no folder/report"])
    assert ended.value.code == 2
    assert f"{option} must be in a folder that exists, got 'no folder/report'" in capsys.readouterr().err


def test_the_program_of_the_page_prints_every_finding(capsys: Any) -> None:
    """docs/audit.md's own program, with fewer requests than it allows."""
    [program] = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    exec(program.replace("http://localhost:8000", shared().url).replace("requests=1000", "requests=60"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(CHECKS)
    for line, check in zip(lines, CHECKS, strict=True):
        assert line.startswith((f"{check.name} obeyed", f"{check.name} not tested", f"{check.name} not obeyed"))


@pytest.mark.slow
def test_choices_of_an_audit_repeat() -> None:
    reports = [audit(shared().url, seed=11, only=("top_k",), limits=LONG) for _ in range(2)]
    assert reports[0].findings == reports[1].findings
