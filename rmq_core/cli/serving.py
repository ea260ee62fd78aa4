"""What the commands that serve have in common: addresses on the command line, and when they stop."""

import asyncio
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from rmq_formats.errors import OptionError


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Host and port of an option's ``HOST:PORT``.

    Raises:
        OptionError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise OptionError(f"{option}: {text!r} is no HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_flags(option: str, text: str | None) -> dict[str, object]:
    """The option as settings of a server; none if it is not given."""
    if text is None:
        return {}
    host, port = parse_address(option, text)
    return {"bind_address": host, "listen_port": port}


async def serve_until_stopped(
    server: AbstractAsyncContextManager[object], started: Callable[[], None] = lambda: None
) -> None:
    """Run a server until SIGINT or SIGTERM.

    Args:
        server: starts when it is entered, and ends when it is left.
        started: called in between, once.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with server:
        started()
        await stop.wait()
