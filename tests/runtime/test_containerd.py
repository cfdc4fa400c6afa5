"""Every containerd that the suites lean on works on this machine: a container's whole life, and its cpuset."""

from collections.abc import AsyncIterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from tests.support.containerd import VERSIONS, Containerd, Kubelet, running

from colocate.wire import cri_methods as methods
from colocate.wire import cri_pb2 as cri

pytestmark = pytest.mark.needs("runc", "busybox", *VERSIONS.values())


@pytest.fixture(params=VERSIONS)
async def containerd(request: pytest.FixtureRequest) -> AsyncIterator[Containerd]:
    with TemporaryDirectory(prefix="ctrd") as folder:
        async with running(Path(folder), request.param) as containerd:
            yield containerd


async def test_a_container_lives_and_its_cpuset_is_the_one_it_was_given(containerd: Containerd) -> None:
    async with Kubelet(containerd.socket, containerd.cgroup_parent) as kubelet:
        version = await kubelet.call(methods.VERSION, cri.VersionRequest())
        assert version.runtime_version.startswith(containerd.version)
        sandbox = await kubelet.run_sandbox("one")
        container = await kubelet.create(sandbox, "main", cpus=1, guaranteed=True)
        await kubelet.start(container)
        everything = await kubelet.cpus_allowed(container)
        assert everything != "0"
        await kubelet.call(
            methods.UPDATE_RESOURCES,
            cri.UpdateContainerResourcesRequest(
                container_id=container, linux=cri.LinuxContainerResources(cpuset_cpus="0")
            ),
        )
        assert await kubelet.cpus_allowed(container) == "0"
        await kubelet.resize(container, 2, guaranteed=True)
        assert await kubelet.cpus_allowed(container) == "0"
        await kubelet.stop(container)
        assert [found.state for found in await kubelet.containers()] == [cri.CONTAINER_EXITED]
        await kubelet.remove(container)
        await kubelet.remove_all()
        assert await kubelet.containers() == []
