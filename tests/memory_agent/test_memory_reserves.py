"""What the kubelet keeps from pods, asked of the kubelet itself: answered, refused, and answered with nonsense."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from colocate.lab.cluster import MACHINE
from colocate.memory.forecast import DEFAULT_EVICTION
from tests.memory_agent.driving import MIB, Driven
from tests.memory_agent.lab import memory_lab
from tests.support.waiting import until

CONFIGZ = f"/api/v1/nodes/{MACHINE}/proxy/configz"
CONFIG = {
    "kubeReserved": {"cpu": "100m", "memory": "64Mi"},
    "systemReserved": {"memory": "1Gi"},
    "evictionHard": {"memory.available": "200Mi", "nodefs.available": "10%"},
    "evictionSoft": {},
}
FORBIDDEN = {"kind": "Status", "reason": "Forbidden", "message": "nodes/proxy is forbidden", "code": 403}


@asynccontextmanager
async def answering(code: int, body: bytes) -> AsyncIterator[Driven]:
    """A part whose kubelet's configuration is asked for, and answered like this."""
    async with memory_lab() as lab:
        server = lab.cluster.server
        serve = server._serve

        async def with_configz(request: web.Request) -> web.StreamResponse:
            if request.path == CONFIGZ:
                return web.Response(status=code, body=body, content_type="application/json")
            return await serve(request)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(server, "_serve", with_configz)
            async with Driven(lab).running() as node:
                await until(lambda: node.cluster.kubelet_silent != "not asked yet", "an answer")
                yield node


async def test_safety_is_by_the_kubelets_own_configuration_where_that_may_be_asked_for() -> None:
    async with answering(200, json.dumps({"kubeletconfig": CONFIG}).encode()) as node:
        decision = await node.turn()
        assert decision.word is not None
        reserves = decision.word.reserves
        assert (reserves.kube_reserved, reserves.system_reserved) == (64 * MIB, 1024 * MIB)
        assert decision.safety.eviction == 200 * MIB
        assert decision.safety.reserved == (64 + 1024 + 200) * MIB
        assert "The kubelet evicts below 200 MiB available." in node.part.report.sentences
        assert node.cluster.kubelet_silent == ""


@pytest.mark.parametrize(
    ("code", "body", "because"),
    [
        (403, json.dumps(FORBIDDEN).encode(), "forbidden"),
        (200, b"<html>", "malformed"),
        (200, b'{"kubeletconfig": {"kubeReserved": 3}}', "kubeReserved"),
    ],
    ids=["refused", "not JSON", "not a configuration"],
)
async def test_where_the_kubelet_does_not_tell_its_default_is_kept_and_said_to_be(
    code: int, body: bytes, because: str
) -> None:
    async with answering(code, body) as node:
        decision = await node.turn()
        assert decision.safety.eviction == DEFAULT_EVICTION
        said = [each for each in node.part.report.sentences if each.startswith("The kubelet evicts below")]
        assert said == [
            "The kubelet evicts below 100 MiB available, its default, because the agent could not ask it."
        ]
        assert because in node.cluster.kubelet_silent
