"""`deployment`: the server as a deployment of Ray Serve."""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Mapping
from typing import Any

from tirage.cluster.ray_cluster import located, require_ray
from tirage.errors import ParamsError
from tirage.server import check_installed
from tirage.server.options import FLAGS, Options

NO_PLACE = (
    "header_timeout", "stall_timeout", "max_connections", "root_path",
    "ssl_certfile", "ssl_keyfile", "ssl_keyfile_password", "ssl_ca_certs", "ssl_cert_reqs",
)  # fmt: skip
"""Settings of the socket, which belongs to Ray's proxies."""
_CONSTRUCTOR_TRIES = 3
_GRACE_S = 2.0


def deployment(
    model: str = "tiny",
    *,
    replicas: int = 1,
    max_replicas: int | None = None,
    num_cpus: float = 1.0,
    num_gpus: float = 0.0,
    upscale_delay_s: float = 30.0,
    downscale_delay_s: float = 600.0,
    **settings: Any,
) -> Any:
    """A deployment for `ray.serve.run(deployment(...).bind())`: the application of `tirage serve`, in replicas.

    `settings` are those of `tirage serve` by name, such as `max_running=64`. With `max_replicas` Ray adds replicas from
    `replicas` on where each has more than `max_running` requests for `upscale_delay_s`, and takes them away, once their
    requests have ended, where fewer would do for `downscale_delay_s`; both are seconds, at least 0. Of CPUs and GPUs
    each replica takes so many. It is given twice `max_running` requests at most; `max_queue` more wait, and further
    ones are answered with 503. Limits per minute are divided by the largest number of replicas.

    Raises ParamsError for a wrong setting, or one of the socket; TirageError when Ray is not installed.
    """
    serve = require_ray().serve
    check_installed()
    options = checked(model, settings)
    most = check_replicas(replicas, max_replicas)
    delays = check_delays(upscale_delay_s=upscale_delay_s, downscale_delay_s=downscale_delay_s)

    from tirage.cluster.replica import Replica

    limits, options = options.limits, share_of(options, most)
    scaling: dict[str, Any] = {"num_replicas": replicas}
    if most > replicas:
        scaling = {
            "autoscaling_config": {
                "min_replicas": replicas,
                "max_replicas": most,
                "target_ongoing_requests": limits.max_running,
                **delays,
            }
        }

    class Bound(Replica):
        """A replica with these options."""

        def __init__(self) -> None:
            super().__init__(options)

    return serve.deployment(
        serve.ingress()(Bound),
        name="tirage",
        ray_actor_options={"num_cpus": num_cpus, "num_gpus": num_gpus},
        max_ongoing_requests=2 * limits.max_running,
        max_queued_requests=max(1, limits.max_queue),
        backpressure_config={"status_code": 503, "retry_after_s": 1},
        graceful_shutdown_timeout_s=limits.drain_timeout + _GRACE_S,
        graceful_shutdown_wait_loop_s=0.1,
        health_check_period_s=5.0,
        max_constructor_retry_count=_CONSTRUCTOR_TRIES,
        logging_config={"log_level": "WARNING", "enable_access_log": False},
        **scaling,
    )


def application(arguments: Mapping[str, Any]) -> Any:
    """An application for Ray Serve's configuration files: `import_path: tirage.cluster:application`.

    Its `args` are the arguments of `deployment`, by name; `api_key_variable` names an environment variable with a key,
    so that no file has to. Raises ParamsError when that is empty, and what `deployment` raises.
    """
    given = dict(arguments)
    name = given.pop("api_key_variable", None)
    if name is not None:
        if not os.environ.get(name):
            raise ParamsError(f"api_key_variable must name an environment variable with a key, got {name!r}")
        given["api_key"] = (os.environ[name],)
    return deployment(**given).bind()


def checked(model: str, settings: Mapping[str, Any]) -> Options:
    """The options of a replica; ParamsError for a wrong one, and for one that its proxies would not follow."""
    for name in NO_PLACE:
        if name in settings:
            raise ParamsError(f"{FLAGS[name].flag} must be left out with Ray, whose proxies hold the connections")
    if "lora_root" in settings:
        raise ParamsError("--lora-root must be left out with Ray, whose replicas would each have other adapters")
    return Options.of(**{"model": located(model), **settings})


def share_of(options: Options, replicas: int) -> Options:
    """The options of one of several replicas: each counts requests and tokens by itself, so each has its share.

    Raises ParamsError for a limit per minute that is smaller than the number of replicas.
    """
    found: dict[str, int] = {}
    for name in ("requests_per_minute", "tokens_per_minute"):
        limit = getattr(options, name)
        if limit is not None and limit < replicas:
            flag = FLAGS[name].flag
            raise ParamsError(f"{flag} must be at least the number of replicas, {replicas}, got {limit}")
        if limit is not None:
            found[name] = limit // replicas
    return dataclasses.replace(options, **found)


def check_replicas(replicas: int, max_replicas: int | None) -> int:
    """The largest number of replicas. Raises ParamsError for fewer than one, or fewer at most than at least."""
    for flag, value, least in (("--replicas", replicas, 1), ("--max-replicas", max_replicas, replicas)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ParamsError(f"{flag} must be an integer of at least {least}, got {value!r}")
    return max_replicas or replicas


def check_delays(**delays: float) -> dict[str, float]:
    """The delays by name, in seconds. Raises ParamsError for one that is no finite number, or negative."""
    for name, value in delays.items():
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
            raise ParamsError(f"{name} must be a number of seconds of at least 0, got {value!r:.60}; 0 does not wait")
    return delays
