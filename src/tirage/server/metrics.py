"""The metrics of /metrics. Label values come from closed sets, so that no client can make the page grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tirage.engine import BOUNDS_S, Completion, DurationHistogram, Progress
from tirage.server.preparation import Lane

_STATUSES = frozenset({200, 204, 400, 401, 403, 404, 405, 408, 413, 415, 431, 499, 500, 501, 503, 504})


class Metrics:
    """The counters of the HTTP server; those of the engine are added when the page is read."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=True)
        # How much of all tenants' prompts was found in the cache, which not every client may see.
        self.cache_registry = CollectorRegistry(auto_describe=True)
        self._routes: frozenset[str] = frozenset()
        self._requests = Counter(
            "tirage_requests", "answered HTTP requests", ["route", "status"], registry=self.registry
        )
        self._seconds = self._histogram(
            "tirage_request_seconds", "from the head of a request to the end of its answer", "route"
        )
        self.in_flight = Gauge("tirage_requests_in_flight", "accepted and not finished", registry=self.registry)
        self._refused = Counter("tirage_refused", "requests refused because the queue was full", registry=self.registry)
        self._over_limit = Counter(
            "tirage_over_limit", "requests refused because they exceed a limit", ["limit"], registry=self.registry
        )
        self._constraints = self._histogram(
            "tirage_constraint_seconds", "processor time that the constraint of a prompt took while its samples ran"
        )
        self._prepared = self._histogram("tirage_prepare_seconds", "tokenising and rendering a prompt")
        self._compiled = self._histogram("tirage_grammar_compile_seconds", "preparing a prompt with a constraint")
        self._prepare_waiting = self._lane_gauge("tirage_prepare_waiting", "prompts that wait to be prepared")
        self._prepare_running = self._lane_gauge("tirage_prepare_running", "prompts that are being prepared")
        self._prepare_oldest = self._lane_gauge(
            "tirage_prepare_oldest_seconds", "how long the oldest prompt has waited to be prepared"
        )
        self._samples = Counter("tirage_samples", "samples that have finished", ["reason"], registry=self.registry)
        self._prompt = Counter("tirage_prompt_tokens", "prompt tokens of answered prompts", registry=self.registry)
        self._output = Counter("tirage_completion_tokens", "tokens of answered prompts", registry=self.registry)
        self._cached = Counter("tirage_cached_tokens", "prompt tokens found in the cache", registry=self.cache_registry)
        self._failing = Counter(
            "tirage_processor_failures",
            "prompts that a custom logits processor failed for",
            ["processor"],
            registry=self.registry,
        )
        self._aborts = Counter("tirage_aborts", "prompts that were aborted", ["reason"], registry=self.registry)

    def _lane_gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ["lane"], registry=self.registry)

    def _histogram(self, name: str, text: str, *labels: str) -> Histogram:
        return Histogram(name, text, labels, buckets=BOUNDS_S, registry=self.registry)

    def watch_lane(self, lane: Lane) -> None:
        """Adds how many prompts wait for a lane's threads, how many have one, and since when the oldest waits."""
        self._prepare_waiting.labels(lane.name).set_function(lambda: lane.waiting)
        self._prepare_running.labels(lane.name).set_function(lambda: lane.running)
        self._prepare_oldest.labels(lane.name).set_function(lambda: lane.oldest_s)

    def know_routes(self, paths: Iterable[str]) -> None:
        """Sets the paths that may be labels; all others count as `other`."""
        self._routes = frozenset(paths)

    def watch(self, progress: Callable[[], Progress]) -> None:
        """Adds the engine's metrics to the page."""
        self.registry.register(EngineCollector(progress))
        self.cache_registry.register(CacheCollector(progress))

    def answered(self, path: str, status: int, seconds: float) -> None:
        """Counts an HTTP answer; 499 is a client that left before one began."""
        route = path if path in self._routes else "other"
        self._requests.labels(route, str(status if status in _STATUSES else f"{status // 100}xx")).inc()
        self._seconds.labels(route).observe(seconds)

    def refused(self) -> None:
        """Counts a request that found the queue full."""
        self._refused.inc()

    def over_limit(self, limit: str) -> None:
        """Counts a request above one of the operator's limits."""
        self._over_limit.labels(limit).inc()

    def constrained(self, seconds: float) -> None:
        """Records the processor time that the constraint of a finished prompt took."""
        self._constraints.observe(seconds)

    def prepared(self, seconds: float, *, guided: bool) -> None:
        """Records the seconds that a prompt took to prepare."""
        (self._compiled if guided else self._prepared).observe(seconds)

    def aborted(self, reason: str) -> None:
        """Counts an aborted prompt; the reason is disconnect, timeout, request, drain or stalled."""
        self._aborts.labels(reason).inc()

    def processors_failed(self, names: Iterable[str]) -> None:
        """Counts a prompt for which processors failed; their names come from the operator."""
        for name in names:
            self._failing.labels(name).inc()

    def finished(self, completion: Completion) -> None:
        """Counts a prompt that has finished, and its tokens."""
        usage = completion.usage
        self._prompt.inc(usage.prompt_tokens)
        self._output.inc(usage.completion_tokens)
        self._cached.inc(usage.cached_tokens)
        for sample in completion.samples:
            self._samples.labels(sample.finish_reason or "abort").inc()

    def page(self, *, cache: bool) -> bytes:
        """The page in Prometheus' text format, with or without what tells of the cache."""
        return generate_latest(self.registry) + (generate_latest(self.cache_registry) if cache else b"")


class EngineCollector(Collector):
    """The engine's progress as metrics, read when the page is."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        self._progress = progress

    def describe(self) -> Iterator[Metric]:
        """The metric names, without reading the engine."""
        yield GaugeMetricFamily("tirage_engine", "what the engine is doing")

    def collect(self) -> Iterator[Metric]:
        """The engine's current values."""
        now = self._progress()
        for name, text in (
            ("waiting", "requests in the queue"),
            ("reading", "requests whose prompt is being read"),
            ("running", "samples that are being written"),
            ("abandoned_calls", "calls of custom logits processors that were left behind and have not returned"),
            ("sampling_share", "share of the draws in the time of decode steps"),
            ("last_step_s", "seconds of the last step"),
        ):
            yield GaugeMetricFamily(f"tirage_engine_{name}", text, value=getattr(now, name))
        yield GaugeMetricFamily(
            "tirage_engine_stalled_seconds", "seconds without a sign of life", value=now.stalled_s()
        )
        for name, text in (
            ("steps", "steps"),
            ("started", "requests begun"),
            ("completed", "requests that ended by themselves"),
            ("aborted", "requests that were stopped"),
            ("failed", "requests that ended with an error"),
            ("output_tokens", "tokens drawn"),
            ("drafts", "drafts that the model has read ahead"),
            ("draft_tokens", "tokens of these drafts"),
            ("accepted_tokens", "tokens of these drafts that were then drawn"),
            ("sample_s", "seconds spent on draws"),
            ("text_s", "seconds spent on text"),
            ("decode_s", "seconds spent on forward passes"),
        ):
            yield CounterMetricFamily(f"tirage_engine_{name}", text, value=getattr(now, name))
        yield histogram(
            "tirage_time_to_first_token_seconds", "from a prepared prompt to its first token, the queue included",
            now.first_token,
        )  # fmt: skip
        yield histogram("tirage_inter_token_seconds", "between the tokens of a sample", now.between)


class CacheCollector(Collector):
    """How much of the prompts the engine has read, and how much it took from earlier prompts."""

    def __init__(self, progress: Callable[[], Progress]) -> None:
        self._progress = progress

    def describe(self) -> Iterator[Metric]:
        """The metric names, without reading the engine."""
        yield CounterMetricFamily("tirage_engine_cached_tokens", "prompt tokens taken over from earlier prompts")

    def collect(self) -> Iterator[Metric]:
        """The engine's current values."""
        now = self._progress()
        for name, text in (
            ("prompt_tokens", "prompt tokens read"),
            ("cached_tokens", "prompt tokens taken over from earlier prompts"),
            ("read_s", "seconds spent on prompts"),
        ):
            yield CounterMetricFamily(f"tirage_engine_{name}", text, value=getattr(now, name))


def histogram(name: str, text: str, times: DurationHistogram) -> HistogramMetricFamily:
    """A histogram of the engine as Prometheus has it."""
    bounds = [*(str(bound) for bound in BOUNDS_S), "+Inf"]
    return HistogramMetricFamily(
        name, text, buckets=list(zip(bounds, times.cumulative(), strict=True)), sum_value=times.total_s
    )
