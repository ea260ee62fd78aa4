"""Reading as the sources' tests do, for the few tests here that need it."""

from tests.spark.conftest import load

__all__ = ["load"]
