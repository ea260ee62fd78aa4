"""Error responses to requests whose handler raises or is missing, and the log of refused requests."""

import logging
from typing import Final

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.header import RemotingCommand
from rmq_formats.errors import RmqError

log = logging.getLogger(__name__)

MAX_REMARK: Final = 4096  # characters of an error's text
_MAX_LOGGED_REMARK: Final = 500
_MAX_LOGGED: Final = 32  # refusals of one connection
# Responses that a correct client never gets. The access guard logs missing permissions itself; an unknown topic or a
# busy broker is no fault of the client.
_LOGGED_CODES: Final = (
    ResponseCode.SYSTEM_ERROR, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, ResponseCode.MESSAGE_ILLEGAL,
    ResponseCode.INVALID_PARAMETER, ResponseCode.ILLEGAL_OPERATION, ResponseCode.SUBSCRIPTION_PARSE_FAILED,
)  # fmt: skip


def failure(request: RemotingCommand, error: BaseException) -> RemotingCommand:
    """Build the response to a request whose handler has raised; log unexpected exceptions."""
    if isinstance(error, ResponseError):
        code, remark = error.code, error.remark
    elif isinstance(error, RmqError):
        code, remark = int(ResponseCode.SYSTEM_ERROR), str(error)
    else:
        log.error("request %(code)d failed", {"code": request.code}, exc_info=error)
        code, remark = int(ResponseCode.SYSTEM_ERROR), f"{type(error).__name__}: {error}"
    # A remark may quote the request: replace surrogates, which have no UTF-8, and cut off a large quotation.
    return request.response(code, remark[:MAX_REMARK].encode("utf-8", "replace").decode())


class RefusalLog:
    """Log of the refused requests of one connection: a line for each pair of request code and response code."""

    __slots__ = ("_logged",)

    def __init__(self) -> None:
        self._logged: set[tuple[int, int]] = set()

    def log_refusal(self, request: RemotingCommand, response: RemotingCommand, client: str) -> None:
        """Log the first refusal of each pair of request code and response code."""
        kind = request.code, response.code
        if response.code not in _LOGGED_CODES or kind in self._logged or len(self._logged) >= _MAX_LOGGED:
            return
        self._logged.add(kind)
        log.warning(
            "refused request %(code)d of %(client)s with code %(answer)d: %(reason)s",
            {
                "code": request.code,
                "client": client,
                "answer": response.code,
                "reason": (response.remark or "").strip()[:_MAX_LOGGED_REMARK],
            },
        )


_SWITCH_TIMER_ENGINE: Final = 5001  # request code of 5.4
_REASONS: Final[dict[int, str]] = {
    **dict.fromkeys((RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER),
                    "brokers run in no container here; start and stop them by rmq broker"),
    **dict.fromkeys(range(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_APPLY_BROKER_ID + 1),
                    "there is no controller here"),
    **dict.fromkeys(range(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO + 1),
                    "reads of cold data are not limited by group here"),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: "static topics are not kept here",
    **dict.fromkeys((RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON),
                    "queues and tables are in files here, not in RocksDB"),
    RequestCode.ACK_LITE_MESSAGE: "lite topics are acknowledged by code 200051 with liteTopic",
    _SWITCH_TIMER_ENGINE: "timers are in a wheel of files here, not in RocksDB",
    RequestCode.SET_COMMITLOG_READ_MODE: "the read-ahead of the log is left to the system",
    RequestCode.POP_ROLLBACK: "pop records are in files here, not in RocksDB: there is nothing to export",
}  # fmt: skip


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Build a response with REQUEST_CODE_NOT_SUPPORTED, and the reason if there is one."""
    reason = _REASONS.get(request.code)
    remark = f" request type {request.code} not supported" + (f": {reason}" if reason else "")
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
