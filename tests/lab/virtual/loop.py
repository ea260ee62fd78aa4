"""An event loop with a clock of its own: where nothing is ready it jumps to the next timer, and waits for nothing.

Sockets and name look-ups are those of a ``Network``; what runs in threads elsewhere takes its turns here. So one
run of a seed is like the other.
"""

import asyncio
import random
from collections.abc import Callable
from typing import Any

from tests.lab.virtual.network import Network
from tests.lab.virtual.workers import TurnPool


class StandstillError(Exception):
    """Nothing is ready, and no timer is set: what is waited for cannot come."""


class _Jump:
    """What the loop waits by, in the place of a selector: the clock is set, and no time passes."""

    def __init__(self, loop: "VirtualLoop") -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[Any]:
        """Let some seconds pass; until something happens, where there is no limit: nothing will."""
        if timeout_s is None:
            raise StandstillError
        self._loop.now_s += max(timeout_s, 0)
        return []


class VirtualLoop(asyncio.BaseEventLoop):
    """The loop.

    Attributes:
        now_s: its time.
        network: what its connections go over.
        dice: chance in it.
    """

    def __init__(self, seed: object) -> None:
        super().__init__()
        self.now_s = 0.0
        self.dice = random.Random(f"loop {seed}")
        self._selector = _Jump(self)
        self.network = Network(self, random.Random(f"network {seed}"))
        self._pool = TurnPool(self, random.Random(f"pool {seed}"))

    def time(self) -> float:
        return self.now_s

    def _process_events(self, event_list: list[Any]) -> None:
        """There are none."""

    def _write_to_self(self) -> None:
        """There is no other thread, and so nobody to wake."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:
        """Run a call at a later time of the loop: in its executor, which takes turns too."""
        return super().run_in_executor(executor or self._pool, func, *args)

    async def create_connection(  # type: ignore[override] # of what the project uses
        self,
        protocol_factory: Callable[[], asyncio.BaseProtocol],
        host: str,
        port: int,
        *,
        ssl: None = None,
        server_hostname: None = None,
    ) -> tuple[asyncio.Transport, Any]:
        assert ssl is server_hostname is None, "this network has no TLS"
        return await self.network.connect(protocol_factory, host, port)

    async def create_server(  # type: ignore[override] # likewise
        self, protocol_factory: Callable[[], asyncio.BaseProtocol], host: str, port: int, *, backlog: int = 100
    ) -> Any:
        del backlog
        return self.network.listen(protocol_factory, host, port)
