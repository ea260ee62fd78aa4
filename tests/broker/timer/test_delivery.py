"""Messages for a time of their own, at a broker."""

from pathlib import Path

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_formats.codecs.layout import MAX_PROPERTIES_BYTES
from rmq_formats.codecs.record import StoredMessage
from rmq_formats.codecs.timer import TimerCheckpoint
from rmq_formats.codecs.topics import TIMER_TOPIC
from tests.broker.conftest import Asker, Clock, eventually, messages

SECOND_MS = 1000
DAY_MS = 86_400_000


async def pulled(asker: Asker, topic: str, count: int = 1, queue_id: int = 0) -> list[StoredMessage]:
    """The messages of a queue, once there are so many."""

    async def are_there() -> bool:
        return len(messages(await asker.pull(topic, queue_id=queue_id))) >= count

    await eventually(are_there, 30)
    found = messages(await asker.pull(topic, queue_id=queue_id))
    assert len(found) == count
    return found


async def taken_in(asker: Asker, count: int) -> None:
    """Wait until so many messages of the timer topic have been taken in."""

    async def are() -> bool:
        if asker.broker.store.max_offset(TIMER_TOPIC, 0) != count:
            return False
        answer = await asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        return b'"timerOffsetBehind":"0"' in bytes(answer.body)

    await eventually(are, 30)


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
async def test_a_message_comes_when_its_time_has_come(asker: Asker, clock: Clock, name: str) -> None:
    start_ms = clock()
    value = {"TIMER_DELAY_SEC": 600, "TIMER_DELAY_MS": 600_000, "TIMER_DELIVER_MS": start_ms + 600_000}[name]
    properties = {name: str(value), "TAGS": "A", "UNIQ_KEY": "U1", "WAIT": "true"}
    sent = await asker.send("T", b"later", queue_id=2, properties=properties)
    assert (sent.code, sent.ext_fields["queueId"], sent.ext_fields["transactionId"]) == (0, "2", "U1")
    await taken_in(asker, 1)
    assert messages(await asker.pull("T", queue_id=2)) == []
    clock.ahead_ms += 602 * SECOND_MS
    (message,) = await pulled(asker, "T", queue_id=2)
    found = message.properties
    assert (message.body, message.tags, message.uniq_key) == (b"later", "A", "U1")
    assert (found["REAL_TOPIC"], found["REAL_QID"], found[name]) == ("T", "2", str(value))
    due_ms = int(found["TIMER_OUT_MS"])
    assert due_ms % SECOND_MS == 0
    assert start_ms + 599 * SECOND_MS <= due_ms < start_ms + 660 * SECOND_MS
    assert int(found["TIMER_ENQUEUE_MS"]) % SECOND_MS == 0
    assert int(found["TIMER_DEQUEUE_MS"]) >= due_ms + SECOND_MS


async def test_a_message_whose_time_is_over_is_stored_at_once(asker: Asker) -> None:
    await asker.send("T", b"now", properties={"TIMER_DELIVER_MS": "5"})
    (message,) = await pulled(asker, "T")
    assert "TIMER_OUT_MS" not in message.properties


async def test_a_whole_second_is_delivered_when_it_begins(asker: Asker, clock: Clock) -> None:
    deliver_ms = (clock() // SECOND_MS + 600) * SECOND_MS
    await asker.send("T", properties={"TIMER_DELIVER_MS": str(deliver_ms)})
    clock.ahead_ms += 601 * SECOND_MS
    (message,) = await pulled(asker, "T")
    assert int(message.properties["TIMER_OUT_MS"]) == deliver_ms - SECOND_MS


async def test_messages_come_in_the_order_of_their_times(asker: Asker, clock: Clock) -> None:
    for delay_s in (900, 300, 600, 300):
        await asker.send("T", f"{delay_s}".encode(), properties={"TIMER_DELAY_SEC": str(delay_s)})
    await taken_in(asker, 4)
    clock.ahead_ms += 1000 * SECOND_MS
    assert [int(one.body) for one in await pulled(asker, "T", 4)] == [300, 300, 600, 900]


@pytest.mark.parametrize(
    ("properties", "code"),
    [
        ({"TIMER_DELAY_SEC": str(3 * 86_400 + 1)}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_MS": "soon"}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELIVER_MS": "9" * 30}, ResponseCode.MESSAGE_ILLEGAL),
        ({"TIMER_DELAY_MS": "-5", "TIMER_DEL_UNIQKEY": "T+U"}, ResponseCode.MESSAGE_ILLEGAL),
    ],
)
async def test_times_that_cannot_be_are_refused(asker: Asker, properties: dict[str, str], code: int) -> None:
    assert (await asker.send("T", properties=properties)).code == code
    assert asker.broker.store.max_physical_offset == 0


async def test_a_level_wins_over_a_time(asker: Asker, clock: Clock) -> None:
    await asker.send("T", properties={"DELAY": "1", "TIMER_DELAY_SEC": "600"})
    clock.ahead_ms += 2 * SECOND_MS
    (message,) = await pulled(asker, "T")
    assert "TIMER_DELAY_SEC" not in message.properties


async def test_a_message_far_ahead_is_stored_again_on_the_way(asker: Asker, clock: Clock) -> None:
    await asker.send("T", b"far", properties={"TIMER_DELAY_SEC": str(3 * 86_400 - 5), "UNIQ_KEY": "U1"})
    await taken_in(asker, 1)
    clock.ahead_ms += 2 * DAY_MS + 60 * SECOND_MS
    await taken_in(asker, 2)
    assert messages(await asker.pull("T")) == []
    clock.ahead_ms += DAY_MS
    (message,) = await pulled(asker, "T")
    assert (message.body, message.properties["TIMER_ROLL_TIMES"]) == (b"far", "1")


class TestARestart:
    async def test_keeps_what_waits_and_does_not_repeat_what_came(self, asker: Asker, clock: Clock) -> None:
        await asker.send("T", b"one", properties={"TIMER_DELAY_SEC": "300", "UNIQ_KEY": "U1"})
        await asker.send("T", b"two", properties={"TIMER_DELAY_SEC": "600", "UNIQ_KEY": "U2"})
        clock.ahead_ms += 400 * SECOND_MS
        await pulled(asker, "T", 1)
        await asker.broker.close()
        await asker.broker.start()
        await taken_in(asker, 2)
        assert len(messages(await asker.pull("T"))) == 1
        clock.ahead_ms += 300 * SECOND_MS
        assert [one.body for one in await pulled(asker, "T", 2)] == [b"one", b"two"]

    async def test_after_many_days_delivers_what_was_due(self, asker: Asker, clock: Clock) -> None:
        for delay_s in (30, 90_000, 3 * 86_400 - 5):
            await asker.send("T", f"{delay_s}".encode(), properties={"TIMER_DELAY_SEC": str(delay_s)})
        await taken_in(asker, 3)
        await asker.broker.close()
        clock.ahead_ms += 40 * DAY_MS
        await asker.broker.start()
        assert {int(one.body) for one in await pulled(asker, "T", 3)} == {30, 90_000, 3 * 86_400 - 5}

    async def test_writes_no_file_where_no_message_had_a_time(self, asker: Asker) -> None:
        await asker.send("T")
        await asker.broker.close()
        root = Path(asker.broker.store.config.root)
        assert not (root / "timerwheel").exists()
        assert not (root / "timerlog").exists()
        assert not (root / "config" / "timercheck").exists()
        await asker.broker.start()


class TestAClockThatIsSet:
    async def test_back_does_not_deliver_before_the_time(self, asker: Asker, clock: Clock) -> None:
        await asker.send("T", b"old", properties={"TIMER_DELAY_SEC": "60"})
        clock.ahead_ms += 70 * SECOND_MS
        await pulled(asker, "T", 1)
        clock.ahead_ms -= DAY_MS
        await asker.send("T", b"new", properties={"TIMER_DELAY_SEC": "600"})
        await taken_in(asker, 2)
        clock.ahead_ms += 500 * SECOND_MS
        await asker.send("Mark", b"mark", properties={"TIMER_DELAY_SEC": "30"})
        clock.ahead_ms += 60 * SECOND_MS
        await pulled(asker, "Mark")
        assert [one.body for one in messages(await asker.pull("T"))] == [b"old"]
        clock.ahead_ms += 100 * SECOND_MS
        assert [one.body for one in await pulled(asker, "T", 2)] == [b"old", b"new"]

    async def test_back_before_a_start_repeats_nothing(self, asker: Asker, clock: Clock) -> None:
        await asker.send("T", b"one", properties={"TIMER_DELAY_SEC": "60"})
        clock.ahead_ms += 70 * SECOND_MS
        await pulled(asker, "T", 1)
        await asker.broker.close()
        clock.ahead_ms -= 3600 * SECOND_MS
        await asker.broker.start()
        await asker.send("T", b"two", properties={"TIMER_DELAY_SEC": "60"})
        clock.ahead_ms += 3700 * SECOND_MS
        assert [one.body for one in await pulled(asker, "T", 2)] == [b"one", b"two"]


class TestSwitchedOff:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, timer_wheel_enable=False)

    async def test_times_are_refused_as_the_original_does(self, asker: Asker) -> None:
        for name in ("TIMER_DELAY_SEC", "TIMER_DELIVER_MS"):
            answer = await asker.send("T", properties={name: "5"})
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert "timerWheelEnable is false" in (answer.remark or "")
        assert (await asker.ask(RequestCode.GET_TIMER_CHECK_POINT)).code == ResponseCode.SYSTEM_ERROR
        assert (await asker.ask(RequestCode.GET_TIMER_METRICS)).code == ResponseCode.SYSTEM_ERROR


class TestOtherSettings:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, timer_precision_ms=150, timer_congest_num_each_slot=2)

    async def test_a_crowded_interval_takes_no_more(self, asker: Asker, clock: Clock) -> None:
        deliver_ms = str(clock() + 600 * SECOND_MS)
        for count in range(1, 20):
            answer = await asker.send("T", properties={"TIMER_DELIVER_MS": deliver_ms})
            if answer.code != 0:
                break
            await taken_in(asker, count)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "flow control" in (answer.remark or "")
        assert 3 <= count <= 5

    async def test_a_finer_precision_is_kept(self, asker: Asker, clock: Clock) -> None:
        deliver_ms = (clock() // SECOND_MS + 600) * SECOND_MS + 250
        await asker.send("T", properties={"TIMER_DELIVER_MS": str(deliver_ms)})
        clock.ahead_ms += 601 * SECOND_MS
        (message,) = await pulled(asker, "T")
        assert int(message.properties["TIMER_OUT_MS"]) == deliver_ms - 50


async def test_what_waits_is_told(asker: Asker, clock: Clock) -> None:
    for topic in ("T", "T", "U"):
        await asker.send(topic, properties={"TIMER_DELAY_SEC": "600"})
    await taken_in(asker, 3)
    counts = bytes((await asker.ask(RequestCode.GET_TIMER_METRICS)).body)
    assert b'"T":{"count":2' in counts
    assert b'"U":{"count":1' in counts
    info = bytes((await asker.ask(RequestCode.GET_BROKER_RUNTIME_INFO)).body)
    assert b'"timerCongestNum":"3"' in info
    clock.ahead_ms += 700 * SECOND_MS
    await pulled(asker, "T", 2)

    async def is_done() -> bool:
        answer = await asker.ask(RequestCode.GET_TIMER_CHECK_POINT)
        return TimerCheckpoint.decode(bytes(answer.body)).last_timer_queue_offset == 3

    await eventually(is_done)
    assert b'"T":{"count":0' in bytes((await asker.ask(RequestCode.GET_TIMER_METRICS)).body)


@pytest.mark.parametrize("properties", [{}, {"TIMER_OUT_MS": "x"}, {"TIMER_OUT_MS": "5", "REAL_TOPIC": "../x"}])
async def test_what_a_client_sends_to_the_timer_topic_itself_stops_nothing(
    asker: Asker, clock: Clock, properties: dict[str, str]
) -> None:
    assert (await asker.send(TIMER_TOPIC, properties=properties)).code == 0
    await asker.send("T", b"later", properties={"TIMER_DELAY_SEC": "60"})
    clock.ahead_ms += 100 * SECOND_MS
    assert [one.body for one in await pulled(asker, "T")] == [b"later"]


async def test_properties_without_room_for_more_are_kept_as_they_are(asker: Asker, clock: Clock) -> None:
    await asker.send("T", b"small", properties={"TIMER_DELAY_SEC": "60", "PAD": "x"})
    (small,) = await pulled(asker, TIMER_TOPIC)
    pad = "x" * (MAX_PROPERTIES_BYTES - len(small.properties_bytes) - 3)
    await asker.send("T", b"large", properties={"TIMER_DELAY_SEC": "60", "PAD": pad})
    await taken_in(asker, 2)
    clock.ahead_ms += 100 * SECOND_MS
    _, large = await pulled(asker, "T", 2)
    assert (large.body, large.properties["PAD"], "TIMER_DEQUEUE_MS" in large.properties) == (b"large", pad, False)


@pytest.mark.parametrize("name", ["TIMER_ROLL_TIMES", "TIMER_OUT_MS"])
async def test_a_clients_very_long_number_stops_nothing(asker: Asker, clock: Clock, name: str) -> None:
    properties = {
        "TIMER_DELAY_SEC": "60",
        "UNIQ_KEY": "U",
        "REAL_TOPIC": "T",
        "TIMER_DEQUEUE_MS": "5",
        name: "9" * 5000,
    }
    assert (await asker.send("T", properties=properties)).code == 0
    await asker.send("T", properties={"TIMER_DELAY_SEC": "60"})
    clock.ahead_ms += 100 * SECOND_MS
    count = 1 + (name == "TIMER_ROLL_TIMES")
    await pulled(asker, "T", 2)
    await asker.broker.close()
    (Path(asker.broker.store.config.root) / "config" / "timercheck").unlink()
    await asker.broker.start()
    await taken_in(asker, count)
    await pulled(asker, "T", 2)
