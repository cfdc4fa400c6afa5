"""An embedded cluster whose time passes whenever the one under test waits, and whoever asks it for resources."""

import asyncio
import shutil
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.support.plugins import FAN, Fans

from colocate.clock import ManualClock, SystemClock
from colocate.cluster.client import Client, ClientSettings
from colocate.cluster.connection import Connection, Login
from colocate.cluster.secret import Secret
from colocate.cluster.transport import Request
from colocate.devices.resources.local_kubelet import LocalKubelet
from colocate.devices.resources.observe import ResourceLook, ResourceObserver
from colocate.devices.resources.removal import Removal, RemovalSettings
from colocate.devices.resources.steps import Report, Step
from colocate.gpus import WRITTEN_BESIDE
from colocate.host.identity import this_machine
from colocate.kubelet.paths import KubeletPaths
from colocate.lab.api.managed_fields import FieldWriter
from colocate.lab.api.objects import Object
from colocate.lab.api.resources import NODES, PODS
from colocate.lab.api.users import MASTERS, User, known
from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.nodes.shape import LabNodeShape
from colocate.testing import TestNode

ADMIN = "admin-token"
ELSEWHERE = KubeletPaths(Path("/nowhere"))

Deed = Callable[[], Awaitable[None]]


class Pacer:
    """A clock whose sleeper moves everybody's time; deeds happen at their moments on the way.

    Of several tasks only the leader does: a timer beside it is woken when its moment comes.
    """

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.leader: asyncio.Task[Any] | None = None
        self.held_up = 0.0
        """Seconds for which the whole process stood still, which woke nobody."""
        self._due: list[tuple[float, Deed]] = []

    def at(self, seconds: float, deed: Deed) -> None:
        """Do something once so many seconds have passed from now."""
        self._due.append((self._clock.monotonic() + seconds, deed))

    def time(self) -> float:
        return self._clock.time()

    def monotonic(self) -> float:
        return self._clock.monotonic() + self.held_up

    async def sleep(self, seconds: float) -> None:
        if asyncio.current_task() is not self.leader:
            await self._clock.sleep(seconds)
            return
        await self._clock.advance(seconds)
        for one in [one for one in self._due if one[0] <= self._clock.monotonic()]:
            self._due.remove(one)
            await one[1]()


class SlowClient(Client):
    """A client whose requests of one verb take long on the test's clock, before the server has them or after."""

    def __init__(
        self, client: Client, pacer: Pacer, verb: str, *, before: float = 0.0, after: float = 0.0
    ) -> None:
        super().__init__(client.connection, settings=client.settings)
        self._pacer = pacer
        self._verb = verb
        self._before = before
        self._after = after

    async def ask(self, request: Request) -> bytes:
        slow = request.doing.verb == self._verb
        if slow and self._before:
            await self._pacer.sleep(self._before)
        answer = await super().ask(request)
        if slow and self._after:
            await self._pacer.sleep(self._after)
        return answer


class ResourceLab:
    """The cluster, and what tests do with it."""

    def __init__(self, cluster: LabCluster, clock: ManualClock) -> None:
        self.cluster = cluster
        self.clock = clock
        self.pacer = Pacer(clock)
        self.node = TestNode(cluster.kubelet, clock)
        self.steps: list[Step] = []

    def client(self, token: str = ADMIN) -> Client:
        connection = Connection(
            self.cluster.server.url, "the test", insecure=True, login=Login(token=Secret(token))
        )
        return Client(connection, settings=ClientSettings(attempts=1))

    def slow_client(self, verb: str, *, before: float = 0.0, after: float = 0.0) -> Client:
        return SlowClient(self.client(), self.pacer, verb, before=before, after=after)

    def let_in(self, token: str, user: User) -> None:
        self.cluster.server.authenticator.add_token(token, user)

    def observer(self, client: Client, *, on_node: bool = False, said: str = "") -> ResourceObserver:
        paths = self.cluster.kubelet.paths if on_node else ELSEWHERE
        kubelet = LocalKubelet(paths, this_machine(), SystemClock(), node=said)
        return ResourceObserver(client, kubelet, self.pacer, WRITTEN_BESIDE)

    async def look(self, *, on_node: bool = False, node: str = MACHINE) -> ResourceLook:
        async with self.client() as client:
            return await self.observer(client, on_node=on_node).node(node)

    async def remove(
        self, name: str, *, node: str = MACHINE, token: str = ADMIN, on_node: bool = False, **settings: Any
    ) -> list[Step]:
        """Remove a resource; the steps, which are kept in `steps` too if it fails."""
        async with self.client(token) as client:
            observer = self.observer(client, on_node=on_node)
            await self.removal(client, name, node=node, observer=observer, **settings).run()
        return self.steps

    def removal(
        self,
        client: Client,
        name: str,
        *,
        node: str = MACHINE,
        observer: ResourceObserver | None = None,
        report: Report | None = None,
        spent: float = 0.0,
        **settings: Any,
    ) -> Removal:
        """A removal that the calling task will run, and in which time passes whenever it waits."""
        self.steps = []
        self.pacer.leader = asyncio.current_task()
        return Removal(
            client,
            observer or self.observer(client),
            self.pacer,
            node,
            name,
            RemovalSettings(**settings),
            report or self.steps.append,
            spent,
        )

    def told(self) -> list[str]:
        """The kinds of steps, without repetitions."""
        names = [type(step).__name__ for step in self.steps]
        return [name for n, name in enumerate(names) if n == 0 or names[n - 1] != name]

    def status(self, node: str = MACHINE) -> Object:
        status: Object = self.cluster.registry.get(NODES, "", node).body["status"]
        return status

    def capacity(self, name: str, node: str = MACHINE) -> tuple[str | None, str | None]:
        status = self.status(node)
        return status["capacity"].get(name), status["allocatable"].get(name)

    def patch_by_hand(self, name: str, count: str | None, node: str = MACHINE) -> None:
        """As a client would, without one."""

        def change(body: Object) -> None:
            if count is None:
                body["status"]["capacity"].pop(name, None)
            else:
                body["status"]["capacity"][name] = count

        self.cluster.registry.force(
            NODES, self.cluster.registry.get(NODES, "", node), change, FieldWriter("kubectl-patch", "status")
        )

    def pod(self, name: str, resource: str, count: int, node: str = MACHINE) -> None:
        container = {"name": "main", "image": "any", "resources": {"limits": {resource: str(count)}}}
        body = {"metadata": {"name": name}, "spec": {"nodeName": node, "containers": [container]}}
        self.cluster.registry.create(PODS, "default", body)

    async def sync(self) -> None:
        """Let the kubelet sync."""
        await self.clock.advance(10)


@asynccontextmanager
async def resource_lab() -> AsyncIterator[ResourceLab]:
    """A cluster of this machine and one simulated node."""
    # Not below pytest's tmp_path, whose length may pass what a unix socket's path allows.
    root = Path(tempfile.mkdtemp(prefix="colocate-"))
    clock = ManualClock()
    cluster = LabCluster(root, clock=clock, nodes=[LabNodeShape(name="other")])
    lab = ResourceLab(cluster, clock)
    lab.let_in(ADMIN, known("kubernetes-admin", MASTERS))
    try:
        async with cluster.running():
            yield lab
            await lab.node.close()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


async def dead_plugin(lab: ResourceLab, devices: int = 2) -> None:
    """A plugin is served, seen in the status, and killed."""
    group = await lab.node.serve(Fans(*(f"fan-{n}" for n in range(devices))))
    await lab.node.devices(FAN, devices)
    await lab.sync()
    assert lab.capacity(FAN) == (str(devices), str(devices))
    await lab.node.kill(group)
    await lab.node.devices(FAN, 0)
    await lab.sync()
    assert lab.capacity(FAN) == (str(devices), "0")
