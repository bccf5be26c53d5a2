"""The files of `deploy/`: their own tools take them, and every metric of rules and dashboard is one of a server's.

docker-compose reads the compose file; kubectl builds the manifest, whose fields tests/engines/ray compares. Where a
tool is missing its test is skipped.
"""

from __future__ import annotations

import json
import os
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


COMPOSE = next((tool for tool in ("docker-compose", "podman-compose") if shutil.which(tool)), "")
KEYS = {"RAY_AUTH_TOKEN": "one", "API_KEY": "two"}


def compose(*arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [COMPOSE, "-f", str(ROOT / "deploy" / "compose.yml"), *arguments]
    without = {name: value for name, value in os.environ.items() if name not in KEYS}
    return subprocess.run(command, capture_output=True, text=True, env=without | environ, check=False)


@pytest.mark.skipif(not COMPOSE, reason="docker-compose is not installed")
def test_compose_reads_its_file_and_asks_for_both_keys() -> None:
    done = compose("config", **KEYS)
    assert done.returncode == 0, done.stderr
    services = yaml.safe_load(done.stdout)["services"]
    assert set(services) == {"server", "worker"}
    for each in services.values():
        assert KEYS.items() <= each["environment"].items()
    assert "127.0.0.1:30000:30000" in str(services["server"]["ports"])
    for name in KEYS:
        refused = compose("config", **{other: value for other, value in KEYS.items() if other != name})
        assert refused.returncode != 0
        assert "set it to a long random text" in refused.stderr


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
def test_kubectl_builds_the_manifest(tmp_path: Path) -> None:
    manifest = (ROOT / "deploy" / "rayservice.yml").read_text()
    (tmp_path / "rayservice.yml").write_text(manifest)
    (tmp_path / "kustomization.yaml").write_text("resources: [rayservice.yml]\n")
    done = subprocess.run(["kubectl", "kustomize", str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(yaml.safe_load_all(done.stdout)) == list(yaml.safe_load_all(manifest))
