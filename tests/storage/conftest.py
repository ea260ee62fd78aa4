"""Rebuilds as the rebuild's tests run them, see ``tests/rebuild``."""

from tests.rebuild.conftest import _no_flush, real_flush

__all__ = ["_no_flush", "real_flush"]
