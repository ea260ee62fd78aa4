"""Writes the notebooks' default store: two days of a small shop, in March 2026.

The broker's own store engine writes it, with the clock of the story. Orders come in with two peaks a day. Each is
paid and, hours later, shipped. The group ``billing`` takes payments: its bank is away for 40 minutes, and the
payment of order 4711, whose amount has a comma, it refuses until RocketMQ gives up. ``shipping`` is slow, and once
stopped; ``analytics`` works at night.
"""

import json
import shutil
import tempfile
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from zlib import crc32

import numpy as np

from rmq_core.store.config import StoreConfig
from rmq_core.store.store import MessageStore
from rmq_formats.codecs.consumequeue import delay_levels_ms
from rmq_formats.codecs.hosts import Host
from rmq_formats.codecs.layout import DEFAULT_DELAY_LEVELS
from rmq_formats.codecs.message_id import encode_message_id
from rmq_formats.codecs.properties import encode_properties

_OWN_SUM: Final = crc32(Path(__file__).read_bytes())  # another story has another store
DIRECTORY: Final = Path(tempfile.gettempdir()) / f"rmq-lake-shop-{_OWN_SUM:08x}"
START_MS: Final = int(datetime(2026, 3, 10, tzinfo=UTC).timestamp() * 1000)
MINUTE_MS, HOUR_MS, DAY_MS = 60_000, 3_600_000, 86_400_000
END_MS: Final = START_MS + 2 * DAY_MS
ORDERS, FIRST_NUMBER, ODD_NUMBER, QUEUES = 5000, 1001, 4711, 4
MAX_RETRIES: Final = 16  # retryMaxTimes of a group, by default
OUTAGE_MS: Final = (START_MS + 20 * HOUR_MS, START_MS + 20 * HOUR_MS + 40 * MINUTE_MS)
STOPPED_MS: Final = (START_MS + 38 * HOUR_MS, START_MS + 41 * HOUR_MS)
_BROKER, _PRODUCER = Host.parse("10.0.0.2:10911"), Host.parse("10.0.0.9:38752").to_bytes()
_DELAYS_MS: Final = delay_levels_ms(DEFAULT_DELAY_LEVELS)


@dataclass(frozen=True, slots=True)
class Sent:
    """A message, and when the broker stores it."""

    at_ms: int
    topic: str
    queue_id: int
    tag: str
    number: int
    body: bytes
    born_ms: int
    uniq_key: str
    reconsume_times: int = 0
    more: Mapping[str, str] = field(default_factory=dict)


def shop_store() -> tuple[str, str]:
    """Return the paths of the shop's store and of its copies of ``consumerOffset.json``; made where missing."""
    if not DIRECTORY.exists():
        work = Path(tempfile.mkdtemp(prefix="rmq-lake-shop-", dir=DIRECTORY.parent))
        write_shop(work)
        try:
            work.rename(DIRECTORY)
        except OSError:  # another notebook was faster
            shutil.rmtree(work)
    return str(DIRECTORY / "store"), str(DIRECTORY / "offsets")


def write_shop(root: Path) -> None:
    """Write ``store`` and ``offsets`` under a directory."""
    messages = sorted((message for message in _two_days() if message.at_ms < END_MS), key=lambda message: message.at_ms)
    config = StoreConfig(
        root=str(root / "store"),
        commitlog_file_bytes=1 << 20,
        consumequeue_file_bytes=6000,
        index_slots=5000,
        index_entries=20_000,
    )
    store = MessageStore.open(config, START_MS, store_host=_BROKER)
    try:
        _put(store, messages)
    finally:
        store.shutdown()
    _write_config(root, messages)


def _two_days() -> Iterator[Sent]:
    source = np.random.default_rng(ODD_NUMBER)
    hour = np.arange(48 * 60) / 60 % 24
    weight = 0.15 + np.exp(-(((hour - 12) / 2.5) ** 2)) + 1.4 * np.exp(-(((hour - 20) / 2) ** 2))
    minutes = source.choice(len(weight), ORDERS, p=weight / weight.sum())
    times = np.sort(START_MS + minutes * MINUTE_MS + source.integers(0, MINUTE_MS, ORDERS)).tolist()
    amounts = np.round(source.lognormal(3.6, 0.8, ORDERS), 2).tolist()
    kinds, waits = source.random((2, ORDERS)).tolist()
    for at, ordered_ms in enumerate(times):
        number = FIRST_NUMBER + at
        yield _message(ordered_ms, "Orders", "created", number, {"customer": number % 700, "amount": amounts[at]})
        if kinds[at] < 0.03 and number != ODD_NUMBER:
            yield _message(ordered_ms + 5 * MINUTE_MS, "Orders", "cancelled", number, {"customer": number % 700})
            continue
        method = "transfer" if kinds[at] < 0.25 else "card"
        amount = "1.249,00" if number == ODD_NUMBER else amounts[at]
        payment = _message(ordered_ms + 20_000, "Payments", method, number, {"amount": amount, "currency": "EUR"})
        tries, paid_ms = _bill(payment)
        yield payment
        yield from tries
        if number == ODD_NUMBER:
            paid_ms += 35 * MINUTE_MS  # somebody looks into the dead-letter topic, and sends it again
            yield _message(paid_ms, "Payments", "manual", number, {"amount": 1249.0, "currency": "EUR"})
            waits[at] = 0
        packed_ms = paid_ms + int((2 + 4 * waits[at]) * HOUR_MS)
        yield _message(packed_ms, "Shipments", "sent", number, {"carrier": ("north", "south")[number % 2]})
        yield _message(packed_ms + int((12 + 12 * waits[at]) * HOUR_MS), "Shipments", "arrived", number, {})


def _message(at_ms: int, topic: str, tag: str, number: int, body: Mapping[str, object]) -> Sent:
    text = json.dumps({"order": number, "event": tag, **body}).encode()
    uniq_key = f"0A000009{number:08X}{at_ms - START_MS:08X}{len(text):08X}"
    return Sent(at_ms, topic, number % QUEUES, tag, number, text, at_ms - 3, uniq_key)


def _bill(payment: Sent) -> tuple[list[Sent], int]:
    """Return the messages of a payment that fails, as a broker stores them, and the time of the last one."""
    left, at_ms, times = [], payment.at_ms + 200, 0
    while payment.number == ODD_NUMBER or OUTAGE_MS[0] <= at_ms < OUTAGE_MS[1]:
        more = {"RETRY_TOPIC": payment.topic, "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0"}
        if times == MAX_RETRIES:
            left.append(_again(payment, at_ms, "%DLQ%billing", 0, times + 1, {**more, "DELAY": "0"}))
            break
        level = 3 + times
        times += 1
        more["DELAY"] = str(level)
        left.append(_again(payment, at_ms, "SCHEDULE_TOPIC_XXXX", level - 1, times, more))
        at_ms += _DELAYS_MS[level - 1]
        left.append(_again(payment, at_ms, "%RETRY%billing", 0, times, more))
        at_ms += 200
    return left, at_ms


def _again(sent: Sent, at_ms: int, topic: str, queue_id: int, times: int, more: Mapping[str, str]) -> Sent:
    return Sent(at_ms, topic, queue_id, sent.tag, sent.number, sent.body, sent.born_ms, sent.uniq_key, times, more)


def _put(store: MessageStore, messages: Sequence[Sent]) -> None:
    origins: dict[str, str] = {}
    for message in messages:
        properties = {"KEYS": f"order-{message.number}", "TAGS": message.tag, "UNIQ_KEY": message.uniq_key}
        if message.more:
            properties |= {**message.more, "ORIGIN_MESSAGE_ID": origins[message.uniq_key]}
        result = store.appender.put(
            message.topic,
            message.queue_id,
            message.body,
            encode_properties(properties),
            message.born_ms,
            _PRODUCER,
            message.at_ms,
            reconsume_times=message.reconsume_times,
        )
        origins.setdefault(message.uniq_key, encode_message_id(_BROKER, result.physical_offset))
    store.dispatch()


def _write_config(root: Path, messages: Sequence[Sent]) -> None:
    arrivals: dict[tuple[str, int], list[int]] = defaultdict(list)
    for message in messages:
        arrivals[message.topic, message.queue_id].append(message.at_ms)
    done: dict[str, dict[int, list[int]]] = defaultdict(dict)
    for (topic, queue_id), times in arrivals.items():
        if topic in {"Payments", "%RETRY%billing"}:
            done[f"{topic}@billing"][queue_id] = [at_ms + 200 for at_ms in times]
        if topic == "Orders":
            done["Orders@shipping"][queue_id] = list(_slowly(times))
            nights = [START_MS + day * DAY_MS + 3 * HOUR_MS for day in range(4)]
            done["Orders@analytics"][queue_id] = [nights[bisect_right(nights, at_ms)] for at_ms in times]
    offsets, config = root / "offsets", root / "store" / "config"
    offsets.mkdir()
    for at_ms in range(START_MS, END_MS + 1, 15 * MINUTE_MS):
        table = {
            name: {queue_id: bisect_right(times, at_ms) for queue_id, times in sorted(queues.items())}
            for name, queues in sorted(done.items())
        }
        text = json.dumps({"offsetTable": table}, indent=1)
        (offsets / f"{datetime.fromtimestamp(at_ms / 1000, UTC):%Y%m%dT%H%MZ}.json").write_text(text)
    config.mkdir(exist_ok=True)
    (config / "consumerOffset.json").write_text(text)
    queues = {topic: QUEUES if topic in {"Orders", "Payments", "Shipments"} else 1 for topic, _ in arrivals}
    queues["SCHEDULE_TOPIC_XXXX"] = len(_DELAYS_MS)
    topics = {
        topic: {"topicName": topic, "readQueueNums": count, "writeQueueNums": count} for topic, count in queues.items()
    }
    (config / "topics.json").write_text(json.dumps({"topicConfigTable": topics}, indent=1))


def _slowly(times: Sequence[int], each_ms: int = 105_000) -> Iterator[int]:
    """When a consumer that takes a while for each message is through with it; it is stopped for some hours."""
    free_ms = 0
    for at_ms in times:
        begin_ms = max(at_ms, free_ms)
        if STOPPED_MS[0] <= begin_ms < STOPPED_MS[1]:
            begin_ms = STOPPED_MS[1]
        free_ms = begin_ms + each_ms
        yield free_ms
