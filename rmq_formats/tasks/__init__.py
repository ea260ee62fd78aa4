"""Common parts of jobs on a store at rest: task runners (process pool or Spark), store lock, work files, publishing."""
