"""Base class of servers and clients used with ``async with``."""

from abc import ABC, abstractmethod
from typing import Self


class Service(ABC):
    """Server or client that starts when ``async with`` is entered, and closes at its end."""

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
