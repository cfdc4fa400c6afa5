"""The extender over HTTP: answers what a real kube-scheduler asked, turns the rest away, and goes on."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client import REGISTRY

from colocate.errors import UserError
from colocate.scheduler.settings import ServerEndpoint
from tests.scheduler.asking import POD, Asking, SteeredJudge, asking, question, server
from tests.support.extender_calls import RECORDED


@pytest.fixture
def judge() -> SteeredJudge:
    return SteeredJudge()


@pytest.fixture
async def ask(judge: SteeredJudge) -> AsyncIterator[Asking]:
    async with asking(judge) as ask:
        yield ask


def compact(request: Any) -> bytes:
    return json.dumps(request, separators=(",", ":")).encode()


@pytest.mark.parametrize("line", RECORDED, ids=range(len(RECORDED)))
async def test_recorded_requests_are_answered_in_a_form_that_decodes_in_go(
    judge: SteeredJudge, ask: Asking, line: Any
) -> None:
    request = line["request"]
    body = compact(request)
    assert len(body) == int(line["headers"]["Content-Length"])
    headers = {name: value for name, value in line["headers"].items() if name != "Content-Length"}
    judge.hot = {"k8s-node-0004": "too hot"}
    answered = await ask.post(line["verb"], body, headers=headers)
    assert (answered.status, answered.headers["Content-Type"]) == (200, "application/json")
    whole = request["Nodes"] and request["Nodes"]["items"]
    names = request["NodeNames"] or [node["metadata"]["name"] for node in whole]
    if line["verb"] == "prioritize":
        assert answered.json == [{"Host": name, "Score": 5} for name in names]
        assert all(type(one["Score"]) is int for one in answered.json)
    else:
        left = [name for name in names if name != "k8s-node-0004"]
        assert answered.json == {
            "Nodes": {"items": [node for node in whole if node["metadata"]["name"] in left]}
            if whole
            else None,
            "NodeNames": None if whole else left,
            "FailedNodes": {"k8s-node-0004": "too hot"},
            "FailedAndUnresolvableNodes": {},
            "Error": "",
        }
    assert json.loads(bytes(judge.asked[0].sent_pod)) == request["Pod"]


async def test_preemption_is_passed_through(ask: Asking) -> None:
    victims = {"n1": {"Pods": [{"UID": "u"}], "NumPDBViolations": 0}}
    body = {"Pod": POD, "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}
    assert (await ask.post("preempt", compact(body))).json == {"NodeNameToMetaVictims": victims}


async def test_a_connection_is_used_again(ask: Asking) -> None:
    async with ask.raw() as (reader, writer):
        for _ in range(3):
            body = question("a")
            writer.write(
                b"POST /prioritize HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            head = await reader.readuntil(b"\r\n\r\n")
            assert b" 200 OK\r\n" in head
            assert b"Connection: close" not in head
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            assert json.loads(await reader.readexactly(length)) == [{"Host": "a", "Score": 5}]


async def test_health_is_told_to_anyone(judge: SteeredJudge, ask: Asking) -> None:
    for path in ("/healthz", "/readyz"):
        assert (await ask.get(path)).body == b"ok\n"
    judge.reasons = ("no node has a sample yet", "the pods are not listed yet")
    assert (await ask.get("/healthz")).status == 200
    answered = await ask.get("/readyz")
    assert (answered.status, answered.body) == (
        503,
        b"no node has a sample yet\nthe pods are not listed yet\n",
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "sentence"),
    [
        ("POST", "/", 404, "'/' does not exist; available: /filter, /prioritize, /preempt, /healthz, /readyz"),
        ("POST", "/prioritise", 404, "'/prioritise' does not exist; available: /filter, /prioritize, /preempt, "
                                     "/healthz, /readyz"),
        ("GET", "/prioritize", 405, "/prioritize takes POST, not GET"),
        ("DELETE", "/filter", 405, "/filter takes POST, not DELETE"),
        ("POST", "/healthz", 405, "/healthz takes GET and HEAD, not POST"),
    ],
)  # fmt: skip
async def test_what_is_not_here_is_said(
    ask: Asking, method: str, path: str, status: int, sentence: str
) -> None:
    answered = await ask.ask(method, path)
    assert (answered.status, answered.sentence) == (status, sentence)
    if status == 405:
        assert answered.headers["Allow"] in ("POST", "GET, HEAD")
    assert await ask.prioritized("a") == {"a": 5}


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
@pytest.mark.parametrize("body", [b"", b"<html>", b"\xff", b"[1", b"{}", b'{"Pod": 3}', b'"Pod"'])
async def test_a_body_that_is_none_of_kube_schedulers_is_a_400_with_a_sentence(
    ask: Asking, verb: str, body: bytes
) -> None:
    answered = await ask.post(verb, body)
    assert answered.status == 400
    assert answered.sentence.startswith("the body ")
    assert await ask.prioritized("a") == {"a": 5}


@pytest.mark.parametrize(
    "text", [b"\x16\x03\x01\x02\x00\x01", b"GET / HTTP/9.9\r\n\r\n", b"\r\n\r\n\x00\x00\r\n\r\n"]
)
async def test_what_is_not_even_http_is_turned_away(ask: Asking, text: bytes) -> None:
    async with ask.raw() as (reader, writer):
        writer.write(text)
        writer.write_eof()
        await reader.read()
    assert await ask.prioritized("a") == {"a": 5}


async def test_a_fault_costs_the_request_that_it_happens_in_and_no_other(
    judge: SteeredJudge, ask: Asking
) -> None:
    def fail() -> None:
        raise ZeroDivisionError("of the judge")

    judge.before = fail
    sentence = "the extender failed with an internal error (ZeroDivisionError); see its log"
    answered = await ask.post("prioritize", question("a"))
    assert (answered.status, answered.sentence) == (500, sentence)
    answered = await ask.post("filter", question("a"))
    assert answered.status == 200, "kube-scheduler tells the words of an answer, and no others"
    assert answered.json["Error"] == sentence
    judge.before = None
    assert await ask.prioritized("a") == {"a": 5}


async def test_too_few_scores_are_a_fault_and_not_half_an_answer(
    judge: SteeredJudge, ask: Asking, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judge, "prioritize", lambda asked: [1])
    assert (await ask.post("prioritize", question("a", "b"))).status == 500


async def test_a_thousand_at_once(ask: Asking) -> None:
    names = [[f"n{number}", "b"] for number in range(1000)]
    answers = await asyncio.gather(*(ask.prioritized(*some) for some in names))
    assert answers == [dict.fromkeys(some, 5) for some in names]


async def test_requests_are_counted_by_how_they_end(ask: Asking) -> None:
    def counted(verb: str, outcome: str) -> float:
        labels = {"verb": verb, "outcome": outcome}
        return REGISTRY.get_sample_value("colocate_extender_requests_total", labels) or 0.0

    kinds = [("prioritize", "ok"), ("prioritize", "unreadable"), ("other", "unknown"), ("healthz", "ok")]
    before = [counted(*kind) for kind in kinds]
    await ask.prioritized("a")
    await ask.post("prioritize", b"?")
    await ask.get("/" + "x" * 1000)
    await ask.get("/healthz")
    assert [counted(*kind) for kind in kinds] == [count + 1 for count in before]


async def test_on_a_unix_socket_for_its_own_user_only(judge: SteeredJudge, tmp_path: Path) -> None:
    path = tmp_path / "run" / "extender.sock"
    settings = server(address=ServerEndpoint(f"unix:{path}"))
    async with asking(judge, settings) as ask:
        assert path.stat().st_mode & 0o777 == 0o600
        assert await ask.prioritized("a") == {"a": 5}
        with pytest.raises(UserError, match="another process already listens on"):
            async with asking(judge, settings):
                pass
    assert not path.exists()


async def test_what_a_killed_process_left_is_removed_and_a_file_is_not(
    judge: SteeredJudge, tmp_path: Path
) -> None:
    path = tmp_path / "extender.sock"
    settings = server(address=ServerEndpoint(f"unix:{path}"))
    with socket.socket(socket.AF_UNIX) as killed:
        killed.bind(str(path))
    async with asking(judge, settings) as ask:
        assert await ask.prioritized("a") == {"a": 5}
    path.write_text("precious")
    with pytest.raises(UserError, match="exists and is not a socket"):
        async with asking(judge, settings):
            pass
    assert path.read_text() == "precious"


async def test_an_address_that_is_taken_is_the_users_error(judge: SteeredJudge, ask: Asking) -> None:
    taken = server(address=ServerEndpoint(f"127.0.0.1:{ask.listening.port}"))
    with pytest.raises(UserError, match=r"server.address: cannot listen on 127.0.0.1:\d+ .*choose another"):
        async with asking(judge, taken):
            pass


_KEYS = st.sampled_from(
    ["Pod", "pod", "Nodes", "nodes", "NodeNames", "NODENAMES", "items", "metadata", "spec"]
)
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(_KEYS | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
_BODIES = st.one_of(
    st.binary(max_size=200),
    _JSON.map(lambda value: json.dumps(value).encode()),
    st.fixed_dictionaries({"Pod": st.just(POD) | _JSON, "Nodes": _JSON, "NodeNames": _JSON}).map(compact),
    st.lists(st.text(max_size=10), max_size=20).map(lambda names: question(*names)),
)


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    requests=st.lists(
        st.tuples(st.sampled_from(["filter", "prioritize", "preempt", "healthz", "?"]), _BODIES), max_size=6
    )
)
def test_whatever_is_posted_the_answer_is_right_or_a_sentence(requests: list[tuple[str, bytes]]) -> None:
    async def run() -> None:
        async with asking(SteeredJudge()) as ask:
            for verb, body in requests:
                answered = await ask.post(verb, body)
                if answered.status == 200:
                    if verb == "prioritize":
                        assert all(type(one["Score"]) is int for one in answered.json)
                    else:
                        assert verb in ("filter", "preempt")
                        assert isinstance(answered.json, dict)
                else:
                    assert answered.status in (400, 404, 405)
                    assert answered.sentence
            assert await ask.prioritized("a") == {"a": 5}

    asyncio.run(run())
