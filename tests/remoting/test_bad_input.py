"""What strangers send: that connection ends or gets an answer, and the others go on."""

import asyncio
import random

import pytest

from rmq_core.remoting.frames import MAX_FRAME_BYTES, encode_frame
from rmq_core.remoting.header import request
from tests.remoting.conftest import ECHO, Connect, Serve

FRAME = encode_frame(request(ECHO, {"a": "b"}, b"body"))


def frame(header: bytes, kind: int = 0, header_bytes: int | None = None) -> bytes:
    size = len(header) if header_bytes is None else header_bytes
    return (4 + len(header)).to_bytes(4, "big") + (kind << 24 | size).to_bytes(4, "big") + header


BAD = {
    "a_frame_too_long": MAX_FRAME_BYTES.to_bytes(4, "big"),
    "a_negative_size": b"\xff\xff\xff\xff",
    "a_size_too_small": bytes(8),
    "a_header_longer_than_its_frame": frame(b"{}", header_bytes=3),
    "garbage_for_json": frame(b'{"code":'),
    "json_that_is_no_object": frame(b"[1,2,3]"),
    "text_that_is_not_utf8": frame(b'{"code":1,"remark":"\xff"}'),
    "nesting_without_end": frame(b'{"x":' + b"[" * 100_000),
    "an_unknown_type_of_header": frame(b"{}", kind=7),
    "a_binary_header_cut_off": frame(b"\x00" * 20, kind=1),
    "a_binary_header_that_lies": frame(bytes(13) + b"\x7f\xff\xff\xff" + bytes(4), kind=1),
    "tls": bytes.fromhex("1603010200010001fc0303"),
    "http": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a_proxy_header": b"PROXY TCP4 1.2.3.4 5.6.7.8 1 2\r\n",
}


@pytest.mark.parametrize("bad", list(BAD.values()), ids=list(BAD))
async def test_bad_bytes_end_their_connection_and_no_other(
    serve: Serve, connect: Connect, bad: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    server, address = await serve()
    healthy, stranger = await connect(address), await connect(address)
    await healthy.ask()
    stranger.write(FRAME + bad)
    (answer,) = await stranger.read()
    assert answer.code == 0
    assert await stranger.is_closed()
    assert (await healthy.ask()).code == 0
    assert len(server.connections) == 1
    assert [record.levelname for record in caplog.records] == ["WARNING"]


async def test_a_connection_that_ends_within_a_frame_does_no_harm(serve: Serve, connect: Connect) -> None:
    server, address = await serve()
    healthy = await connect(address)
    for end in (1, 3, 4, 7, 8, 20, len(FRAME) - 1):
        stranger = await connect(address)
        stranger.write(FRAME[:end])
        stranger.writer.close()
    assert (await healthy.ask()).code == 0
    while len(server.connections) > 1:
        await asyncio.sleep(0.01)
    assert server.held_bytes == 0


async def test_random_bytes_from_many_do_not_disturb_a_healthy_client(serve: Serve, connect: Connect) -> None:
    server, address = await serve()
    healthy = await connect(address)
    dice = random.Random(7)
    for _ in range(60):
        stranger = await connect(address)
        data = dice.randbytes(dice.randrange(1, 2000))
        if dice.random() < 0.5:  # a sound frame, damaged somewhere
            damaged = bytearray(FRAME)
            damaged[dice.randrange(len(FRAME))] = dice.randrange(256)
            data = bytes(damaged)
        stranger.write(data)
        stranger.writer.close()
        assert (await healthy.ask()).code == 0
    while len(server.connections) > 1:
        await asyncio.sleep(0.01)


async def test_a_client_ends_a_connection_whose_server_talks_nonsense() -> None:
    from rmq_core.remoting.client import RemotingClient
    from rmq_core.remoting.errors import ConnectionLostError

    async def nonsense(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"\xff" * 20)
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(nonsense, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, RemotingClient() as client:
        with pytest.raises(ConnectionLostError):
            await client.invoke(f"127.0.0.1:{port}", request(1))
    await asyncio.sleep(0.05)
