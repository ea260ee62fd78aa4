"""Quiet exit of Spark's Python workers and planners whose driver has exited.

A driver that stops its session closes the sockets of its workers. One that waits for its next task then
has an end of file to report, to a socket that nobody reads. Over TCP that write succeeds; over a Unix
socket it fails at once, and Spark's daemon prints a traceback to the driver's terminal.
"""

import socket
import sys
from collections.abc import Callable

Worker = Callable[[socket.socket, bool], int]


def quiet(worker: Worker) -> Worker:
    """Wrap a daemon's task function so that it exits with code 1 where its socket has been closed."""

    def serve(sock: socket.socket, authenticated: bool) -> int:
        try:
            return int(worker(sock, authenticated))
        except (BrokenPipeError, ConnectionResetError, EOFError):
            return 1

    return serve


def quiet_planner() -> None:
    """Let this process's next tasks exit quietly, if it is one in which Spark plans a Python source.

    For planning Spark uses its own daemon whatever ``spark.python.daemon.module`` says, so this runs
    when a planner loads a source.
    """
    main = sys.modules["__main__"]
    if getattr(getattr(main, "__spec__", None), "name", None) == "pyspark.daemon":
        main.worker = quiet(main.worker)  # type: ignore[attr-defined] # it looks the name up for each task
