"""The trace dispatcher of a consumer: a producer that sends its trace records. Source: ``AsyncTraceDispatcher``."""

from rmq_core.client.listener import Listener
from rmq_core.client.message import Message
from rmq_core.client.options import ProducerOptions, PushOptions
from rmq_core.client.producer.packet import MAX_GROUP_CHARACTERS
from rmq_core.client.producer.producer import Producer
from rmq_core.client.producer.tracer import GROUP_PREFIX, SEND_TIMEOUT_S, Tracer, traced
from rmq_core.remoting.access.acl import Credentials


class TraceSender:
    """Sender of a consumer's message traces, with a separate producer."""

    def __init__(self, namesrv: str, group: str, options: PushOptions, credentials: Credentials | None) -> None:
        """Create the sender and its producer.

        Args:
            namesrv: ``host:port`` of the name servers, separated by semicolons.
            group: the consumer's.
            options: the consumer's.
            credentials: to sign requests with.
        """
        self._group = group
        self._timeout_s = options.consume_timeout_s
        self._producer = Producer(
            namesrv,
            f"{GROUP_PREFIX}-CONSUME-{group}"[:MAX_GROUP_CHARACTERS],
            ProducerOptions(
                unit_name=options.unit_name, send_timeout_s=SEND_TIMEOUT_S, tls=options.tls, clock_ms=options.clock_ms
            ),
            credentials=credentials,
        )
        self._tracer = Tracer(options.trace_topic, self._send, options.clock_ms)

    async def _send(self, message: Message) -> None:
        await self._producer.send(message)

    def traced(self, listener: Listener) -> Listener:
        """Wrap a listener so that its calls are traced."""
        return traced(listener, self._group, self._tracer, self._timeout_s)

    async def start(self) -> None:
        """Start the producer and the sending of traces."""
        await self._producer.start()
        self._tracer.start()

    async def close(self) -> None:
        """Send the remaining records, and stop."""
        await self._tracer.close()
        await self._producer.close()
