"""Requests that wait for a reply (request-reply): the user and the connection that sent each, as replies go to them.

A reply names its requester by a client id, which anybody may say of himself.
"""

from dataclasses import dataclass
from typing import Final
from weakref import ReferenceType, ref

from rmq_core.broker.tables.clients import Login
from rmq_core.remoting.connection import Connection
from rmq_formats.codecs.layout import PROPERTY_CORRELATION_ID, PROPERTY_REPLY_TO_CLIENT
from rmq_formats.codecs.properties import decode_properties

_MOST: Final = 65_536  # a client waits 3 s for a reply by default
_MOST_ID_CHARS: Final = 512


@dataclass(frozen=True, slots=True)
class ReplyRequest:
    """A request that waits for a reply; ``login`` is None where nobody had to sign."""

    login: Login | None
    topic: str
    connection: ReferenceType[Connection]


class ReplyRequests:
    """The newest requests that wait for a reply, by client id and correlation id."""

    def __init__(self, most: int = _MOST) -> None:
        """Retain so many at most."""
        self._most = most
        self._requests: dict[tuple[str, str], ReplyRequest] = {}

    def add(self, properties: str, topic: str, login: Login | None, connection: Connection) -> None:
        """Add a request; the first request of an id counts, so that no other client can replace the requester.

        Args:
            properties: of the message; without a request for a reply, the call has no effect.
        """
        decoded = decode_properties(properties.encode("utf-8", "replace"))
        key = decoded.get(PROPERTY_REPLY_TO_CLIENT, ""), decoded.get(PROPERTY_CORRELATION_ID, "")
        if not all(key) or len(key[0]) + len(key[1]) > _MOST_ID_CHARS or key in self._requests:
            return
        if len(self._requests) >= self._most:
            del self._requests[next(iter(self._requests))]
        self._requests[key] = ReplyRequest(login, topic, ref(connection))

    def get(self, client_id: str, correlation_id: str) -> ReplyRequest | None:
        """Return the request that a reply names; None if another broker received the request, or long ago."""
        return self._requests.get((client_id, correlation_id))
