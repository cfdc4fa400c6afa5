"""Every metric and every log event of Colocate.

docs/telemetry.md explains each; a test compares the two. Decisions never log and never count: they return
their reasons, and the process that carries them out logs. Importing this module registers no metric and configures
no log: a process does so, or the SDK when it serves plugins.
"""

import io
import logging
import sys
from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from typing import TextIO, cast
from weakref import WeakKeyDictionary

import prometheus_client
import structlog
from prometheus_client import REGISTRY, CollectorRegistry

from colocate.errors import visible

Metric = prometheus_client.Counter | prometheus_client.Gauge | prometheus_client.Histogram

# In no registry before `register_metrics`: a program that imports this module may have a registry of its own.
Counter = partial(prometheus_client.Counter, registry=None)
Gauge = partial(prometheus_client.Gauge, registry=None)
Histogram = partial(prometheus_client.Histogram, registry=None)


class Event(StrEnum):
    """Names of log events; details are fields of the event."""

    AGENT_STARTED = "agent.started"
    AGENT_STOPPED = "agent.stopped"
    AGENT_IDLE = "agent.idle"
    CONFIG_DOUBTFUL = "config.doubtful"
    CONFIG_RELOADED = "config.reloaded"
    CONFIG_REFUSED = "config.refused"
    KUBELET_AWAITED = "kubelet.awaited"
    KUBELET_REPLACED = "kubelet.replaced"
    PLUGIN_OPENING = "plugin.opening"
    PLUGIN_SERVING = "plugin.serving"
    PLUGIN_REGISTERED = "plugin.registered"
    PLUGIN_NOT_REGISTERED = "plugin.not_registered"
    PLUGIN_STOPPED = "plugin.stopped"
    PLUGIN_DEVICES_FAILED = "plugin.devices_failed"
    PLUGIN_CALL_FAILED = "plugin.call_failed"
    DEVICES_PUBLISHED = "devices.published"
    DEVICES_RETIRED = "devices.retired"
    DEVICES_DROPPED = "devices.dropped"
    HOLDERS_UNKNOWN = "holders.unknown"
    STALE_SOCKET_REMOVED = "stale_socket.removed"
    WATCH_IS_SLOW = "watch.is_slow"
    MOCK_FAULT_SET = "mock.fault_set"
    MOCK_FAULT_CLEARED = "mock.fault_cleared"
    WATCH_LISTED = "watch.listed"
    WATCH_FAILED = "watch.failed"
    WATCH_SKIPPED = "watch.skipped"
    WATCH_HANDLER_FAILED = "watch.handler_failed"
    CLUSTER_EVENT_DROPPED = "cluster_event.dropped"
    MEMORY_BLOCKS_CHANGED = "memory.blocks_changed"
    MEMORY_RUNG_CHANGED = "memory.rung_changed"
    MEMORY_ACTED = "memory.acted"
    MEMORY_WOULD_ACT = "memory.would_act"
    MEMORY_SWITCHED = "memory.switched"
    MEMORY_POD_MOVED = "memory.pod_moved"
    MEMORY_MOVE_UNFINISHED = "memory.move_unfinished"
    MEMORY_MOVE_DROPPED = "memory.move_dropped"
    MEMORY_MOVE_EXPIRED = "memory.move_expired"
    MEMORY_FACTS_MISSING = "memory.facts_missing"
    MEMORY_IDENTITY_COLLISION = "memory.identity_collision"
    MEMORY_EVICTION_FORBIDDEN = "memory.eviction_forbidden"
    MEMORY_STATE_UNSTORED = "memory.state_unstored"
    MEMORY_STATE_STORED = "memory.state_stored"
    MEMORY_TURN_FAILED = "memory.turn_failed"
    GPU_XID = "gpu.xid"
    GPU_UNFIT = "gpu.unfit"
    GPU_FIT = "gpu.fit"
    GPU_GONE = "gpu.gone"
    GPU_SILENT = "gpu.silent"
    GPU_DEVICES_DEAR = "gpu.devices_dear"
    GPU_COUNTS_SET = "gpu.counts_set"
    GPU_COUNTS_UNSET = "gpu.counts_unset"
    GPU_GIVEN = "gpu.given"
    GPU_REFUSED = "gpu.refused"
    GPU_FORGOTTEN = "gpu.forgotten"
    GPU_JUDGED = "gpu.judged"
    GPU_FLAGGED = "gpu.flagged"
    GPU_UNFLAGGED = "gpu.unflagged"
    GPU_POD_DELETED = "gpu.pod_deleted"
    GPU_POD_UNDELETED = "gpu.pod_undeleted"
    GPU_DELETIONS_BOUNDED = "gpu.deletions_bounded"
    GPU_PODS_UNREAD = "gpu.pods_unread"
    PLACEMENT_ADOPTED = "placement.adopted"
    PLACEMENT_PASSED = "placement.passed"
    PLACEMENT_FAILED = "placement.failed"
    PLACEMENT_REFUSED = "placement.refused"
    PLACEMENT_STRICT_UNMET = "placement.strict_unmet"
    PLACEMENT_MOVED = "placement.moved"
    PLACEMENT_SANDBOX_GONE = "placement.sandbox_gone"
    PLACEMENT_DRIFT = "placement.drift"
    PLACEMENT_UNPUBLISHED = "placement.unpublished"
    PLACEMENT_UNWRITTEN = "placement.unwritten"
    PLACEMENT_SWITCHED = "placement.switched"
    PLACEMENT_DOUBTFUL = "placement.doubtful"
    PLACEMENT_BEGUN_LATE = "placement.begun_late"
    PLACEMENT_STATE_SET_ASIDE = "placement.state_set_aside"
    PLACEMENT_STATE_UNSTORED = "placement.state_unstored"
    PLACEMENT_STATE_STORED = "placement.state_stored"
    USAGE_FAILED = "usage.failed"
    USAGE_RECOVERED = "usage.recovered"
    USAGE_MISSING = "usage.missing"
    USAGE_DOUBTFUL = "usage.doubtful"
    USAGE_RATIO = "usage.ratio"
    NRI_STARTED = "nri.started"
    NRI_STOPPED = "nri.stopped"
    NRI_AWAITED = "nri.awaited"
    NRI_SYNCHRONIZED = "nri.synchronized"
    NRI_DISCONNECTED = "nri.disconnected"
    NRI_LET_GO = "nri.let_go"
    NRI_REQUEST_FAILED = "nri.request_failed"
    NRI_UNKNOWN = "nri.unknown"
    HTTP_FAULT = "http.fault"
    HTTP_FEWER_CONNECTIONS = "http.fewer_connections"
    EXTENDER_OPEN = "extender.open"
    EXTENDER_TOKEN_MADE = "extender.token_made"
    USAGE_COLLISION = "usage.collision"
    EXTENDER_SERVING = "extender.serving"
    EXTENDER_STOPPED = "extender.stopped"
    EXTENDER_REFUSED = "extender.refused"
    EXTENDER_FAULT = "extender.fault"
    GPU_BIND_FAILED = "gpu.bind_failed"
    GPU_BOOK_UNREAD = "gpu.book_unread"
    GPU_UNSEALED = "gpu.unsealed"
    EXTENDER_FILE_RELOADED = "extender.file_reloaded"
    EXTENDER_FILE_REFUSED = "extender.file_refused"
    SCHEDULER_STARTED = "scheduler.started"
    SCHEDULER_READY = "scheduler.ready"
    SCHEDULER_STOPPED = "scheduler.stopped"
    FILTER_ALL_HOT = "filter.all_hot"
    FILTER_COOLER = "filter.cooler"
    DECISIONS_READABLE = "decisions.readable"
    DECISIONS_NOT_WRITTEN = "decisions.not_written"
    TAINTS_FOUND = "taints.found"
    TAINTS_CHANGED = "taints.changed"
    TAINTS_FAILED = "taints.failed"
    TAINTS_HANDED_OVER = "taints.handed_over"
    TAINTS_PASSED_ON = "taints.passed_on"
    TAINTS_REMOVED = "taints.removed"
    TAINTS_LEFT = "taints.left"
    LEASE_TAKEN = "lease.taken"
    LEASE_LOST = "lease.lost"
    LEASE_FAILED = "lease.failed"
    CRI_PROXY_STARTED = "cri_proxy.started"
    CRI_PROXY_STOPPED = "cri_proxy.stopped"
    CRI_ACCESS_DIFFERS = "cri_proxy.access_differs"
    CRI_RECONCILED = "cri_proxy.reconciled"
    CRI_NOT_RECONCILED = "cri_proxy.not_reconciled"
    CRI_RUNTIME_LOST = "cri_proxy.runtime_lost"
    CRI_PLACEMENT_ENDED = "cri_proxy.placement_ended"
    CRI_DECISION_FAILED = "cri_proxy.decision_failed"
    CRI_PIN_FAILED = "cri_proxy.pin_failed"
    LAB_REQUEST_FAILED = "lab_api.request_failed"
    LAB_CONTROLLER_FAILED = "lab_api.controller_failed"
    LAB_ATTEMPT_FAILED = "lab_scheduler.attempt_failed"
    LAB_EXTENDER_PASSED_OVER = "lab_scheduler.extender_passed_over"
    LAB_OBJECT_UNREADABLE = "lab_scheduler.object_unreadable"
    LAB_SETTINGS_IGNORED = "lab_scheduler.settings_ignored"
    LAB_STATUS_NOT_WRITTEN = "lab_scheduler.status_not_written"
    LAB_EVENT_NOT_RECORDED = "lab_scheduler.event_not_recorded"


CPUS_BELOW_LIMIT = Gauge(
    "colocate_cpus_below_limit", "Containers that can run on fewer CPUs than their limit allows."
)
CPUS_SHORT = Gauge(
    "colocate_cpus_short", "Containers whose pool had fewer free CPUs than they requested when placed."
)
NRI_CONNECTED = Gauge("colocate_nri_connected", "1 while a container runtime has the NRI plugin registered.")
NRI_REQUESTS = Counter(
    "colocate_nri_requests_total",
    "NRI requests of the container runtime, by outcome.",
    ["method", "outcome"],
)
NRI_REQUEST_SECONDS = Histogram(
    "colocate_nri_request_duration_seconds",
    "How long the NRI plugin took to answer the container runtime.",
    ["method"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 2),
)
CPUS_FREE = Gauge(
    "colocate_cpus_free", "CPUs that containers can still request, by CCX and NUMA node.", ["kind", "pool"]
)
CPUS_WHOLE_CCXS = Gauge(
    "colocate_cpus_whole_ccxs",
    "CCXs that are completely free now, and that moves of shared containers could free.",
    ["when"],
)
CPUS_CONTAINERS = Gauge(
    "colocate_cpus_containers", "Running containers, by the way they use their CPUs.", ["mode"]
)
CPUS_PASSED = Counter(
    "colocate_cpus_passed_total",
    "Requests that passed without a decision, by reason.",
    ["reason"],
)
CPUS_REFUSED = Counter("colocate_cpus_refused_total", "Containers that a strict wish kept from starting.")
CPUS_STRICT_UNMET = Gauge(
    "colocate_cpus_strict_unmet",
    "Containers with a strict wish that run on several CCXs, started before the placer could refuse them.",
)
CPUS_DRIFT = Counter(
    "colocate_cpus_drift_total",
    "Containers whose cpuset differed from the assignment, by what was done.",
    ["outcome"],
)
CPUS_MOVES = Counter(
    "colocate_cpus_moves_total", "Containers that were moved to other CPUs, by reason.", ["reason"]
)
CPUS_UNWRITTEN = Gauge(
    "colocate_cpus_unwritten",
    "Containers whose new CPUs the runtime has not accepted yet; tried again.",
)
CPUS_STATE_STORED = Gauge("colocate_cpus_state_stored", "1 while the placer can store its state.")
CPUS_DECISION_SECONDS = Histogram(
    "colocate_cpus_decision_duration_seconds",
    "How long a decision took, from the event to the answer, including storing its state.",
    ["event"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 2),
)
PLUGIN_REGISTRATIONS = Counter(
    "colocate_plugin_registrations_total", "Attempts to register with the kubelet.", ["resource", "outcome"]
)
PLUGIN_REGISTERED = Gauge(
    "colocate_plugin_registered", "1 while the kubelet listens to this plugin's device list.", ["resource"]
)
PLUGIN_DEVICES = Gauge(
    "colocate_plugin_devices", "Devices in the list for the kubelet.", ["resource", "health"]
)
PLUGIN_UPDATES = Counter(
    "colocate_plugin_list_updates_total", "Device lists sent to the kubelet.", ["resource"]
)
PLUGIN_CALLS = Counter(
    "colocate_plugin_calls_total",
    "Calls from the kubelet, by method and outcome.",
    ["resource", "method", "outcome"],
)
PLUGIN_CALL_SECONDS = Histogram(
    "colocate_plugin_call_duration_seconds",
    "How long the plugin took to answer the kubelet.",
    ["resource", "method"],
    buckets=(0.001, 0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30),
)
PLUGIN_ERRORS = Counter(
    "colocate_plugin_errors_total", "Exceptions in a plugin's own code.", ["resource", "where"]
)
CLUSTER_REQUESTS = Counter(
    "colocate_cluster_requests_total",
    "Requests to the API server, by verb, resource and outcome.",
    ["verb", "resource", "outcome"],
)
CLUSTER_REQUEST_SECONDS = Histogram(
    "colocate_cluster_request_duration_seconds",
    "How long the API server took to begin its answer.",
    ["verb", "resource"],
    buckets=(0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30, 60),
)
WATCH_OBJECTS = Gauge("colocate_watch_objects", "Objects that a watch cache holds.", ["resource"])
WATCH_CONTACT = Gauge(
    "colocate_watch_last_contact_timestamp_seconds",
    "When the API server last said anything to a watch cache.",
    ["resource"],
)
WATCH_LISTS = Counter(
    "colocate_watch_lists_total", "Complete lists that a watch cache read, by reason.", ["resource", "reason"]
)
WATCH_ERRORS = Counter("colocate_watch_errors_total", "Errors of a watch cache.", ["resource", "error"])
WATCH_SKIPPED = Counter(
    "colocate_watch_skipped_total", "Objects that a watch cache could not read.", ["resource"]
)
CLUSTER_EVENTS = Counter(
    "colocate_cluster_events_total",
    "Events about objects of the cluster, by outcome.",
    ["outcome"],
)
EVICTIONS = Counter("colocate_cluster_evictions_total", "Requested evictions, by outcome.", ["outcome"])
EXTENDER_REQUESTS = Counter(
    "colocate_extender_requests_total",
    "Requests to the scheduler extender, by verb and outcome.",
    ["verb", "outcome"],
)
EXTENDER_REQUEST_SECONDS = Histogram(
    "colocate_extender_request_duration_seconds",
    "How long the extender took from the headers of a request to the end of its answer.",
    ["verb"],
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 5),
)
HTTP_CONNECTIONS_CLOSED = Counter(
    "colocate_http_connections_closed_total",
    "Connections that an HTTP server of Colocate closed, by server and reason.",
    ["server", "reason"],
)

SCHEDULER_DECISIONS = Counter("colocate_scheduler_decisions_total", "Pods that were scored.", ["shadow"])
SCHEDULER_FOLLOWED = Counter(
    "colocate_scheduler_followed_total",
    "Scored pods that were bound, by whether their node was one of the best.",
    ["followed"],
)
SCHEDULER_REFUSALS = Counter(
    "colocate_scheduler_refused_nodes_total", "Candidate nodes that the filter refused.", ["shadow"]
)
GPU_BINDINGS = Counter(
    "colocate_scheduler_gpu_bindings_total", "Bindings of pods with GPUs, by outcome.", ["outcome"]
)
GPU_UNSEALED = Gauge(
    "colocate_gpu_bookings_unsealed", "1 while the scheduler has no key to seal its bookings with."
)
GPU_PREEMPTIONS_REFUSED = Counter(
    "colocate_scheduler_gpu_preemptions_refused_total",
    "Nodes refused for preemption: their victims would not free a GPU that fits.",
)
GPUS_UNALLOCATED = Gauge(
    "colocate_scheduler_gpus_unallocated",
    "Healthy GPUs of the cluster that no pod has; parts count as fractions.",
)
SCHEDULER_ALL_HOT = Counter(
    "colocate_scheduler_all_hot_total",
    "Filter requests without a candidate that was cool enough, by outcome.",
    ["outcome", "shadow"],
)
SCHEDULER_LINES_DROPPED = Counter(
    "colocate_scheduler_decision_lines_dropped_total",
    "Lines of decisions that were not written to their file.",
)
TAINT_WRITES = Counter(
    "colocate_scheduler_taint_writes_total", "Writes of heat taints to nodes, by outcome.", ["outcome"]
)
TAINTS_WAITING = Gauge(
    "colocate_scheduler_taints_waiting",
    "Nodes whose taints wait for the limit per minute.",
)
NODE_HEAT = Gauge("colocate_scheduler_nodes_at_heat", "Nodes by heat level.", ["level"])
LEASE_HELD = Gauge("colocate_scheduler_lease_held", "1 while this process writes the taints.")

USAGE_QUERIES = Counter(
    "colocate_usage_queries_total",
    "Questions about the use of nodes and pods, by signal and outcome.",
    ["signal", "outcome"],
)
USAGE_QUERY_SECONDS = Histogram(
    "colocate_usage_query_duration_seconds",
    "How long it took to read the complete answer about one signal.",
    ["signal"],
    buckets=(0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30),
)
USAGE_LAST_SUCCESS = Gauge(
    "colocate_usage_last_success_timestamp_seconds",
    "When the last good answer about a signal arrived.",
    ["signal"],
)
USAGE_SAMPLES = Gauge(
    "colocate_usage_samples",
    "Nodes or pods that have a value in the last good answer, nodes that have none, and nodes that are contested.",
    ["signal", "state"],
)
USAGE_SERIES = Counter(
    "colocate_usage_rejected_series_total",
    "Series that were not used, by reason.",
    ["signal", "reason"],
)

MEMORY_BYTES = Gauge(
    "colocate_memory_bytes",
    "How the node's memory is used: system, online, colocated, debt, published, idle, safety; owed and due.",
    ["resource", "part"],
)
MEMORY_BLOCKS = Gauge(
    "colocate_memory_blocks", "Memory blocks that are free, held and withdrawn.", ["resource", "state"]
)
MEMORY_RUNG = Gauge(
    "colocate_memory_rung",
    "The rung of the ladder: -1 none, 0 withdraw, 1 reclaim, 2 throttle, 3 far, 4 evict, 5 recreate.",
    ["resource"],
)
MEMORY_ACTIONS = Counter(
    "colocate_memory_actions_total",
    "Actions on colocated pods, by result.",
    ["resource", "action", "result"],
)
MEMORY_STATE_STORED = Gauge(
    "colocate_memory_state_stored",
    "1 while the agent can store its state; at 0 no block is offered or given out.",
    ["resource"],
)
MEMORY_TURNS = Counter(
    "colocate_memory_turns_total",
    "Turns of the agent for the node's memory, by outcome.",
    ["resource", "outcome"],
)
MEMORY_TURN_SECONDS = Histogram(
    "colocate_memory_turn_duration_seconds",
    "How long a turn took: reading, deciding, acting.",
    ["resource"],
    buckets=(0.005, 0.025, 0.1, 0.5, 1, 2.5, 5, 10, 30),
)

GPU_HEALTHY = Gauge("colocate_gpu_healthy", "1 while new pods may get memory of a GPU.", ["gpu"])
GPU_MEMORY = Gauge(
    "colocate_gpu_memory_bytes",
    "Memory of a GPU: total, booked by pods, used according to the driver.",
    ["gpu", "state"],
)
GPU_CORES = Gauge("colocate_gpu_cores_booked", "Hundredths of a GPU that pods have booked.", ["gpu"])
GPU_POD_MEMORY = Gauge(
    "colocate_gpu_pod_memory_bytes",
    "Memory of a GPU that a pod booked, and that its processes use according to the driver.",
    ["gpu", "namespace", "pod", "state"],
)
GPU_POD_CORES = Gauge(
    "colocate_gpu_pod_cores_booked", "Hundredths of a GPU that a pod has booked.", ["gpu", "namespace", "pod"]
)
GPU_MISMATCHES = Gauge(
    "colocate_gpu_mismatches",
    "Pods for which a source disagrees with the agent about their GPUs.",
    ["source"],
)
GPU_XIDS = Counter(
    "colocate_gpu_xids_total", "Errors that the driver reported, by GPU and XID number.", ["gpu", "xid"]
)
GPU_ANSWERS = Counter(
    "colocate_gpu_answers_total",
    "Allocate calls for GPU memory, by outcome.",
    ["resource", "outcome"],
)
GPU_ANNOUNCEMENTS = Counter(
    "colocate_gpu_announcements_total", "Writes of the node annotation that says which pod has which GPU."
)
GPU_HELD_UP = Counter(
    "colocate_gpu_held_up_seconds_total",
    "Seconds that the kubelet waited because a pod was not known yet.",
    ["resource"],
)
GPU_DELETIONS_WITHHELD = Counter(
    "colocate_gpu_deletions_withheld_total",
    "Pods that must not start but were not deleted, because their controller or the node reached its limit.",
    ["bound"],
)
GPU_VERDICTS = Counter(
    "colocate_gpu_verdicts_total",
    "Containers whose GPU was checked before they started: proven, or condemned.",
    ["resource", "verdict"],
)

CRI_ADDED_SECONDS = Histogram(
    "colocate_cri_proxy_added_seconds",
    "Time that the CRI proxy added to a call that it watches.",
    ["method"],
    buckets=(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.01, 0.05, 0.25, 1, 5),
)
CRI_PASSED = Counter(
    "colocate_cri_proxy_passed_total",
    "Calls about CPUs that passed without a decision, by reason.",
    ["method", "reason"],
)

LOG_LINES_LOST = Counter(
    "colocate_log_lines_lost_total",
    "Log lines lost because standard error is a full disk or a closed pipe.",
)


class _LossyStream:
    """A stream of log lines that counts a line it cannot write, and goes on.

    Not an `io.TextIOBase`: that flushes when it is deleted, and the stream below may be closed by then.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError:
            LOG_LINES_LOST.inc()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError:
            LOG_LINES_LOST.inc()


_PLUGIN_METRICS = "colocate_plugin_"
_registered: WeakKeyDictionary[CollectorRegistry, set[str]] = WeakKeyDictionary()


def declared_metrics() -> Mapping[str, Metric]:
    """Every metric of this module by name, without the suffix `_total`."""
    metrics = [value for value in globals().values() if isinstance(value, Metric)]
    return {family.name: metric for metric in metrics for family in metric.describe()}


def register_metrics(registry: CollectorRegistry = REGISTRY) -> None:
    """Add every metric to a registry, for a process of Colocate. Metrics that are already in it stay."""
    _register("", registry)


def register_plugin_metrics(registry: CollectorRegistry) -> None:
    """Add only the metrics of the device-plugin SDK to a registry. Metrics that are already in it stay."""
    _register(_PLUGIN_METRICS, registry)


def _register(prefix: str, registry: CollectorRegistry) -> None:
    known = _registered.setdefault(registry, set())
    for name, metric in declared_metrics().items():
        if name.startswith(prefix) and name not in known:
            registry.register(metric)
            known.add(name)


def configure_logs(style: str = "auto", level: str = "info", stream: TextIO | None = None) -> None:
    """Log to standard error: `json`, `text`, or `auto`, which is text on a terminal and JSON elsewhere."""
    out = stream or sys.stderr
    as_text = style == "text" or (style == "auto" and out.isatty())
    render: list[structlog.typing.Processor] = (
        # Plain tracebacks: the pretty ones print local variables, which may hold secrets.
        [
            _visible_values,
            structlog.dev.ConsoleRenderer(colors=out.isatty(), exception_formatter=_visible_traceback),
        ]
        if as_text
        else [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    )
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%S" if as_text else "iso", utc=not as_text),
            *render,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _LossyStream(out))),
        cache_logger_on_first_use=False,
    )


class _Quoted:
    """A text that the renderer shows as its Python repr."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _visible_values(_: object, __: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escape control characters in texts from servers: structlog quotes only texts with blanks."""
    return {
        name: _Quoted(value) if isinstance(value, str) and not value.isprintable() else value
        for name, value in event.items()
    }


def _visible_traceback(out: TextIO, found: structlog.typing.ExcInfo) -> None:
    lines = io.StringIO()
    structlog.dev.plain_traceback(lines, found)
    out.write("\n".join(map(visible, lines.getvalue().split("\n"))))


def configure_logs_once(style: str) -> None:
    """Configure logs, unless this process has configured structlog already."""
    if not structlog.is_configured():
        configure_logs(style)


def logger(**fields: str) -> structlog.typing.FilteringBoundLogger:
    """The logger of this process; `fields` are added to every event."""
    log: structlog.typing.FilteringBoundLogger = structlog.get_logger(**fields)
    return log
