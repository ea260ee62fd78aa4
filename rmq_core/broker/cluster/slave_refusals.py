"""Requests that a slave refuses, as only its master appends messages, ends transactions and resets offsets.

Source: ``SendMessageProcessor#rejectRequest``, ``NettyRemotingAbstract#processRequestCommand``,
``EndTransactionProcessor``, ``RecallMessageProcessor``, ``AdminBrokerProcessor#resetOffsetInner``.
"""

from typing import Final

from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.header import RemotingCommand

BUSY: Final = "[REJECTREQUEST]system busy, start flow control for a while"
_REFUSED: Final = {
    RequestCode.SEND_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.SEND_MESSAGE_V2: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.SEND_BATCH_MESSAGE: (ResponseCode.SYSTEM_BUSY, BUSY),
    RequestCode.CONSUMER_SEND_MSG_BACK: (ResponseCode.SYSTEM_BUSY, BUSY),
    **dict.fromkeys(
        (
            RequestCode.POP_MESSAGE, RequestCode.ACK_MESSAGE, RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME, RequestCode.NOTIFICATION, RequestCode.POP_LITE_MESSAGE,
            RequestCode.LITE_SUBSCRIPTION_CTL, RequestCode.TRIGGER_LITE_DISPATCH,
        ),
        (ResponseCode.NO_PERMISSION, "this broker is a slave: messages are popped from its master"),
    ),
    RequestCode.END_TRANSACTION: (ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave"),
    RequestCode.RECALL_MESSAGE: (ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, operation is forbidden"),
    RequestCode.RESET_MASTER_FLUSH_OFFSET: (
        ResponseCode.SYSTEM_ERROR, "this slave keeps no flush offset of its master: it forces what it has itself"
    ),
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker"),
}  # fmt: skip


def slave_refusals() -> dict[int, Handler]:
    """Return handlers, by request code, that refuse requests for masters only."""
    return {int(code): _refusal(*refusal) for code, refusal in _REFUSED.items()}


def _refusal(code: ResponseCode, remark: str) -> Handler:
    def refuse(request: RemotingCommand, _: Connection) -> RemotingCommand:
        return request.response(int(code), remark)

    return refuse
