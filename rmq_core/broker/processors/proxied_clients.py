"""Clients that are connected to a proxy, which tells of them (request code 900034, ours).

They are members of their groups as others are: administrators see them, with their own addresses, languages and
versions. The original's proxy in local mode puts them into the broker's tables; in cluster mode its brokers do not know
them. Here the proxy says on its connection who has come, changed and gone; with the connection all are gone.

Source: ``ClientActivity#registerConsumer``, ``#registerProducer``.
"""

import logging
from collections.abc import Iterator
from typing import Final

from rmq_core.broker.processors.client_manage import Memberships
from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.clients import Client, Proxied
from rmq_core.broker.tables.logins import Login
from rmq_core.remoting.bodies import ProxiedClient, ProxiedClients, decode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand

log = logging.getLogger("rmq.broker.clients")
_MOST: Final = 100_000  # of one proxy, which has no more clients itself


class ProxiedMembers:
    """Handles what proxies tell of their clients."""

    def __init__(self, state: BrokerState, memberships: Memberships) -> None:
        self._state = state
        self._memberships = memberships
        self._of: dict[Connection, dict[int, Client]] = {}  # by the proxy's number

    def handlers(self) -> dict[int, Handler]:
        """Handlers by request code."""
        return {RequestCode.PROXIED_CLIENTS: self.told}

    async def told(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """PROXIED_CLIENTS: some have come, changed or gone, and the others are still there."""
        told = decode_body(request.body, ProxiedClients, is_request=True)
        members = self._of.setdefault(connection, {})
        login = self._state.rights.login(request)
        await self._state.slices.collect(self._take(told, connection, members, login))
        if connection.is_closing:  # it ended meanwhile
            self.disconnected(connection)
        return request.response()

    def _take(
        self, told: ProxiedClients, connection: Connection, members: dict[int, Client], login: Login | None
    ) -> Iterator[None]:
        for number in told.gone:
            self._forget(members, number)
            yield
        for one in told.clients:
            if one.number not in members and len(members) >= _MOST:
                raise ResponseError(ResponseCode.SYSTEM_BUSY, f"a proxy tells of {_MOST} clients at most")
            yield from self._put(one, connection, members, login)
        now_ms = self._state.steady_ms()
        for client in list(members.values()):
            client.heard_ms = now_ms
            yield

    def _put(
        self, one: ProxiedClient, connection: Connection, members: dict[int, Client], login: Login | None
    ) -> Iterator[None]:
        """Make a client a member of the groups that it is in now; what it is told to be cannot harm the others."""
        self._forget(members, one.number)
        stands = Proxied(connection, one.client_addr, lambda: self._forget(members, one.number))
        client = Client(stands, one.client_id, one.language, one.version, self._state.steady_ms(), login)
        members[one.number] = client
        try:
            self._memberships.check_expressions(one.consumer_data_set)
            yield from self._memberships.join(client, one.producer_data_set, one.consumer_data_set)
        except ResponseError as error:
            log.info("a client behind a proxy, %(id)s: %(error)s", {"id": one.client_id, "error": error.remark})

    def _forget(self, members: dict[int, Client], number: int) -> None:
        client = members.pop(number, None)
        if client is not None:
            self._memberships.disconnected(client.connection)

    def disconnected(self, connection: Connection) -> None:
        """Forget all clients of a proxy whose connection has ended."""
        members = self._of.pop(connection, None)
        if members:
            self._state.slices.collect(self._forget_all(members))

    def _forget_all(self, members: dict[int, Client]) -> Iterator[None]:
        for number in list(members):
            self._forget(members, number)
            yield
