"""The states of a connection's requests: the table, and random walks of a connection over a transport in memory."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rmq_core.remoting import connection as connection_module
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.connection_state import TRANSITIONS, Event, State
from rmq_core.remoting.frames import FrameParser, encode_frame
from rmq_core.remoting.header import RemotingCommand, request

LIMIT = 10_000
STEPS = ("data", "pause", "resume", "reserve", "release", "turn", "push")


def test_closed_is_final_and_can_follow_each_state() -> None:
    assert all(after[Event.CLOSE] is State.CLOSED for after in TRANSITIONS.values())
    assert set(TRANSITIONS[State.CLOSED].values()) == {State.CLOSED}


def test_only_a_release_ends_a_suspension() -> None:
    leaving = {event for event, after in TRANSITIONS[State.SUSPENDED].items() if after is not State.SUSPENDED}
    assert leaving == {Event.RELEASE, Event.CLOSE}


def test_an_impossible_event_is_an_error() -> None:
    with pytest.raises(KeyError):
        TRANSITIONS[State.CLOSED][Event.HANDLE]


class Transport:
    """A transport in memory, for one connection."""

    def __init__(self) -> None:
        self.reads = True
        self.written = b""

    def is_closing(self) -> bool:
        return False

    def is_reading(self) -> bool:
        return self.reads

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def write(self, data: bytes) -> None:
        self.written += data

    def writelines(self, parts: list[Any]) -> None:
        self.written += b"".join(parts)

    def set_write_buffer_limits(self, high: int) -> None:
        pass

    def get_extra_info(self, _: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)


async def walk(steps: list[str], counts: list[int]) -> None:
    """Run steps in an order, let all requests end, and compare requests with answers."""
    batches: list[int] = []
    transport = Transport()
    connection = Connection(
        {1: lambda command, _: command.response()},
        max_frame_bytes=1 << 20,
        write_high_water_bytes=1 << 20,
        reads_only_while_writable=True,
        max_waiting_bytes=LIMIT,
        after_batch=lambda: batches.append(1),
    )
    connection.connection_made(transport)  # type: ignore[arg-type]
    sent = pushed = reserved = 0
    is_paused = False
    for step, count in zip(steps, counts, strict=True):
        if step == "data":
            frames = []
            for _ in range(count):
                command = request(1, {})
                command.opaque, sent = sent, sent + 1
                frames.append(encode_frame(command))
            connection.data_received(b"".join(frames))
        elif step == "pause" and not is_paused:
            is_paused = True
            connection.pause_writing()
        elif step == "resume" and is_paused:
            is_paused = False
            connection.resume_writing()
        elif step == "reserve":
            reserved += 1
            connection.reserve_inflight(LIMIT)
        elif step == "release" and reserved:
            reserved -= 1
            connection.release_inflight(LIMIT)
        elif step == "push":
            pushed += 1
            connection.send(request(2, {}))
        elif step == "turn":
            await asyncio.sleep(0)
        assert transport.reads or connection._state is not State.READING
        assert not (is_paused and connection._state is State.READING)
    if is_paused:
        connection.resume_writing()
    for _ in range(reserved):
        connection.release_inflight(LIMIT)
    for _ in range(10 * sent + 20):
        await asyncio.sleep(0)
    assert connection._state is State.READING
    assert transport.reads
    answers: list[RemotingCommand] = list(FrameParser(1 << 20, 1 << 20).feed(transport.written))
    assert [answer.opaque for answer in answers if answer.code != 2] == list(range(sent))
    assert sum(answer.code == 2 for answer in answers) == pushed
    assert bool(batches) is bool(sent)
    connection.connection_lost(None)
    assert str(connection._state) == "closed"


@pytest.mark.parametrize(("slice_s", "batch_s"), [(0.0, 0.0), (0.0, 1.0), (1.0, 1.0)])
@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(1, 5)), max_size=25))
def test_each_request_is_answered_once_and_in_order(
    slice_s: float, batch_s: float, steps: list[tuple[str, int]]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connection_module, "SLICE_S", slice_s)
        patch.setattr(connection_module, "BATCH_S", batch_s)
        asyncio.run(walk([step for step, _ in steps], [count for _, count in steps]))
