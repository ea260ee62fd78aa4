"""Tells brokers which clients are connected here, so that administrators see them there.

A broker is told what has changed since it was told last on the same connection, and now and then that all are still
there. One that does not know the request, as the original's does not, is asked no more on that connection.

Source: ``ClientActivity#registerConsumer``, ``#registerProducer``. The original tells other proxies
(``HeartbeatSyncer``) and, in local mode, the broker of its own process.
"""

import asyncio
import logging
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from rmq_core.broker.tables.subscription_filter import SQL92, TAG, subscription
from rmq_core.client.errors import BrokerError
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.lite_groups import LITE_CLIENTS
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import v2
from rmq_core.remoting.bodies import (
    ConsumerData,
    ProducerData,
    ProxiedClient,
    ProxiedClients,
    SubscriptionData,
    encode_body,
)
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import CURRENT_VERSION, LanguageCode, RequestCode, ResponseCode, Version
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import RemotingError

log = logging.getLogger("rmq.proxy")
_LOOK_S: Final = 1.0
_RENEW_S: Final = 30.0  # a broker forgets who has not been told of for 120 s
_AGAIN_S: Final = 5.0  # a broker that could not be told
_MOST_TOPICS: Final = 256  # of a client that brokers are told
_MOST_AT_ONCE: Final = 200  # clients in a request
_MOST_BYTES: Final = 256 << 10  # of their topics and expressions in a request
_LANGUAGES: Final = {v2.GOLANG: "GO", v2.DOT_NET: "DOTNET"} | {
    value: name for name, value in v2.Language.items() if name in LanguageCode.__members__
}
_ACTIVE: Final = (v2.SIMPLE_CONSUMER, v2.PULL_CONSUMER, v2.LITE_SIMPLE_CONSUMER)


def client_of(settings: Any, client_id: str, address: str, number: int, before: ProxiedClient | None) -> ProxiedClient:
    """Describe a client by its settings; ``before`` if nothing has changed since.

    Args:
        settings: that it has sent, of a producer or a consumer.
        client_id: the id that it has given itself.
        address: ``host:port`` of it.
        number: of its session.
        before: what it was before.
    """
    if before is not None and before == _client(settings, client_id, address, number, _version_in(before)):
        return before
    return _client(settings, client_id, address, number, now_ms())


def _client(settings: Any, client_id: str, address: str, number: int, sub_version: int) -> ProxiedClient:
    agent, consumers, producers = settings.user_agent, [], []
    if settings.HasField("publishing"):
        topics = sorted({topic.name for topic in settings.publishing.topics})
        producers = [ProducerData(group_name=name) for name in topics[:_MOST_TOPICS]]
    else:
        asked = list(settings.subscription.subscriptions)[:_MOST_TOPICS]
        kind = "CONSUME_ACTIVELY" if settings.client_type in _ACTIVE else "CONSUME_PASSIVELY"
        consumers = [
            ConsumerData(
                group_name=settings.subscription.group.name, consume_type=kind,
                message_model="LITE_SELECTIVE" if settings.client_type in LITE_CLIENTS else "CLUSTERING",
                subscription_data_set=[found for one in asked if (found := _subscription(one, sub_version))],
            )
        ]  # fmt: skip
    return ProxiedClient(
        client_addr=address, client_id=client_id, consumer_data_set=consumers, producer_data_set=producers,
        language=_LANGUAGES.get(agent.language, "OTHER"), number=number, version=version_of(agent.version),
    )  # fmt: skip


def _subscription(entry: Any, sub_version: int) -> SubscriptionData | None:
    kind = SQL92 if entry.expression.type == v2.SQL else TAG
    try:
        return subscription(entry.topic.name, entry.expression.expression, kind, sub_version)
    except ValueError:  # a receive refuses it
        return None


def _version_in(client: ProxiedClient) -> int:
    versions = (one.sub_version for data in client.consumer_data_set for one in data.subscription_data_set)
    return next(versions, 0)


def version_of(text: str) -> int:
    """The ordinal of a client's version, ``5.1.2``: Java's enum has two for each from 5.0.0 on; ours of another.

    The original looks for a constant of the text's name, which there never is.
    """
    found = re.match(r"5\.(\d)\.(\d)(?!\d)", text)
    return CURRENT_VERSION if found is None else Version.V5_0_0 + 2 * int(found[1] + found[2])


@dataclass(slots=True)
class _Told:
    """What a broker was told on a connection.

    Attributes:
        connection: to it.
        clients: by number.
        next_s: when it is to be told that all are still there, by the monotonic clock.
        refuses: it does not know the request.
    """

    connection: Connection
    clients: dict[int, ProxiedClient] = field(default_factory=dict)
    next_s: float = 0.0
    refuses: bool = False


class Presence:
    """Keeps brokers told of the connected clients."""

    def __init__(self, brokers: Brokers, sessions: Sessions) -> None:
        self._brokers = brokers
        self._sessions = sessions
        self._told: dict[str, _Told] = {}
        self._tried_s: dict[str, float] = {}  # when a broker could last not be told

    async def run(self) -> None:
        """Tell, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_S)
            masters = self._brokers.cluster.masters()
            for gone in self._told.keys() - set(masters):
                del self._told[gone]
            await asyncio.gather(*(self._look(address) for address in masters))

    async def _look(self, address: str) -> None:
        now = time.monotonic()
        if now < self._tried_s.get(address, 0.0) + _AGAIN_S:
            return
        try:
            await self._tell(address, now)
            self._tried_s.pop(address, None)
        except RemotingError as error:
            self._tried_s[address] = now
            log.debug("%(address)s is not told of clients: %(error)s", {"address": address, "error": error})

    async def _tell(self, address: str, now: float) -> None:
        present, told = self._sessions.present, self._told.get(address)
        if not present and (told is None or not told.clients):
            return
        connection = await self._brokers.cluster.remoting.connect(address)
        if told is None or told.connection is not connection:
            told = self._told[address] = _Told(connection)
        if told.refuses:
            return
        new = [client for number, client in present.items() if told.clients.get(number) is not client]
        gone = [number for number in told.clients if number not in present]
        if not new and not gone and now < told.next_s:
            return
        try:
            for part in parts(new, gone):
                await self._brokers.ask(address, RequestCode.PROXIED_CLIENTS, body=encode_body(part))
                for number in part.gone:
                    told.clients.pop(number, None)
                told.clients |= {client.number: client for client in part.clients}
        except BrokerError as error:
            told.refuses = error.code in (ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION)
            raise
        told.next_s = now + _RENEW_S


def parts(clients: list[ProxiedClient], gone: list[int]) -> Iterator[ProxiedClients]:
    """Cut what a broker is to be told into requests that hold nobody up; an empty one if there is nothing."""
    taken: list[ProxiedClient] = []
    size = 0
    for client in clients:
        if taken and (len(taken) >= _MOST_AT_ONCE or size > _MOST_BYTES):
            yield ProxiedClients(clients=taken, gone=gone)
            taken, size, gone = [], 0, []
        taken.append(client)
        size += sum(
            len(one.topic) + len(one.sub_string)
            for data in client.consumer_data_set
            for one in data.subscription_data_set
        )
    yield ProxiedClients(clients=taken, gone=gone)
