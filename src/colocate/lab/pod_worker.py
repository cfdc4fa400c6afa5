"""Runs one pod of the embedded kubelet from admission to its end: init containers, restarts, status."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import msgspec

from colocate.aio import first
from colocate.clock import Clock
from colocate.errors import ColocateError
from colocate.lab.device_manager import DeviceManager, TopologyAffinityError
from colocate.lab.device_table import AdmissionError
from colocate.lab.pod_runtime import PodRuntime, RunningContainer
from colocate.model.pod import (
    Container,
    ContainerState,
    ContainerStatus,
    EnvVar,
    Phase,
    Pod,
    PodStatus,
    Running,
    Terminated,
    Waiting,
    qos_class,
)

FIRST_BACK_OFF = 10.0
LAST_BACK_OFF = 300.0
FORGIVEN_AFTER = 600.0


class NotUnderstood(ColocateError):
    """A container uses a feature that the embedded kubelet does not support."""


class PodRecord:
    """A pod and its status, as the API server would keep them; both survive a restart of the kubelet."""

    pod: Pod
    """The pod, with `pod.uid` and `pod.key` (namespace/name)."""
    status: PodStatus
    """Its `phase`, with `reason` and `message`, and the statuses of its containers."""

    def __init__(self, pod: Pod) -> None:
        self.pod = pod
        self.status = PodStatus(qos_class=qos_class(pod))
        self.deleting = asyncio.Event()
        self.taken_in = False
        """Whether the kubelet knows the pod since its last start: it does from the pod's admission on."""
        self.grace: float | None = None
        """The grace period of its deletion, in seconds; None means the pod's own."""

    @property
    def finished(self) -> bool:
        """Whether it has succeeded or failed."""
        return self.status.phase in (Phase.SUCCEEDED, Phase.FAILED)

    def container(self, name: str) -> ContainerStatus | None:
        """The status of one of its containers; None before it exists."""
        known = (*self.status.init_container_statuses, *self.status.container_statuses)
        return next((status for status in known if status.name == name), None)


class PodWorker:
    """Runs one pod and updates its record."""

    def __init__(
        self,
        record: PodRecord,
        devices: DeviceManager,
        runtime: PodRuntime,
        clock: Clock,
        changed: Callable[[PodRecord], None],
        event: Callable[[Pod, str, str, str], None],
    ) -> None:
        self._record = record
        self._pod = record.pod
        self._devices = devices
        self._runtime = runtime
        self._clock = clock
        self._changed = changed
        self._event = event

    async def run(self) -> None:
        """Admit the pod, run it to its end, and remove it once it is deleted."""
        if not self._record.finished and await self._admitted():
            await self._runtime.create_pod(self._pod)
            await first(self._run_containers(), self._record.deleting.wait())
        await self._record.deleting.wait()
        await self._terminate()

    # --- admission -------------------------------------------------------------------------------

    async def _admitted(self) -> bool:
        if not self._record.status.start_time:
            self._update(start_time=self._now())
        try:
            await self._devices.admit(self._pod, self._need_nothing(), self._take_in)
        except AdmissionError as error:
            message = f"Allocate failed due to {error}, which is unexpected"
            self._reject("UnexpectedAdmissionError", message)
            return False
        except TopologyAffinityError as error:
            self._reject("TopologyAffinityError", str(error))
            return False
        return True

    def _take_in(self) -> None:
        self._record.taken_in = True

    def _need_nothing(self) -> list[str]:
        """Containers that run, and init containers that are done: a restarted kubelet skips them."""
        done = [
            status.name
            for status in self._record.status.init_container_statuses
            if status.state.terminated and status.state.terminated.exit_code == 0
        ]
        running = [c.name for c in self._pod.containers if self._runtime.running(self._pod, c.name)]
        return done + running

    def _reject(self, reason: str, message: str) -> None:
        self._update(phase=Phase.FAILED, reason=reason, message=f"Pod was rejected: {message}")
        self._event(self._pod, "Warning", reason, message)

    # --- containers ------------------------------------------------------------------------------

    async def _run_containers(self) -> None:
        sidecars: list[asyncio.Task[None]] = []
        self._ensure_statuses()
        try:
            for container in self._pod.spec.init_containers:
                if container.is_sidecar:
                    sidecars.append(asyncio.create_task(self._keep(container, "Always")))
                elif not await self._complete(container):
                    self._update(phase=Phase.FAILED)
                    return
            policy = self._pod.spec.restart_policy
            async with asyncio.TaskGroup() as tasks:
                for container in self._pod.spec.containers:
                    tasks.create_task(self._keep(container, policy))
        finally:
            for task in sidecars:
                task.cancel()
            await asyncio.gather(*sidecars, return_exceptions=True)
        codes = [_exit_code(status) for status in self._record.status.container_statuses]
        self._update(phase=Phase.FAILED if any(codes) else Phase.SUCCEEDED)

    async def _complete(self, container: Container) -> bool:
        """Run an init container until it succeeds; False where the pod must not retry."""
        status = self._record.container(container.name)
        if status and status.state.terminated and status.state.terminated.exit_code == 0:
            return True
        policy = "Never" if self._pod.spec.restart_policy == "Never" else "OnFailure"
        await self._keep(container, policy)
        return _exit_code(self._status(container)) == 0

    async def _keep(self, container: Container, policy: str) -> None:
        """Run a container and restart it by the policy, with a growing pause."""
        pause = FIRST_BACK_OFF
        while True:
            since = self._clock.monotonic()
            code = await self._run_once(container)
            if policy == "Never" or (policy == "OnFailure" and code == 0):
                return
            if self._clock.monotonic() - since >= FORGIVEN_AFTER:
                pause = FIRST_BACK_OFF
            message = f"back-off {pause:g}s restarting failed container={container.name} pod={self._pod.key}"
            ended = self._status(container).state
            self._set(container, state=_waiting("CrashLoopBackOff", message), last_state=ended)
            await self._clock.sleep(pause)
            pause = min(2 * pause, LAST_BACK_OFF)
            self._set(container, restart_count=self._status(container).restart_count + 1)

    async def _run_once(self, container: Container) -> int:
        running: RunningContainer | None = self._runtime.running(self._pod, container.name)
        if running is None:
            running = await self._create(container)
            self._set(container, state=ContainerState(running=Running(self._now())), ready=True, started=True)
        started = self._status(container).state.running
        code = await running.wait()
        ended = Terminated(
            code, "Completed" if code == 0 else "Error", started.started_at if started else "", self._now()
        )
        self._set(container, state=ContainerState(terminated=ended), ready=code == 0, started=False)
        return code

    async def _create(self, container: Container) -> RunningContainer:
        """Create a container, with retries: a container that was never created has not failed."""
        pause = FIRST_BACK_OFF
        while True:
            try:
                env = self._env(container)
                await self._devices.pre_start(self._pod, container)
                given = self._devices.allocation(self._pod, container)
                started = await self._runtime.start(self._pod, container, env, given)
                for sentence in started.left_out:
                    self._event(self._pod, "Warning", "NotMade", sentence)
                return started
            except (AdmissionError, TimeoutError) as error:
                why = f"device plugin PreStartContainer rpc failed with err: {error}"
                reason = "CreateContainerConfigError"
            except NotUnderstood as error:
                why, reason = str(error), "CreateContainerConfigError"
            except (OSError, ValueError) as error:
                why, reason = str(error), "CreateContainerError"
            self._event(self._pod, "Warning", "Failed", f"Error: {why}")
            self._set(container, state=_waiting(reason, why))
            await self._clock.sleep(pause)
            pause = min(2 * pause, LAST_BACK_OFF)

    def _env(self, container: Container) -> dict[str, str]:
        """The environment: the plugins' variables first, then the pod's own, which override them."""
        env: dict[str, str] = {}
        for response in self._devices.injected(self._pod, container):
            env |= response.envs
        if container.env_from:
            raise NotUnderstood(
                f"container {container.name}: the embedded kubelet does not support envFrom; use env"
            )
        for variable in container.env:
            env[variable.name] = self._value(container, variable)
        return env

    def _value(self, container: Container, variable: EnvVar) -> str:
        if variable.value_from is None:
            return variable.value
        marks = self._pod.metadata
        fields = {
            "metadata.name": marks.name,
            "metadata.namespace": marks.namespace,
            "metadata.uid": marks.uid,
            "spec.nodeName": self._pod.spec.node_name,
        }
        path = (variable.value_from.get("fieldRef") or {}).get("fieldPath")
        if path not in fields:
            raise NotUnderstood(
                f"container {container.name}: the embedded kubelet cannot set env {variable.name}; of valueFrom it "
                f"supports fieldRef to {', '.join(fields)}"
            )
        return fields[path]

    async def give_up(self, error: Exception) -> None:
        """Report that the lab itself failed on this pod, and remove the pod once it is deleted."""
        self._event(self._pod, "Warning", "FailedSync", f"the embedded kubelet failed: {error}")
        await self._record.deleting.wait()
        await self._terminate()

    async def _terminate(self) -> None:
        own = self._pod.spec.termination_grace_period_seconds
        grace = own if self._record.grace is None else self._record.grace
        for container in self._pod.containers:
            running = self._runtime.running(self._pod, container.name)
            if running:
                await running.stop(grace, self._clock)
        await self._runtime.remove_pod(self._pod)

    # --- status ----------------------------------------------------------------------------------

    def _ensure_statuses(self) -> None:
        if not self._record.status.container_statuses:
            self._update(
                init_container_statuses=tuple(
                    ContainerStatus(c.name, _waiting("PodInitializing"))
                    for c in self._pod.spec.init_containers
                ),
                container_statuses=tuple(ContainerStatus(c.name) for c in self._pod.spec.containers),
            )

    def _status(self, container: Container) -> ContainerStatus:
        status = self._record.container(container.name)
        assert status is not None
        return status

    def _set(self, container: Container, **changes: object) -> None:
        new = msgspec.structs.replace(self._status(container), **changes)

        def replaced(known: tuple[ContainerStatus, ...]) -> tuple[ContainerStatus, ...]:
            return tuple(new if status.name == container.name else status for status in known)

        status = self._record.status
        app = replaced(status.container_statuses)
        started = all(s.state.running or s.state.terminated or s.last_state.terminated for s in app)
        self._update(
            init_container_statuses=replaced(status.init_container_statuses),
            container_statuses=app,
            phase=Phase.RUNNING if started else Phase.PENDING,
        )

    def _update(self, **changes: object) -> None:
        self._record.status = msgspec.structs.replace(self._record.status, **changes)
        self._changed(self._record)

    def _now(self) -> str:
        return datetime.fromtimestamp(self._clock.time(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _waiting(reason: str, message: str = "") -> ContainerState:
    return ContainerState(waiting=Waiting(reason, message))


def _exit_code(status: ContainerStatus) -> int:
    return status.state.terminated.exit_code if status.state.terminated else 128
