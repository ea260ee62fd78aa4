"""Clients of a proxy as members of their groups (request code 900034, ours).

Administrators see the clients with their own addresses, languages and versions. The original's proxy in local mode adds
clients to the broker's tables; in cluster mode its brokers have no such clients. Here the proxy reports new, changed
and closed clients on its connection; the end of the connection removes all of them.

Source: ``ClientActivity#registerConsumer``, ``#registerProducer``.
"""

import logging
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.processors.client_manage import ClientManageProcessor
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Client, Login, Proxied
from rmq_core.remoting.bodies.clients import ProxiedClient, ProxiedClients
from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand

log = logging.getLogger("rmq.broker.clients")
_MOST: Final = 100_000  # clients of one proxy, whose own limit is no higher


class ProxiedClientProcessor:
    """Handler of the clients that proxies report."""

    def __init__(self, state: BrokerState, client_manager: ClientManageProcessor) -> None:
        self._state = state
        self._client_manager = client_manager
        self._of: dict[Connection, dict[int, Client]] = {}  # by the number in the proxy

    def handlers(self) -> dict[int, Handler]:
        return {RequestCode.PROXIED_CLIENTS: self.update_clients}

    async def update_clients(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Update the clients of a proxy (PROXIED_CLIENTS)."""
        report = decode_body(request.body, ProxiedClients, is_request=True)
        members = self._of.setdefault(connection, {})
        login = self._state.rights.login(request)
        await self._state.slices.collect(self._apply_report(report, connection, members, login))
        if connection.is_closing:  # closed meanwhile
            self.disconnected(connection)
        return request.response()

    def _apply_report(
        self, report: ProxiedClients, connection: Connection, members: dict[int, Client], login: Login | None
    ) -> Iterator[None]:
        for number in report.gone:
            self._remove(members, number)
            yield
        for data in report.clients:
            if data.number not in members and len(members) >= _MOST:
                raise ResponseError(ResponseCode.SYSTEM_BUSY, f"a proxy tells of {_MOST} clients at most")
            yield from self._register(data, connection, members, login)
        now_ms = self._state.steady_ms()
        for client in list(members.values()):
            client.heartbeat_ms = now_ms
            yield

    def _register(
        self, data: ProxiedClient, connection: Connection, members: dict[int, Client], login: Login | None
    ) -> Iterator[None]:
        """Register a client in its current groups; an invalid client does not affect the other clients."""
        self._remove(members, data.number)
        proxied = Proxied(connection, data.client_addr, lambda: self._remove(members, data.number))
        client = Client(proxied, data.client_id, data.language, data.version, self._state.steady_ms(), login)
        members[data.number] = client
        try:
            self._client_manager.check_expressions(data.consumer_data_set)
            yield from self._client_manager.join(client, data.producer_data_set, data.consumer_data_set)
        except ResponseError as error:
            log.info("a client behind a proxy, %(id)s: %(error)s", {"id": data.client_id, "error": error.remark})

    def _remove(self, members: dict[int, Client], number: int) -> None:
        client = members.pop(number, None)
        if client is not None:
            self._client_manager.disconnected(client.connection)

    def disconnected(self, connection: Connection) -> None:
        """Remove all clients of a proxy after the end of its connection."""
        members = self._of.pop(connection, None)
        if members:
            self._state.slices.collect(self._remove_all(members))

    def _remove_all(self, members: dict[int, Client]) -> Iterator[None]:
        for number in list(members):
            self._remove(members, number)
            yield
