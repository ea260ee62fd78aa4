"""Daemon of Spark's Python workers, which loads the kernels before each worker is forked.

With ``spark.python.daemon.module`` set to this module, as ``session()`` does, workers share numpy, numba, pyarrow and
all compiled kernels in memory, instead of spending most of a second on imports.
"""

import gc

from pyspark import daemon

import rmq_formats.read.task  # noqa: F401 # loads kernels, as the entry points do
from rmq_formats.spark.sources import KERNELS, load_entry_points
from rmq_formats.spark.worker_exit import quiet

load_entry_points(KERNELS)

if __name__ == "__main__":
    daemon.worker = quiet(daemon.worker)  # type: ignore[assignment] # it is called by position
    # A worker collects garbage after each task. To scan the modules loaded here costs 70 ms a task, and a copy of each
    # page with the collector's counters.
    gc.collect()
    gc.freeze()
    daemon.manager()
