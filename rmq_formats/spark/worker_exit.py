"""Quiet exit of Spark's Python workers and planners whose driver has exited.

A driver that stops its session closes the workers' sockets. A worker that waits for the next task then reports an end
of file to a socket that nobody reads. Over TCP that write succeeds; over a Unix socket the write fails at once, and
Spark's daemon prints a traceback to the driver's terminal.
"""

import socket
import sys
from collections.abc import Callable

Worker = Callable[[socket.socket, bool], int]


def quiet(worker: Worker) -> Worker:
    """Wrap a daemon's task function so that it exits with code 1 after the socket is closed."""

    def serve(sock: socket.socket, authenticated: bool) -> int:
        try:
            return int(worker(sock, authenticated))
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 1

    return serve


def quiet_planner() -> None:
    """Let the next tasks of this process exit quietly, if Spark plans Python sources here.

    For planning Spark uses its own daemon, not ``spark.python.daemon.module``; so a planner calls this when it loads a
    source.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        main.worker = quiet(main.worker)  # type: ignore[attr-defined] # it looks the name up for each task
