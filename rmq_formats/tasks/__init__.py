"""What jobs on a store at rest share: task runners (process pool or Spark), store lock, work files, publishing."""
