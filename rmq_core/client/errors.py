"""Errors of the client.

::

    RmqError
    ├── OptionError              an argument that cannot be used
    └── RemotingError
        ├── TransportError       a server could not be reached, or did not respond
        └── ResponseError        code and remark
            ├── BrokerError      a broker or name server responded with a code other than success
            └── ClientError      a refusal or failure in the client, with the code of a broker
                ├── NoRouteError     no name server knows the topic, or no broker of it can be used
                ├── MessageError     a message that every broker would refuse
                ├── SendFailedError  all attempts to send have failed; the last one's code and remark
                └── NoReplyError     a request was sent, and no reply has arrived
"""

from typing import Final

from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError, TransportError

_TRANSIENT: Final = (ResponseCode.SYSTEM_BUSY, ResponseCode.GO_AWAY, ResponseCode.FLOW_CONTROL)
_REQUEST_TIMEOUT: Final = 10006  # ClientErrorCode.REQUEST_TIMEOUT_EXCEPTION


class BrokerError(ResponseError):
    """Response of a broker or name server with a code other than success.

    Attributes:
        code: the response code.
        remark: the server's text for people.
        address: ``host:port`` of the server.
    """

    def __init__(self, address: str, code: int, remark: str | None = None) -> None:
        super().__init__(code, remark)
        self.address = address

    def __str__(self) -> str:
        return f"{self.address}: {super().__str__()}"


def is_refusal(error: object) -> bool:
    """Return True if a broker refuses the request for lack of permission, as with wrong credentials."""
    return isinstance(error, BrokerError) and error.code == ResponseCode.NO_PERMISSION


def is_transient(error: object) -> bool:
    """Return True if a later request may succeed: the broker is away, stops, or has too much to do."""
    return isinstance(error, TransportError) or (isinstance(error, BrokerError) and error.code in _TRANSIENT)


class ClientError(ResponseError):
    """Error of the client itself: a refused or failed request, with the code that a broker would respond."""


class NoRouteError(ClientError):
    """The topic or the broker is unknown, or has no usable queue.

    Attributes:
        name: name of the topic or broker.
    """

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(ResponseCode.TOPIC_NOT_EXIST, f"{name}: {reason}")
        self.name = name


class MessageError(ClientError):
    """A message that every broker would refuse."""

    def __init__(self, reason: str) -> None:
        super().__init__(ResponseCode.MESSAGE_ILLEGAL, reason)


class NoReplyError(ClientError):
    """A request message was sent, and no reply has arrived in time."""

    def __init__(self, topic: str, timeout_s: float) -> None:
        super().__init__(_REQUEST_TIMEOUT, f"{topic}: sent, and no reply in {timeout_s:g} s")


class SendFailedError(ClientError):
    """All attempts to send a message have failed.

    Attributes:
        brokers: names of the brokers that were tried, in order.
    """

    def __init__(self, code: int, remark: str, brokers: list[str]) -> None:
        super().__init__(code, remark)
        self.brokers = brokers

    def __str__(self) -> str:
        return f"not sent after {len(self.brokers)} attempts ({', '.join(self.brokers)}): {super().__str__()}"
