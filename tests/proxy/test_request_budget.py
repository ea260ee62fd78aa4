"""Requests are read when their user is known, within a budget, and not decoded with too many entries."""

import asyncio
from typing import Any

import pytest

from rmq_core.proxy import request_budget, server
from rmq_core.proxy.request_budget import MAX_ENTRIES, RequestBudget, check_entries
from rmq_core.proxy.wire import StatusError, rpc, v2
from tests.proxy import test_access
from tests.proxy.conftest import Caller

guarded = test_access.guarded


class Call:
    """A call whose client sends its request when it likes."""

    def __init__(self) -> None:
        self.data: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
        self.is_read = False

    async def read(self) -> bytes:
        self.is_read = True
        return await self.data


async def held(budget: RequestBudget, call: Call, until: asyncio.Event) -> str:
    """Work on a call until an event; what it is answered."""
    try:
        async with budget.request(call):
            await until.wait()
    except StatusError as error:
        return error.text
    return "ok"


async def test_calls_under_way_have_so_many_bytes() -> None:
    budget, until = RequestBudget(max_bytes=10), asyncio.Event()
    calls = [Call() for _ in range(3)]
    work = [asyncio.ensure_future(held(budget, call, until)) for call in calls]
    for call in calls[:2]:
        call.data.set_result(b"12345678")
    assert await work[1] == "calls under way have more than 10 bytes"
    assert budget.count == 8
    calls[2].data.set_result(b"12")
    until.set()
    assert (await asyncio.gather(*work), budget.count) == (["ok", "calls under way have more than 10 bytes", "ok"], 0)


async def test_a_call_that_is_sent_slowly_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_budget, "_SLOW_READ_S", 0.02)
    budget, until = RequestBudget(max_readers=2), asyncio.Event()
    until.set()
    slow = [Call() for _ in range(2)]
    slow_work = [asyncio.ensure_future(held(budget, call, until)) for call in slow]
    await asyncio.sleep(0)
    quick = Call()
    quick.data.set_result(b"1")
    assert await held(budget, quick, until) == "ok"
    assert await slow_work[0] == "the request was sent too slowly while others waited"
    slow[1].data.set_result(b"2")
    assert await slow_work[1] == "ok"
    assert (budget.count, budget._readers, budget._waiting) == (0, {}, {})


async def test_a_call_that_its_client_cancels_leaves_nothing() -> None:
    budget = RequestBudget(max_readers=1)
    work = asyncio.ensure_future(held(budget, Call(), asyncio.Event()))
    await asyncio.sleep(0)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    assert (budget.count, budget._readers) == (0, {})


@pytest.mark.parametrize("name", sorted(MAX_ENTRIES))
def test_entries_are_counted_in_bytes(name: str) -> None:
    most = MAX_ENTRIES[name]
    check_entries(name, b"\x0a\x00" * most)
    for data in (b"\x0a\x00" * (most + 1), b"\x78\x01" * (most + 1), b"\x79" + bytes(8) + b"\x0a\x00" * most,
                 b"\x7d" + bytes(4) + b"\x0a\x00" * most):  # fmt: skip
        with pytest.raises(StatusError, match=f"more than {most} entries"):
            check_entries(name, data)
    with pytest.raises(StatusError, match="no message of the service"):
        check_entries(name, b"\xff" * 20)
    for data in (b"\x0a", b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x05ab"):
        check_entries(name, data)  # decoding tells


def test_messages_of_a_real_request_are_counted() -> None:
    message = v2.Message(body=b"x" * 300)
    message.user_properties["a"] = "b"
    check_entries("SendMessage", rpc.SendMessageRequest(messages=[message] * 1024).SerializeToString())
    with pytest.raises(StatusError, match="more than 1024 entries"):
        check_entries("SendMessage", rpc.SendMessageRequest(messages=[message] * 1025).SerializeToString())


async def test_a_stranger_is_refused_before_his_request_is_read(
    guarded: Caller, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(*_: Any) -> bytes:
        raise AssertionError("read")

    monkeypatch.setattr(RequestBudget, "_read", read)
    monkeypatch.setattr(server, "_decode", read)
    guarded.signs = list
    for name in ("SendMessage", "ReceiveMessage"):
        answer = await guarded.call(name)
        first = answer[0] if isinstance(answer, list) else answer
        assert first.status.code == v2.UNAUTHORIZED
