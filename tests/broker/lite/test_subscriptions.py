"""Subscriptions to lite topics: quotas, exclusive and wildcard groups, clients that are gone."""

import json

import pytest

from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from tests.broker.conftest import Asker, Clock, eventually
from tests.broker.lite.conftest import GROUP, PARENT, Got, Watcher, make_group, make_parent, send


def bodies(got: list[Got]) -> list[bytes]:
    return [one.body for one in got]


async def offset_of(asker: Asker, child: str, group: str = GROUP) -> int:
    return asker.broker.state.offsets.get(f"%LMQ%${PARENT}${child}", group, 0)


async def test_what_is_not_told_again_is_unsubscribed(lite: Asker, watcher: Watcher) -> None:
    await watcher.sync("d1", "d2", "d3")
    await watcher.sync("d3", "d4")
    answer = await watcher.control("PARTIAL_REMOVE", "d4", "never")
    assert answer.code == 0
    for child in ("d1", "d2", "d3", "d4"):
        await send(lite, child, child.encode())
    assert bodies(await watcher.pop()) == [b"d3"]
    assert lite.broker._lite._registry.count == 1
    assert (await watcher.control("COMPLETE_REMOVE")).code == 0
    assert (lite.broker._lite._registry.count, lite.broker._lite._registry.clients) == (0, {})


async def test_a_client_of_another_group_is_a_new_one(lite: Asker, watcher: Watcher) -> None:
    await make_group(lite, "others")
    await watcher.add("d1", "d2")
    other = Watcher(lite, "c1", "others")
    await other.add("d3")
    registry = lite.broker._lite._registry
    assert (registry.count, registry.clients["c1"].group) == (1, "others")
    await send(lite, "d1")
    assert await watcher.pop() == []


class TestExclusive:
    async def test_a_child_is_taken_over(self, lite: Asker) -> None:
        await make_group(lite, "one", sub_model="Exclusive")
        first, second = Watcher(lite, "c1", "one"), Watcher(lite, "c2", "one")
        await first.add("d1", "d2")
        await send(lite, "d1", b"1")
        await second.add("d1")

        async def is_told() -> bool:
            return bool(lite.told)

        await eventually(is_told)
        (told,) = lite.told
        assert told.code == RequestCode.NOTIFY_UNSUBSCRIBE_LITE
        assert told.ext_fields == {"liteTopic": "d1", "consumerGroup": "one", "clientId": "c1"}
        assert await first.pop() == []
        assert bodies(await second.pop()) == [b"1"]
        await first.sync("d1", "d2")  # it has not heard: it is told once more, and wins nothing back
        await send(lite, "d2", b"2")
        assert bodies(await first.pop()) == [b"2"]
        assert len(lite.told) == 2
        assert await second.pop() == []
        await first.add("d1")  # it wants it back
        await send(lite, "d1", b"3")
        assert lite.told[-1].ext_fields["clientId"] == "c2"
        registry = lite.broker._lite._registry
        assert [one.client_id for one in registry.members("%LMQ%$Devices$d1", "one")] == ["c1"]

    async def test_a_group_that_is_shared_again_forgets_who_was_evicted(self, lite: Asker) -> None:
        await make_group(lite, "one", sub_model="Exclusive")
        first, second = Watcher(lite, "c1", "one"), Watcher(lite, "c2", "one")
        await first.add("d1")
        await second.add("d1")
        await make_group(lite, "one", sub_model="Shared")
        await first.sync("d1")
        registry = lite.broker._lite._registry
        assert len(registry.members("%LMQ%$Devices$d1", "one")) == 2
        await second.control("COMPLETE_REMOVE")
        await send(lite, "d1", b"1")
        assert bodies(await first.pop()) == [b"1"]

    @pytest.mark.parametrize(("resets", "found"), [("true", [b"1", b"2"]), ("false", [b"2"])])
    async def test_who_takes_over_may_begin_at_the_first(self, lite: Asker, resets: str, found: list[bytes]) -> None:
        await make_group(lite, "one", sub_model="Exclusive", sub_reset_offset_exclusive=resets)
        first, second = Watcher(lite, "c1", "one"), Watcher(lite, "c2", "one")
        await first.add("d1")
        await send(lite, "d1", b"1")
        (one,) = await first.pop()
        await first.ack(one)
        await send(lite, "d1", b"2")
        await second.add("d1")
        assert bodies(await second.pop()) == found


class TestWildcard:
    async def test_all_children_are_popped(self, lite: Asker) -> None:
        await make_parent(lite, "Other")
        await make_group(lite, "all", sub_wildcard="true")
        await send(lite, "before", b"0")
        watchers = [Watcher(lite, client_id, "all") for client_id in ("c1", "c2")]
        for one in watchers:
            await one.sync()
        for number in range(20):
            await send(lite, f"d{number}", b"%d" % (number + 1))
        await send(lite, "d1", b"other", parent="Other")
        found: list[bytes] = []

        async def are_all() -> bool:
            for one in watchers:
                for got in await one.pop():
                    found.append(got.body)
                    await one.ack(got)
            return sorted(map(int, found)) == list(range(21))

        await eventually(are_all)
        refused = await watchers[0].control("PARTIAL_ADD", "d1")
        assert (refused.code, refused.remark) == (
            ResponseCode.ILLEGAL_OPERATION, "subscribe lite operation is not supported for this group",
        )  # fmt: skip

    async def test_more_children_than_events_come(self, lite: Asker) -> None:
        await make_group(lite, "all", sub_wildcard="true", sub_client_max_event_cnt="10")
        watcher, found = Watcher(lite, "c1", "all"), list[str]()
        await watcher.sync()
        for number in range(50):
            await send(lite, f"d{number}")

        async def are_all() -> bool:
            for got in await watcher.pop(pollTime=200):
                found.append(got.child)
                await watcher.ack(got)
            return len(found) >= 50

        await eventually(are_all)
        assert sorted(found) == sorted(f"d{number}" for number in range(50))


@pytest.mark.parametrize(
    ("option", "found"),
    [
        ({"type": "POLICY", "value": 0}, [b"2"]),
        ({"type": "POLICY", "value": 1}, [b"0", b"1", b"2"]),
        ({"type": "POLICY", "value": 2}, []),
        ({"type": "OFFSET", "value": 1}, [b"1", b"2"]),
        ({"type": "OFFSET", "value": -9}, [b"0", b"1", b"2"]),
        ({"type": "TAIL_N", "value": 1}, [b"1", b"2"]),
        ({"type": "TIMESTAMP", "value": 1}, [b"2"]),
    ],
)
async def test_a_subscription_says_where_to_begin(
    lite: Asker, watcher: Watcher, option: dict[str, object], found: list[bytes]
) -> None:
    await watcher.add("d1")
    for number in range(3):
        await send(lite, "d1", b"%d" % number)
    for one in (await watcher.pop())[:2]:
        await watcher.ack(one)
    lite.broker._lite._orders.remove("%LMQ%$Devices$d1", GROUP, 0)
    other = Watcher(lite, "c2")
    await watcher.control("COMPLETE_REMOVE")
    await other.add("d1", offsetOption=option)
    assert bodies(await other.pop()) == found


async def test_a_group_may_begin_anew_after_a_client_has_left(lite: Asker) -> None:
    await make_group(lite, "anew", sub_reset_offset_unsubscribe="true")
    watcher = Watcher(lite, "c1", "anew")
    await watcher.add("d1")
    await send(lite, "d1", b"1")
    (one,) = await watcher.pop()
    await watcher.ack(one)
    assert await offset_of(lite, "d1", "anew") == 1
    await watcher.control("PARTIAL_REMOVE", "d1")
    assert await offset_of(lite, "d1", "anew") == 0
    await watcher.add("d1")
    assert bodies(await watcher.pop()) == [b"1"]


class TestFew:
    @pytest.fixture
    def config(self) -> BrokerConfig:
        return BrokerConfig(listen_port=0, max_lite_subscription_count=3)

    async def test_subscriptions_have_a_limit(self, lite: Asker, watcher: Watcher) -> None:
        await watcher.add("d1", "d2")
        other = Watcher(lite, "c2")
        for action in ("PARTIAL_ADD", "COMPLETE_ADD"):
            answer = await other.control(action, "d1", "d2")
            assert answer.code == ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED
            assert answer.remark == "lite subscription quota exceeded 3"
        assert (await other.control("COMPLETE_ADD", "a", "b", "c", "d")).code == 2018
        assert lite.broker._lite._registry.count == 2
        await watcher.add("d1", "d2", "d3")
        for number in range(3):
            codes = [(await Watcher(lite, f"n{number}").control("COMPLETE_ADD")).code]
        assert codes == [ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED]  # clients have the same limit


async def test_a_client_that_does_not_tell_again_is_forgotten(lite: Asker, watcher: Watcher, clock: Clock) -> None:
    await watcher.add("d1")
    other = Watcher(lite, "c2")
    clock.ahead_ms += 170_000
    await other.add("d1")
    clock.ahead_ms += 11_000
    lite.broker._lite._check()

    async def is_gone() -> bool:
        return list(lite.broker._lite._registry.clients) == ["c2"]

    await eventually(is_gone)
    assert lite.broker._lite._registry.count == 1


async def test_what_a_lost_connection_was_told_of_is_told_to_others(lite: Asker, watcher: Watcher) -> None:
    children = [f"d{number}" for number in range(30)]
    await watcher.add(*children)
    async with RemotingClient() as client:
        await Watcher(Asker(lite.broker, client, {}), "c2").add(*children)
        for child in children:
            await send(lite, child)
    found: list[str] = []

    async def are_all() -> bool:
        found.extend(one.child for one in await watcher.pop())
        return len(found) == 30

    await eventually(are_all)


async def test_requests_are_checked_before_anything_is_changed(lite: Asker, watcher: Watcher) -> None:
    await lite.send("Plain")
    await make_group(lite, "plain", bind_topic="Plain")
    await make_group(lite, "gone", bind_topic="Gone")
    good = {"action": "PARTIAL_ADD", "clientId": "c1", "group": GROUP, "topic": PARENT, "liteTopicSet": ["d1"]}
    illegal, invalid, error = ResponseCode.ILLEGAL_OPERATION, ResponseCode.INVALID_PARAMETER, ResponseCode.SYSTEM_ERROR
    for wrong, code, remark in (
        ({"action": "ADD"}, error, "action 'ADD' is none of"), ({"action": None}, error, "action '' is none of"),
        ({"clientId": ""}, illegal, "must be there"), ({"clientId": "c" * 256}, invalid, "255"),
        ({"group": "none"}, illegal, "not allowed to consume"), ({"topic": "Other"}, invalid, "bind topic not match"),
        ({"group": "plain", "topic": "Plain"}, invalid, "type not match"),
        ({"group": "gone", "topic": "Gone"}, ResponseCode.TOPIC_NOT_EXIST, "not exist"),
        ({"offsetOption": {"type": "SOON", "value": 1}}, error, "'SOON' is none of"),
        ({"liteTopicSet": ["d1", "a$b"]}, invalid, "cannot be a lite topic"),
        ({"liteTopicSet": 7}, error, "not a valid"),
    ):  # fmt: skip
        body = json.dumps({"subscriptionSet": [good, good | wrong]}).encode()
        answer = await lite.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)
        assert answer.code == code, (wrong, answer.remark)
        assert remark in str(answer.remark), wrong
        assert lite.broker._lite._registry.count == 0, wrong
    for body, remark in ((b"", "Request body is null."), (b"{}", "LiteSubscriptionCtlRequestBody is empty.")):
        answer = await lite.ask(RequestCode.LITE_SUBSCRIPTION_CTL, {}, body)
        assert (answer.code, answer.remark) == (illegal, remark)


async def test_thousands_of_subscriptions_keep_nobody_waiting(lite: Asker, watcher: Watcher) -> None:
    children = [f"device-{number:06d}" for number in range(5000)]
    await watcher.sync(*children)
    assert lite.broker._lite._registry.count == 5000
    await watcher.sync(*children[:10])
    assert lite.broker._lite._registry.count == 10
    await send(lite, children[3], b"1")
    assert bodies(await watcher.pop()) == [b"1"]
