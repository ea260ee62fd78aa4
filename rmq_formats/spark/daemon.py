"""Spark's Python daemon with the kernels loaded before it forks.

Each Python worker is a fork of the daemon. Set ``spark.python.daemon.module`` to this module, and a
worker starts with numpy, numba, pyarrow and every compiled kernel in place, shared memory between
them, instead of most of a second spent on imports in each. ``session()`` sets it.
"""

import gc

from pyspark import daemon

import rmq_formats.access.read
import rmq_formats.offline.rebuild
import rmq_formats.offline.write_derived
import rmq_formats.offline.write_piece  # noqa: F401 # these load every kernel
from rmq_formats.spark.worker_exit import quiet

if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment] # it is called by position
    # A worker collects garbage after each task. What is loaded here is none: looking at it cost 70 ms a
    # task, and a copy of each page that the collector's counts stand on.
    gc.collect()
    gc.freeze()
    daemon.manager()
