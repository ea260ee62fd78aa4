import asyncio
import gc

import pytest

from rmq_core.remoting.access import acl
from rmq_core.remoting.client import ClientLimits, RemotingClient
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import ConnectError, ConnectionLostError, RequestTimeoutError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.server import RemotingServer, ServerLimits
from rmq_formats.errors import LengthError
from tests.remoting.conftest import ECHO, Serve, echo


def never(command: RemotingCommand, _connection: Connection) -> None:
    """Give no answer."""


async def test_a_request_gets_its_answer(serve: Serve, client: RemotingClient) -> None:
    _, address = await serve()
    answer = await client.invoke(address, request(ECHO, {"a": "b"}, b"body"))
    assert (answer.code, answer.ext_fields, bytes(answer.body)) == (0, {"a": "b"}, b"body")


async def test_many_at_once_share_a_connection_and_each_gets_its_own_answer(
    serve: Serve, client: RemotingClient
) -> None:
    server, address = await serve()
    asked = [client.invoke(address, request(ECHO, {"n": str(number)})) for number in range(300)]
    answers = await asyncio.gather(*asked)
    assert [answer.ext_fields["n"] for answer in answers] == [str(number) for number in range(300)]
    assert len(server.connections) == 1


async def test_a_code_other_than_success_is_an_answer_too(serve: Serve, client: RemotingClient) -> None:
    _, address = await serve()
    assert (await client.invoke(address, request(999))).code == 3


async def test_no_answer_in_time_is_an_error_and_the_connection_goes_on(serve: Serve, client: RemotingClient) -> None:
    _, address = await serve({1: never})
    long = asyncio.ensure_future(client.invoke(address, request(1), 0.5))
    short = asyncio.ensure_future(client.invoke(address, request(1), 0.1))
    with pytest.raises(RequestTimeoutError, match=r"no answer within 0\.1 s"):
        await short
    assert not long.done()
    assert (await client.invoke(address, request(ECHO))).code == 0
    with pytest.raises(RequestTimeoutError):
        await long


async def test_an_answer_that_comes_too_late_is_dropped(serve: Serve, client: RemotingClient) -> None:
    async def slow(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        await asyncio.sleep(0.2)
        return command.response()

    _, address = await serve({1: slow})
    with pytest.raises(RequestTimeoutError):
        await client.invoke(address, request(1), 0.05)
    await asyncio.sleep(0.3)
    assert (await client.invoke(address, request(ECHO))).code == 0


async def test_a_caller_that_gives_up_leaves_nothing_behind(serve: Serve, client: RemotingClient) -> None:
    _, address = await serve({1: never})
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await client.invoke(address, request(1), 0.2)
    connection = await client.connect(address)
    await asyncio.sleep(0.3)
    assert len(connection._pending) == 0


async def test_a_one_way_request_returns_at_once(serve: Serve, client: RemotingClient) -> None:
    seen: list[RemotingCommand] = []

    def note(command: RemotingCommand, _connection: Connection) -> None:
        seen.append(command)

    _, address = await serve({1: note})
    await client.invoke_oneway(address, request(1))
    await client.invoke(address, request(ECHO))
    assert [command.is_oneway for command in seen] == [True]


async def test_what_was_sent_last_leaves_before_the_client_closes(serve: Serve) -> None:
    seen: list[int] = []

    def note(command: RemotingCommand, _connection: Connection) -> None:
        seen.append(len(command.body))

    _, address = await serve({1: note})
    async with RemotingClient() as client:
        await client.invoke_oneway(address, request(1, None, bytes(1 << 20)))
    async with asyncio.timeout(60):
        while not seen:
            await asyncio.sleep(0.01)
    assert seen == [1 << 20]


async def test_nobody_there_is_told(client: RemotingClient) -> None:
    with pytest.raises(ConnectError, match=r"127\.0\.0\.1:1: cannot connect"):
        await client.invoke("127.0.0.1:1", request(ECHO))
    for address in ("", "nohost", "h:", "h:0", "h:99999", "h:x", ":1", "h:²"):
        with pytest.raises(ConnectError, match="not a host and a port"):
            await client.invoke(address, request(ECHO))
    with pytest.raises(ConnectError):
        await client.invoke("no.such.host.invalid:1", request(ECHO))


async def test_a_lost_connection_fails_who_waits_and_is_made_again(serve: Serve, client: RemotingClient) -> None:
    server, address = await serve({1: never})
    waiting = asyncio.ensure_future(client.invoke(address, request(1)))
    await client.invoke(address, request(ECHO))
    for connection in list(server.connections):
        connection.abort()
    with pytest.raises(ConnectionLostError):
        await waiting
    assert (await client.invoke(address, request(ECHO))).code == 0


async def test_a_server_that_comes_back_is_found_again(client: RemotingClient) -> None:
    server = RemotingServer({ECHO: echo})
    host, port = await server.listen("127.0.0.1", 0)
    address = f"{host}:{port}"
    assert (await client.invoke(address, request(ECHO))).code == 0
    await server.close()
    with pytest.raises((ConnectError, ConnectionLostError)):
        await client.invoke(address, request(ECHO))
    server = RemotingServer({ECHO: echo})
    await server.listen(host, port)
    assert (await client.invoke(address, request(ECHO))).code == 0
    await server.close()


async def test_the_client_answers_what_the_server_asks(serve: Serve) -> None:
    server, address = await serve()
    lost: list[str] = []
    async with RemotingClient({307: echo}, on_disconnect=lost.append) as client:
        await client.invoke(address, request(ECHO))
        (connection,) = server.connections
        answer = await connection.invoke(request(307, {"q": "1"}), 5)
        assert (answer.code, answer.ext_fields) == (0, {"q": "1"})
        assert (await connection.invoke(request(999), 5)).code == 3
    assert lost == [address]


async def test_go_away_moves_the_next_request_to_a_new_connection(serve: Serve, client: RemotingClient) -> None:
    connections: list[Connection] = []

    def go_away(command: RemotingCommand, connection: Connection) -> RemotingCommand:
        connections.append(connection)
        return command.response(1500, "please go away")

    _, address = await serve({1: go_away})
    for _ in range(2):
        assert (await client.invoke(address, request(1))).code == 1500
    assert connections[0] is not connections[1]


async def test_requests_are_signed_if_there_are_credentials(serve: Serve) -> None:
    alice = acl.Credentials("alice", "secret")
    signed: list[bool] = []

    def check(command: RemotingCommand, _connection: Connection) -> RemotingCommand:
        signed.append(acl.is_signed_with(command, alice.secret_key))
        return command.response()

    _, address = await serve({1: check})
    async with RemotingClient(credentials=alice) as client:
        await client.invoke(address, request(1, {"a": "b"}, b"body"))
        await client.invoke_oneway(address, request(1))
        await client.invoke(address, request(ECHO))
    assert signed == [True, True]


async def test_a_request_that_cannot_be_encoded_is_refused_and_others_go_on(
    serve: Serve, client: RemotingClient
) -> None:
    _, address = await serve()
    with pytest.raises(LengthError):
        await client.invoke(address, request(ECHO, None, bytes(17 << 20)))
    assert (await client.invoke(address, request(ECHO))).code == 0


async def test_large_requests_and_answers_pass_while_both_sides_are_busy(serve: Serve) -> None:
    _, address = await serve(limits=ServerLimits(write_high_water_bytes=1 << 16))
    body = bytes(2 << 20)
    async with RemotingClient(limits=ClientLimits(write_high_water_bytes=1 << 16)) as client:
        answers = await asyncio.gather(*(client.invoke(address, request(ECHO, None, body), 20) for _ in range(20)))
    assert all(answer.body == body for answer in answers)


async def test_a_closed_client_connects_no_more(serve: Serve) -> None:
    _, address = await serve({1: never})
    client = RemotingClient()
    waiting = asyncio.ensure_future(client.invoke(address, request(1)))
    await asyncio.sleep(0.05)
    await client.close()
    with pytest.raises(ConnectionLostError):
        await waiting
    with pytest.raises(ConnectError, match="the client is closed"):
        await client.invoke(address, request(ECHO))


async def test_disconnecting_ends_one_connection(serve: Serve, client: RemotingClient) -> None:
    _, address = await serve()
    connection = await client.connect(address)
    client.disconnect(address)
    client.disconnect(address)
    await connection.wait_closed()
    assert (await client.invoke(address, request(ECHO))).code == 0


async def test_a_connection_that_fails_when_nobody_waits_for_it_any_more_is_no_unexpected_error(
    unused_tcp_port: int, client: RemotingClient
) -> None:
    unexpected: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: unexpected.append(context["message"]))
    asking = asyncio.ensure_future(client.connect(f"127.0.0.1:{unused_tcp_port}"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    while client._connecting:
        await asyncio.sleep(0.01)
    gc.collect()
    assert unexpected == []
