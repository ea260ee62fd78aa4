"""Answer to requests without a handler, with a reason where mqadmin has a command for the request.

Source: ``NettyRemotingAbstract#processRequestCommand`` for the first words.
"""

from typing import Final

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import RemotingCommand

_NO_CONTAINER: Final = "brokers run in no container here; start and stop them by rmq broker"
_NO_CONTROLLER: Final = "there is no controller here"
_NO_COLD_DATA_CONTROL: Final = "reads of cold data are not limited by group here"
_NO_STATIC_TOPICS: Final = "static topics are not kept here"
_SWITCH_TIMER_ENGINE: Final = 5001  # of 5.4
_NO_ROCKSDB: Final = "queues and tables are in files here, not in RocksDB"
_REASONS: Final[dict[int, str]] = {
    **dict.fromkeys((RequestCode.ADD_BROKER, RequestCode.REMOVE_BROKER), _NO_CONTAINER),
    **dict.fromkeys(range(RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_APPLY_BROKER_ID + 1),
                    _NO_CONTROLLER),
    **dict.fromkeys(range(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, RequestCode.GET_COLD_DATA_FLOW_CTR_INFO + 1),
                    _NO_COLD_DATA_CONTROL),
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: _NO_STATIC_TOPICS,
    **dict.fromkeys((RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON),
                    _NO_ROCKSDB),
    RequestCode.ACK_LITE_MESSAGE: "lite topics are acknowledged by code 200051 with liteTopic",
    _SWITCH_TIMER_ENGINE: "timers are in a wheel of files here, not in RocksDB",
    RequestCode.SET_COMMITLOG_READ_MODE: "the read-ahead of the log is left to the system",
    RequestCode.POP_ROLLBACK: "pop records are in files here, not in RocksDB: there is nothing to export",
}  # fmt: skip


def not_supported(request: RemotingCommand) -> RemotingCommand:
    """Return the answer: REQUEST_CODE_NOT_SUPPORTED, and why if there is a reason."""
    reason = _REASONS.get(request.code)
    remark = f" request type {request.code} not supported" + (f": {reason}" if reason else "")
    return request.response(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark)
