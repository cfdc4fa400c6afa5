"""A replay and the scheduler's process are one code: fed with the same facts, they answer alike."""

from typing import Any

import msgspec
import pytest

from colocate.clock import ManualClock
from colocate.cluster.client import Client
from colocate.cluster.connection import Connection
from colocate.load import LoadSettings, ScoreAnswer, decide, snapshot
from colocate.replay import load_run
from colocate.replay.load_contenders import contenders
from colocate.replay.load_run import LoadRun
from colocate.scheduler.loop.decision_log import DecisionLog
from colocate.scheduler.loop.load_judge import LoadJudge
from colocate.scheduler.loop.table_feed import TableFeed
from colocate.scheduler.sections import Decisions
from colocate.wire.extender_questions import read_question
from tests.replay.traces import small

EVERY = 40
"""Of the questions of a replay, one in so many is asked of the process, too."""


class Asked(msgspec.Struct):
    snapshot: bytes
    pod: dict[str, Any]
    names: list[str]
    now: float
    scores: list[int]


def test_what_a_replay_was_answered_the_process_answers_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Asked] = []
    count = 0

    def noting(table: Any, pod: Any, names: Any, now: float, **how: Any) -> ScoreAnswer:
        nonlocal count
        count += 1
        if count % EVERY == 0:
            table.advance(now)
            taken = snapshot.encode(snapshot.take(table))
            answer = decide(table, pod, names, now, **how)
            asked.append(Asked(taken, as_object(pod), list(names), now, answer.scores))
            return answer
        return decide(table, pod, names, now, **how)

    monkeypatch.setattr(load_run, "decide", noting)
    LoadRun(small(), contenders("default")[0], 1).run()
    assert len(asked) > 10
    assert any(len(set(one.scores)) > 3 for one in asked)
    for one in asked:
        assert answered(one) == one.scores


def as_object(pod: Any) -> dict[str, Any]:
    """As the API has it."""
    namespace, _, name = pod.key.partition("/")
    _, kind, owner = pod.owner.split("/")
    (container,) = pod.shape.containers
    return {
        "metadata": {
            "namespace": namespace,
            "name": name,
            "uid": pod.uid,
            "ownerReferences": [{"kind": kind, "name": owner, "controller": True}],
        },
        "spec": {
            "containers": [
                {
                    "resources": {
                        "requests": {
                            "cpu": f"{container.request.cpu}m",
                            "memory": str(container.request.memory),
                        }
                    }
                }
            ]
        },
    }


def answered(one: Asked) -> list[int]:
    """What the process answers to kube-scheduler, with the facts that the replay had."""
    restored = snapshot.restore(snapshot.decode(one.snapshot, "a snapshot"))
    clock = ManualClock(one.now)
    settings: LoadSettings = restored.settings
    decisions = DecisionLog(Decisions(), settings, shadow=False)
    client = Client(Connection("http://127.0.0.1:9", "nowhere"))
    judge = LoadJudge(TableFeed(restored, decisions, client, clock), decisions, clock)
    body = msgspec.json.encode({"Pod": one.pod, "Nodes": None, "NodeNames": one.names})
    return list(judge.prioritize(read_question(body), "a caller"))
