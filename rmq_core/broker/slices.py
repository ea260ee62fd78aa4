"""Work of a single request that may take long, done in slices: in between, the event loop serves the others."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Final, TypeVar

SLICE_S: Final = 0.001  # what a send takes beside others: with longer ones the slowest would take that much longer
_T = TypeVar("_T")


async def sliced(items: Iterable[_T]) -> AsyncIterator[_T]:
    """Give items one by one; pause whenever a slice of time is used up."""
    now = asyncio.get_running_loop().time
    end = now() + SLICE_S
    for item in items:
        yield item
        if now() > end:
            await asyncio.sleep(0)
            end = now() + SLICE_S
