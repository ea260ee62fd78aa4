"""Renewal of messages, with brokers that are made up."""

import asyncio
from collections.abc import Callable
from time import monotonic

import pytest

from rmq_core.client.errors import BrokerError
from rmq_core.client.options import ClientOptions
from rmq_core.proxy import receipts
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.messages import ReceiptHandle
from rmq_core.proxy.receipts import Renewal
from rmq_core.proxy.sessions import Sessions
from rmq_core.remoting.errors import RequestTimeoutError
from rmq_core.remoting.pop import PopHandle, TopicKind
from tests.broker.conftest import eventually

LOST = RequestTimeoutError("127.0.0.1:1", "no answer")


def receipt(offset: int = 0, broker: str = "a", invisible_ms: int = 5000) -> ReceiptHandle:
    """A receipt of a message whose broker's clock is nowhere near."""
    return ReceiptHandle(PopHandle(offset, 1000, invisible_ms, 0, TopicKind.NORMAL, broker, 0, offset), 0)


class Broker:
    """Changes invisible times."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []
        self.fails: Callable[[str], Exception | None] = lambda _: None
        self.gates: dict[str, asyncio.Event] = {}

    async def change(self, _: str, __: str, one: ReceiptHandle, invisible_ms: int) -> ReceiptHandle:
        handle = one.handle
        self.asked.append((handle.broker_name, handle.offset, invisible_ms))
        if handle.broker_name in self.gates:
            await self.gates[handle.broker_name].wait()
        error = self.fails(handle.broker_name)
        if error is not None:
            raise error
        return one._replace(handle=handle._replace(pop_time_ms=handle.pop_time_ms + 1, invisible_ms=invisible_ms))


@pytest.fixture
def sessions() -> Sessions:
    """One client, ``c``."""
    found = Sessions()
    found.get_or_create("c")
    return found


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def renewal(sessions: Sessions, broker: Broker) -> Renewal:
    found = Renewal(sessions)
    found.change = broker.change
    return found


async def settled(renewal: Renewal) -> None:
    async def is_settled() -> bool:
        return not renewal._tasks

    await eventually(is_settled, 60)


async def taken(renewal: Renewal, one: ReceiptHandle) -> ReceiptHandle | None:
    async with renewal.stop_renewal("c", "g", one.encode()) as newest:
        return newest


async def test_what_is_due_is_renewed_whatever_the_brokers_clock_says(renewal: Renewal, broker: Broker) -> None:
    due, early = receipt(1), receipt(2, invisible_ms=60_000)
    renewal.start("c", "g", "T", due)
    renewal.start("c", "g", "T", early)
    for _ in range(2):  # the second time it is due in a minute
        renewal.renew_due()
        await settled(renewal)
    assert broker.asked == [("a", 1, 60_000)]
    newest = await taken(renewal, due)
    assert newest is not None
    assert newest.handle.pop_time_ms == 1001
    assert await taken(renewal, early) == early
    assert await taken(renewal, early) is None
    assert not renewal._counts


async def test_an_acknowledgement_waits_for_a_renewal_under_way(renewal: Renewal, broker: Broker) -> None:
    """Else the new handle would be of a message that nobody acknowledges."""
    one = receipt()
    gate = broker.gates["a"] = asyncio.Event()
    renewal.start("c", "g", "T", one)
    renewal.renew_due()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert broker.asked
    task = asyncio.create_task(taken(renewal, one))
    await asyncio.sleep(0.05)
    assert not task.done()
    gate.set()
    newest = await task
    assert newest is not None
    assert newest.handle.pop_time_ms == 1001


async def test_a_broker_that_does_not_answer_holds_up_no_other(renewal: Renewal, broker: Broker) -> None:
    broker.gates["gone"] = asyncio.Event()
    for number in range(200):
        renewal.start("c", "g", "T", receipt(number, "gone"))
    renewal.renew_due()
    renewal.start("c", "g", "T", receipt(0, "there"))
    renewal.renew_due()

    async def is_renewed() -> bool:
        return ("there", 0, 60_000) in broker.asked

    await eventually(is_renewed, 60)
    broker.gates["gone"].set()
    await settled(renewal)
    assert len(broker.asked) == 201


async def test_what_cannot_be_renewed_now_is_renewed_later_while_it_is_invisible(
    renewal: Renewal, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = receipt(invisible_ms=60_000)
    renewal.start("c", "g", "T", one)
    now_s = monotonic()
    monkeypatch.setattr(receipts, "monotonic", lambda: now_s + 51)
    broker.fails = lambda _: LOST
    renewal.renew_due()
    await settled(renewal)
    broker.fails = lambda _: None
    renewal.renew_due()
    await settled(renewal)
    assert len(broker.asked) == 2
    broker.fails = lambda _: LOST
    monkeypatch.setattr(receipts, "monotonic", lambda: now_s + 51 + 60)
    renewal.renew_due()
    await settled(renewal)
    assert await taken(renewal, one) is None  # others may have it by now


async def test_what_a_broker_refuses_is_renewed_no_more(renewal: Renewal, broker: Broker) -> None:
    one = receipt()
    renewal.start("c", "g", "T", one)
    broker.fails = lambda _: BrokerError("a", 208, "illegal")
    renewal.renew_due()
    await settled(renewal)
    assert await taken(renewal, one) is None


async def test_messages_of_a_client_that_is_gone_are_given_back(
    renewal: Renewal, broker: Broker, sessions: Sessions
) -> None:
    renewal.start("c", "g", "T", receipt(invisible_ms=60_000))
    sessions.end("c")
    renewal.renew_due()
    await settled(renewal)
    assert broker.asked == [("a", 0, 1000)]
    assert not renewal._messages


async def test_what_gets_no_answer_is_renewed_again(renewal: Renewal) -> None:
    one = receipt()
    renewal.start("c", "g", "T", one)
    with pytest.raises(RequestTimeoutError):
        async with renewal.stop_renewal("c", "g", one.encode()):
            raise LOST
    assert await taken(renewal, one) == one


async def test_one_client_cannot_take_the_place_of_all(renewal: Renewal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "_MAX_RENEWED_OF_CLIENT", 3)
    for number in range(5):
        renewal.start("c", "g", "T", receipt(number))
    renewal.start("other", "g", "T", receipt())
    assert len(renewal._messages) == 4


async def test_handles_count_on_where_the_clock_of_their_broker_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set forward, what was popped before would seem to be visible again."""
    steady = 0
    monkeypatch.setattr("rmq_core.remoting.clock.steady_ms", lambda: steady)
    brokers = Brokers("127.0.0.1:1", ClientOptions(), None)
    brokers.record_clock("a", 1_000_000)
    steady += 100
    brokers.record_clock("a", 1_000_160)  # it was long on its way
    assert brokers.now_ms("a") == 1_000_100
    brokers.record_clock("a", 1_000_100 + 3 * 3_600_000)
    steady += 1000
    brokers.record_clock("a", 1_001_100 + 3 * 3_600_000)
    assert brokers.now_ms("a") == 1_001_100
    brokers.record_clock("a", 1_001_100 - 3_600_000)
    assert brokers.now_ms("a") == 1_001_100 - 3_600_000
    steady += 13 * 3_600_000
    brokers.record_clock("a", 1_001_100 + 16 * 3_600_000)
    assert brokers.now_ms("a") == 1_001_100 + 16 * 3_600_000
