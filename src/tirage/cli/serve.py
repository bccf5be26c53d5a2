"""`tirage serve`: the HTTP server, with a command-line option for each of its options."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from tirage.cli.derived import note_of, parameter, with_options
from tirage.cli.help import COMMON
from tirage.cli.ray_options import (
    MaxReplicasOption,
    NumCpusOption,
    NumGpusOption,
    RayAddressOption,
    RayOption,
    ReplicasOption,
    given_for_ray,
)
from tirage.server.options import FLAGS, LIMIT_FLAGS, Flag, Options, from_environment

_METAVARS = {int: "INTEGER", float: "NUMBER", Path: "PATH"}
_GROUPS: Mapping[str, str] = {
    COMMON: "model host port api_key served_model_name backend dtype device max_running chat_template",
    "Model": (
        "engine_arg prefix_bytes prefill_batch_tokens speculative_config draft lora reasoning_parser grammar_backend "
        "sampling_method watermark"
    ),
    "Access": (
        "admin_key key_weight tenant_by requests_per_minute tokens_per_minute protect_metrics allowed_host cors_origin"
    ),
    "Requests": (
        "logits_processor enable_custom_logit_processor media_root allowed_media_domain ignore_unknown_fields"
    ),
}
_GROUP_OF = {name: group for group, names in _GROUPS.items() for name in names.split()}
_FIRST = _GROUPS[COMMON].split()
_IN_ORDER = [*(FLAGS[name] for name in _FIRST), *(flag for name, flag in FLAGS.items() if name not in _FIRST)]


def option(flag: Flag) -> inspect.Parameter:
    """The command-line option of a flag."""
    text = flag.help + note_of(flag.default, flag.choices)
    kind: Any = list[flag.kind] if flag.many else flag.kind
    metavar = flag.metavar or _METAVARS.get(flag.kind, "TEXT")
    return parameter(flag.name, flag.flags, kind, help=text, metavar=metavar, panel=group_of(flag.name))


def group_of(name: str) -> str:
    """The group of the help that the flag of a setting is in."""
    return _GROUP_OF.get(name, "Limits" if name in LIMIT_FLAGS else "Server")


@partial(with_options, parameters=map(option, _IN_ORDER))
def serve(
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    replicas: ReplicasOption = None,
    max_replicas: MaxReplicasOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    **options: Any,
) -> None:
    """Serve SGLang's, OpenAI's and FastDeploy's routes over HTTP. Progress and notes go to stderr."""
    given = from_environment(os.environ) | {name: value for name, value in options.items() if value is not None}
    deployed = given_for_ray(
        ray, address=ray_address, replicas=replicas, max_replicas=max_replicas, num_cpus=num_cpus, num_gpus=num_gpus
    )
    if deployed is not None:
        from tirage.cluster.serving import serve_on_ray

        end(serve_on_ray(given, **deployed))
    from tirage.server import run

    end(run(Options.of(**given)))


def end(status: int) -> NoReturn:
    """Ends the process without unloading its libraries, some of which fail while other threads use them."""
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
