"""The fields of a RayService, their types and which are required, as KubeRay's custom resource definition has them.

Those of November 2026, after the models that its Python client generates from that definition
(clients/python-client/python_client/models/generated/rayservice.py). Pods, services and network policies are
Kubernetes' own and left to its schemas.
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


GROUP: dict[str, Schema] = {
    "rayStartParams": TEXT_BY_NAME, "resources": TEXT_BY_NAME, "labels": TEXT_BY_NAME, "template": OF_KUBERNETES,
}  # fmt: skip
HEAD = struct(
    "template",
    serviceType=TEXT, headService=OF_KUBERNETES, enableIngress=FLAG, ingressOptions=OF_KUBERNETES, **GROUP,
)  # fmt: skip
WORKERS = struct(
    "template", "groupName", "minReplicas", "maxReplicas",
    groupName=TEXT, replicas=COUNT, minReplicas=COUNT, maxReplicas=COUNT, numOfHosts=COUNT, priority=COUNT,
    idleTimeoutSeconds=COUNT, suspend=FLAG, scaleStrategy=struct(workersToDelete=TEXTS), **GROUP,
)  # fmt: skip
AUTOSCALER = struct(
    resources=OF_KUBERNETES, image=TEXT, imagePullPolicy=TEXT, securityContext=OF_KUBERNETES, command=TEXTS, args=TEXTS,
    env={"type": "array"}, envFrom={"type": "array"}, volumeMounts={"type": "array"}, version={"enum": ["v1", "v2"]},
    idleTimeoutSeconds=COUNT, upscalingMode={"enum": ["Default", "Aggressive", "Conservative"]},
)  # fmt: skip
CLUSTER = struct(
    "headGroupSpec",
    headGroupSpec=HEAD, workerGroupSpecs={"type": "array", "items": WORKERS}, rayVersion=TEXT,
    enableInTreeAutoscaling=FLAG, autoscalerOptions=AUTOSCALER, headServiceAnnotations=TEXT_BY_NAME, suspend=FLAG,
    authOptions=struct(mode={"enum": ["disabled", "token"]}, enableK8sTokenAuth=FLAG, secretName=TEXT),
    gcsFaultToleranceOptions=OF_KUBERNETES, historyServerOptions=OF_KUBERNETES, networkPolicy=OF_KUBERNETES,
    managedBy=TEXT, tlsOptions=struct(enabled=FLAG), upgradeStrategy=struct(type={"enum": ["Recreate", "None"]}),
)  # fmt: skip
RAY_SERVICE = struct(
    "apiVersion", "kind", "metadata", "spec",
    apiVersion={"const": "ray.io/v1"}, kind={"const": "RayService"}, metadata=OF_KUBERNETES,
    spec=struct(
        "rayClusterConfig",
        serveConfigV2=TEXT, rayClusterConfig=CLUSTER, serveService=OF_KUBERNETES, upgradeStrategy=OF_KUBERNETES,
        serviceUnhealthySecondThreshold=COUNT, deploymentUnhealthySecondThreshold=COUNT,
        rayClusterDeletionDelaySeconds={**COUNT, "minimum": 0}, excludeHeadPodFromServeSvc=FLAG,
        managedBy=TEXT, suspend=FLAG,
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
