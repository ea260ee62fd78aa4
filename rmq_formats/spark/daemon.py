"""Daemon of Spark's Python workers, with the kernels loaded before it forks.

Each Python worker is a fork of the daemon. Set ``spark.python.daemon.module`` to this module, and a
worker starts with numpy, numba, pyarrow and every compiled kernel loaded, in memory that they
share, instead of spending most of a second on imports. ``session()`` sets it.
"""

import gc

from pyspark import daemon

import rmq_formats.read.task
import rmq_formats.rebuild.tasks
import rmq_formats.write.derived
import rmq_formats.write.piece  # noqa: F401 # these load every kernel
from rmq_formats.spark.worker_exit import quiet

if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment] # it is called by position
    # A worker collects garbage after each task. The modules loaded here are none: scanning them cost 70 ms a
    # task, and a copy of each page that holds the collector's counters.
    gc.collect()
    gc.freeze()
    daemon.manager()
