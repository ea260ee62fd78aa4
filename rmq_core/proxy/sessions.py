"""Clients of the proxy: their settings with the address for metrics, and the streams of commands to them.

The proxy itself accepts no metrics.

Source: ``GrpcClientSettingsManager``, ``ClientActivity``, ``GrpcClientChannel``, ``MetricCollectorMode``.
"""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import ip_address
from typing import Any, Final

from rmq_core.client.pop.consumer import RETRY_S
from rmq_core.proxy.access import Caller
from rmq_core.proxy.checks import MAX_LITE_TOPIC_BYTES, group_name, lite_quota, topic_name
from rmq_core.proxy.wire import StatusError, v2
from rmq_core.remoting.bodies.clients import ProxiedClient
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_formats.codecs.layout import MAX_BODY_BYTES
from rmq_formats.errors import OptionError

SILENT_S: Final = 120.0  # after its last call a client's session ends
_MAX_SESSIONS: Final = 100_000
_MAX_PENDING_COMMANDS: Final = 1000  # commands of a stream
_MAX_ID_CHARS: Final = 512
_MAX_SETTINGS_BYTES: Final = 256 << 10  # two thousand topics
PRODUCER_ATTEMPTS: Final = 3
RECEIVE_BATCH: Final = 32
POLL_S: Final = 20


class CollectorMode(StrEnum):
    """Values of Java's setting ``metricCollectorMode``."""

    OFF = "off"
    ON = "on"
    PROXY = "proxy"


@dataclass(frozen=True, slots=True)
class Collector:
    """Metric endpoint that the proxy announces to clients: none, a collector's address, or the proxy's."""

    mode: CollectorMode = CollectorMode.OFF
    host: str = ""
    port: int = 0

    @classmethod
    def parse(cls, mode: str, address: str) -> "Collector":
        """Parse ``metricCollectorMode``, in any case, and for ``on`` ``metricCollectorAddress``. Raises OptionError."""
        if mode.lower() not in list(CollectorMode):
            raise OptionError(f"metricCollectorMode {mode!r} is none of {', '.join(CollectorMode)}")
        parsed = CollectorMode(mode.lower())
        if parsed is not CollectorMode.ON:
            return cls(parsed)
        host, _, port = address.rpartition(":")
        if not (host and port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 1 << 16):
            raise OptionError(f"metricCollectorMode=on needs metricCollectorAddress, a HOST:PORT, not {address!r}")
        return cls(parsed, host.strip("[]"), int(port))

    def metric(self, settings: Any) -> Any:
        """Return the member ``metric`` of a client's settings: switch and address of its metrics."""
        if self.mode is CollectorMode.ON:
            address = v2.Address(host=self.host, port=self.port)
            return v2.Metric(on=True, endpoints=v2.Endpoints(scheme=_scheme(self.host), addresses=[address]))
        if self.mode is CollectorMode.PROXY:
            return v2.Metric(on=True, endpoints=settings.access_point)
        return v2.Metric(on=False)


NO_COLLECTOR: Final = Collector()


def _scheme(host: str) -> int:
    """Return the scheme of an address; Java's proxy returns IPv4 for all."""
    try:
        version = ip_address(host).version
    except ValueError:
        return int(v2.DOMAIN_NAME)
    return int(v2.IPv4 if version == 4 else v2.IPv6)


@dataclass(slots=True)
class Session:
    """Client of the proxy.

    Attributes:
        number: number of the session, unique in this process.
        topics: topics that the client may send transactions to.
        commands: commands to the client; None while it has no stream.
        caller: user who opened the stream.
    """

    client_id: str
    number: int = 0
    topics: frozenset[str] = frozenset()
    commands: asyncio.Queue[Any] | None = None
    last_call_s: float = field(default_factory=time.monotonic)  # by the monotonic clock
    caller: Caller = field(default_factory=Caller)

    def send_command(self, command: Any) -> bool:
        """Send a command to the client; return False if the client has no stream, or does not read its stream."""
        if self.commands is None or self.commands.full():
            return False
        self.commands.put_nowait(command)
        return True

    def open_stream(self) -> asyncio.Queue[Any]:
        """Open a stream of commands, and return its queue; None in the queue ends the stream."""
        self.commands = asyncio.Queue(_MAX_PENDING_COMMANDS)
        return self.commands

    def end_stream(self) -> None:
        """End the stream of commands; the client may begin another."""
        commands, self.commands = self.commands, None
        if commands is not None:
            end(commands)


class Sessions:
    """All clients, by id.

    ``present`` has clients with settings on an open stream, by session number, as reported to brokers. ``on_end`` is
    called with the client id after the end of a session or of its stream.
    """

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}
        self._numbers = itertools.count(1)
        self.present: dict[int, ProxiedClient] = {}
        self.on_end: Callable[[str], None] = lambda _: None

    def get_or_create(self, client_id: str) -> Session:
        """Return or make a client's session, and record the time of the call. Raises StatusError."""
        session = self._sessions.get(client_id)
        if session is None:
            if len(self._sessions) >= _MAX_SESSIONS:
                raise StatusError(v2.TOO_MANY_REQUESTS, "the proxy has too many clients")
            session = self._sessions[client_id] = Session(client_id, next(self._numbers))
        session.last_call_s = time.monotonic()
        return session

    def has(self, client_id: str) -> bool:
        """Return True if the client has a session."""
        return client_id in self._sessions

    def end(self, client_id: str) -> None:
        """End a client's session."""
        session = self._sessions.pop(client_id, None)
        if session is not None:
            self.present.pop(session.number, None)
            session.end_stream()
            self.on_end(client_id)

    def end_stream(self, session: Session, commands: asyncio.Queue[Any]) -> None:
        """End a stream of a client; a later stream of the client remains open."""
        if session.commands in (commands, None):
            self.present.pop(session.number, None)
            self.on_end(session.client_id)
        if session.commands is commands:
            session.end_stream()

    def end_silent(self) -> None:
        """End the sessions of clients without a call for ``SILENT_S``; call it periodically.

        An open stream does not count, as its connection may be half-open. Clients send heartbeats every 10 s.
        """
        since = time.monotonic() - SILENT_S
        for client_id, session in list(self._sessions.items()):
            if session.last_call_s < since:
                self.end(client_id)

    def producers_of(self, topic: str) -> list[Session]:
        """Return the connected clients that may have transactions of a topic, in random order."""
        sessions = [
            session for session in self._sessions.values() if topic in session.topics and session.commands is not None
        ]
        random.shuffle(sessions)
        return sessions

    def get(self, client_id: str) -> Session | None:
        """Return a client's session, or None."""
        return self._sessions.get(client_id)


def merge_settings(settings: Any, group: SubscriptionGroupConfig | None, collector: Collector) -> Any:
    """Merge a client's settings with those of the server; a producer has no group. Raises StatusError."""
    merged = v2.Settings()
    merged.CopyFrom(settings)
    merged.metric.CopyFrom(collector.metric(settings))
    if settings.HasField("publishing"):
        merged.backoff_policy.max_attempts = PRODUCER_ATTEMPTS
        merged.backoff_policy.exponential_backoff.initial.FromMilliseconds(10)
        merged.backoff_policy.exponential_backoff.max.FromSeconds(1)
        merged.backoff_policy.exponential_backoff.multiplier = 2
        merged.publishing.max_body_size = MAX_BODY_BYTES
        merged.publishing.validate_message_type = True
        return merged
    group = group or SubscriptionGroupConfig()
    merged.backoff_policy.max_attempts = group.retry_max_times + 1
    for seconds in RETRY_S:
        merged.backoff_policy.customized_backoff.next.add().FromSeconds(seconds)
    merged.subscription.fifo = group.consume_message_orderly
    merged.subscription.receive_batch_size = RECEIVE_BATCH
    merged.subscription.long_polling_timeout.FromSeconds(POLL_S)
    merged.subscription.lite_subscription_quota = lite_quota(group)
    merged.subscription.max_lite_topic_size = MAX_LITE_TOPIC_BYTES
    return merged


def check_client_id(client_id: str) -> str:
    """Check a client's id. Raises StatusError."""
    if not client_id.strip() or len(client_id) > _MAX_ID_CHARS:
        raise StatusError(
            v2.CLIENT_ID_REQUIRED, f"client id cannot be empty, nor have more than {_MAX_ID_CHARS} characters"
        )
    return client_id


def names_in(settings: Any) -> tuple[frozenset[str], str | None]:
    """Return topics and group of a client's settings; the group is None for a producer. Raises StatusError."""
    if settings.ByteSize() > _MAX_SETTINGS_BYTES:
        raise StatusError(v2.BAD_REQUEST, f"settings have more than {_MAX_SETTINGS_BYTES} bytes")
    if settings.HasField("publishing"):
        return frozenset(topic_name(topic) for topic in settings.publishing.topics), None
    if settings.HasField("subscription"):
        group = group_name(settings.subscription.group)
        return frozenset(topic_name(subscription.topic) for subscription in settings.subscription.subscriptions), group
    raise StatusError(v2.BAD_REQUEST, "there is no publishing or subscription data in settings")


def end(commands: asyncio.Queue[Any]) -> None:
    """End a stream of commands after its pending commands."""
    if commands.full():  # the client does not read its stream
        commands.get_nowait()
    commands.put_nowait(None)


async def commands_of(session: Session, commands: asyncio.Queue[Any]) -> AsyncGenerator[Any]:
    """Yield the commands to a client until the stream ends."""
    try:
        while (command := await commands.get()) is not None:
            yield command
    finally:
        if session.commands is commands:
            session.commands = None
