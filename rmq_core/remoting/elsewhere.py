"""Requests that change a server, kept to its own machine where nobody has to sign them.

The original takes them from everywhere.
"""

from collections.abc import Container, Mapping
from ipaddress import ip_address
from typing import Final

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.connection import Connection, Handler, HandlerAnswer
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand

SETTING: Final = "remoteAdminEnable"


def kept_here(handlers: Mapping[int, Handler], codes: Container[int]) -> dict[int, Handler]:
    """Have the handlers of some codes refuse (NO_PERMISSION) what comes from another machine."""
    return {code: _only_from_here(one) if code in codes else one for code, one in handlers.items()}


def _only_from_here(handler: Handler) -> Handler:
    def handle(request: RemotingCommand, connection: Connection) -> HandlerAnswer:
        if not is_from_here(connection):
            raise ResponseError(
                ResponseCode.NO_PERMISSION,
                f"request {request.code} changes this server, which knows no users: it is taken from its own machine "
                f"only, not from {connection.remote_address}; {SETTING}=true allows it, or authenticationEnabled=true "
                "has a broker ask who sends it",
            )
        return handler(request, connection)

    return handle


def is_from_here(connection: Connection) -> bool:
    """Whether the other side is on this machine: at a loopback address, or at the address that it has reached."""
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
