"""Work on a store at rest, cut into tasks that a process pool or Spark runs alike."""
