"""HTTP server of a broker's Prometheus metrics: ``http://127.0.0.1:PORT/metrics``.

The server uses TLS if the broker requires TLS (``tls.server.mode=enforcing``). A connection has one GET.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from rmq_core.broker.broker import Broker
from rmq_core.broker.metrics.prometheus import CONTENT_TYPE, lag_families, metric_families
from rmq_core.broker.tables.table_file import log
from rmq_core.remoting.access.tls import ServerTls, TlsMode
from rmq_core.remoting.errors import ListenError

_HOST: Final = "127.0.0.1"
_MAX_HEAD_BYTES: Final = 8192  # a scraper's headers are some hundred
_TIMEOUT_S: Final = 10.0  # Prometheus' default timeout


@asynccontextmanager
async def run_with_metrics(broker: Broker, port: int | None) -> AsyncIterator[None]:
    """Run a broker and the server of its metrics, at a port, 0 for a free one; no server if the port is None.

    Raises ListenError, and the errors of the broker's start.
    """
    async with broker:
        if port is None:
            yield
            return
        tls = broker.state.config.tls.server()
        if tls is not None and tls.mode is not TlsMode.ENFORCING:
            tls = None
        async with await _listen(_Scrapes(broker), port, tls) as server:
            host, bound_port = server.sockets[0].getsockname()[:2]
            scheme = "http" if tls is None else "https"
            log.info(
                "metrics on %(scheme)s://%(host)s:%(port)d/metrics",
                {"scheme": scheme, "host": host, "port": bound_port},
            )
            yield


async def _listen(scrapes: "_Scrapes", port: int, tls: ServerTls | None) -> asyncio.Server:
    try:
        return await asyncio.start_server(
            scrapes.answer, _HOST, port, limit=_MAX_HEAD_BYTES, ssl=None if tls is None else tls.listening_context()
        )
    except OSError as error:
        raise ListenError(f"{_HOST}:{port}", f"cannot listen: {error.strerror}") from error


class _Scrapes:
    """Responder to scrapes of a broker's metrics."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._started_ms = broker.state.clock_ms()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(await self._response(head))
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
            log.debug("a scrape of the metrics was not answered: %(error)s", {"error": error})
        finally:
            writer.close()

    async def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0]
        if method != b"GET":
            return _response("405 Method Not Allowed", "GET only\n")
        if path != b"/metrics":
            return _response("404 Not Found", "/metrics is here\n")
        texts = []
        for family in metric_families(self._broker.state, self._started_ms):
            texts.append(family.text)
            await asyncio.sleep(0)  # lets requests run, as there may be many topics
        texts += [family.text for family in await lag_families(self._broker.state)]
        return _response("200 OK", "".join(texts))


def _response(status: str, text: str) -> bytes:
    body = text.encode()
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {CONTENT_TYPE}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
