"""Requests that change a server, which only its own machine may send where nobody has to sign requests.

The original accepts them from everywhere.
"""

from collections.abc import Container, Mapping
from ipaddress import ip_address
from typing import Final

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand

SETTING: Final = "remoteAdminEnable"


def local_only(handlers: Mapping[int, Handler], codes: Container[int]) -> dict[int, Handler]:
    """Wrap the handlers of some codes to refuse (NO_PERMISSION) requests from other machines."""
    return {code: _refuse_remote(handler) if code in codes else handler for code, handler in handlers.items()}


def _refuse_remote(handler: Handler) -> Handler:
    def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
        if not is_local(connection):
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"request {request.code} changes this server, which knows no users: it is taken from its own machine "
                f"only, not from {connection.remote_address}; {SETTING}=true allows it, or authenticationEnabled=true "
                "has a broker ask who sends it",
            )
        return handler(request, connection)

    return handle


def is_local(connection: Connection) -> bool:
    """Return True if the peer is on this machine: at a loopback address, or at the connection's local address."""
    remote, local = _host(connection.remote_address), _host(connection.local_address)
    if remote == local:
        return True
    try:
        address = ip_address(remote)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")
