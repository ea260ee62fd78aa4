"""Reports of connected clients to brokers, so that administrators see the proxy's clients there.

A report has the changes since the last report on the same connection; an empty report every 30 s keeps the clients
alive. A broker that does not know the request, such as Java's, gets no more reports on that connection.

Source: ``ClientActivity#registerConsumer``, ``#registerProducer``. Java's proxy reports to other
proxies (``HeartbeatSyncer``) and, in local mode, to the broker in its process.
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
from rmq_core.proxy.checks import LITE_CLIENTS
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import v2
from rmq_core.remoting.bodies.clients import ConsumerData, ProducerData, ProxiedClient, ProxiedClients, SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.clock import now_ms
from rmq_core.remoting.codes import CURRENT_VERSION, LanguageCode, RequestCode, ResponseCode, Version
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import RemotingError

log = logging.getLogger("rmq.proxy")
_INTERVAL_S: Final = 1.0
_RENEW_S: Final = 30.0  # a broker removes clients without a report for 120 s
_RETRY_S: Final = 5.0  # after a failed report
_MAX_TOPICS: Final = 256  # of one client
_MAX_CLIENTS_PER_REQUEST: Final = 200
_MAX_REQUEST_BYTES: Final = 256 << 10  # of topics and expressions in one request
_LANGUAGES: Final = {v2.GOLANG: "GO", v2.DOT_NET: "DOTNET"} | {
    value: name for name, value in v2.Language.items() if name in LanguageCode.__members__
}
_ACTIVE_CLIENT_TYPES: Final = (v2.SIMPLE_CONSUMER, v2.PULL_CONSUMER, v2.LITE_SIMPLE_CONSUMER)


def client_of(
    settings: Any, client_id: str, address: str, number: int, previous: ProxiedClient | None
) -> ProxiedClient:
    """Describe a client by its settings, ``host:port`` and session; return ``previous`` if nothing has changed."""
    if previous is not None:
        consumers = previous.consumer_data_set
        versions = (entry.sub_version for data in consumers for entry in data.subscription_data_set)
        if previous == _client(settings, client_id, address, number, next(versions, 0)):
            return previous
    return _client(settings, client_id, address, number, now_ms())


def _client(settings: Any, client_id: str, address: str, number: int, sub_version: int) -> ProxiedClient:
    agent, consumers, producers = settings.user_agent, [], []
    if settings.HasField("publishing"):
        topics = sorted({topic.name for topic in settings.publishing.topics})
        producers = [ProducerData(group_name=name) for name in topics[:_MAX_TOPICS]]
    else:
        subscriptions = list(settings.subscription.subscriptions)[:_MAX_TOPICS]
        described = [_subscription(subscription, sub_version) for subscription in subscriptions]
        kind = "CONSUME_ACTIVELY" if settings.client_type in _ACTIVE_CLIENT_TYPES else "CONSUME_PASSIVELY"
        consumers = [
            ConsumerData(
                group_name=settings.subscription.group.name, consume_type=kind,
                message_model="LITE_SELECTIVE" if settings.client_type in LITE_CLIENTS else "CLUSTERING",
                subscription_data_set=[data for data in described if data],
            )
        ]  # fmt: skip
    return ProxiedClient(
        client_addr=address,
        client_id=client_id,
        consumer_data_set=consumers,
        producer_data_set=producers,
        language=_LANGUAGES.get(agent.language, "OTHER"),
        number=number,
        version=version_of(agent.version),
    )


def _subscription(entry: Any, sub_version: int) -> SubscriptionData | None:
    kind = SQL92 if entry.expression.type == v2.SQL else TAG
    try:
        return subscription(entry.topic.name, entry.expression.expression, kind, sub_version)
    except ValueError:  # ReceiveMessage refuses the expression
        return None


def version_of(text: str) -> int:
    """Return the ordinal of a client's version, ``5.1.2``: Java's enum has two for each from 5.0.0 on.

    Java's proxy looks for a constant named like the text, which never exists.
    """
    version = re.match(r"5\.(\d)\.(\d)(?!\d)", text)
    return CURRENT_VERSION if version is None else Version.V5_0_0 + 2 * int(version[1] + version[2])


@dataclass(slots=True)
class _ReportedClients:
    """Clients that were reported to a broker on a connection.

    At ``next_renewal_s``, by the monotonic clock, a report without changes is due.
    """

    connection: Connection
    clients: dict[int, ProxiedClient] = field(default_factory=dict)
    next_renewal_s: float = 0.0
    refuses_reports: bool = False


class ClientReporter:
    """Reporter of connected clients to all masters."""

    def __init__(self, brokers: Brokers, sessions: Sessions) -> None:
        self._brokers = brokers
        self._sessions = sessions
        self._reported: dict[str, _ReportedClients] = {}
        self._last_failure_s: dict[str, float] = {}  # time of the last failed report, by broker

    async def run(self) -> None:
        """Report clients until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            masters = self._brokers.cluster.masters()
            for address in self._reported.keys() - set(masters):
                del self._reported[address]
            await asyncio.gather(*(self._try_report(address) for address in masters))

    async def _try_report(self, address: str) -> None:
        now = time.monotonic()
        if now < self._last_failure_s.get(address, 0.0) + _RETRY_S:
            return
        try:
            await self._report(address, now)
            self._last_failure_s.pop(address, None)
        except RemotingError as error:
            self._last_failure_s[address] = now
            log.debug("cannot report clients to %(address)s: %(error)s", {"address": address, "error": error})

    async def _report(self, address: str, now: float) -> None:
        present, reported = self._sessions.present, self._reported.get(address)
        if not present and (reported is None or not reported.clients):
            return
        connection = await self._brokers.cluster.remoting.connect(address)
        if reported is None or reported.connection is not connection:
            reported = self._reported[address] = _ReportedClients(connection)
        if reported.refuses_reports:
            return
        new_clients = [client for number, client in present.items() if reported.clients.get(number) is not client]
        ended_numbers = [number for number in reported.clients if number not in present]
        if not new_clients and not ended_numbers and now < reported.next_renewal_s:
            return
        try:
            for request_body in split_report(new_clients, ended_numbers):
                await self._brokers.request(address, RequestCode.PROXIED_CLIENTS, body=encode_body(request_body))
                for number in request_body.gone:
                    reported.clients.pop(number, None)
                reported.clients |= {client.number: client for client in request_body.clients}
        except BrokerError as error:
            refusals = ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.NO_PERMISSION
            reported.refuses_reports = error.code in refusals
            raise
        reported.next_renewal_s = now + _RENEW_S


def split_report(clients: list[ProxiedClient], ended_numbers: list[int]) -> Iterator[ProxiedClients]:
    """Split a report into requests that block no broker for long; an empty request if there is nothing to report."""
    batch: list[ProxiedClient] = []
    size = 0
    for client in clients:
        if batch and (len(batch) >= _MAX_CLIENTS_PER_REQUEST or size > _MAX_REQUEST_BYTES):
            yield ProxiedClients(clients=batch, gone=ended_numbers)
            batch, size, ended_numbers = [], 0, []
        batch.append(client)
        size += sum(
            len(subscription.topic) + len(subscription.sub_string)
            for data in client.consumer_data_set
            for subscription in data.subscription_data_set
        )
    yield ProxiedClients(clients=batch, gone=ended_numbers)
