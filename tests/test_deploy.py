"""The alert rules and the dashboard of `deploy/`: they load, and every metric in them is one that a server exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from servers import shared

ROOT = Path(__file__).parents[1]
ALERTS = ROOT / "deploy" / "alerts.yml"
DASHBOARD = json.loads((ROOT / "deploy" / "grafana.json").read_text())
SUFFIXES = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}
ANSWERED = {"text": "Once", "sampling_params": {"max_new_tokens": 2}}


def rules() -> list[dict[str, Any]]:
    groups = yaml.safe_load(ALERTS.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    targets = [target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]]
    return [*targets, *(each["query"]["query"] for each in variables() if each["type"] == "query")]


def variables() -> list[dict[str, Any]]:
    return DASHBOARD["templating"]["list"]


def exported() -> dict[str, set[str]]:
    """The series of a server that has answered a request, each with the names of its labels."""
    server = shared()
    server.post("/generate", ANSWERED)
    text = server.get("/metrics").text
    found: dict[str, set[str]] = {}
    for name, kind in re.findall(r"^# TYPE (tirage_\w+) (\w+)$", text, re.MULTILINE):
        for suffix in SUFFIXES[kind]:
            found[name.removesuffix("_total") + suffix] = set()
    for name, labels in re.findall(r"^(tirage_\w+)\{(.*)\} ", text, re.MULTILINE):
        found.setdefault(name, set()).update(re.findall(r'(\w+)="', labels))
    # Without a processor that has failed there is no series to show its label.
    return found | {"tirage_processor_failures_total": {"processor"}}


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in rules()), *dashboard_queries()])
def test_a_query_names_metrics_and_labels_that_a_server_exports(query: str) -> None:
    series = exported()
    for name, matchers in re.findall(r"\b(tirage_\w+)(?:\{([^}]*)\})?", query):
        assert name in series
        wanted = set(re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", matchers))
        assert wanted <= series[name] | {"instance", "job"}
    assert query.count("(") == query.count(")")


def test_each_alert_has_its_section_in_the_operators_page() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    sections = {title.lower() for title in re.findall(r"^### (\w+)$", page, re.MULTILINE)}
    for rule in rules():
        assert rule["labels"]["severity"] in {"page", "ticket"}
        assert rule["annotations"]["summary"]
        assert rule["annotations"]["runbook"] == f"docs/operating.md#{rule['alert'].lower()}"
        assert rule["alert"].lower() in sections
    assert len({rule["alert"] for rule in rules()}) == len(rules()) == len(sections)


def test_the_operators_page_has_every_metric_and_every_alert_metric() -> None:
    page = (ROOT / "docs" / "operating.md").read_text()
    told = set(re.findall(r"`(tirage_\w+)", page))
    names = {re.sub(r"_(bucket|sum|count)$", "", name) for name in exported() if not name.endswith("_created")}
    assert told == names


def test_the_dashboard_is_one_that_grafana_imports() -> None:
    assert {"title", "uid", "panels", "schemaVersion", "templating", "time"} <= set(DASHBOARD)
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        assert panel["type"] == "timeseries"
        assert panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"]
        refs = [target["refId"] for target in panel["targets"]]
        assert len(set(refs)) == len(refs) > 0
    used = set(re.findall(r"\$\{?([a-z]\w*)", json.dumps(DASHBOARD)))
    assert used == {each["name"] for each in variables()}


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not installed")
def test_prometheus_reads_the_rules() -> None:
    subprocess.run(["promtool", "check", "rules", str(ALERTS)], check=True, capture_output=True)
