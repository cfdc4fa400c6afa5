"""Keeps decisions for explanations: a bounded number in memory, and as JSON lines on disk if configured.

A pod that the filter has refused on all its candidates is kept as well, with the reasons. On disk a decision is two
lines, once it is made and once the pod is seen bound. They are written by a thread: a slow disk delays no answer, and
where it cannot follow at all, lines are dropped and counted. Only their owner can read the files.
"""

import asyncio
import os
import stat
import threading
from collections import deque
from contextlib import suppress
from enum import StrEnum
from io import FileIO
from pathlib import Path
from typing import NoReturn

import msgspec

from colocate import telemetry
from colocate.aio import Watched, in_thread
from colocate.crashpoints import reached
from colocate.load import (
    Candidates,
    Explanation,
    History,
    KeptDecision,
    ScoreAnswer,
    Sifted,
    explain,
    explain_all,
    explain_node,
)
from colocate.load import LoadSettings as LoadSettings
from colocate.model.load import BoundPod
from colocate.scheduler.loop.refusal_log import AllRefusals, Refusals, RefusedPod
from colocate.scheduler.sections import Decisions
from colocate.telemetry import Event

_WAITING = 10_000
_BATCH = 1000


class Happened(StrEnum):
    JUDGED = "judged"
    REFUSED = "refused"
    """On all candidates."""
    BOUND = "bound"


class Told(msgspec.Struct, frozen=True):
    """All that is known of one decision: the answer to "why this node"."""

    explanation: Explanation
    shadow: bool
    """Whether these scores were not sent: all nodes got equal scores."""
    refused: tuple[RefusedPod, ...] = ()
    refused_count: int = 0
    hot: tuple[RefusedPod, ...] = ()
    """Nodes that would have been refused, had any candidate been cool enough: all were let through."""
    hot_count: int = 0
    node: str | None = None
    """Where the pod went, once that is seen."""
    bound_at: float | None = None
    followed: bool | None = None
    """Whether that was one of the best; None while it is open, or cannot be said."""


class Line(msgspec.Struct, frozen=True, tag_field="what", tag="decision"):
    """One line of the file."""

    happened: Happened
    uid: str
    told: Told


class _Sieve(msgspec.Struct, frozen=True):
    """The filter's last answer for the pod."""

    refused: Refusals
    hot: Refusals
    """Whether the nodes are too hot and were let through because no other was left."""


class DecisionLog:
    """Keeps decisions, and the nodes that their pods went to."""

    def __init__(self, settings: Decisions, load: LoadSettings, *, shadow: bool) -> None:
        self._settings = settings
        self._load = load
        self._shadow = shadow
        self._judged = telemetry.SCHEDULER_DECISIONS.labels(str(shadow).lower())
        self._history = History(settings.keep, settings.memory)
        self._refusals = AllRefusals(settings.keep)
        self._hot = AllRefusals(settings.keep)
        self._waiting: deque[tuple[Happened, KeptDecision, _Sieve]] = deque()
        self._news = Watched()
        self._writing = threading.Lock()

    def __len__(self) -> int:
        return len(self._history)

    def sifted(self, uid: str, sifted: Sifted) -> None:
        """The filter has answered for a pod; its decision comes next."""
        self._refusals.add(uid, sifted.refused)
        self._hot.add(uid, sifted.hot)
        if sifted.passed:
            self._history.let_in(uid)

    def refused(self, answer: ScoreAnswer) -> None:
        """The filter has left no candidate."""
        self._history.add(answer)
        if self._settings.file is not None:
            self._write(Happened.REFUSED, KeptDecision(answer.decision))

    def judged(self, answer: ScoreAnswer) -> None:
        self._history.add(answer)
        self._judged.inc()
        if self._settings.file is not None:
            self._write(Happened.JUDGED, KeptDecision(answer.decision))

    def bound(self, bound: BoundPod) -> None:
        """A pod is seen on its node; it may be one that was never judged here."""
        kept = self._history.bound(bound.pod.uid, bound.node, bound.bound_at)
        if kept is None:
            return
        if not kept.decision.refused:
            followed = {True: "yes", False: "no", None: "unknown"}[kept.followed]
            telemetry.SCHEDULER_FOLLOWED.labels(followed).inc()
        if self._settings.file is not None:
            self._write(Happened.BOUND, kept)

    def find(self, pod: str) -> Told | None:
        """By namespace/name or uid; a bare name is of the namespace `default`."""
        kept = self._find(pod)
        return None if kept is None else self._told(kept, self._sieve(kept))

    async def find_all(self, pod: str) -> Told | None:
        """What is told of a pod, with every candidate; in a thread, as thousands take a while."""
        kept = self._find(pod)
        if kept is None:
            return None
        candidates, sieve = self._candidates(kept), self._sieve(kept)

        def tell() -> Told:
            told = self._told(kept, sieve, explain_all(kept.decision, self._load, candidates))
            return msgspec.structs.replace(told, refused=sieve.refused.all_kept, hot=sieve.hot.all_kept)

        return await in_thread(tell)

    def find_node(self, pod: str, node: str) -> Told | None:
        """What is told of a pod, with one node only; without nodes where it is unknown."""
        kept = self._find(pod)
        if kept is None:
            return None
        explained = explain_node(kept.decision, self._load, self._candidates(kept), node)
        if explained is None:
            explained = msgspec.structs.replace(explain(kept.decision, self._load), nodes=())
        uid = kept.decision.uid
        return self._told(kept, _Sieve(self._refusals.of(uid, node), self._hot.of(uid, node)), explained)

    def all_known(self, pod: str) -> bool:
        """Whether all candidates of the pod are still kept."""
        kept = self._find(pod)
        if kept is None:
            return False
        uid = kept.decision.uid
        if kept.decision.refused:
            return len(self._refusals.get(uid).by_node) == kept.decision.candidates
        return self._history.candidates(uid) is not None

    def _find(self, pod: str) -> KeptDecision | None:
        return self._history.find(pod) or self._history.find(f"default/{pod}")

    def _candidates(self, kept: KeptDecision) -> Candidates:
        return self._history.candidates(kept.decision.uid) or Candidates()

    def latest(self, most: int) -> list[Told]:
        return [self._told(kept, self._sieve(kept)) for kept in self._history.latest(most)]

    def _sieve(self, kept: KeptDecision) -> _Sieve:
        uid = kept.decision.uid
        return _Sieve(self._refusals.get(uid), self._hot.get(uid))

    def _told(self, kept: KeptDecision, sieve: _Sieve, explained: Explanation | None = None) -> Told:
        return Told(
            explained or explain(kept.decision, self._load),
            self._shadow,
            sieve.refused.some,
            sieve.refused.count,
            sieve.hot.some,
            sieve.hot.count,
            kept.node,
            kept.bound_at,
            kept.followed,
        )

    # --- on disk ---------------------------------------------------------------------------------------

    def _write(self, happened: Happened, kept: KeptDecision) -> None:
        if len(self._waiting) >= _WAITING:
            telemetry.SCHEDULER_LINES_DROPPED.inc()
            return
        sieve = self._sieve(kept)
        # In a thread: a disk may hang for long. Of thousands of refusals only a few are written.
        self._waiting.append((happened, kept, _Sieve(sieve.refused.shortened, sieve.hot.shortened)))
        self._news.changed()

    async def run(self) -> NoReturn:
        """Write decisions until cancelled, then those that still wait."""
        seen = 0
        failing = False
        try:
            if (file := self._settings.file) is not None:
                await asyncio.to_thread(self._make_private, file)
            while True:
                seen = await self._news.beyond(seen)
                failing = await asyncio.to_thread(self._flush, failing)
        finally:
            if self._settings.file is not None:
                self._flush(failing)

    def _make_private(self, file: Path) -> None:
        try:
            make_private(file, self._settings.files)
        except OSError as error:
            telemetry.logger().warning(
                Event.DECISIONS_READABLE, file=str(file), error=str(error), remedy=f"chmod 600 {file}*"
            )

    def _flush(self, failing: bool) -> bool:
        """Write all waiting decisions; whether that failed."""
        file = self._settings.file
        assert file is not None
        # At the end, an abandoned thread may still be writing.
        with self._writing:
            while lines := self._next_lines():
                try:
                    append(file, lines, self._settings.file_size, self._settings.files)
                except OSError as error:
                    telemetry.SCHEDULER_LINES_DROPPED.inc(len(lines))
                    if not failing:
                        telemetry.logger().error(
                            Event.DECISIONS_NOT_WRITTEN, file=str(file), error=str(error)
                        )
                    failing = True
                else:
                    failing = False
        return failing

    def _next_lines(self) -> list[bytes]:
        lines: list[bytes] = []
        while self._waiting and len(lines) < _BATCH:
            happened, kept, sieve = self._waiting.popleft()
            line = Line(happened, kept.decision.uid, self._told(kept, sieve))
            lines.append(msgspec.json.encode(line) + b"\n")
        return lines


def append(file: Path, lines: list[bytes], most: int, files: int) -> None:
    """Append lines to the file. A full file is put aside first, and the oldest such file is deleted."""
    try:
        full = file.stat().st_size + sum(map(len, lines)) > most and file.stat().st_size > 0
    except FileNotFoundError:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        full = False
    if full:
        reached("decisions.rotate")
        for number in range(files - 1, 0, -1):
            older = file.with_name(f"{file.name}.{number}")
            newer = file if number == 1 else file.with_name(f"{file.name}.{number - 1}")
            if newer.exists():
                newer.replace(older)
        if files == 1:
            file.unlink()
    with open(file, "ab", buffering=0, opener=_private) as opened:
        size = os.fstat(opened.fileno()).st_size
        try:
            _write_whole(opened, b"".join(lines))
        except OSError:
            # Half a line would spoil the one that follows it.
            with suppress(OSError):
                opened.truncate(size)
            raise


def _write_whole(file: FileIO, data: bytes) -> None:
    """A disk that fills up takes some of the data before it fails."""
    left = memoryview(data)
    while left:
        left = left[file.write(left) or 0 :]


def make_private(file: Path, files: int) -> None:
    """Let only the owner read existing files: earlier versions let every user."""
    for one in (file, *(file.with_name(f"{file.name}.{number}") for number in range(1, files))):
        with suppress(FileNotFoundError):
            if stat.S_ISREG(one.stat().st_mode) and one.stat().st_mode & 0o077:
                reached("decisions.private")
                one.chmod(0o600)


def _private(path: str, flags: int) -> int:
    """Open for the owner alone: other users of the machine must not read names and reasons."""
    return os.open(path, flags, 0o600)
