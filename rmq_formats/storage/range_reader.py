"""The interface of what reads ranges of one file; a broker imports it without pyarrow."""

from typing import Protocol


class RangeReader(Protocol):
    """Reads ranges of one file."""

    def read_into(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` from the file's byte ``offset`` on; returns the bytes read, fewer at its end."""
        ...
