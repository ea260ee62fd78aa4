from typing import Any

import msgspec
import pytest

from rmq_core.namesrv.broker_groups import MinBrokerIdNotice
from rmq_core.namesrv.route_info import RegisterBrokerResult, RouteInfo, RouteOptions
from rmq_core.remoting.bodies.configs import DataVersion, TopicConfigAndMapping, TopicQueueMapping
from rmq_core.remoting.bodies.routes import BrokerData, QueueData, RegisterBrokerBody, TopicRouteData
from rmq_core.remoting.namesrv_requests import MinBrokerIdChange
from tests.namesrv.registrations import broker, identity, register, topics


def route_of(routes: RouteInfo, topic: str) -> TopicRouteData:
    route = routes.route(topic)
    assert route is not None
    return route


def perm(routes: RouteInfo, topic: str) -> int:
    return route_of(routes, topic).queue_datas[0].perm


def test_a_topic_s_route_is_its_broker_and_its_queues() -> None:
    routes = RouteInfo()
    assert register(routes, broker(), topics("T", "U")) == RegisterBrokerResult()
    assert route_of(routes, "T") == TopicRouteData(
        broker_datas=[BrokerData(broker_addrs={0: "a0:10911"}, broker_name="a", cluster="C")],
        queue_datas=[QueueData(broker_name="a", perm=6, read_queue_nums=4, write_queue_nums=4)],
    )
    assert routes.route("V") is None
    assert routes.topics().topic_list == ["T", "U"]


def test_a_first_registration_with_exactly_one_topic_is_refused_and_leaves_nothing() -> None:
    routes = RouteInfo()
    assert register(routes, broker(), topics("T")) is None
    assert routes.cluster_info().broker_addr_table == {}
    assert register(routes, broker(), topics()) == RegisterBrokerResult()
    assert register(routes, broker(), topics("T", version=2)) == RegisterBrokerResult()
    assert register(routes, broker("a", 1), topics("T")) is None


def test_a_slave_hears_of_its_master_and_adds_no_topics() -> None:
    routes = RouteInfo()
    assert register(routes, broker("a", 1), topics("T", "U")) == RegisterBrokerResult()
    assert routes.route("T") is None
    register(routes, broker("a", 0), topics("T", "U"))
    assert register(routes, broker("a", 1), topics("V", "W")) == RegisterBrokerResult("a0:10912", "a0:10911")
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {0: "a0:10911", 1: "a1:10911"}
    assert routes.route("V") is None


def test_topics_change_with_the_data_version_only_unless_they_are_new() -> None:
    routes = RouteInfo()
    register(routes, broker(), topics("T", "U"))
    register(routes, broker(), topics("T", "V", perm=4))
    assert (perm(routes, "T"), perm(routes, "V")) == (6, 4)
    register(routes, broker(), topics("T", perm=4, version=2))
    assert (perm(routes, "T"), perm(routes, "U")) == (4, 6)


def test_topics_that_are_not_registered_again_stay_unless_asked_otherwise() -> None:
    routes = RouteInfo()
    register(routes, broker(), topics("T", "U"))
    register(routes, broker(), topics("T", "V", version=2))
    assert routes.topics().topic_list == ["T", "U", "V"]
    routes.options = RouteOptions(delete_topic_with_broker_registration=True)
    register(routes, broker(), topics("T", "V", version=3))
    assert routes.topics().topic_list == ["T", "V"]


def test_a_broker_that_unregisters_takes_its_topics_with_it() -> None:
    routes = RouteInfo()
    register(routes, broker("a"), topics("T", "U"))
    register(routes, broker("b"), topics("U", "V"))
    assert routes.unregister([identity(broker("a"))]) == []
    assert routes.topics().topic_list == ["U", "V"]
    assert routes.cluster_info().cluster_addr_table == {"C": ["b"]}
    routes.unregister([identity(broker("b")), identity(broker("x"))])
    assert routes.topics().topic_list == []
    assert routes.cluster_info().cluster_addr_table == {}


def test_a_slave_keeps_the_topics_of_a_master_that_went() -> None:
    routes = RouteInfo()
    register(routes, broker("a", 0), topics("T", "U"))
    register(routes, broker("a", 1), topics())
    routes.unregister([identity(broker("a", 0))])
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {1: "a1:10911"}
    assert perm(routes, "T") == 6


def test_an_address_has_one_id() -> None:
    routes = RouteInfo()
    register(routes, broker("a", 1, address="x:1"), topics("T", "U"))
    register(routes, broker("a", 0, address="x:1"), topics("T", "U"))
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {0: "x:1"}


def test_an_older_state_does_not_take_a_living_broker_s_place() -> None:
    routes = RouteInfo()
    register(routes, broker(address="new:1"), topics("T", "U", state_version=5))
    register(routes, broker(address="old:1"), topics("V", "W", state_version=4))
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {0: "new:1"}
    assert routes.route("V") is None
    register(routes, broker(address="newer:1"), topics("V", "W", state_version=5))
    assert route_of(routes, "V").broker_datas[0].broker_addrs == {0: "newer:1"}


def test_the_end_of_an_address_that_was_replaced_changes_nothing() -> None:
    routes = RouteInfo()
    register(routes, broker(address="old:1", enable_acting_master=True), topics("T", "U"))
    register(routes, broker(address="new:1", enable_acting_master=True), topics("T", "U"), now_ms=200_000)
    ((expired, _),) = routes.expired_brokers(120_001)
    assert expired.broker_addr == "old:1"
    assert routes.unregister([expired]) == []
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {0: "new:1"}
    assert perm(routes, "T") == 6
    assert routes.expired_brokers(120_001) == []


def test_a_broker_expires_120_s_after_it_was_heard_of() -> None:
    routes, connection = RouteInfo(), object()
    register(routes, broker("a"), topics("T", "U"), now_ms=1000, connection=connection)
    register(routes, broker("b", heartbeat_timeout_millis=10), topics("T", "U"), now_ms=1000)
    assert [expired.broker_name for expired, _ in routes.expired_brokers(1011)] == ["b"]
    assert routes.expired_brokers(1010) == []
    assert (identity(broker("a")), [connection]) in routes.expired_brokers(121_001)
    routes.touch("C", "a0:10911", 2000)
    routes.touch("C", "nobody:1", 2000)
    assert [expired.broker_name for expired, _ in routes.expired_brokers(122_000)] == ["b"]


def test_a_broker_is_lost_with_the_last_connection_that_it_registered_on() -> None:
    routes, old, new = RouteInfo(), object(), object()
    register(routes, broker("a"), topics(), connection=old)
    register(routes, broker("b"), topics(), connection=old)
    register(routes, broker("a"), topics(), connection=new)
    assert routes.disconnect(old) == [identity(broker("b"))]
    assert routes.disconnect(object()) == []
    assert routes.disconnect(new) == [identity(broker("a"))]


def test_a_broker_is_unregistered_on_no_connection_beside_another_that_registered_it() -> None:
    """Whoever came first: a stranger may be waiting for the broker to connect again."""
    routes, first, second = RouteInfo(), object(), object()
    for _ in range(2):
        register(routes, broker("a"), topics(), connection=first)
        assert routes.may_unregister(first, "a0:10911")
        register(routes, broker("a"), topics(), connection=second)
        assert not routes.may_unregister(first, "a0:10911")
        assert not routes.may_unregister(second, "a0:10911")
        assert routes.disconnect(first) == []
        assert routes.may_unregister(second, "a0:10911")
        assert not routes.may_unregister(first, "a0:10911")
        first, second = second, first


def test_write_perm_is_wiped_and_added_until_the_topics_are_registered_anew() -> None:
    routes = RouteInfo()
    register(routes, broker("a"), topics("T", "U", perm=7))
    register(routes, broker("b"), topics("U", "V"))
    assert routes.set_write_perm("a", writable=False) == 2
    assert (perm(routes, "T"), perm(routes, "V")) == (5, 6)
    register(routes, broker("a"), topics("T", "U", perm=7))
    assert perm(routes, "T") == 5
    assert routes.set_write_perm("a", writable=True) == 2
    assert perm(routes, "T") == 6
    assert routes.set_write_perm("x", writable=True) == 0
    register(routes, broker("a"), topics("T", "U", perm=7, version=2))
    assert perm(routes, "T") == 7


def test_data_versions_tell_whether_topics_have_changed() -> None:
    routes = RouteInfo()
    version = DataVersion(counter=1)
    assert routes.is_changed("C", "a0:10911", version)
    register(routes, broker(), topics("T", "U"))
    assert not routes.is_changed("C", "a0:10911", version)
    assert routes.is_changed("C", "a0:10911", version.next(5))
    assert routes.data_version("C", "a0:10911") == version
    assert routes.data_version("other", "a0:10911") is None


def test_topics_can_be_added_and_deleted_by_hand() -> None:
    routes = RouteInfo()
    register(routes, broker("a", cluster="C"), topics("T", "U"))
    register(routes, broker("b", cluster="D"), topics("T", "U"))
    queue = QueueData(broker_name="a", perm=6)
    routes.register_topic("V", [queue, QueueData(broker_name="nobody")])
    routes.register_topic("W", [])
    assert routes.route("V") is None
    routes.register_topic("V", [queue])
    assert route_of(routes, "V").queue_datas == [queue]
    routes.delete_topic("T", "D")
    assert [queue.broker_name for queue in route_of(routes, "T").queue_datas] == ["a"]
    routes.delete_topic("T", "C")
    routes.delete_topic("V")
    routes.delete_topic("V")
    routes.delete_topic("U", "no such cluster")
    assert routes.topics().topic_list == ["U"]


def test_topics_are_listed_by_cluster_and_by_flag() -> None:
    routes = RouteInfo()
    register(routes, broker("a", cluster="C"), topics("N", "O"))
    register(routes, broker("b", cluster="D"), topics("P", "Q", topic_sys_flag=1))
    register(routes, broker("b", cluster="D"), topics("R", "S", topic_sys_flag=2, version=2))
    register(routes, broker("b", cluster="D"), topics("X", "Y", topic_sys_flag=3, version=3))
    assert routes.topics_of_cluster("C").topic_list == ["N", "O"]
    assert routes.topics_of_cluster("none").topic_list == []
    assert routes.topics_by_flag(1).topic_list == ["P", "Q", "X", "Y"]
    assert routes.topics_by_flag(2).topic_list == ["R", "S", "X", "Y"]
    assert routes.topics_by_flag(2, 1).topic_list == ["R", "S"]
    system = routes.system_topics()
    assert (system.topic_list, system.broker_addr) == (["C", "a", "D", "b"], "a0:10911")
    assert RouteInfo().system_topics().topic_list == []


def test_filter_servers_and_mappings_of_static_topics_are_in_the_route() -> None:
    routes = RouteInfo()
    mapping = TopicQueueMapping(topic="T", bname="a", curr_id_map={0: 0})
    body = RegisterBrokerBody(
        filter_server_list=["f:1"],
        topic_config_serialize_wrapper=msgspec.structs.replace(
            topics("T", "U").topic_config_serialize_wrapper, topic_queue_mapping_info_map={"T": mapping}
        ),
    )
    register(routes, broker(), body)
    route = route_of(routes, "T")
    assert route.filter_server_table == {"a0:10911": ["f:1"]}
    assert route.topic_queue_mapping_by_broker == {"a": mapping}
    register(routes, broker(), topics("T", "U"))
    assert route_of(routes, "T").filter_server_table == {}


def test_a_member_group_is_a_master_and_its_slaves() -> None:
    routes = RouteInfo()
    register(routes, broker("a", 0), topics())
    register(routes, broker("a", 2), topics())
    assert routes.member_group("C", "a").broker_addrs == {0: "a0:10911", 2: "a2:10911"}
    assert routes.member_group("C", "x").broker_addrs == {}


def acting(broker_id: int, **options: Any) -> Any:
    return broker("a", broker_id, enable_acting_master=True, **options)


def test_a_slave_stands_for_its_master_if_both_sides_allow_it() -> None:
    routes = RouteInfo()
    register(routes, acting(0), topics("T", "rmq_sys_SYNC_BROKER_MEMBER_a"))
    register(routes, acting(1), topics("T", "U"))
    register(routes, acting(2), topics("T", "U"))
    routes.unregister([identity(acting(0))])
    assert perm(routes, "T") == 4
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {1: "a1:10911", 2: "a2:10911"}
    routes.options = RouteOptions(support_acting_master=True)
    assert route_of(routes, "T").broker_datas[0].broker_addrs == {0: "a1:10911", 2: "a2:10911"}
    route = route_of(routes, "rmq_sys_SYNC_BROKER_MEMBER_a")
    assert route.broker_datas[0].broker_addrs == {1: "a1:10911", 2: "a2:10911"}
    register(routes, acting(1), topics("T", "V", version=2))
    assert perm(routes, "V") == 4


def test_the_prime_slave_of_an_old_version_adds_no_topics() -> None:
    routes = RouteInfo()
    register(routes, broker("a", 1), topics("T", "U"))
    assert routes.topics().topic_list == []


def test_brokers_are_told_when_another_one_leads_them() -> None:
    routes = RouteInfo()
    register(routes, acting(2), topics("T", "U"))
    registered = register(routes, acting(1), topics("T", "U"))
    assert registered is not None
    change = MinBrokerIdChange(min_broker_id=1, min_broker_addr="a1:10911", ha_broker_addr="a1:10912")
    assert registered.notice == MinBrokerIdNotice(("a2:10911",), change)
    registered = register(routes, acting(0), topics("T", "U"))
    assert registered is not None
    assert registered.notice is not None
    assert registered.notice.recipients == ("a2:10911", "a1:10911")
    assert routes.unregister([identity(acting(2))]) == []
    (notice,) = routes.unregister([identity(acting(0))])
    change = MinBrokerIdChange(min_broker_id=1, min_broker_addr="a1:10911", offline_broker_addr="a0:10911")
    assert notice == MinBrokerIdNotice(("a1:10911",), change)


@pytest.mark.parametrize("count", [1, 5])
def test_clusters_are_told_whole(count: int) -> None:
    routes = RouteInfo()
    for number in range(count):
        register(routes, broker(f"b{number}"), topics("T", "U"))
    info = routes.cluster_info()
    assert list(info.broker_addr_table) == info.cluster_addr_table["C"] == [f"b{number}" for number in range(count)]


def test_a_registration_without_a_topic_name_goes_by_its_key() -> None:
    routes = RouteInfo()
    table = topics("T", "U").topic_config_serialize_wrapper.topic_config_table
    nameless = {key: msgspec.structs.replace(config, topic_name="") for key, config in table.items()}
    body = RegisterBrokerBody(topic_config_serialize_wrapper=TopicConfigAndMapping(topic_config_table=nameless))
    register(routes, broker(), body)
    assert routes.topics().topic_list == ["T", "U"]
