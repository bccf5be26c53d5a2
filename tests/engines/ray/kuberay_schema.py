"""The fields of a RayService, their types and which are required, after the Go types of KubeRay's API ray.io/v1.

Those of its release 1.0, which later ones have kept; pods and services are Kubernetes' own and left to its schemas.
Source: ray-operator/apis/ray/v1/rayservice_types.go and raycluster_types.go.
"""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]
TEXT: Schema = {"type": "string"}
FLAG: Schema = {"type": "boolean"}
COUNT: Schema = {"type": "integer", "minimum": -(2**31), "maximum": 2**31 - 1}
TEXTS: Schema = {"type": "array", "items": TEXT}
TEXT_BY_NAME: Schema = {"type": "object", "additionalProperties": TEXT}
OF_KUBERNETES: Schema = {"type": "object"}


def struct(*required: str, **fields: Schema) -> Schema:
    """An object of these fields and no others."""
    return {"type": "object", "properties": fields, "required": list(required), "additionalProperties": False}


GROUP: dict[str, Schema] = {"rayStartParams": TEXT_BY_NAME, "template": OF_KUBERNETES}
HEAD = struct(*GROUP, serviceType=TEXT, headService=OF_KUBERNETES, enableIngress=FLAG, **GROUP)
WORKERS = struct(
    *GROUP, "groupName", "minReplicas", "maxReplicas",
    groupName=TEXT, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT, numOfHosts=COUNT,
    scaleStrategy=struct(workersToDelete=TEXTS, multihostReplicasToDelete=TEXTS), **GROUP,
)  # fmt: skip
AUTOSCALER = struct(
    resources=OF_KUBERNETES, image=TEXT, imagePullPolicy=TEXT, securityContext=OF_KUBERNETES,
    env={"type": "array"}, envFrom={"type": "array"}, volumeMounts={"type": "array"},
    idleTimeoutSeconds=COUNT, upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
)  # fmt: skip
CLUSTER = struct(
    "headGroupSpec",
    headGroupSpec=HEAD, workerGroupSpecs={"type": "array", "items": WORKERS}, rayVersion=TEXT,
    enableInTreeAutoscaling=FLAG, autoscalerOptions=AUTOSCALER, headServiceAnnotations=TEXT_BY_NAME, suspend=FLAG,
)  # fmt: skip
RAY_SERVICE = struct(
    "apiVersion", "kind", "metadata", "spec",
    apiVersion={"const": "ray.io/v1"}, kind={"const": "RayService"}, metadata=OF_KUBERNETES,
    spec=struct(
        serveConfigV2=TEXT, rayClusterConfig=CLUSTER, serveService=OF_KUBERNETES,
        serviceUnhealthySecondThreshold=COUNT, deploymentUnhealthySecondThreshold=COUNT,
    ),
)  # fmt: skip


def strict(schema: Any) -> Any:
    """A schema of a custom resource definition that takes no unknown field, as kubectl's strict validation."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: strict(each) for name, each in schema.items()}
    if isinstance(schema.get("properties"), dict) and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made
