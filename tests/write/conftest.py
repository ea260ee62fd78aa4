"""The session of the sources' tests, for the few tests here that need one."""

from tests.spark.conftest import load, spark

__all__ = ["load", "spark"]
