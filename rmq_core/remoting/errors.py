"""Errors of the remoting protocol.

::

    RmqError
    ├── FormatError              bytes that are no frame: LengthError; no header or body: DecodeError
    └── RemotingError
        ├── ResponseError        a response other than success; handlers raise it to send that response
        └── TransportError       no response
            ├── ListenError      this process cannot listen on an address
            ├── ConnectError     no connection could be made
            ├── ConnectionLostError  the connection ended before the response came
            └── RequestTimeoutError  the response did not come in time
"""

from rmq_formats.errors import RmqError


class RemotingError(RmqError):
    """Base of all errors between two peers."""


class ResponseError(RemotingError):
    """A response with a code other than success.

    ``code`` is an integer, as peers may have codes that ``ResponseCode`` lacks; ``remark`` may be empty.
    """

    def __init__(self, code: int, remark: str | None = None) -> None:
        super().__init__(code, remark)
        self.code = int(code)
        self.remark = remark or ""

    def __str__(self) -> str:
        return f"code {self.code}: {self.remark}" if self.remark else f"code {self.code}"


class TransportError(RemotingError):
    """No response from the peer."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(address, reason)
        self.address = address
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.address}: {self.reason}"


class ListenError(TransportError):
    """This process cannot listen on the address."""


class ConnectError(TransportError):
    """No connection could be made; nothing was sent."""


class ConnectionLostError(TransportError):
    """The connection ended; the server may have handled the request."""


class RequestTimeoutError(TransportError):
    """The response did not come in time; the server may have handled the request."""
