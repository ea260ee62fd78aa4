"""Rebuilds that die: at a chosen change of the file system, or at any moment."""

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from rmq_offline.tasks import publish

_CHANGES = {"os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.link", "os.symlink"}
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


class _Countdown:
    """Kills this process before its n-th change of the file system."""

    def __init__(self, left: int | None) -> None:
        self.left = left
        self.seen = 0

    def tick(self) -> None:
        self.seen += 1
        if self.seen == self.left:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in _CHANGES or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITING):
            self.tick()


def run_and_die(action: Callable[[], Any], at: int | None = None) -> int | None:
    """Run an action in a process of its own, killed before its ``at``-th change of the file system.

    Returns:
        The count of its changes where it came to its end; None where it was killed.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _run(action, at, writing)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        told = pipe.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return None
    assert os.WEXITSTATUS(status) == 0, "the action failed; see its traceback"
    return int(told)


def _run(action: Callable[[], Any], at: int | None, writing: int) -> None:
    code = 1
    try:
        countdown = _Countdown(at)
        exchange = publish._exchange

        def counted(*names: Any) -> None:
            countdown.tick()  # ctypes tells no audit hook of what it calls
            exchange(*names)
            countdown.tick()

        publish._exchange = counted
        sys.addaudithook(countdown.hook)
        action()
        os.write(writing, str(countdown.seen).encode())
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


class NoExchange:
    """A C library of a system without ``renameat2``."""

    syncfs = ctypes.CDLL(None).syncfs
