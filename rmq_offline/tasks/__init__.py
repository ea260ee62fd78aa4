"""Common parts of jobs on a store at rest: task runners (process pool or Spark), work files, leases, publishing."""
