"""A scan as a stranger: every request code, of nobody and of wrong ones, at sizes up to the limits."""

import asyncio
import socket
from struct import pack

import pytest

from rmq_core.broker.access import guard
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import ConnectionLostError
from rmq_core.remoting.header import request
from rmq_core.remoting.settings import ServerSettings
from tests.broker.access.test_guard import ADMIN, TG, Door, door, send_fields

__all__ = ["door"]  # the fixture

CODES = sorted({*map(int, RequestCode), 0, -1, 1, 9_999, 200_075, 2**31 - 1})
STRANGERS = {
    "nobody": None, "an unknown user": Credentials("eve", "secret"), "a wrong secret": Credentials("admin", "wrong"),
    "another user's secret": Credentials("admin", "alice1234"),
}  # fmt: skip
LIMITS = ServerSettings()
_AT_ONCE = 32
_REMARKS = {"username cannot be null.", "check signature failed."}


def state_of(door: Door) -> tuple[object, ...]:
    """What a stranger must not change."""
    state = door.broker.state
    accounts = door.broker._accounts
    assert accounts is not None
    return (
        dict(state.topics.table), dict(state.groups.table), dict(state.offsets.table), dict(accounts.users),
        state.config,
    )  # fmt: skip


async def scan(door: Door, who: Credentials | None, size: int, codes: list[int]) -> int:
    """Ask all codes with a body of a size, many at once; returns how many were answered."""
    turns, told = asyncio.Semaphore(_AT_ONCE), 0
    fields = {name: str(value) for name, value in (TG | send_fields("T")).items()}
    async with RemotingClient(credentials=who) as client:

        async def ask(code: int) -> None:
            nonlocal told
            async with turns:
                answer = await client.invoke(door.broker.address, request(code, dict(fields), b"x" * size), 60)
            told += 1
            assert bytes(answer.body) == b"", code
            assert answer.code == ResponseCode.NO_PERMISSION, code  # also where the body is too large
            assert answer.remark in _REMARKS or "not found" in str(answer.remark), (code, answer.remark)

        await asyncio.gather(*map(ask, codes))
    return told


@pytest.mark.parametrize("name", STRANGERS)
async def test_a_stranger_gets_nothing_and_changes_nothing(
    door: Door, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "REFUSAL_WAIT_S", 0)
    monkeypatch.setattr(guard, "MAX_REFUSALS", 1 << 30)
    assert (await door.ask(ADMIN, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0
    before, end = state_of(door), door.broker.store.max_physical_offset
    for size in (0, LIMITS.max_body_bytes, LIMITS.max_body_bytes + 1):
        assert await scan(door, STRANGERS[name], size, CODES) == len(CODES)
    assert await scan(door, STRANGERS[name], LIMITS.max_list_bytes + 1, CODES[::9]) == len(CODES[::9])
    assert state_of(door) == before
    assert door.broker.store.max_physical_offset == end
    assert (await door.ask(ADMIN, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0


async def test_a_scan_stops_no_one_else(door: Door) -> None:
    async def annoy() -> None:
        try:
            for _ in range(8):
                await scan(door, None, 0, CODES)
        except ConnectionLostError:  # those who have failed often are left
            pass

    scans = [asyncio.ensure_future(annoy()) for _ in range(3)]
    for _ in range(20):
        answer = await asyncio.wait_for(door.ask(ADMIN, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x"), 60)
        assert answer.code == 0
    await asyncio.gather(*scans)


@pytest.mark.parametrize(
    "head", [pack(">i", 1 << 24), pack(">i", -1), pack(">i", 3), b"\x16\x03\x01\x02\x00", b"GET / "]
)
async def test_what_is_no_frame_ends_its_connection_alone(door: Door, head: bytes) -> None:
    host, _, port = door.broker.address.rpartition(":")

    def poke() -> bytes:
        with socket.create_connection((host, int(port)), timeout=60) as connection:
            connection.sendall(head + b"\0" * 64)
            try:
                return connection.recv(1)
            except ConnectionResetError:
                return b""

    assert await asyncio.to_thread(poke) == b""
    assert (await door.ask(ADMIN, RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x")).code == 0
