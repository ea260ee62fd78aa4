"""SQL92 at the broker: filters that groups register, their file, and bit maps in ConsumeQueueExt."""

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables import registered_filters
from rmq_core.broker.tables.registered_filters import ConsumerFilters
from rmq_core.broker.tables.subscription_filter import sql_filter
from rmq_core.broker.tables.table_file import TableFiles
from rmq_core.remoting.bodies.clients import CheckClientBody, SubscriptionData
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.store.config import StoreConfig
from rmq_core.store.consumequeue.ext import QueueExt
from rmq_core.store.files.disk import Disk
from rmq_core.store.files.threads import Threads
from rmq_formats.codecs.consumequeue_ext import BloomFilter, ExtUnit
from rmq_formats.codecs.paths import consumequeue_ext_dir, queue_dir
from rmq_formats.codecs.properties import decode_properties, raw_property
from rmq_formats.codecs.record import decode_record
from rmq_formats.codecs.record_frame import DamageCode, frame_shape, record_properties
from rmq_formats.sql92 import SqlError, compile_expression
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.broker.conftest import Asker, Clock, messages, small_store
from tests.support.stores.verified_stores import codes, verify

DAY_MS = 24 * 3600 * 1000


def sql(expression: str, version: int = 1, topic: str = "T", kind: str = "SQL92") -> SubscriptionData:
    return SubscriptionData(topic=topic, sub_string=expression, expression_type=kind, sub_version=version)


async def bodies(asker: Asker, offset: int = 0, version: int = 1) -> list[bytes]:
    answer = await asker.pull("T", offset, sysFlag=0, subVersion=version)
    assert answer.code in (0, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
    return [one.body for one in messages(answer)]


async def send_numbers(asker: Asker, *numbers: int) -> None:
    for number in numbers:
        await asker.send("T", str(number).encode(), properties={"a": str(number)})


async def test_a_group_gets_what_its_heartbeat_s_expression_lets_through(asker: Asker) -> None:
    await send_numbers(asker, 1, 5, 9)
    await asker.heartbeat("cg", sql("a > 3"))
    assert await bodies(asker) == [b"5", b"9"]
    await asker.heartbeat("cg", sql("a < 3", version=2))
    assert await bodies(asker, version=2) == [b"1"]
    await asker.heartbeat("cg", sql("a = 5", version=1))  # an older one, come late
    assert await bodies(asker, version=2) == [b"1"]


async def test_what_a_group_subscribes_by_no_expression_is_told_at_its_pull(asker: Asker) -> None:
    await send_numbers(asker, 1)
    await asker.heartbeat("cg", sql("a >"))
    answer = await asker.pull("T", sysFlag=0, subVersion=1)
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert answer.remark == "The broker's consumer filter data is not exist!Your expression may be wrong!"


async def test_what_a_pull_brings_and_is_no_expression_lets_everything_through(asker: Asker) -> None:
    await send_numbers(asker, 1, 5)
    for kind, expression in (("SQL92", "a >"), ("XPATH", "a > 3")):
        answer = await asker.pull("T", expressionType=kind, subscription=expression)
        assert [one.body for one in messages(answer)] == [b"1", b"5"]
    answer = await asker.pull("T", expressionType="SQL92", subscription="")
    assert (answer.code, answer.remark) == (
        ResponseCode.SUBSCRIPTION_PARSE_FAILED, "parse the consumer's subscription failed"
    )  # fmt: skip


class TestRetries:
    """A group that subscribes its retry topic by an expression, which no client does by itself."""

    @pytest.fixture(params=[False, True])
    def supported(self, request: pytest.FixtureRequest) -> bool:
        return bool(request.param)

    @pytest.fixture
    def config(self, supported: bool) -> BrokerConfig:
        return BrokerConfig(listen_port=0, enable_property_filter=True, filter_support_retry=supported)

    async def test_the_copy_is_what_counts_or_the_topic_it_came_from(self, asker: Asker, supported: bool) -> None:
        await asker.heartbeat("cg", sql("a > 3"), sql("a < 3", topic="%RETRY%cg"))
        for number, topic in ((1, "T"), (5, "T"), (2, "Other"), (7, "Other")):
            properties = {"a": str(number), "RETRY_TOPIC": topic}
            await asker.send("%RETRY%cg", str(number).encode(), properties=properties)
        known = await asker.pull("%RETRY%cg", sysFlag=0, subVersion=1)
        wanted = [b"5", b"2", b"7"] if supported else [b"1", b"2"]  # no expression is known of the other topic
        assert [one.body for one in messages(known)] == wanted
        brought = await asker.pull("%RETRY%cg", expressionType="SQL92", subscription="a = 7")
        assert [one.body for one in messages(brought)] == (wanted if supported else [b"7"])
        tags = await asker.pull("%RETRY%cg")
        assert len(messages(tags)) == 4


class TestSwitchedOff:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0)

    async def test_a_bad_expression_is_told_before_that_there_are_none(self, asker: Asker) -> None:
        await asker.heartbeat("cg", sql("a > 3"), sql("a >", topic="U"))
        await asker.send("T")
        await asker.send("U")
        answers = [await asker.pull(topic, sysFlag=0, subVersion=1) for topic in ("T", "U")]
        assert [one.code for one in answers] == [ResponseCode.SYSTEM_ERROR, ResponseCode.FILTER_DATA_NOT_EXIST]
        assert answers[0].remark == "The broker does not support consumer to filter message by SQL92"


@pytest.mark.parametrize(
    ("expression", "kind", "code", "remark"),
    [
        ("a > 3", "SQL92", ResponseCode.SUCCESS, ""),
        (
            "a >",
            "SQL92",
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            'org.apache.rocketmq.filter.parser.ParseException: Encountered "<EOF>" at line 1, column ',
        ),
        (
            "b > 'x'",
            "SQL92",
            ResponseCode.SUBSCRIPTION_PARSE_FAILED,
            "java.lang.RuntimeException: Value ''x'' cannot be compared.",
        ),
        ("a > 3", "XPATH", ResponseCode.SUBSCRIPTION_PARSE_FAILED, "java.lang.NullPointerException"),
    ],
)
async def test_a_client_is_told_whether_its_expression_compiles(
    asker: Asker, expression: str, kind: str, code: ResponseCode, remark: str
) -> None:
    body = CheckClientBody(client_id="c1", group="cg", subscription_data=sql(expression, kind=kind))
    answer = await asker.ask(RequestCode.CHECK_CLIENT_CONFIG, {}, encode_body(body))
    assert answer.code == code
    assert (answer.remark or "").startswith(remark)


async def test_filters_are_kept_in_the_original_s_file(
    asker: Asker, config: BrokerConfig, store_config: StoreConfig, clock: Clock
) -> None:
    await asker.heartbeat("cgs", sql("a > 3", topic="TopicTest"))
    await asker.broker.close()
    table = json.loads(Path(store_config.root, "config/consumerFilter.json").read_text())
    data = table["filterDataByTopic"]["TopicTest"]["groupFilterData"]["cgs"]
    assert data["bloomFilterData"] == {"bitNum": 112, "bitPos": [61, 83, 4]}
    assert (data["expression"], data["expressionType"], data["clientVersion"]) == ("a > 3", "SQL92", 1)
    filters = ConsumerFilters(TableFiles(store_config.root, Disk(), Threads()), config, clock)
    found = filters.get("TopicTest", "cgs")
    assert found is not None
    assert found.is_dead  # until its group comes back
    filters.register("cgs", [sql("a > 3", topic="TopicTest")])
    again = filters.get("TopicTest", "cgs")
    assert again is not None
    assert not again.is_dead
    assert again.data.born_time == found.data.born_time
    filters.unregister("cgs")
    clock.ahead_ms += DAY_MS
    filters.save()
    assert ConsumerFilters(TableFiles(store_config.root, Disk(), Threads()), config, clock).topics == {}
    other = replace(config, max_error_rate_of_bloom_filter=1)  # of other bits than those in messages
    Path(store_config.root, "config/consumerFilter.json").write_text(json.dumps(table))
    assert ConsumerFilters(TableFiles(store_config.root, Disk(), Threads()), other, clock).topics == {}
    assert ConsumerFilters(TableFiles(store_config.root, Disk(), Threads()), config, clock).topics


def test_names_that_clients_make_up_do_not_fill_the_table(
    config: BrokerConfig, store_config: StoreConfig, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(registered_filters, "_MAX_FILTERS", 10)
    filters = ConsumerFilters(TableFiles(store_config.root, Disk(), Threads()), config, clock)

    def count() -> int:
        return sum(map(len, filters.topics.values()))

    for number in range(30):  # each leaves the ones before it dead
        filters.register("rude", [sql("a > 3", topic=f"T{number}.{one}") for one in range(3)])
    assert count() <= 10
    filters.register("g", [sql("a > 3", topic="T")])
    assert filters.get("T", "g") is not None
    for _ in range(2):  # alive, all of them
        filters.register("rude", [sql("a > 3", topic=f"U{one}") for one in range(30)])
    assert count() == 10
    filters.register("late", [sql("a > 3", topic="T")])
    assert filters.get("T", "late") is None
    filters.unregister("rude")
    filters.register("late", [sql("a > 3", topic="T")])
    assert filters.get("T", "late") is not None
    assert filters.get("T", "g") is not None


def test_the_original_s_file_is_read(golden: Callable[[str], Path], config: BrokerConfig) -> None:
    filters = ConsumerFilters(
        TableFiles(str(golden("mixed") / "store"), Disk(), Threads()), config, lambda: 1795230400000
    )
    found = filters.get("Orders", "golden_cg_ok")
    assert found is not None
    assert found.is_dead
    assert found.data.expression == "amount is not null and amount > 100"
    assert found.data.bloom_filter_data.bit_pos == filters.bloom.positions("golden_cg_ok", "Orders")


def put_bit_maps(monkeypatch: pytest.MonkeyPatch, maps: Iterable[bytes]) -> None:
    """Give the next units of ConsumeQueueExt the bit maps that a Java broker would have written."""
    remaining_maps, append = iter(maps), QueueExt.append
    monkeypatch.setattr(
        QueueExt,
        "append",
        lambda ext, units: append(ext, [replace(unit, bit_map=next(remaining_maps)) for unit in units]),
    )


NOBODY, CG = (BloomFilter().bit_map(positions) for positions in ([], BloomFilter().positions("cg", "T")))


class TestBitMaps:
    @pytest.fixture
    def store_config(self, tmp_path: Path) -> StoreConfig:
        return replace(small_store(tmp_path / "store"), consumequeue_ext_enabled=True, consumequeue_ext_file_bytes=4096)

    async def test_units_get_no_bit_map(self, asker: Asker, store_config: StoreConfig, clock: Clock) -> None:
        await asker.heartbeat("cg", sql("a > 3"))
        clock.ahead_ms += 10
        await send_numbers(asker, 1, 5)
        await asker.broker.close()
        data = Path(queue_dir(consumequeue_ext_dir(store_config.root), "T", 0), "0" * 20).read_bytes()
        unit = ExtUnit.decode(data, 0)
        assert unit is not None
        assert unit.bit_map == b""
        options = VerifyOptions(1 << 20, 2000, 4096, 500, 2000)
        assert not codes(verify(Path(store_config.root), options))

    async def test_a_miss_is_final_and_a_hit_is_looked_at(
        self, asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_bit_maps(monkeypatch, [b"", NOBODY, CG, CG])
        await send_numbers(asker, 5)
        await asker.heartbeat("cg", sql("a > 3"))
        clock.ahead_ms += 10
        await send_numbers(asker, 1, 5, 9)
        assert await bodies(asker) == [b"5", b"5", b"9"]
        registered = asker.broker.state.filters.get("T", "cg")
        assert registered is not None
        assert registered.filter.may_match_unit is not None
        matches = registered.filter.matches
        assert matches is not None
        looked: list[bytes] = []

        def look(record: memoryview) -> bool:
            looked.append(decode_record(record).body)
            return matches(record)

        asker.broker.state.filters.topics["T"]["cg"] = replace(
            registered, filter=replace(registered.filter, matches=look)
        )
        assert await bodies(asker) == [b"5", b"5", b"9"]
        assert looked == [b"5", b"5", b"9"]

    async def test_a_changed_expression_does_not_go_by_the_bits_of_the_one_before(
        self, asker: Asker, clock: Clock, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        put_bit_maps(monkeypatch, [NOBODY, CG])
        await asker.heartbeat("cg", sql("a > 3"))
        clock.ahead_ms += 10
        await send_numbers(asker, 1, 5)
        clock.ahead_ms += 10
        await asker.heartbeat("cg", sql("a < 3", version=2))
        assert await bodies(asker, version=2) == [b"1"]

    async def test_filters_and_bits_hold_after_a_restart(
        self,
        asker: Asker,
        config: BrokerConfig,
        store_config: StoreConfig,
        clock: Clock,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        put_bit_maps(monkeypatch, [NOBODY, CG, CG])
        await asker.heartbeat("cg", sql("a > 3"))
        clock.ahead_ms += 10
        await send_numbers(asker, 1, 5)
        await asker.broker.close()
        async with Broker(config, store_config, clock) as broker:
            again = Asker(broker, asker.client, asker.handlers)
            await send_numbers(again, 9)  # its group has not come back
            await again.heartbeat("cg", sql("a > 3"))
            assert await bodies(again) == [b"5", b"9"]


@pytest.mark.parametrize(
    "properties",
    [
        b"",
        b"a\x01",
        b"a\x011\x02",
        b"a\x011\x02a\x012",
        b"a\x011\x02a\x01\x02",
        b"aa\x013\x02b\x01a\x014\x02",
        b"b\x01\xff\x02a\x01\xe4\xb8\x02",
        b"\x02a\x01x\x01y\x02",
        b"xa\x011\x02ya\x012\x02",
    ],
)
def test_a_single_property_is_that_of_all(properties: bytes) -> None:
    assert raw_property(properties, b"a").decode("utf-8", "replace") == decode_properties(properties).get("a", "")


def records_of(store: Path) -> Iterator[memoryview]:
    for segment in sorted((store / "commitlog").iterdir()):
        view, at = memoryview(segment.read_bytes()), 0
        while not isinstance(shape := frame_shape(view, at, None), DamageCode):
            yield view[at : shape.end]
            at = shape.end


@pytest.mark.parametrize(
    ("name", "text"),
    [("mixed", "amount > 100 AND TAGS IN ('TagA','TagB') OR KEYS IS NULL"), ("exotic", "TAGS IS NULL OR KEYS < 5")],
)
def test_a_matcher_says_what_the_expression_says(golden: Callable[[str], Path], name: str, text: str) -> None:
    matches, holds = sql_filter(text, "SQL92").matches, compile_expression(text)
    assert matches is not None
    found = set()
    for record in records_of(golden(name) / "store"):
        message = decode_record(record)
        assert record_properties(record) == message.properties_bytes
        assert matches(record) is holds(message.properties)
        found.add(holds(message.properties))
    assert found == {True, False}


def test_what_is_no_record_does_not_match(golden: Callable[[str], Path]) -> None:
    matches = sql_filter("TRUE", "SQL92").matches
    assert matches is not None
    (first, *_) = records_of(golden("mixed") / "store")
    assert matches(first)
    for cut in range(len(first)):
        assert record_properties(first[:cut]) is None
        assert not matches(first[:cut])
    bent = bytearray(first)
    for position in (84, 88 + int.from_bytes(first[84:88]), 4):  # the lengths of body and topic, the magic
        bent[position] ^= 0x55
        assert record_properties(memoryview(bent)) is None
        bent[position] ^= 0x55


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(SqlError, match="XPATH"):
        sql_filter("a = 1", "XPATH")
