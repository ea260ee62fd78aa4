"""Helpers of the server commands: parsing of listen addresses, and the run until a signal."""

import asyncio
import logging
import signal
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

from rmq_formats.errors import OptionError


def parse_address(option: str, text: str) -> tuple[str, int]:
    """Parse host and port of an option's ``HOST:PORT``.

    Raises:
        OptionError: it is none.
    """
    host, _, port = text.rpartition(":")
    if not host or not (port.isascii() and port.isdecimal()):
        raise OptionError(f"{option}: {text!r} is not HOST:PORT")
    return host.removeprefix("[").removesuffix("]"), int(port)


def listen_flags(option: str, text: str | None) -> dict[str, object]:
    """Return the option as settings of a server; empty if the option is absent."""
    if text is None:
        return {}
    host, port = parse_address(option, text)
    return {"bind_address": host, "listen_port": port}


def log_ignored_keys(log: logging.Logger, file: Path | None, keys: list[str]) -> None:
    """Log the keys of a settings file that have no effect, if there are any."""
    if keys:
        log.info("%(file)s: these keys have no effect here: %(keys)s", {"file": file, "keys": ", ".join(keys)})


async def serve_until_stopped(
    server: AbstractAsyncContextManager[object], started: Callable[[], None] = lambda: None
) -> None:
    """Run a server until SIGINT, SIGTERM or SIGHUP, which a terminal that is closed sends.

    Args:
        server: a context manager that starts and stops the server.
        started: called once when the server runs.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if number is not signal.SIGHUP or signal.getsignal(number) is not signal.SIG_IGN:  # which nohup sets
            loop.add_signal_handler(number, stop.set)
    async with server:
        started()
        await stop.wait()
