"""Spark's part in the tools: the shell of jobs, the runner on Spark, and the sources and sinks over a store's files."""
