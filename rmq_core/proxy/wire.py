"""Messages of the gRPC service, generated at import, and the statuses of its responses.

Type checkers do not know the members of the messages.

Source: ``ResponseBuilder``, ``GrpcValidator``.
"""

from collections.abc import Sequence
from typing import Any, Final

from rmq_core.client.errors import BrokerError, NoRouteError
from rmq_core.proxy.protos import definition_pb2, service_pb2
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import TransportError
from rmq_formats.errors import RmqError

v2: Any = definition_pb2
rpc: Any = service_pb2
OK: Final = v2.OK
_CODES: Final[dict[int, int]] = {
    ResponseCode.SYSTEM_BUSY: v2.TOO_MANY_REQUESTS,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: v2.NOT_IMPLEMENTED,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: v2.CONSUMER_GROUP_NOT_FOUND,
    ResponseCode.TOPIC_NOT_EXIST: v2.TOPIC_NOT_FOUND,
    ResponseCode.NO_PERMISSION: v2.FORBIDDEN,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: v2.ILLEGAL_FILTER_EXPRESSION,
    ResponseCode.POLLING_FULL: v2.TOO_MANY_REQUESTS,
    ResponseCode.LMQ_QUOTA_EXCEEDED: v2.LITE_TOPIC_QUOTA_EXCEEDED,
    ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED: v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
}


def ms_of(time: Any) -> int:
    """Return a timestamp or a duration in ms: protobuf's own conversion raises ValueError for impossible values."""
    return int(time.seconds * 1000 + time.nanos // 1_000_000)


class StatusError(RmqError):
    """Error status of a call; ``code`` is one of the gRPC service."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code
        self.text = text


def status_of(error: RmqError) -> Any:
    """Return the status that describes an error."""
    if isinstance(error, StatusError):
        return v2.Status(code=error.code, message=error.text)
    if isinstance(error, NoRouteError):
        return v2.Status(code=v2.TOPIC_NOT_FOUND, message=str(error))
    if isinstance(error, BrokerError):
        return v2.Status(code=_CODES.get(error.code, v2.INTERNAL_SERVER_ERROR), message=error.remark)
    code = v2.PROXY_TIMEOUT if isinstance(error, TransportError) else v2.INTERNAL_SERVER_ERROR
    return v2.Status(code=code, message=str(error))


def ok() -> Any:
    """Return the status of success."""
    return v2.Status(code=v2.OK, message="OK")


def combined_status(statuses: Sequence[Any]) -> Any:
    """Return the status of a response with several entries: their common status, or ``MULTIPLE_RESULTS``."""
    if len({status.code for status in statuses}) == 1:
        return statuses[0]
    return v2.Status(code=v2.MULTIPLE_RESULTS, message="MULTIPLE_RESULTS")
