"""Many pods at once: each has a GPU of its own wish, its annotations say so, and no GPU is oversold."""

from collections import Counter
from collections.abc import Callable, Iterable

from colocate.model.pod import Phase
from tests.gpu_agent.lab import MOCKS, gpu_lab
from tests.support.waiting import until

PODS = 200
GPUS = [f"GPU-{letter * 8}" for letter in "abcdefgh"]


async def test_two_hundred_pods_in_a_burst() -> None:
    async with gpu_lab() as lab:
        lab.configure(
            [{**MOCKS[0], "uuid": uuid, "memory": "60Mi"} for uuid in GPUS],
            stateFolder=str(lab.root / "state"),
        )
        await lab.start_agent()
        await lab.shows(480, 8)
        for number in range(PODS):
            # Half of them are booked; sizes repeat, so that many are alike.
            wish = {
                "doslab.io/gpu-uuid": GPUS[number // 2 % 8],
                "doslab.io/gpu-assume-time": str(10**18 + number),
            }
            lab.create_pod(f"p{number}", 1 + number % 3, annotations=wish if number % 2 else {})
        names = [f"p{number}" for number in range(PODS)]

        def runs(name: str) -> bool:
            return bool(lab.pod(name)["status"].get("phase") == Phase.RUNNING)

        try:
            await until_each(names, runs, "all pods to run", 90)
        except AssertionError as error:
            phases = Counter(lab.pod(name)["status"].get("phase") for name in names)
            told = {event for name in names for event in lab.events(name)}
            raise AssertionError(f"{error}: {phases} {sorted(told)[:5]}") from None
        booked: Counter[str] = Counter()
        for number, name in enumerate(names):
            booked[lab.env(name)["NVIDIA_VISIBLE_DEVICES"]] += 1 + number % 3
        assert max(booked.values()) <= 60
        assert {gpu.uuid: gpu.booked for gpu in (await lab.report()).gpus} == booked

        def is_said(name: str) -> bool:
            said = lab.annotations(name)
            return (
                said.get("doslab.io/gpu-assigned") == "true"
                and said["doslab.io/gpu-uuid"] == lab.env(name)["NVIDIA_VISIBLE_DEVICES"]
            )

        await until_each(names, is_said, "the annotations to say so", 60)


async def until_each(names: Iterable[str], holds: Callable[[str], bool], what: str, seconds: float) -> None:
    """Wait for one after the other: to look at all of them again and again takes longer than what they do."""
    waiting = list(names)

    def all_hold() -> bool:
        while waiting and holds(waiting[-1]):
            waiting.pop()
        return not waiting

    await until(all_hold, what, seconds)
    assert all(map(holds, names)), what
