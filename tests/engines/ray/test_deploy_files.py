"""`deploy/`: the compose file and the Kubernetes manifest are what their own tools take.

Docker's is the schema of docker-compose; Kubernetes' own are kubernetes-validate's, to which the pods of the RayService
are given; its application is read by Ray. No package has the schema of KubeRay's own fields: they are checked with one
written after its custom resource definition, and with that file itself where TIRAGE_KUBERAY_CRD names it
(helm-chart/kuberay-operator/crds/ray.io_rayservices.yaml in its repository).
"""

from __future__ import annotations

import ast
import copy
import importlib.util
import inspect
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml
from kuberay_schema import RAY_SERVICE, strict
from ray.serve.schema import ServeDeploySchema

from tirage import ParamsError
from tirage.cluster import application, deployment

DEPLOY = Path(__file__).parents[3] / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yml").read_text())
SECRET, SERVICE = yaml.safe_load_all((DEPLOY / "rayservice.yml").read_text())
CLUSTER = SERVICE["spec"]["rayClusterConfig"]
CRD = os.environ.get("TIRAGE_KUBERAY_CRD", "")


def test_the_compose_file_is_valid() -> None:
    found = importlib.util.find_spec("compose")
    assert found is not None
    assert found.submodule_search_locations
    folder = Path(found.submodule_search_locations[0])
    schema = json.loads((folder / "config" / "compose_spec.json").read_text())
    jsonschema.validate(COMPOSE, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**COMPOSE, "services": {"worker": {"comand": "x"}}}, schema)


def groups() -> list[dict[str, Any]]:
    return [CLUSTER["headGroupSpec"], *CLUSTER["workerGroupSpecs"]]


def test_the_secret_and_the_pods_are_valid() -> None:
    kubernetes_validate.validate(SECRET, "1.37", strict=True)
    for group in groups():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "ray"}, **group["template"]}
        kubernetes_validate.validate(pod, "1.37", strict=True)
        pod["spec"]["containers"][0]["imagee"] = "x"
        with pytest.raises(kubernetes_validate.ValidationError):
            kubernetes_validate.validate(pod, "1.37", strict=True)
        del pod["spec"]["containers"][0]["imagee"]


def wrong_services() -> list[dict[str, Any]]:
    """The manifest with one mistake each: an unknown field, a wrong type, a required field that is missing."""
    found = [copy.deepcopy(SERVICE) for _ in range(4)]
    clusters = [each["spec"]["rayClusterConfig"] for each in found]
    clusters[0]["enableInTreeAutoscalling"] = True
    clusters[1]["headGroupSpec"]["rayStartParams"]["num-cpus"] = 0
    clusters[2]["workerGroupSpecs"][0]["maxReplicas"] = "16"
    del clusters[3]["headGroupSpec"]["template"]
    return found


def assert_takes(schema: Any) -> None:
    """The schema takes the manifest, and none with a mistake."""
    jsonschema.validate(SERVICE, schema)
    for wrong in wrong_services():
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(wrong, schema)


def test_the_rayservice_has_kuberays_fields() -> None:
    assert_takes(RAY_SERVICE)


@pytest.mark.skipif(not CRD, reason="TIRAGE_KUBERAY_CRD names no file of KubeRay's custom resource definition")
def test_kuberays_own_definition_takes_the_rayservice() -> None:
    versions = yaml.safe_load(Path(CRD).read_text(encoding="utf-8"))["spec"]["versions"]
    (schema,) = (each["schema"]["openAPIV3Schema"] for each in versions if each["name"] == "v1")
    # What an object is called is Kubernetes' own.
    schema["properties"]["metadata"]["x-kubernetes-preserve-unknown-fields"] = True
    assert_takes(strict(schema))


def served() -> Any:
    return ServeDeploySchema(**yaml.safe_load(SERVICE["spec"]["serveConfigV2"]))


def test_the_application_is_one_that_ray_builds(monkeypatch: pytest.MonkeyPatch) -> None:
    (one,) = served().applications
    assert one.import_path == f"{application.__module__.rpartition('.')[0]}:application"
    names = [each["name"] for group in groups() for each in group["template"]["spec"]["containers"][0]["env"]]
    assert one.args["api_key_variable"] in names
    with pytest.raises(ParamsError, match="api_key_variable must name an environment variable with a key"):
        application(one.args)
    monkeypatch.setenv(one.args["api_key_variable"], "secret")
    made = application(one.args)._bound_deployment
    assert made.name == "tirage"
    assert made._deployment_config.autoscaling_config.max_replicas == one.args["max_replicas"] == 16
    assert "secret" not in json.dumps(one.args)


def test_replicas_fit_into_the_pods() -> None:
    (one,) = served().applications
    (group,) = CLUSTER["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert one.args["num_cpus"] == cpus
    assert one.args["max_replicas"] == group["maxReplicas"]
    assert one.args["replicas"] == group["minReplicas"]


def test_the_commands_have_options_that_there_are() -> None:
    script = COMPOSE["services"]["server"]["command"][2]
    given = set(re.findall(r"--[a-z-]+", script.partition("tirage serve")[2]))
    help_text = subprocess.run(
        [sys.executable, "-m", "tirage", "serve", "--help-all"], capture_output=True, text=True, check=True
    ).stdout
    assert given <= set(re.findall(r"--[a-z-]+", help_text))
    ray_help = subprocess.run(
        [sys.executable, "-m", "ray.scripts.scripts", "start", "--help"], capture_output=True, text=True, check=True
    ).stdout
    starts = [shlex.join(COMPOSE["services"]["worker"]["command"]), script.partition("tirage serve")[0]]
    assert {each for start in starts for each in re.findall(r"--[a-z-]+", start)} <= set(
        re.findall(r"--[a-z-]+", ray_help)
    )


def test_arguments_of_the_file_are_those_of_deployment() -> None:
    (one,) = served().applications
    own = {name for name, each in inspect.signature(deployment).parameters.items() if each.kind != each.VAR_KEYWORD}
    assert {"model", "replicas", "max_replicas", "num_cpus"} <= own & set(one.args)


@pytest.mark.parametrize("page", ["scale", "batch"])
def test_programs_of_the_pages_use_what_there_is(page: str) -> None:
    blocks = re.findall(r"^```py\n(.*?)^```", (DEPLOY.parent / "docs" / f"{page}.md").read_text(), re.DOTALL | re.M)
    assert blocks
    for block in blocks:
        tree = ast.parse(block)
        namespace: dict[str, object] = {}
        exec(compile(ast.Module([each for each in tree.body if isinstance(each, (ast.Import, ast.ImportFrom))], []),
                     page, "exec"), namespace)  # fmt: skip
        calls = [each for each in ast.walk(tree) if isinstance(each, ast.Call) and isinstance(each.func, ast.Name)]
        for call in calls:
            parameters = inspect.signature(namespace[call.func.id]).parameters  # type: ignore[arg-type, attr-defined]
            given = {each.arg for each in call.keywords if each.arg}
            assert given <= set(parameters) or any(each.kind == each.VAR_KEYWORD for each in parameters.values())
