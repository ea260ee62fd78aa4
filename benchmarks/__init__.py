"""Benchmarks beside the real Apache RocketMQ: ``make bench`` prints the table of the README."""
