"""`kubectl logs` and `kubectl exec` on the lab's own machine, with an old and a new kubectl; and what is absent."""

import asyncio
import os
import pty
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from tests.support import components
from tests.support.waiting import until

from colocate.lab.cluster import MACHINE, LabCluster
from colocate.lab.nodes.shape import generated
from colocate.lab.pod_runtime import ProcessRuntime

REPO = Path(__file__).parents[2]
pytestmark = pytest.mark.needs("kubectl-1.20", "kubectl-1.36")


class LabUser:
    """A person with a kubectl of either age, on a lab with this machine and a simulated node."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.flag = folder / "flag"

    async def kubectl(self, *words: str, age: str = "1.36", given: str = "", code: int = 0) -> str:
        process = await self.start(*words, age=age)
        out, _ = await asyncio.wait_for(process.communicate(given.encode()), 60)
        assert process.returncode == code, out.decode()
        return out.decode()

    async def start(self, *words: str, age: str = "1.36") -> asyncio.subprocess.Process:
        program = components.find(f"kubectl-{age}")
        assert program
        return await asyncio.create_subprocess_exec(
            *[program, *words],
            env={"KUBECONFIG": str(self.folder / "kubeconfig"), "HOME": str(self.folder), "PATH": os.defpath},
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )

    async def run(self, name: str, script: str, node: str = MACHINE) -> None:
        container = {
            "name": "main",
            "image": "any",
            "command": ["sh", "-c", script],
            "env": [{"name": "WORD", "value": "hey"}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}}
        spec = {"nodeName": node, "containers": [container], "terminationGracePeriodSeconds": 0}
        await self.kubectl("apply", "-f", "-", given=yaml.safe_dump(pod | {"spec": spec}))
        await self.kubectl("wait", f"pod/{name}", "--for=condition=Ready", "--timeout=50s")


@pytest.fixture
async def user() -> AsyncIterator[LabUser]:
    with tempfile.TemporaryDirectory(prefix="colo-") as folder:
        user = LabUser(Path(folder))
        runtime = ProcessRuntime(user.folder / "pods", parent=f"colocate-streams-{os.getpid()}")
        cluster = LabCluster(user.folder, runtime=runtime, nodes=generated(1))
        async with cluster.running():
            cluster.server.write_kubeconfig(user.folder / "kubeconfig")
            yield user


@pytest.mark.parametrize("age", ["1.20", "1.36"])
async def test_logs_of_a_container_in_whole_in_part_and_as_they_come(user: LabUser, age: str) -> None:
    script = (
        f"echo one; echo two; while [ ! -e {user.flag} ]; do sleep 0.05; done; echo three; exec sleep 600"
    )
    await user.run("talker", script)
    assert await user.kubectl("logs", "talker", age=age) == "one\ntwo\n"
    assert await user.kubectl("logs", "talker", "--tail=1", age=age) == "two\n"
    following = await user.start("logs", "-f", "talker", "--tail=1", age=age)
    assert following.stdout is not None
    assert await asyncio.wait_for(following.stdout.readline(), 60) == b"two\n"
    user.flag.touch()
    assert await asyncio.wait_for(following.stdout.readline(), 60) == b"three\n"
    await user.kubectl("delete", "pod", "talker")
    assert await asyncio.wait_for(following.wait(), 60) == 0
    assert 'pods "talker" not found' in await user.kubectl("logs", "talker", age=age, code=1)


async def test_logs_of_the_start_before(user: LabUser) -> None:
    starts = user.folder / "starts"
    script = f"echo start >> {starts}; wc -l < {starts}; [ $(wc -l < {starts}) -gt 1 ] || exit 1; sleep 600"
    missing = asyncio.create_task(user.run("phoenix", script))
    await until(lambda: starts.exists() and len(starts.read_text().splitlines()) == 2, "its second start")
    await missing
    assert (await user.kubectl("logs", "phoenix")).strip() == "2"
    assert (await user.kubectl("logs", "phoenix", "--previous")).strip() == "1"


async def test_exec_has_the_streams_the_variables_and_the_exit_code_of_its_command(user: LabUser) -> None:
    await user.run("host", "sleep 600")
    said = await user.kubectl("exec", "host", "--", "sh", "-c", "echo $WORD; exit 3", code=3)
    assert said.splitlines() == ["hey", "command terminated with exit code 3"]
    assert await user.kubectl("exec", "-i", "host", "--", "tr", "a-z", "A-Z", given="loud") == "LOUD"
    groups = await user.kubectl("exec", "host", "--", "cat", "/proc/self/cgroup")
    if os.geteuid() == 0:
        assert "colocate-streams" in groups


async def test_exec_on_a_terminal(user: LabUser) -> None:
    await user.run("host", "sleep 600")
    ours, its = pty.openpty()
    program = components.find("kubectl-1.36")
    assert program
    process = await asyncio.create_subprocess_exec(
        *[program, "exec", "-it", "host", "--", "sh", "-c", "tty; read word; echo got $word"],
        env={"KUBECONFIG": str(user.folder / "kubeconfig"), "HOME": str(user.folder), "TERM": "xterm"},
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    os.set_blocking(ours, False)
    shown = ""

    def read() -> str:
        nonlocal shown
        try:
            shown += os.read(ours, 4096).decode()
        except OSError:
            pass
        return shown

    await until(lambda: "/dev/pts/" in read(), "a terminal", 30)
    os.write(ours, b"this\n")
    await until(lambda: "got this" in read(), "an answer", 30)
    assert await asyncio.wait_for(process.wait(), 30) == 0
    os.close(ours)


async def test_what_cannot_be_had_is_said_in_a_sentence(user: LabUser) -> None:
    await user.run("host", "sleep 600")
    spdy = await user.kubectl("exec", "host", "--", "true", age="1.20", code=1)
    assert "speaks WebSocket for exec, and this kubectl SPDY; use kubectl 1.31 or newer" in spdy
    await user.run("elsewhere", "sleep 600", node="node-0001")
    nowhere = await user.kubectl("exec", "elsewhere", "--", "true", code=1)
    assert "only pods on this machine's node have processes" in nowhere
    silent = await user.kubectl("logs", "elsewhere", code=1)
    assert "pods on simulated nodes have no output" in silent
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "disk"}}
    refused = await user.kubectl("create", "--validate=false", "-f", "-", given=yaml.safe_dump(claim), code=1)
    assert "the embedded cluster has no persistentvolumeclaims" in refused
    refused = await user.kubectl("port-forward", "pod/host", "8080:80", code=1)
    assert "the embedded cluster has no pods/portforward" in refused
    assert "not valid for pod host" in await user.kubectl("logs", "host", "-c", "other", code=1)


CLUSTER_OBJECTS = sorted(
    path
    for path in (REPO / "examples").rglob("*.yaml")
    if all(one and "kind" in one for one in yaml.safe_load_all(path.read_text()))
    and path.parent.name != "patches"  # the next test applies them
)
# An API server turns stringData into data, so that kubectl finds it missing: on any cluster.
ALWAYS_CONFIGURED = {"secret/mem-real-usage-scheduler configured"}


@pytest.mark.parametrize("age", ["1.20", "1.36"])
async def test_our_own_manifests_applied_twice_are_unchanged(user: LabUser, age: str) -> None:
    assert len(CLUSTER_OBJECTS) >= 15
    # Namespaces and accounts come first, as the documents say.
    first = [path for path in CLUSTER_OBJECTS if path.name in ("namespace.yaml", "rbac.yaml")]
    rest = [path for path in CLUSTER_OBJECTS if path not in first]
    for path in (*first, *rest):
        said = await user.kubectl("apply", "-f", str(path), age=age)
        assert all(line.endswith(" created") for line in said.splitlines()), said
    for path in CLUSTER_OBJECTS:
        again = await user.kubectl("apply", "-f", str(path), age=age)
        changed = {line for line in again.splitlines() if not line.endswith(" unchanged")}
        assert changed <= ALWAYS_CONFIGURED, again


async def test_our_own_manifests_do_what_they_say(user: LabUser) -> None:
    for name in ("rbac.yaml", "namespace.yaml", "daemonset.yaml"):
        await user.kubectl("apply", "-f", str(REPO / "examples" / "memory" / name))
    shown = await user.kubectl("-n", "kube-system", "get", "daemonset", "colocate-agent", "--no-headers")
    assert shown.split()[1] == "2"
    far = str(REPO / "examples" / "memory" / "patches" / "far-pages.yaml")
    await user.kubectl("-n", "kube-system", "patch", "daemonset", "colocate-agent", "--patch-file", far)
    await user.kubectl("create", "secret", "generic", "s", "--from-literal=token=t0k3n")
    assert "Opaque" in await user.kubectl("get", "secrets")
    await user.kubectl("create", "job", "sum", "--image=any", "--", "true")
    await user.kubectl("create", "service", "clusterip", "web", "--tcp=80")
    assert "web" in await user.kubectl("get", "services", "-A")


@pytest.mark.parametrize(("cpu", "said"), [("1", "unchanged"), (1, "configured")])
@pytest.mark.parametrize("age", ["1.20", "1.36"])
async def test_a_pod_that_is_applied_twice_stays_as_it_is(
    user: LabUser, age: str, cpu: object, said: str
) -> None:
    """A number for a quantity makes kubectl send a patch, on any cluster; it changes nothing."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "same"},
        "spec": {"containers": [{"name": "main", "image": "any", "resources": {"limits": {"cpu": cpu}}}]},
    }
    await user.kubectl("apply", "-f", "-", given=yaml.safe_dump(pod), age=age)
    containers = ("get", "pod", "same", "-o", "jsonpath={.spec.containers}")
    before = await user.kubectl(*containers, age=age)
    assert '"cpu":"1"' in before
    assert await user.kubectl("apply", "-f", "-", given=yaml.safe_dump(pod), age=age) == f"pod/same {said}\n"
    assert await user.kubectl(*containers, age=age) == before
