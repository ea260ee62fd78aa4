"""A network in memory: streams in order, with delays of chance; cut, held up, half-open, and ended by who has gone.

A machine's connections are known by the machine that the code runs for, see ``Machine.owns``: what it starts, its
timers and tasks and what it is called back with, are its own.
"""

import asyncio
import errno
import os
import random
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from typing import Any

_MEAN_DELAY_S = 0.0008
_SLOW_DELAY_S = 0.3  # now and then
_HELD_BY_KERNELS = 64 << 10  # bytes under way before a writer is told to wait
Address = tuple[str, int]


class Machine:
    """One life of a machine: from its start to the loss of its power.

    Attributes:
        host: its address.
        is_gone: its power is lost: nothing that runs for it reaches anybody.
    """

    def __init__(self, host: str) -> None:
        self.host = host
        self.is_gone = False

    @contextmanager
    def owns(self) -> Iterator[None]:
        """Whatever is started in here runs for this machine."""
        token = _running_for.set(self)
        try:
            yield
        finally:
            _running_for.reset(token)


_running_for: ContextVar[Machine] = ContextVar("machine")


class Network:
    """The network of one loop.

    Attributes:
        ends: of all connections, in the order in which they were made.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, dice: random.Random) -> None:
        self.loop = loop
        self.ends: dict[End, None] = {}
        self._dice = dice
        self._listeners: dict[Address, Listener] = {}
        self._held: set[Address] = set()
        self._barred: set[tuple[str, str]] = set()
        self._healed = asyncio.Event()
        self._ports = 40_000

    def delay_s(self) -> float:
        """How long something is under way."""
        if self._dice.random() < 0.005:
            return self._dice.random() * _SLOW_DELAY_S
        return self._dice.expovariate(1 / _MEAN_DELAY_S)

    def part_of(self, size: int) -> int:
        """How much of so many bytes arrives at once."""
        return size if self._dice.random() < 0.9 else self._dice.randrange(1, size + 1)

    # --- what goes wrong ----------------------------------------------------------------------
    def bar(self, source: str, target: str) -> None:
        """Let nothing pass from a host to another."""
        self._barred.add((source, target))

    def heal(self) -> None:
        """Let everything pass again."""
        self._barred.clear()
        self._healed.set()
        self._healed = asyncio.Event()
        for end in list(self.ends):
            end.set_out()

    def is_barred(self, source: str, target: str) -> bool:
        return (source, target) in self._barred

    def cut(self, one: str, other: str) -> None:
        """End the connections between two hosts; both are told."""
        for end in [end for end in self.ends if {end.machine.host, end.peer.machine.host} == {one, other}]:
            end.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def halve(self, one: str, other: str) -> None:
        """End the connections between two hosts for the first one; the other learns it when it writes."""
        for end in [end for end in self.ends if (end.machine.host, end.peer.machine.host) == (one, other)]:
            end.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

    def drop(self, machine: Machine, *, told: bool) -> None:
        """A machine goes: its peers are told, as by the kernel of a process that was killed, or are not."""
        machine.is_gone = True
        for address in [address for address, one in self._listeners.items() if one.machine is machine]:
            del self._listeners[address]
        for end in [end for end in self.ends if end.machine is machine]:
            end.lose(None)
            if told:
                end.reset_peer()

    # --- what a loop asks for -----------------------------------------------------------------
    def listen(self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int) -> "Listener":
        """Listen at an address."""
        machine = _running_for.get()
        if (host, port) in self._listeners and not machine.is_gone:
            raise OSError(errno.EADDRINUSE, os.strerror(errno.EADDRINUSE))
        listener = Listener(self, machine, factory, (host, port))
        if not machine.is_gone:
            self._listeners[host, port] = listener
        return listener

    def forget(self, listener: "Listener") -> None:
        """Listen no more."""
        if self._listeners.get(listener.address) is listener:
            del self._listeners[listener.address]

    async def connect(
        self, factory: Callable[[], asyncio.BaseProtocol], host: str, port: int
    ) -> tuple[asyncio.Transport, Any]:
        """Connect to an address."""
        machine = _running_for.get()
        for source, target in ((machine.host, host), (host, machine.host)):
            await asyncio.sleep(self.delay_s())
            while self.is_barred(source, target):
                await self._healed.wait()
        listener = self._listeners.get((host, port))
        if listener is None or machine.is_gone:
            raise ConnectionRefusedError(errno.ECONNREFUSED, os.strerror(errno.ECONNREFUSED))
        self._ports += 1
        near = End(self, machine, factory(), copy_context(), ((machine.host, self._ports), (host, port)))
        far = listener.accept((host, port), (machine.host, self._ports))
        near.peer, far.peer = far, near
        for end in (near, far):
            self.ends[end] = None
        far.call(far.protocol.connection_made, far)
        near.protocol.connection_made(near)
        return near, near.protocol


class Listener:
    """Who listens at an address; as much of ``asyncio.Server`` as is used."""

    def __init__(
        self, network: Network, machine: Machine, factory: Callable[[], asyncio.BaseProtocol], address: Address
    ) -> None:
        self.machine = machine
        self.address = address
        self.sockets = [self]
        self._network = network
        self._factory = factory
        self._context = copy_context()

    def getsockname(self) -> Address:
        return self.address

    def accept(self, mine: Address, theirs: Address) -> "End":
        """The end of a new connection."""
        context = self._context.copy()
        return End(self._network, self.machine, context.run(self._factory), context, (mine, theirs))

    def close(self) -> None:
        self._network.forget(self)

    async def wait_closed(self) -> None:
        """Nothing is waited for."""


class End(asyncio.Transport):
    """One end of a connection, and what it has sent that has not arrived.

    Attributes:
        machine: whose it is.
        peer: the other end.
        is_lost: nothing arrives here any more.
    """

    def __init__(
        self, network: Network, machine: Machine, protocol: Any, context: Context, names: tuple[Address, Address]
    ) -> None:
        super().__init__({"sockname": names[0], "peername": names[1]})
        self.machine = machine
        self.protocol = protocol
        self.peer: End
        self.is_lost = False
        self._network = network
        self._context = context
        self._out: deque[bytes] = deque()
        self._out_bytes = 0
        self._timer: asyncio.TimerHandle | None = None
        self._is_closing = self._has_ended = self._is_paused = False
        self._reads = True
        self._high, self._low = 64 << 10, 16 << 10

    def call(self, function: Callable[..., object], *args: object) -> None:
        """Call something at the next turn of the loop, for this end's machine."""
        self._network.loop.call_soon(function, *args, context=self._context)

    # --- writing ------------------------------------------------------------------------------
    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._is_closing or not data:
            return
        self._out.append(bytes(data))
        self._out_bytes += len(data)
        self.set_out()
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self.protocol.pause_writing()

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def set_out(self) -> None:
        """Have what was written leave, if it may."""
        if self._timer is None and (self._out or self._has_ended):
            self._timer = self._network.loop.call_later(self._network.delay_s(), self._arrive)

    def _arrive(self) -> None:
        self._timer = None
        if self._network.is_barred(self.machine.host, self.peer.machine.host):
            return  # until it is healed
        if self.machine.is_gone:
            return
        if self.peer.is_lost:
            if not self.is_lost:  # it is told that nobody is there, if that arrives
                self.peer.reset_peer()
            return
        if self._out:
            if not self.peer._reads:
                return  # until it reads again
            self._deliver()
            self.set_out()
        elif self._has_ended:
            self._has_ended = False
            self.peer.call(self.peer.ended_by_peer)

    def _deliver(self) -> None:
        data = b"".join(self._out)
        part = self._network.part_of(len(data))
        self._out.clear()
        if part < len(data):
            self._out.append(data[part:])
        self._out_bytes -= part
        self.peer.call(self.peer.take, data[:part])
        if self._is_paused and self.get_write_buffer_size() <= self._low and not self.is_lost:
            self._is_paused = False
            self.call(self._resume_writing)
        if self._is_closing:
            self._end_if_written()

    def _resume_writing(self) -> None:
        if not self.is_lost and not self._is_paused:
            self.protocol.resume_writing()

    def take(self, data: bytes) -> None:
        """Something has arrived."""
        if self.is_lost:
            return
        try:
            self.protocol.data_received(data)
        except Exception as error:  # as asyncio has it
            self._network.loop.call_exception_handler({"message": "data_received failed", "exception": error})
            self.lose(error)
            self.reset_peer()

    def ended_by_peer(self) -> None:
        """The other end will send nothing more."""
        if not self.is_lost and not self._is_closing:
            self.protocol.eof_received()
            self.close()

    # --- the end ------------------------------------------------------------------------------
    def reset_peer(self) -> None:
        """Tell the other end that this one is lost."""

        def tell() -> None:
            if self._network.is_barred(self.machine.host, self.peer.machine.host):
                return
            self.peer.lose(ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET)))

        self._network.loop.call_later(self._network.delay_s(), tell)

    def lose(self, error: Exception | None) -> None:
        """This end is lost; what it has written is too."""
        if not self.is_lost:
            self._out.clear()
            self._out_bytes = 0
            self._lose(error)

    def _lose(self, error: Exception | None) -> None:
        self.is_lost = self._is_closing = True
        self.call(self.protocol.connection_lost, error)
        if self.peer.is_lost and not self._out:
            for end in (self, self.peer):
                self._network.ends.pop(end, None)

    def close(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._end_if_written()

    def _end_if_written(self) -> None:
        if not self.is_lost and not self.get_write_buffer_size():
            self._has_ended = True
            self._lose(None)
            self.set_out()

    def abort(self) -> None:
        if not self.is_lost:
            self.lose(None)
            self.reset_peer()

    # --- what is asked ------------------------------------------------------------------------
    def is_closing(self) -> bool:
        return self._is_closing

    def get_write_buffer_size(self) -> int:
        return max(self._out_bytes - _HELD_BY_KERNELS, 0)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 << 10 if high is None else high
        self._low = self._high // 4 if low is None else low

    def is_reading(self) -> bool:
        return self._reads and not self._is_closing

    def pause_reading(self) -> None:
        self._reads = False

    def resume_reading(self) -> None:
        self._reads = True
        self.peer.set_out()
