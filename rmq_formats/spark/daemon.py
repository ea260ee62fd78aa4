"""Spark's Python daemon with the kernels loaded before it forks.

Each Python worker is a fork of the daemon. Set ``spark.python.daemon.module`` to this module, and a
worker starts with numpy, numba, pyarrow and every compiled kernel in place, shared memory between
them, instead of most of a second spent on imports in each. ``session()`` sets it.
"""

import gc
import socket

from pyspark import daemon

import rmq_formats.access.read
import rmq_formats.offline.rebuild
import rmq_formats.offline.write_derived
import rmq_formats.offline.write_piece  # noqa: F401 # these load every kernel

_worker = daemon.worker


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Serve one task, as Spark's own does, and end quietly where the other side is gone.

    A planner closes its socket as soon as it has what it asked for, and a driver that ends closes all. Over TCP it
    was seldom noticed; over a Unix socket a flush fails at once, which would write a traceback for each query.
    """
    try:
        return int(_worker(sock, authenticated))
    except (BrokenPipeError, ConnectionResetError, EOFError):
        return 1


if __name__ == "__main__":
    daemon.worker = worker
    # A worker collects garbage after each task. What is loaded here is none: looking at it cost 70 ms a
    # task, and a copy of each page that the collector's counts stand on.
    gc.collect()
    gc.freeze()
    daemon.manager()
