"""The client: producers, consumers and an administrator, on asyncio; for brokers of ours and of the original."""

from rmq_core.client.admin import Admin
from rmq_core.client.errors import BrokerError, ClientError, MessageError, NoReplyError, NoRouteError, SendFailedError
from rmq_core.client.listener import Later, Listener
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.options import (
    ClientOptions,
    ConsumerOptions,
    MessageModel,
    ProducerOptions,
    PullOptions,
    PushOptions,
    StartPosition,
)
from rmq_core.client.producer import Producer
from rmq_core.client.pull_consumer import PullConsumer
from rmq_core.client.push_consumer import PushConsumer
from rmq_core.client.request_reply import reply_to
from rmq_core.client.transaction_producer import TransactionProducer, TransactionResult, TransactionState
from rmq_core.remoting.acl import Credentials
from rmq_core.remoting.bodies import MessageQueue

__all__ = [
    "Admin",
    "BrokerError",
    "ClientError",
    "ClientOptions",
    "ConsumerOptions",
    "Credentials",
    "Later",
    "Listener",
    "Message",
    "MessageError",
    "MessageModel",
    "MessageQueue",
    "NoReplyError",
    "NoRouteError",
    "Producer",
    "ProducerOptions",
    "PullConsumer",
    "PullOptions",
    "PushConsumer",
    "PushOptions",
    "ReceivedMessage",
    "SendFailedError",
    "SendResult",
    "SendStatus",
    "StartPosition",
    "TransactionProducer",
    "TransactionResult",
    "TransactionState",
    "reply_to",
]
