"""Daemon of Spark's Python workers, with the kernels loaded before it forks.

Each Python worker is a fork of the daemon. Set ``spark.python.daemon.module`` to this module, and a
worker starts with numpy, numba, pyarrow and every compiled kernel loaded, in memory that they
share, instead of spending most of a second on imports. ``session()`` sets it.
"""

import gc

from pyspark import daemon

import rmq_formats.read.task  # noqa: F401 # loads kernels, as the entry points do
from rmq_formats.spark.sources import KERNELS, load_entry_points
from rmq_formats.spark.worker_exit import quiet

load_entry_points(KERNELS)

if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment] # it is called by position
    # A worker collects garbage after each task. The modules loaded here are none: scanning them cost 70 ms a
    # task, and a copy of each page that holds the collector's counters.
    gc.collect()
    gc.freeze()
    daemon.manager()
