"""What is started and closed on the running event loop."""

from abc import ABC, abstractmethod
from typing import Self


class Service(ABC):
    """Starts when ``async with`` is entered, and closes when it is left."""

    @abstractmethod
    async def start(self) -> None:
        """Begin."""

    @abstractmethod
    async def close(self) -> None:
        """End."""

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
