"""Order, limits and cancellation of a reward server's line."""

from __future__ import annotations

import asyncio

import pytest

from evaluators.rewards.line import Line, LineIsFull


async def settled() -> None:
    """Lets all tasks run until they wait."""
    for _ in range(10):
        await asyncio.sleep(0)


class Requests:
    """Requests that work until they are let go."""

    def __init__(self, line: Line) -> None:
        self.line, self.order, self.tasks = line, list[str](), dict[str, asyncio.Task[None]]()
        self._go = asyncio.Queue[None]()

    async def ask(self, name: str, client: str = "", priority: int = 0) -> None:
        """Begins a request."""

        async def work() -> None:
            async with self.line.turn(client, priority):
                self.order.append(name)
                await self._go.get()

        self.tasks[name] = asyncio.create_task(work())
        await settled()

    async def finish(self, number: int) -> None:
        """Ends as many requests."""
        for _ in range(number):
            self._go.put_nowait(None)
            await settled()


def test_clients_take_turns_and_priorities_come_first() -> None:
    async def play() -> list[str]:
        requests = Requests(Line(at_once=1, longest=10))
        await requests.ask("a1", "a")
        for name in ("a2", "a3", "a4"):
            await requests.ask(name, "a")
        await requests.ask("b1", "b")
        await requests.ask("urgent", "c", priority=5)
        await requests.finish(6)
        await asyncio.gather(*requests.tasks.values())
        return requests.order

    order = asyncio.run(play())
    assert order[:2] == ["a1", "urgent"]
    assert order.index("b1") < order.index("a3")
    assert [each for each in order if each.startswith("a")] == ["a1", "a2", "a3", "a4"]


def test_a_full_line_says_when_to_come_back() -> None:
    async def play() -> None:
        requests = Requests(Line(at_once=1, longest=2))
        for name in ("one", "two", "three"):
            await requests.ask(name)
        with pytest.raises(LineIsFull, match="2 requests are waiting") as raised:
            async with requests.line.turn("late"):
                pass
        assert raised.value.retry_after_s >= 1
        await requests.finish(3)
        await asyncio.gather(*requests.tasks.values())
        assert (requests.line.waiting, requests.line.working) == (0, 0)

    asyncio.run(play())


@pytest.mark.parametrize("cancelled", ["working", "waiting"])
def test_a_cancelled_request_leaves_its_place(cancelled: str) -> None:
    async def play() -> None:
        requests = Requests(Line(at_once=1, longest=5))
        for name in ("working", "waiting", "last"):
            await requests.ask(name)
        requests.tasks[cancelled].cancel()
        await settled()
        await requests.finish(2)
        await asyncio.gather(*requests.tasks.values(), return_exceptions=True)
        assert requests.order[-1] == "last"
        assert (requests.line.waiting, requests.line.working) == (0, 0)

    asyncio.run(play())


def test_a_request_cancelled_as_its_turn_comes_leaves_its_place() -> None:
    async def play() -> None:
        requests = Requests(Line(at_once=1, longest=5))
        for name in ("working", "waiting", "last"):
            await requests.ask(name)
        requests.tasks["working"].cancel()
        await asyncio.sleep(0)  # its turn has come, and it has not run yet
        requests.tasks["waiting"].cancel()
        await settled()
        await requests.finish(1)
        await asyncio.gather(*requests.tasks.values(), return_exceptions=True)
        assert requests.order[-1] == "last"
        assert requests.line.working == 0

    asyncio.run(play())
