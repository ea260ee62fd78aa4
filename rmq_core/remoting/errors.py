"""Errors of the remoting protocol.

::

    RmqError
    ├── FormatError              bytes that are no frame: LengthError; no header or body: DecodeError
    └── RemotingError
        ├── ResponseError        an answer other than success; a handler raises it to give that answer
        └── TransportError       the other side could not be asked
            ├── ListenError      an address cannot be listened on
            ├── ConnectError     nobody accepts connections there
            ├── ConnectionLostError  the connection ended before the answer came
            └── RequestTimeoutError  the answer did not come in time
"""

from rmq_formats.errors import RmqError


class RemotingError(RmqError):
    """Base of all errors between two peers."""


class ResponseError(RemotingError):
    """An answer with a code other than success.

    Attributes:
        code: the response code; a plain integer, as peers may have codes that we do not know.
        remark: the peer's text for people; may be empty.
    """

    def __init__(self, code: int, remark: str | None = None) -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark or ""

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}" if self.remark else f"code {self.code}"


class TransportError(RemotingError):
    """No answer from the peer.

    Attributes:
        address: ``host:port``.
        reason: what happened, in words.
    """

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class ListenError(TransportError):
    """The address cannot be listened on."""


class ConnectError(TransportError):
    """No connection could be made; nothing was sent."""


class ConnectionLostError(TransportError):
    """The connection ended; the server may have carried out the request."""


class RequestTimeoutError(TransportError):
    """No answer in time; the server may have carried out the request."""
