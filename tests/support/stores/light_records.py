"""Records with odd lists of light queues (LMQ), of which the golden stores ``lmq_odd`` and ``lmq_odd_ext`` are made."""

from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import MessageToStore
from tests.support.stores.record_strategies import plain_message

A, B = "%LMQ%a", "%LMQ%b"


def message(
    topic: str = "Orders", names: str | None = None, places: str | None = None, tags: str = "TagA", **more: object
) -> MessageToStore:
    """A message with the lists that a broker gives one that goes to light queues."""
    properties = {"KEYS": "k", "TAGS": tags}
    if names is not None:
        properties["INNER_MULTI_DISPATCH"] = names
    if places is not None:
        properties["INNER_MULTI_QUEUE_OFFSET"] = places
    return plain_message(topic, b"body", properties_bytes=encode_properties(properties), **more)


class LightQueues:
    """Counts the places of light queues up, as a broker does."""

    def __init__(self) -> None:
        self._next: dict[str, int] = {}

    def take(self, name: str) -> int:
        """The next place of a queue."""
        self._next[name] = self._next.get(name, -1) + 1
        return self._next[name]

    def message(self, *names: str, topic: str = "Orders", **more: object) -> MessageToStore:
        """A message that goes to these queues."""
        return message(topic, ",".join(names), ",".join(str(self.take(name)) for name in names), **more)


def odd_records() -> list[MessageToStore]:
    """The records, in log order."""
    light = LightQueues()
    take, put = light.take, light.message
    found = [put(A), put(A, B), put(B, "%LMQ%中", topic="%DLQ%g", queue_id=0), put(A, topic="%DLQ%g")]
    found.append(message(names=f"{A},{B},,", places=f"{take(A)},{take(B)},"))
    found += [message("%RETRY%g", A, "900"), message("rmq_sys_x", A, "901"), message("SCHEDULE_TOPIC_XXXX", A, "902")]
    found += [message("%RETRY", A, str(take(A))), message("SCHEDULE_TOPIC_XXXXX", A, str(take(A)))]
    found += [message(names=A, places="1,2"), message(names=f"{A},{B}", places="7"), message(names=" ", places="0")]
    found += [message(names=A), message(places="5"), message(names=A, places=","), message(names=",", places=",")]
    found.append(message(names=f"%LMQ%x/y,{A}", places=f"0,{take(A)}"))
    twice = take(A)
    found.append(message(names=f"{A},{A}", places=f"{twice},{twice + 9}"))
    found += [message(names=A, places=f"+{take(A)}"), message(names=A, places="0" * 21 + str(take(A)))]
    found.append(message(names=f"plain,{A}", places=f"0,{take(A)}", queue_id=3))
    found += [message(names="plain", places="1", queue_id=3), message(names="plain", places="0", queue_id=2)]
    found.append(message(names="Orders", places="77"))
    found.append(put(A, sys_flag=8))
    found += [message(names=A, places="55", sys_flag=flag) for flag in (4, 12)]
    found += [put("%LMQ%start", tags=f"T{n}", topic=f"Topic{n % 3}", queue_id=n % 2) for n in range(130)]
    found += [put(*(f"%LMQ%fan{n}" for n in range(size % 40)), topic="Fan") for size in range(80) if size % 40]
    found.append(put("%LMQ%" + "n" * 200))
    found += [message("%LMQ%direct", queue_id=0), message("%LMQ%direct", "%LMQ%direct", "1", queue_id=0)]
    found.append(message("%LMQ%direct", A, str(take(A)), queue_id=5))
    found.append(put(A, topic="RMQ_SYS_TRANS_HALF_TOPIC", queue_id=0))
    return found
