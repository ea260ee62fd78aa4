"""Work of ``rmq doctor HOST:PORT``: send a server requests without a login, and classify the responses."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Final

from rmq_cli import output
from rmq_core.remoting.access.tls import Tls
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import ConnectError, TransportError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_core.remoting.loop import run as run_loop
from rmq_core.remoting.uniq_key import local_ip
from rmq_formats.errors import ClusterError, OptionError

_TIMEOUT_S: Final = 5.0
_UNKNOWN_CODE: Final = 9_999
_HA_DISTANCE: Final = 1  # the port of replication is so much above a broker's, unless its settings say otherwise
_LOOPBACK: Final = ("127.", "localhost", "[::1]")
OPEN, CLOSED, NOTE = "open", "closed", "note"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the examination; its state is ``open``, ``closed``, or ``note`` for information."""

    what: str
    state: str
    detail: str


def run(address: str, ca: str | None, *, as_json: bool) -> int:
    """Examine a server. Returns the exit code. Raises RmqError."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal():
        raise OptionError(f"{address}: not an address such as 127.0.0.1:10911")
    findings = run_loop(_examine(address, ca))
    is_open = any(finding.state == OPEN for finding in findings)
    if as_json:
        output.print_json({"address": address, "open": is_open, "findings": [asdict(finding) for finding in findings]})
    else:
        table = output.table("", "what", "found")
        for finding in findings:
            table.add_row(finding.state, finding.what, output.printable(finding.detail))
        output.console().print(table)
    return output.EXIT_FINDINGS if is_open else output.EXIT_CLEAN


async def _examine(address: str, ca: str | None) -> list[Finding]:
    return [finding async for finding in _findings(address, ca)]


async def _findings(address: str, ca: str | None) -> AsyncIterator[Finding]:
    """Send each request without authentication, and report the answers. Raises ClusterError without any answer."""
    plain, encrypted = await _request(address, None), await _request(address, Tls(auth_server=False))
    if plain is None and encrypted is None:
        raise ClusterError(f"{address}: no answer, neither plain nor with TLS")
    tls = None if plain is not None else Tls(auth_server=False)
    yield (
        Finding("plain connections", CLOSED, "none is accepted")
        if plain is None
        else Finding("plain connections", OPEN, "traffic is readable on the network: tls.server.mode=enforcing")
    )
    yield await _certificate(address, ca, is_offered=encrypted is not None)
    info = await _request(address, tls, RequestCode.GET_BROKER_RUNTIME_INFO)  # which a name server does not have
    is_broker = info is not None and info.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    probes = [
        (_UNKNOWN_CODE, "requests without a login", "are answered: authenticationEnabled=true"),
        (RequestCode.GET_BROKER_CONFIG, "settings", "read, and may be changed"),
        (RequestCode.GET_ALL_TOPIC_CONFIG, "topics", "listed, and may be read, sent to, deleted"),
        (RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, "consumer groups", "listed, and may be changed"),
        (RequestCode.GET_ALL_CONSUMER_OFFSET, "consumer offsets", "read, and may be changed"),
    ]
    if not is_broker:
        probes = [
            (
                RequestCode.GET_BROKER_CLUSTER_INFO,
                "the cluster's addresses",
                "name servers do not authenticate clients",
            ),
            (RequestCode.GET_NAMESRV_CONFIG, "settings", "read, and may be changed"),
        ]
    for code, what, detail in probes:
        answer = await _request(address, tls, code)
        is_closed = answer is None or answer.code == ResponseCode.NO_PERMISSION
        yield Finding(what, CLOSED, "refused") if is_closed else Finding(what, OPEN, detail)
    if is_broker:
        yield await _replication(address)
    yield await _elsewhere(address, tls)


async def _certificate(address: str, ca: str | None, *, is_offered: bool) -> Finding:
    if not is_offered:
        return Finding("TLS", OPEN, "not offered, or a client certificate is required")
    host, _, port = address.rpartition(":")
    try:
        context = Tls(trust_cert_path=ca).context()
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
        certificate = writer.get_extra_info("peercert")
        await _close(writer)
    except ssl.SSLCertVerificationError as error:
        return Finding("TLS", OPEN, f"its certificate is not trusted here ({error.verify_message}): give --tls-ca")
    except (OSError, TimeoutError) as error:
        return Finding("TLS", NOTE, f"the handshake failed: {error}")
    return Finding("TLS", CLOSED, f"offered; the certificate is trusted until {certificate.get('notAfter')}")


async def _replication(address: str) -> Finding:
    host, _, port = address.rpartition(":")
    ha_address = f"{host}:{int(port) + _HA_DISTANCE}"
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port) + _HA_DISTANCE)
        await _close(writer)
        state = NOTE if host.startswith(_LOOPBACK) else OPEN
        return Finding("replication", state, f"{ha_address} accepts connections: any client there gets the whole log")
    return Finding("replication", CLOSED, f"no listener at {ha_address}; haListenPort may be another")


async def _elsewhere(address: str, tls: Tls | None) -> Finding:
    """Test whether other machines reach a server of this machine."""
    host, _, port = address.rpartition(":")
    if not host.startswith(_LOOPBACK):
        return Finding("reach", NOTE, f"tested at {host}, which other machines may reach, too")
    outer = f"{local_ip()}:{port}"
    if not outer.startswith(_LOOPBACK) and await _request(outer, tls) is not None:
        return Finding("reach", OPEN, f"other machines reach it at {outer}")
    return Finding("reach", CLOSED, "this machine alone")


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with suppress(OSError, TimeoutError):
        async with asyncio.timeout(_TIMEOUT_S):
            await writer.wait_closed()


async def _request(address: str, tls: Tls | None, code: int = _UNKNOWN_CODE) -> RemotingCommand | None:
    """Send a request without authentication; None without an answer."""
    async with RemotingClient(tls=tls) as client:
        try:
            return await client.invoke(address, request(code), _TIMEOUT_S)
        except (TransportError, ConnectError):
            return None
