"""What the proxy does about lite topics where no broker with them is needed; see ``lite_scenarios`` for the rest."""

import asyncio
from typing import Any

import pytest

from rmq_core.client.errors import BrokerError
from rmq_core.client.routes import Route
from rmq_core.proxy import lite_subscriptions
from rmq_core.proxy.brokers import Brokers
from rmq_core.proxy.checks import check_lite_topic, check_lite_topics, lite_quota
from rmq_core.proxy.client_reports import client_of
from rmq_core.proxy.lite_subscriptions import LiteSubscriptionActivity, RateLimiter, broker_client_id
from rmq_core.proxy.messages import ReceiptHandle, popped_lite_messages
from rmq_core.proxy.receipts import Receipts, Renewal
from rmq_core.proxy.sessions import Sessions
from rmq_core.proxy.wire import StatusError, rpc, status_of, v2
from rmq_core.remoting.bodies.codec import MessageQueue, decode_body
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.bodies.pop import LiteSubscriptions
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import request
from rmq_core.remoting.pop import PopResponse
from rmq_formats.codecs.properties import encode_properties
from rmq_formats.codecs.record import encode_record
from tests.broker.conftest import eventually
from tests.proxy.conftest import Caller, named
from tests.support.stores.record_strategies import plain_message

NOTIFY_UNSUBSCRIBE_LITE = RequestCode.NOTIFY_UNSUBSCRIBE_LITE
PLAIN = "0 1795731541246 30000 999 0 lite-a 0 7"


def test_names_of_children_are_short_and_plain() -> None:
    for name in ("a", "A-b_9", "x" * 64):
        check_lite_topic(name)
    check_lite_topics(["a", "b" * 64, "c"])
    check_lite_topics([])
    for name in ("", " ", "a b", "a$", "é", "x" * 65, "a\n", "a\nb", "%"):
        for check in (lambda: check_lite_topic(name), lambda: check_lite_topics(["a", name, "b"])):  # noqa: B023
            with pytest.raises(StatusError) as caught:
                check()
            assert caught.value.code == v2.ILLEGAL_LITE_TOPIC


def test_a_handle_has_its_child_and_one_of_another_proxy_is_taken() -> None:
    receipt = ReceiptHandle.decode(f"{PLAIN} 4711 child")
    assert (receipt.lite_topic, receipt.physical_offset, receipt.handle.offset) == ("child", 4711, 7)
    assert receipt.encode() == f"{PLAIN} 4711 child"
    assert ReceiptHandle.decode(f"{PLAIN} 4711 child", "said").lite_topic == "child"
    assert ReceiptHandle.decode(f"{PLAIN} 4711", "said").lite_topic == "said"
    assert ReceiptHandle.decode(f"{PLAIN} 4711").encode() == f"{PLAIN} 4711"
    assert (
        ReceiptHandle.decode(f"{PLAIN} 4711 ä child").lite_topic == "ä child"
    )  # of a producer of the remoting protocol
    for text in (PLAIN, f"{PLAIN} ", f"{PLAIN} x child", f"{PLAIN} 4711 ", f"{PLAIN} 4711 a$b", f"{PLAIN} 4711 a\n"):
        with pytest.raises(StatusError) as caught:
            ReceiptHandle.decode(text)
        assert caught.value.code == v2.INVALID_RECEIPT_HANDLE
    for said in ("a$", "a/b", "x" * 256):
        with pytest.raises(StatusError) as caught:
            ReceiptHandle.decode(f"{PLAIN} 4711", said)
        assert caught.value.code == v2.ILLEGAL_LITE_TOPIC


def records(*places: tuple[str, str], topic: str = "P") -> bytes:
    """Records with these names of light queues and offsets there."""
    made = b""
    for names, offsets in places:
        properties = {"INNER_MULTI_DISPATCH": names, "INNER_MULTI_QUEUE_OFFSET": offsets}
        one = plain_message(topic, b"body", properties_bytes=encode_properties(properties))
        made += encode_record(one, queue_offset=99, physical_offset=len(made), store_timestamp_ms=1)
    return made


@pytest.mark.parametrize(
    ("counts", "deliveries"),
    [
        (None, [0, 0, 0, 0]),
        ("0;0;0;0", [0, 0, 0, 0]),
        ("2;2;0;0", [2, 2, 0, 0]),
        ("0 qo0%5 3;0;0", [3, 0, 0, 0]),  # of the first child one was delivered before
        ("0 qo0%6 1;0 qo0%5 2;7;0", [2, 1, 7, 0]),
        ("0;0;0 qo0%6 4", [0, 0, 0, 4]),
        ("0 qo0%5 3", [3, 0, 0, 0]),
        ("x;-1;;9999999999999999999", [0, 0, 0, 0]),
        ("1", [1, 0, 0, 0]),
    ],
)
def test_deliveries_of_children_are_counted(counts: str | None, deliveries: list[int]) -> None:
    body = records(("%LMQ%$P$a", "5"), ("%LMQ%$P$a", "6"), ("%LMQ%$P$b", "5"), ("%LMQ%$P$b", "6"))
    response = PopResponse(pop_time=1, invisible_time=2, revive_qid=999, order_count_info=counts)
    found = list(popped_lite_messages(response, body, "broker", "P"))
    assert [(one.receipt.lite_topic, one.receipt.handle.offset) for one in found] == [
        ("a", 5), ("a", 6), ("b", 5), ("b", 6),
    ]  # fmt: skip
    assert [one.deliveries for one in found] == deliveries


def test_what_is_of_no_child_has_no_handle_and_what_names_one_of_another_topic_has() -> None:
    body = records(
        ("%LMQ%$P$a,%LMQ%$P$b", "1,2"), ("%LMQ%$P$a,%LMQ%other", "3,4"), ("%LMQ%$P$", "1"), ("%LMQ%$P$a", "x"), ("", "")
    ) + records(("%LMQ%$P$a", "5"), topic="Q")
    response = PopResponse(pop_time=1, invisible_time=2, revive_qid=999)
    found = list(popped_lite_messages(response, body, "broker", "P"))
    assert [(one.receipt.lite_topic, one.receipt.handle.offset) for one in found] == [("a", 3), ("a", 5)]


def test_a_rate_takes_no_more_than_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr(lite_subscriptions.time, "monotonic", lambda: now[0])
    limit = RateLimiter(3)
    assert [limit.try_acquire() for _ in range(4)] == [True, True, True, False]
    now[0] += 0.4
    assert [limit.try_acquire() for _ in range(2)] == [True, False]
    now[0] += 60
    assert sum(limit.try_acquire() for _ in range(9)) == 3


def test_a_quota_that_is_none_is_the_default() -> None:
    for text, quota in (("7", 7), ("-1", -1), ("9" * 30, (1 << 31) - 1), ("many", 2000)):
        assert lite_quota(SubscriptionGroupConfig(attributes={"lite.sub.client.quota": text})) == quota
    assert lite_quota(SubscriptionGroupConfig()) == 2000


def test_administrators_see_consumers_of_lite_topics_as_such() -> None:
    subscription = v2.Subscription(group=named("g"), subscriptions=[v2.SubscriptionEntry(topic=named("P"))])
    for kind, how in ((v2.LITE_PUSH_CONSUMER, "CONSUME_PASSIVELY"), (v2.LITE_SIMPLE_CONSUMER, "CONSUME_ACTIVELY")):
        settings = v2.Settings(client_type=kind, subscription=subscription)
        (told,) = client_of(settings, "c", "127.0.0.1:1", 1, None).consumer_data_set
        assert (told.message_model, told.consume_type) == ("LITE_SELECTIVE", how)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (ResponseCode.LMQ_QUOTA_EXCEEDED, v2.LITE_TOPIC_QUOTA_EXCEEDED),
        (ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED),
    ],
)
def test_quotas_of_brokers_have_codes(code: int, status: int) -> None:
    assert status_of(BrokerError("127.0.0.1:1", code, "too many")).code == status


class TwoBrokers:
    """Stands for the cluster: two brokers that have the topic P, and one that cannot be read."""

    def __init__(self) -> None:
        self.handlers: dict[int, Any] = {}
        self.reported: list[tuple[str, str, str]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.refuses = ""
        self.quota = ""

    async def group(self, group: str, _: str) -> SubscriptionGroupConfig:
        attributes = {"lite.bind.topic": "P", "lite.sub.client.quota": self.quota}
        return SubscriptionGroupConfig(group_name=group, attributes=attributes)

    async def route(self, topic: str) -> Route:
        names = () if topic == "Q" else ("a", "a", "b")
        queues = tuple(MessageQueue(broker_name=name, queue_id=0, topic=topic) for name in names)
        return Route(queues, queues, {})

    async def address(self, _: str, broker: str) -> str:
        return broker

    async def request(self, address: str, code: int, *, body: bytes, timeout_s: float) -> None:
        assert (code, timeout_s) == (RequestCode.LITE_SUBSCRIPTION_CTL, 2.0)
        (entry,) = decode_body(body, LiteSubscriptions).subscription_set
        await self.gate.wait()
        self.reported.append((address, entry.action, entry.client_id))
        if address == self.refuses:
            raise BrokerError(address, ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED, "too many")


@pytest.fixture
def brokers() -> TwoBrokers:
    return TwoBrokers()


@pytest.fixture
def sessions() -> Sessions:
    return Sessions()


@pytest.fixture
def subscriptions(brokers: TwoBrokers, sessions: Sessions) -> LiteSubscriptionActivity:
    as_brokers: Brokers = brokers  # type: ignore[assignment]
    return LiteSubscriptionActivity(as_brokers, sessions, asyncio.ensure_future)


def adding(*names: str, action: int = v2.PARTIAL_ADD) -> Any:
    return rpc.SyncLiteSubscriptionRequest(topic=named("P"), group=named("g"), action=action, lite_topic_set=names)


async def test_each_broker_is_told_once_and_of_the_end_before_what_comes_then(
    subscriptions: LiteSubscriptionActivity, brokers: TwoBrokers, sessions: Sessions
) -> None:
    sessions.get_or_create("user\nc")
    await subscriptions.sync(adding("x", "x"), "user\nc", "")
    brokers.gate.clear()
    sessions.end("user\nc")
    again = asyncio.ensure_future(subscriptions.sync(adding(action=v2.COMPLETE_ADD), "user\nc", ""))
    await asyncio.sleep(0)
    brokers.gate.set()
    await again
    actions = ["PARTIAL_ADD", "COMPLETE_REMOVE", "COMPLETE_ADD"]
    assert brokers.reported == [(name, action, "user/c") for action in actions for name in ("a", "b")]
    await subscriptions.sync(adding(action=v2.COMPLETE_REMOVE), "user\nc", "")
    assert not subscriptions._subscribers
    sessions.get_or_create("user\nc")
    sessions.end("user\nc")
    assert len(brokers.reported) == 8


async def test_a_refusal_of_one_broker_is_told_and_a_client_that_is_gone_ended_all_the_same(
    subscriptions: LiteSubscriptionActivity, brokers: TwoBrokers, sessions: Sessions
) -> None:
    session = sessions.get_or_create("c")
    stream = session.open_stream()
    brokers.refuses = "b"
    with pytest.raises(BrokerError):
        await subscriptions.sync(adding("x"), "c", "")
    sessions.end_stream(session, stream)

    async def is_told() -> bool:
        return ("a", "COMPLETE_REMOVE", "c") in brokers.reported and not subscriptions._subscribers

    await eventually(is_told, 60)


async def test_a_proxy_that_ends_unsubscribes_nobody(
    subscriptions: LiteSubscriptionActivity, brokers: TwoBrokers, sessions: Sessions
) -> None:
    sessions.get_or_create("c")
    await subscriptions.sync(adding("x"), "c", "")
    await subscriptions.close()
    sessions.end("c")
    await asyncio.sleep(0)
    assert {action for _, action, _ in brokers.reported} == {"PARTIAL_ADD"}


async def test_a_notice_is_for_the_client_and_the_group_that_it_names(
    subscriptions: LiteSubscriptionActivity, brokers: TwoBrokers, sessions: Sessions
) -> None:
    commands = sessions.get_or_create("user\nc").open_stream()
    await subscriptions.sync(adding("x"), "user\nc", "")
    for told in (
        {}, {"liteTopic": "x", "consumerGroup": "g", "clientId": "c"},
        {"liteTopic": "x", "consumerGroup": "other", "clientId": "user/c"},
    ):  # fmt: skip
        await brokers.handlers[NOTIFY_UNSUBSCRIBE_LITE](request(NOTIFY_UNSUBSCRIBE_LITE, told), None)
    assert commands.empty()
    told = {"liteTopic": "x", "consumerGroup": "g", "clientId": broker_client_id("user\nc")}
    await brokers.handlers[NOTIFY_UNSUBSCRIBE_LITE](request(NOTIFY_UNSUBSCRIBE_LITE, told), None)
    assert commands.get_nowait().notify_unsubscribe_lite_command.lite_topic == "x"


async def test_a_call_has_a_limit_of_names_whatever_the_quota(
    subscriptions: LiteSubscriptionActivity, brokers: TwoBrokers
) -> None:
    brokers.quota = "2000000000"
    for count in (100_001, 303):
        with pytest.raises(StatusError) as caught:
            await subscriptions.sync(adding(*("x",) * count if count > 303 else map(str, range(count))), "c", "")
        assert caught.value.code == v2.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
        brokers.quota = "2"


async def test_too_many_subscriptions_a_second_are_refused_and_ends_are_not(
    subscriptions: LiteSubscriptionActivity, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "_rate", RateLimiter(0.001))
    with pytest.raises(StatusError) as caught:
        await subscriptions.sync(adding("x"), "c", "")
    assert caught.value.code == v2.TOO_MANY_REQUESTS
    await subscriptions.sync(adding(action=v2.PARTIAL_REMOVE), "c", "")
    assert lite_subscriptions._MAX_PER_SECOND == 5000


class Answering:
    """Stands for the cluster: a broker that answers a change of an invisible time with these fields."""

    def __init__(self, **fields: str) -> None:
        self.fields = fields
        self.asked: list[Any] = []

    async def address(self, _: str, broker: str) -> str:
        return broker

    async def request(self, _: str, __: int, fields: Any) -> Any:
        self.asked.append(fields)
        return request(0, self.fields).response(0, None, self.fields)


async def test_a_renewal_is_of_the_child_and_a_message_that_is_acknowledged_has_none(sessions: Sessions) -> None:
    receipt = ReceiptHandle.decode(f"{PLAIN} 4711 child")
    renewal = Renewal(sessions)
    broker = Answering(popTime="1795731541246", invisibleTime="60000", reviveQid="999")
    renewing = Receipts(broker, renewal)  # type: ignore[arg-type]
    renewed = await renewal.change("g", "P", receipt, 60_000)
    assert (renewed.lite_topic, renewed.handle.invisible_ms) == ("child", 60_000)
    assert [(one.lite_topic, one.topic, one.offset, one.suspend) for one in broker.asked] == [("child", "P", 7, False)]
    broker.fields = {"popTime": "0", "invisibleTime": "0", "reviveQid": "0"}  # as Java's broker says it
    with pytest.raises(StatusError) as caught:
        await renewal.change("g", "P", receipt, 60_000)
    assert caught.value.code == v2.INVALID_RECEIPT_HANDLE
    await renewing.close()


async def test_a_group_that_is_bound_to_no_topic_has_no_subscriptions(caller: Caller) -> None:
    fields = {"topic": named("NormalT"), "group": named("g"), "lite_topic_set": ["a"]}
    answer = await caller.call("SyncLiteSubscription", **fields)
    assert answer.status.code == v2.ILLEGAL_TOPIC
    assert "is expected to bind topic None, but actual is NormalT" in answer.status.message
