"""Requests that have waited too long are refused, and sends while the store is busy."""

import asyncio
import socket
import time
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.fast_failure import PageCache, fail_fast
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import KVTable
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.frames import decode_frame, encode_frame
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.store.config import StoreConfig
from tests.broker.conftest import Asker, small_store

BUSY = int(ResponseCode.SYSTEM_BUSY)


class Waiting:
    """A connection whose bytes were read at second 0."""

    read_time_s = 0.0
    pending_response_count = 3


async def handled(code: int, waited_s: float, **settings: object) -> RemotingCommand:
    """The answer of a handler behind the refusal."""
    config = replace(BrokerConfig(), **settings)  # type: ignore[arg-type] # by name
    handler = fail_fast(code, lambda asked, _: asked.response(), lambda: config, PageCache(1000), lambda: waited_s)
    connection: Any = Waiting()
    answer = handler(request(code), connection)
    assert isinstance(answer, RemotingCommand)
    return answer


@pytest.mark.parametrize(
    ("code", "name", "default_ms"),
    [
        (RequestCode.SEND_MESSAGE, "send", 200),
        (RequestCode.SEND_MESSAGE_V2, "send", 200),
        (RequestCode.SEND_BATCH_MESSAGE, "send", 200),
        (RequestCode.CONSUMER_SEND_MSG_BACK, "send", 200),
        (RequestCode.PULL_MESSAGE, "pull", 5000),
        (RequestCode.POP_MESSAGE, "pull", 5000),
        (RequestCode.LITE_PULL_MESSAGE, "lite_pull", 5000),
        (RequestCode.HEART_BEAT, "heartbeat", 31_000),
        (RequestCode.END_TRANSACTION, "transaction", 3000),
        (RequestCode.ACK_MESSAGE, "ack", 3000),
        (RequestCode.CHANGE_MESSAGE_INVISIBLETIME, "ack", 3000),
        (RequestCode.BATCH_ACK_MESSAGE, "ack", 3000),
        (RequestCode.UPDATE_AND_CREATE_TOPIC, "admin_broker", 5000),
        (26, "admin_broker", 5000),
    ],
)
async def test_each_kind_of_request_has_its_limit(code: int, name: str, default_ms: int) -> None:
    assert (await handled(code, default_ms / 1000 - 0.01)).code == 0
    refused = await handled(code, default_ms / 1000)
    remark = "[TIMEOUT_CLEAN_QUEUE]broker busy, start flow control for a while, period in queue: {}ms, size of queue: 3"
    assert (refused.code, refused.remark) == (BUSY, remark.format(default_ms))
    setting = f"wait_time_mills_in_{name}_queue"
    assert (await handled(code, 0.05, **{setting: 40})).code == BUSY
    assert (await handled(code, 0.05, **{setting: 40, "broker_fast_failure_enable": False})).code == 0


@pytest.mark.parametrize("code", [RequestCode.QUERY_MESSAGE, RequestCode.GET_CONSUMER_LIST_BY_GROUP, 15])
async def test_other_kinds_have_none(code: int) -> None:
    assert (await handled(code, 1000.0)).code == 0


@pytest.fixture
def store_config(tmp_path: Path) -> StoreConfig:
    """An append that takes more than 50 ms is too slow."""
    return replace(small_store(tmp_path / "store"), os_page_cache_busy_timeout_ms=50)


@pytest.fixture
def slow_appends(asker: Asker, monkeypatch: pytest.MonkeyPatch) -> None:
    """The append of a body ``slow`` takes 60 ms, that of a body ``slowish`` 30 ms."""
    appender = type(asker.broker.store.appender)
    put = appender.put

    def slow_put(self: Any, topic: str, queue_id: int, body: bytes, *others: Any, **more: Any) -> Any:
        time.sleep({b"slow": 0.06, b"slowish": 0.03}.get(bytes(body), 0))
        return put(self, topic, queue_id, body, *others, **more)

    monkeypatch.setattr(appender, "put", slow_put)


@pytest.mark.usefixtures("slow_appends")
async def test_sends_behind_a_slow_append_are_refused_and_later_ones_taken(asker: Asker) -> None:
    await asker.send("T")
    answers = await asyncio.gather(
        asker.send("T", b"before"), asker.send("T", b"slow"), asker.send("T", b"behind"), asker.pull("T")
    )
    assert [answer.code for answer in answers] == [0, 0, BUSY, 0]
    assert str(answers[2].remark).startswith("[PCBUSY_CLEAN_QUEUE]broker busy, start flow control for a while, period")

    async def is_calm() -> bool:
        info = decode_body((await asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body, KVTable).table
        return info["pageCacheLockTimeMills"] == "0"

    while not await is_calm():
        pass
    assert (await asker.send("T", b"later")).code == 0


def send_frame(connection: socket.socket, body: bytes) -> None:
    fields = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "0", "h": "0", "j": "0"}
    connection.sendall(encode_frame(request(RequestCode.SEND_MESSAGE_V2, fields, body)))


def read_code(connection: socket.socket) -> int:
    size = connection.recv(4, socket.MSG_WAITALL)
    return decode_frame(size + connection.recv(int.from_bytes(size, "big"), socket.MSG_WAITALL)).code


@pytest.mark.usefixtures("slow_appends")
async def test_sends_of_other_connections_that_came_before_a_slow_append_are_refused(asker: Asker) -> None:
    host, port = asker.broker.address.split(":")
    with ExitStack() as stack:
        connections = [stack.enter_context(socket.create_connection((host, int(port)))) for _ in range(4)]
        await asker.send("T")  # the broker accepts the connections meanwhile
        for connection in connections:
            send_frame(connection, b"slow")
        codes = [await asyncio.to_thread(read_code, connection) for connection in connections]
    assert sorted(codes) == [0, BUSY, BUSY, BUSY]


@pytest.mark.usefixtures("slow_appends")
async def test_a_send_begun_after_a_slow_append_is_taken(asker: Asker) -> None:
    def send_in_turn() -> list[int]:
        """Codes of sends, each begun when the one before is answered."""
        host, port = asker.broker.address.split(":")
        codes = []
        with socket.create_connection((host, int(port))) as connection:
            for body in [b"slow", b"next"] * 20:
                send_frame(connection, body)
                codes.append(read_code(connection))
        return codes

    assert await asyncio.to_thread(send_in_turn) == [0] * 40


@pytest.mark.usefixtures("slow_appends")
async def test_requests_that_wait_behind_others_of_their_connection_are_refused(asker: Asker) -> None:
    asker.broker.state.config = replace(asker.broker.state.config, wait_time_mills_in_send_queue=20)
    await asker.send("T")
    answers = await asyncio.gather(asker.send("T", b"slowish"), asker.send("T", b"behind"), asker.pull("T"))
    assert [answer.code for answer in answers] == [0, BUSY, 0]
    assert str(answers[1].remark).startswith("[TIMEOUT_CLEAN_QUEUE]broker busy")
    asker.broker.state.config = replace(asker.broker.state.config, broker_fast_failure_enable=False)
    answers = await asyncio.gather(asker.send("T", b"slowish"), asker.send("T", b"behind"))
    assert [answer.code for answer in answers] == [0, 0]
