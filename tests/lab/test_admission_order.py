"""The embedded kubelet admits one pod at a time, and in another order than they came, as the recorded one did."""

import asyncio

from colocate.lab.admission_order import AdmissionOrder


async def come(order: AdmissionOrder, let_in: list[int], number: int) -> None:
    async with order:
        let_in.append(number)
        await asyncio.sleep(0)
        assert let_in[-1] == number, "no other is let in meanwhile"


async def test_all_are_let_in_one_by_one_in_another_order_and_always_the_same() -> None:
    orders = []
    for _ in range(2):
        let_in: list[int] = []
        order = AdmissionOrder()
        await asyncio.gather(*(come(order, let_in, number) for number in range(20)))
        orders.append(let_in)
    assert sorted(orders[0]) == list(range(20))
    assert orders[0] == orders[1] != list(range(20))


async def test_a_waiter_that_gives_up_holds_up_no_other() -> None:
    order, let_in = AdmissionOrder(), list[int]()
    tasks = [asyncio.create_task(come(order, let_in, number)) for number in range(10)]
    await asyncio.sleep(0)
    for number in (0, 3, 4, 9):
        tasks[number].cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(let_in) == [0, 1, 2, 5, 6, 7, 8]
    await come(order, let_in, 99)
