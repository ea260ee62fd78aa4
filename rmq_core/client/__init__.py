"""The asyncio client for RocketMQ clusters, ours or Apache's: producers, consumers and cluster administration."""

from rmq_core.client.admin.admin import Admin
from rmq_core.client.consumer.pull import PullConsumer
from rmq_core.client.consumer.push import PushConsumer
from rmq_core.client.errors import BrokerError, ClientError, MessageError, NoReplyError, NoRouteError, SendFailedError
from rmq_core.client.listener import Later, Listener
from rmq_core.client.message import Message, ReceivedMessage, SendResult, SendStatus
from rmq_core.client.options import (
    LONG_BACKOFF,
    SHORT_BACKOFF,
    Backoff,
    ClientOptions,
    ConsumerOptions,
    MessageModel,
    PopOptions,
    ProducerOptions,
    PullOptions,
    PushOptions,
    StartPosition,
)
from rmq_core.client.pop.consumer import PopConsumer
from rmq_core.client.producer.producer import Producer
from rmq_core.client.producer.request_reply import reply_to
from rmq_core.client.producer.transactions import TransactionProducer, TransactionResult, TransactionState
from rmq_core.remoting.access.acl import Credentials
from rmq_core.remoting.access.tls import Tls
from rmq_core.remoting.bodies.codec import MessageQueue

__all__ = [
    "LONG_BACKOFF", "SHORT_BACKOFF", "Admin", "Backoff", "BrokerError", "ClientError", "ClientOptions",
    "ConsumerOptions", "Credentials", "Later", "Listener", "Message", "MessageError", "MessageModel", "MessageQueue",
    "NoReplyError", "NoRouteError", "PopConsumer", "PopOptions", "Producer", "ProducerOptions", "PullConsumer",
    "PullOptions", "PushConsumer", "PushOptions", "ReceivedMessage", "SendFailedError", "SendResult", "SendStatus",
    "StartPosition", "Tls", "TransactionProducer", "TransactionResult", "TransactionState", "reply_to",
]  # fmt: skip
