import asyncio
import logging
import socket
import time

import pytest

from rmq_core.remoting import connection as connection_module
from rmq_core.remoting.codes import JSON, ROCKETMQ
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ConnectionLostError, ListenError, ResponseError
from rmq_core.remoting.frames import encode_frame
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.server import RemotingServer, ServerLimits
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.record_layout import HOST_V6_BYTES
from rmq_formats.errors import DecodeError
from tests.remoting.conftest import ECHO, Connect, Serve, echo


def numbered(count: int, code: int = ECHO, flag: int = 0) -> bytes:
    frames = []
    for number in range(count):
        command = request(code, {"n": str(number)}, b"body")
        command.opaque, command.flag = number, flag
        frames.append(encode_frame(command))
    return b"".join(frames)


@pytest.mark.parametrize("serialize_type", [JSON, ROCKETMQ])
async def test_a_request_gets_an_answer_in_its_own_form(serve: Serve, connect: Connect, serialize_type: int) -> None:
    _, address = await serve()
    peer = await connect(address)
    answer = await peer.ask(request(ECHO, {"a": "b"}, b"body", serialize_type=serialize_type))
    assert (answer.code, answer.flag, answer.serialize_type, answer.ext_fields) == (0, 1, serialize_type, {"a": "b"})
    assert answer.body == b"body"


async def test_pipelined_requests_get_their_answers_in_order(serve: Serve, connect: Connect) -> None:
    _, address = await serve()
    peer = await connect(address)
    peer.write(numbered(500))
    assert [answer.opaque for answer in await peer.read(500)] == list(range(500))


async def test_answers_of_one_batch_leave_in_one_write(serve: Serve, connect: Connect) -> None:
    batches: list[int] = []
    server, address = await serve(after_batch=lambda: batches.append(1))
    peer = await connect(address)
    await peer.ask()
    (connection,) = server.connections
    writes: list[int] = []
    transport = connection._transport
    assert transport is not None

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(transport, name)

        def write(self, data: bytes) -> None:
            writes.append(len(data))
            transport.write(data)

    connection._transport = Counting()  # type: ignore[assignment]
    batches.clear()
    peer.write(numbered(100))
    await peer.read(100)
    assert len(writes) == len(batches) < 5


async def test_a_server_that_has_closed_awaits_no_answers_any_more(serve: Serve, connect: Connect) -> None:
    never = asyncio.get_running_loop().create_future()
    ends: list[int] = []

    async def waits(request: RemotingCommand) -> RemotingCommand | None:
        try:
            await asyncio.shield(never)
        finally:
            ends.append(request.opaque)
        return None

    server, address = await serve({ECHO: lambda request, _: waits(request)})
    lost, stays = await connect(address), await connect(address)
    lost.write(numbered(1))
    stays.write(numbered(2)[len(numbered(1)) :])
    while sum(connection.pending_response_count for connection in server.connections) < 2:
        await asyncio.sleep(0.01)
    next(iter(server.connections)).abort()
    await asyncio.sleep(0.01)
    assert ends == []  # the work on it goes on
    await server.close(grace_s=0.01)
    assert sorted(ends) == [0, 1]


@pytest.fixture
def one_request_a_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have their turn after each request, and a batch lasts as long as it likes."""
    monkeypatch.setattr(connection_module, "SLICE_S", -1.0)
    monkeypatch.setattr(connection_module, "BATCH_S", 60.0)


@pytest.mark.usefixtures("one_request_a_slice")
@pytest.mark.parametrize(("batch_s", "ends"), [(60.0, 1), (-1.0, 100)])
async def test_a_long_batch_lets_others_in_between_and_writes_its_answers_from_time_to_time(
    serve: Serve, connect: Connect, monkeypatch: pytest.MonkeyPatch, batch_s: float, ends: int
) -> None:
    monkeypatch.setattr(connection_module, "BATCH_S", batch_s)
    turns: list[str] = []
    batches: list[int] = []

    async def passes() -> None:
        while True:
            turns.append("other")
            await asyncio.sleep(0)

    _, address = await serve(
        {ECHO: lambda request, _: (turns.append("echo"), echo(request, _))[1]}, after_batch=lambda: batches.append(1)
    )
    peer = await connect(address)
    await peer.ask()
    turns.clear()
    batches.clear()
    other = asyncio.create_task(passes())
    try:
        peer.write(numbered(100))
        assert [answer.opaque for answer in await peer.read(100)] == list(range(100))
    finally:
        other.cancel()
    assert "echoecho" not in "".join(turns)
    assert ends <= len(batches) < ends + 5


@pytest.mark.usefixtures("one_request_a_slice")
async def test_a_batch_that_is_held_up_between_slices_ends_there(serve: Serve, connect: Connect) -> None:
    batches: list[int] = []
    held = 17 << 20  # more than a connection's requests may have waiting

    def echo_and_hold(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        if request.opaque == 1:  # as by another's work, before the next slice
            asyncio.get_running_loop().call_soon(connection.reserve_inflight, held)
        return echo(request, connection)

    server, address = await serve({ECHO: echo_and_hold}, after_batch=lambda: batches.append(1))
    peer = await connect(address)
    peer.write(numbered(5))
    first = await peer.read(2)
    assert [answer.opaque for answer in first] == [0, 1]
    assert batches
    (connection,) = server.connections
    connection.release_inflight(held)
    assert [answer.opaque for answer in await peer.read(3)] == [2, 3, 4]


@pytest.mark.usefixtures("one_request_a_slice")
async def test_what_was_handled_of_a_batch_is_ended_where_its_connection_is_lost(
    serve: Serve, connect: Connect
) -> None:
    batches: list[int] = []

    def echo_and_end(request: RemotingCommand, connection: Connection) -> RemotingCommand:
        if request.opaque == 1:
            asyncio.get_running_loop().call_soon(connection.abort)
        return echo(request, connection)

    _, address = await serve({ECHO: echo_and_end}, after_batch=lambda: batches.append(1))
    peer = await connect(address)
    peer.write(numbered(5000))
    async with asyncio.timeout(60):
        while not batches:
            await asyncio.sleep(0.01)


async def test_an_unknown_code_is_answered_as_the_original_does(serve: Serve, connect: Connect) -> None:
    _, address = await serve()
    peer = await connect(address)
    answer = await peer.ask(request(999))
    assert (answer.code, answer.remark) == (3, " request type 999 not supported")
    assert (await peer.ask()).code == 0


async def test_a_one_way_request_gets_no_answer(serve: Serve, connect: Connect) -> None:
    seen: list[int] = []

    def fails(command: RemotingCommand, _connection: Connection) -> None:
        seen.append(command.code)
        raise ResponseError(1)

    async def later(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        seen.append(command.code)
        return command.response()

    _, address = await serve({1: fails, 2: later})
    peer = await connect(address)
    for code in (ECHO, 1, 2, 999):
        peer.write(numbered(1, code, flag=2))
    peer.write(numbered(1))
    (answer,) = await peer.read()
    assert answer.code == 0
    assert seen == [1, 2]


async def test_what_a_handler_raises_is_an_answer_and_the_connection_goes_on(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    errors = [ResponseError(17, "no topic"), DecodeError("bad body"), ValueError("x" + "y" * 10000)]

    def fails(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        raise errors[int(command.ext_fields["n"])]

    async def fails_later(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        await asyncio.sleep(0)
        return fails(command, connection)

    _, address = await serve({1: fails, 2: fails_later})
    peer = await connect(address)
    for code in (1, 2):
        peer.write(numbered(3, code))
        answers = sorted(await peer.read(3), key=lambda answer: answer.opaque)
        assert [answer.code for answer in answers] == [17, 1, 1]
        assert [answer.remark for answer in answers[:2]] == ["no topic", "bad body"]
        assert (answers[2].remark or "").startswith("ValueError: xyyy")
        assert len(answers[2].remark or "") == 4096
    assert (await peer.ask()).code == 0
    assert [record.levelno for record in caplog.records if "failed" in record.message] == [logging.ERROR] * 2


async def test_half_a_surrogate_pair_in_an_error_becomes_a_question_mark(
    serve: Serve, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL + 1)  # pytest-xdist cannot send what would be logged

    def fails(_command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        raise ValueError("x\ud800y")

    _, address = await serve({1: fails})
    peer = await connect(address)
    peer.write(numbered(1, 1))
    (answer,) = await peer.read(1)
    assert (answer.code, answer.remark) == (1, "ValueError: x?y")


async def test_an_answer_that_cannot_be_encoded_is_an_answer_with_code_1(serve: Serve, connect: Connect) -> None:
    def too_large(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        return command.response(0, None, None, bytes(17 << 20))

    def no_text(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        return command.response(0, "\ud800")

    async def later(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        return too_large(command, connection)

    _, address = await serve({1: too_large, 2: no_text, 3: later})
    peer = await connect(address)
    for code in (1, 2, 3):
        assert (await peer.ask(request(code))).code == 1
    assert (await peer.ask()).code == 0


async def test_answers_may_come_later_and_out_of_order(serve: Serve, connect: Connect) -> None:
    futures: list[asyncio.Future[RemotingCommand | None]] = []
    held: list[tuple[RemotingCommand, Connection]] = []

    def by_future(command: RemotingCommand, _connection: Connection) -> asyncio.Future[RemotingCommand | None]:
        futures.append(asyncio.get_running_loop().create_future())
        return futures[-1]

    def by_hand(command: RemotingCommand, connection: Connection) -> None:
        held.append((command, connection))

    _, address = await serve({1: by_future, 2: by_hand})
    peer = await connect(address)
    first, second, third = request(1), request(2), request(ECHO)
    first.opaque, second.opaque, third.opaque = 1, 2, 3
    peer.write(encode_frame(first) + encode_frame(second) + encode_frame(third))
    assert [answer.opaque for answer in await peer.read()] == [3]
    command, connection = held[0]
    connection.send(command.response(19))
    futures[0].set_result(first.response(0))
    assert {answer.opaque: answer.code for answer in await peer.read(2)} == {1: 0, 2: 19}


async def test_answers_for_a_peer_that_has_gone_are_dropped(serve: Serve, connect: Connect) -> None:
    held: list[tuple[RemotingCommand, Connection]] = []
    future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()

    def by_hand(command: RemotingCommand, connection: Connection) -> None:
        held.append((command, connection))

    def by_future(command: RemotingCommand, _connection: Connection) -> asyncio.Future[RemotingCommand]:
        return future

    gone: list[Connection] = []
    _, address = await serve({1: by_hand, 2: by_future}, on_disconnect=gone.append)
    peer = await connect(address)
    peer.write(numbered(1, 1) + numbered(1, 2))
    while not held:
        await asyncio.sleep(0.01)
    peer.writer.close()
    while not gone:
        await asyncio.sleep(0.01)
    command, connection = held[0]
    assert connection.is_closing
    connection.send(command.response())
    future.set_result(command.response())
    await asyncio.sleep(0)
    with pytest.raises(ConnectionLostError):
        connection.start(request(1), 1)


async def test_the_server_may_ask_its_client(serve: Serve, connect: Connect) -> None:
    server, address = await serve()
    peer = await connect(address)
    await peer.ask()
    (connection,) = server.connections
    asking = asyncio.ensure_future(connection.invoke(request(307, {"q": "1"}), 5))
    (asked,) = await peer.read()
    peer.write(encode_frame(asked.response(0, None, {"a": "2"})))
    assert (await asking).ext_fields == {"a": "2"}
    connection.send_oneway(request(40))
    (notice,) = await peer.read()
    assert (notice.code, notice.is_oneway) == (40, True)


async def test_a_connection_knows_both_ends(serve: Serve, connect: Connect) -> None:
    server, address = await serve()
    peer = await connect(address)
    await peer.ask()
    (connection,) = server.connections
    host, port = peer.writer.get_extra_info("sockname")
    assert (connection.remote_address, connection.local_address) == (f"{host}:{port}", address)
    assert connection.remote_host == Host(bytes([127, 0, 0, 1]), port).to_bytes()
    try:
        _, port_v6 = await server.listen("::1", 0)
    except ListenError:
        return  # no IPv6 here
    reader, writer = await asyncio.open_connection("::1", port_v6)
    writer.write(numbered(1))
    assert await reader.read(1)
    (connection,) = server.connections.keys() - {connection}
    assert connection.remote_address.startswith("[::1]:")
    assert len(connection.remote_host) == HOST_V6_BYTES
    writer.close()
    await writer.wait_closed()


async def test_ports_have_tables_of_their_own(serve: Serve, connect: Connect) -> None:
    server, address = await serve()
    _, other_port = await server.listen("127.0.0.1", 0, {1: echo})
    assert (await (await connect(address)).ask(request(1))).code == 3
    other = await connect(f"127.0.0.1:{other_port}")
    assert (await other.ask(request(1))).code == 0
    assert (await other.ask(request(ECHO))).code == 3
    assert {connection.local_address for connection in server.connections} == {address, f"127.0.0.1:{other_port}"}


async def test_a_port_in_use_is_told_in_one_line() -> None:
    server = RemotingServer({})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ListenError, match=f"127.0.0.1:{port}: cannot listen: .*in use"):
            await server.listen("127.0.0.1", port)
    for host, port in (("no.such.host.invalid", 0), ("127.0.0.1", 70000), ("\ud800", 0)):
        with pytest.raises(ListenError):
            await server.listen(host, port)
    await server.close()


async def test_comings_and_goings_are_told(serve: Serve, connect: Connect) -> None:
    came: list[str] = []
    went: list[str] = []
    _, address = await serve(
        on_connect=lambda connection: came.append(connection.remote_address),
        on_disconnect=lambda connection: went.append(connection.remote_address),
    )
    peer = await connect(address)
    await peer.ask()
    host, port = peer.writer.get_extra_info("sockname")
    peer.writer.close()
    while not went:
        await asyncio.sleep(0.01)
    assert came == went == [f"{host}:{port}"]


async def test_an_idle_connection_ends_and_a_busy_one_stays(serve: Serve, connect: Connect) -> None:
    server, address = await serve(limits=ServerLimits(idle_timeout_s=1))
    idle, busy = await connect(address), await connect(address)
    await idle.ask()
    closed = asyncio.ensure_future(idle.is_closed())
    while not closed.done():
        assert (await busy.ask()).code == 0
        await asyncio.sleep(0.05)
    assert len(server.connections) == 1


async def test_more_connections_than_allowed_are_closed_at_once(serve: Serve, connect: Connect) -> None:
    server, address = await serve(limits=ServerLimits(max_connections=2))
    peers = [await connect(address) for _ in range(2)]
    for peer in peers:
        await peer.ask()
    assert await (await connect(address)).is_closed()
    assert [(await peer.ask()).code for peer in peers] == [0, 0]
    assert len(server.connections) == 2


async def test_unfinished_frames_are_held_up_to_a_limit_for_all(serve: Serve, connect: Connect) -> None:
    server, address = await serve(limits=ServerLimits(max_held_bytes=100_000))
    unfinished = (1 << 20).to_bytes(4, "big") + bytes(4) + bytes(60_000)
    first, healthy = await connect(address), await connect(address)
    first.write(unfinished)
    while server.held_bytes < 60_000:
        await asyncio.sleep(0.01)
    second = await connect(address)
    second.write(unfinished + bytes(1000))
    assert await second.is_closed()
    assert (await healthy.ask()).code == 0
    first.writer.close()
    while server.held_bytes:
        await asyncio.sleep(0.01)


async def test_who_holds_the_most_is_closed_and_not_who_comes_last(serve: Serve, connect: Connect) -> None:
    server, address = await serve(limits=ServerLimits(max_held_bytes=100_000))
    begun = (1 << 20).to_bytes(4, "big") + bytes(4)
    most, least = await connect(address), await connect(address)
    most.write(begun + bytes(80_000))
    while server.held_bytes < 80_000:
        await asyncio.sleep(0.01)
    frame = encode_frame(request(ECHO, {}, bytes(60_000)))
    least.write(frame[:40_000])
    assert await most.is_closed()
    least.write(frame[40_000:])
    assert [len(answer.body) for answer in await least.read()] == [60_000]


async def test_bytes_that_come_while_nothing_is_handled_count_as_held(serve: Serve, connect: Connect) -> None:
    server, address = await serve()
    peer = await connect(address)
    assert (await peer.ask()).code == 0
    (connection,) = server.connections
    connection.pause_writing()  # a transport may have data that it has received already
    connection.data_received((1 << 20).to_bytes(4, "big") + bytes(4) + bytes(60_000))
    assert server.held_bytes >= 60_000
    connection.resume_writing()
    assert server.held_bytes >= 60_000


async def test_answers_that_are_not_read_count_as_held(serve: Serve, connect: Connect) -> None:
    def pull(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        return command.response(0, None, None, bytes(900_000))  # below the limit from which on a peer is not read from

    limits = ServerLimits(max_held_bytes=4_000_000, write_high_water_bytes=8 << 20)
    server, address = await serve({11: pull}, limits=limits)
    lazy, healthy = await connect(address), await connect(address)
    lazy.reader._transport.pause_reading()  # type: ignore[attr-defined]
    for number in range(100):
        try:
            lazy.write(numbered(1, 11))
            await lazy.writer.drain()
        except ConnectionError:
            break
        assert (await healthy.ask()).code == 0, number
        assert server.held_bytes <= 4_000_000
    assert len(server.connections) == 1


async def test_no_more_is_read_while_too_much_waits_for_its_answer(serve: Serve, connect: Connect) -> None:
    waiting: list[asyncio.Future[RemotingCommand]] = []
    asked: list[RemotingCommand] = []

    def wait(command: RemotingCommand, _connection: Connection) -> asyncio.Future[RemotingCommand]:
        asked.append(command)
        waiting.append(asyncio.get_running_loop().create_future())
        return waiting[-1]

    server, address = await serve({1: wait}, limits=ServerLimits(max_waiting_bytes=100_000))
    peer, healthy = await connect(address), await connect(address)
    peer.write(numbered(5000, 1))
    while server.held_bytes < 100_000:
        await asyncio.sleep(0.01)
    assert (await healthy.ask()).code == 0
    assert len(waiting) < 60
    answered = 0
    while answered < 5000:
        for number in range(answered, len(waiting)):
            waiting[number].set_result(asked[number].response())
        answered = len(waiting)
        await asyncio.sleep(0)
        assert server.held_bytes < 400_000
    assert sorted(answer.opaque for answer in await peer.read(5000)) == list(range(5000))
    while server.held_bytes:  # what is on its way is counted until something else happens on the connection
        await peer.ask()


@pytest.mark.long
async def test_one_who_asks_for_much_at_once_takes_turns_with_the_others(serve: Serve, connect: Connect) -> None:
    handled: list[int] = []

    def work(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        end = time.perf_counter() + 0.005
        while time.perf_counter() < end:
            continue
        handled.append(command.opaque)
        return command.response()

    _, address = await serve({1: work})
    greedy, healthy = await connect(address), await connect(address)
    greedy.write(numbered(400, 1))
    while not handled:
        await asyncio.sleep(0)
    assert (await healthy.ask()).code == 0
    assert len(handled) < 100
    assert [answer.opaque for answer in await greedy.read(400)] == list(range(400))


async def test_a_peer_that_does_not_read_is_not_read_from(serve: Serve, connect: Connect) -> None:
    large = bytes(300_000)
    handled: list[int] = []

    def pull(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        handled.append(command.opaque)
        return command.response(0, None, None, memoryview(large))

    server, address = await serve({11: pull}, limits=ServerLimits(write_high_water_bytes=1 << 20))
    slow, healthy = await connect(address), await connect(address)
    slow.write(numbered(400, 11))
    while not handled:
        await asyncio.sleep(0.01)
    assert (await healthy.ask()).code == 0
    await asyncio.sleep(0.3)
    assert len(handled) < 100
    answers = await slow.read(400)
    assert [answer.opaque for answer in answers] == list(range(400))
    assert handled == list(range(400))
    assert (await slow.ask()).code == 0
    assert len(server.connections) == 2


async def test_closing_lets_requests_in_work_have_their_answers(serve: Serve, connect: Connect) -> None:
    async def slow(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        await asyncio.sleep(0.2)
        return command.response(0, "done")

    server, address = await serve({1: slow})
    peer = await connect(address)
    asking = asyncio.ensure_future(peer.ask(request(1)))
    await asyncio.sleep(0.05)
    closing = asyncio.ensure_future(server.close(2))
    assert (await asking).remark == "done"
    assert await peer.is_closed()
    await closing
    with pytest.raises(OSError, match=r"."):
        await connect(address)


async def test_requests_during_closing_are_told_to_go_away(serve: Serve, connect: Connect) -> None:
    begun, ends = asyncio.Event(), asyncio.Event()

    async def slow(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        begun.set()
        await ends.wait()
        return command.response(0, "done")

    server, address = await serve({1: slow})
    peer = await connect(address)
    peer.write(encode_frame(request(1)))
    await begun.wait()
    closing = asyncio.ensure_future(server.close(60))
    await asyncio.sleep(0.05)
    assert (await peer.ask()).code == 1500
    old = request(ECHO)
    old.version = 401
    assert (await peer.ask(old)).code == 0
    ends.set()
    await closing


async def test_closing_does_not_wait_for_ever(serve: Serve, connect: Connect) -> None:
    def never(command: RemotingCommand, _connection: Connection) -> asyncio.Future[RemotingCommand | None]:
        return asyncio.get_running_loop().create_future()

    server, address = await serve({1: never})
    peer = await connect(address)
    peer.write(numbered(1, 1))
    await asyncio.sleep(0.05)
    async with asyncio.timeout(60):
        await server.close(0.1)
    assert await peer.is_closed()


async def test_an_error_at_the_end_of_a_batch_does_no_harm(serve: Serve, connect: Connect) -> None:
    def fails() -> None:
        raise ValueError

    _, address = await serve(after_batch=fails)
    assert (await (await connect(address)).ask()).code == 0
