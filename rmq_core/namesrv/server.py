"""Name server process: request handlers on a remoting server, and the expiry of brokers."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path

from rmq_core.namesrv.broker_groups import MinBrokerIdNotice
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.kv_config import KVConfig
from rmq_core.namesrv.processor import NamesrvProcessor
from rmq_core.remoting.client import ClientLimits, RemotingClient
from rmq_core.remoting.clock import steady_ms
from rmq_core.remoting.codes import RequestCode
from rmq_core.remoting.connection import Connection
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.fields import write_fields
from rmq_core.remoting.header import request
from rmq_core.remoting.loop import Service
from rmq_core.remoting.server import RemotingServer

log = logging.getLogger("rmq.namesrv")
_NOTICE_TIMEOUT_S = 0.3  # as in Java: an unreachable broker must not delay the others


class NameServer(Service):
    """Name server on the running event loop; use it with ``async with``, or start and close it.

    Attributes:
        address: ``host:port`` that the server listens on; empty before ``start``.
    """

    def __init__(self, config: NamesrvConfig, clock_ms: Callable[[], int] = steady_ms) -> None:
        """Load the key-value configuration; raise StoreError if its file cannot be read."""
        self.address = ""
        self._clock_ms = clock_ms
        self._notices: asyncio.Queue[MinBrokerIdNotice] = asyncio.Queue()
        kv_config = KVConfig(Path(config.kv_config_path).expanduser())
        self.processor = NamesrvProcessor(config, kv_config, clock_ms, self._notices.put_nowait)
        self._server = RemotingServer(
            self.processor.handlers(), limits=config.limits, on_disconnect=self._on_disconnect, tls=config.tls.server()
        )
        self._client = RemotingClient(limits=ClientLimits(connect_timeout_s=_NOTICE_TIMEOUT_S), tls=config.tls.client())
        self._notifier: asyncio.Task[None] | None = None
        self._scan_timer: asyncio.TimerHandle | None = None

    async def start(self) -> None:
        """Start listening; raise ListenError if the address cannot be used."""
        config = self.processor.config
        host, port = await self._server.listen(config.bind_address, config.listen_port)
        self.address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        self._scan()
        self._notifier = asyncio.create_task(self._send_notices())
        log.info("name server listens on %(address)s", {"address": self.address})

    async def close(self) -> None:
        """Stop listening and close all connections."""
        if self._scan_timer is not None:
            self._scan_timer.cancel()
        await self._server.close()
        if self._notifier is not None:
            self._notifier.cancel()
            await asyncio.wait([self._notifier])
        await self._client.close()
        log.info("name server on %(address)s has stopped", {"address": self.address})

    def _scan(self) -> None:
        """Unregister brokers whose heartbeats have expired, periodically."""
        for broker, connections in self.processor.routes.expired_brokers(self._clock_ms()):
            self.processor.unregister([broker], "expired")
            for connection in connections:
                if isinstance(connection, Connection):
                    connection.abort()
        interval_s = self.processor.config.scan_not_active_broker_interval_ms / 1000
        self._scan_timer = asyncio.get_running_loop().call_later(interval_s, self._scan)

    def _on_disconnect(self, connection: Connection) -> None:
        brokers = self.processor.routes.disconnect(connection)
        if brokers:
            self.processor.unregister(brokers, "lost its connection")

    async def _send_notices(self) -> None:
        """Send notices in sequence, so that none overtakes an earlier notice."""
        while True:
            notice = await self._notices.get()
            fields = write_fields(notice.change)
            for address in notice.recipients:
                try:
                    await self._client.invoke_oneway(address, request(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, fields))
                except TransportError as error:
                    log.warning(
                        "could not notify %(address)s of the minimum broker id: %(error)s",
                        {"address": address, "error": error},
                    )
