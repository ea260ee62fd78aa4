"""The request handlers of the name server, one for each request code.

Source: ``DefaultRequestProcessor``, ``ClientRequestProcessor``.
"""

import logging
import zlib
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final

from msgspec import UNSET, structs

from rmq_core.namesrv.broker_groups import MinBrokerIdNotice
from rmq_core.namesrv.config import FIXED_VALUES, NamesrvConfig
from rmq_core.namesrv.kv_config import KVConfig
from rmq_core.namesrv.route_info import (
    UNIT_FLAG,
    UNIT_SUB_FLAG,
    ZONE_NAME,
    RouteInfo,
    RouteOptions,
    filter_by_zone,
    requested_zone,
)
from rmq_core.remoting import namesrv_requests
from rmq_core.remoting.bodies.codec import decode_body, encode_body
from rmq_core.remoting.bodies.configs import DataVersion, TopicConfigAndMapping, TopicConfigs
from rmq_core.remoting.bodies.routes import (
    BrokerMembers,
    KVTable,
    RegisterBrokerBody,
    TopicList,
    TopicRouteData,
    check_topic_count,
    decode_registration,
)
from rmq_core.remoting.codes import ORDER_TOPIC_CONFIG, RequestCode, ResponseCode, Version
from rmq_core.remoting.connection import Connection, Handler
from rmq_core.remoting.errors import ResponseError
from rmq_core.remoting.fields import read_fields
from rmq_core.remoting.header import RemotingCommand
from rmq_core.remoting.namesrv_requests import BrokerId, RegisterBroker
from rmq_core.remoting.requests import Topic
from rmq_core.remoting.settings import as_properties, changed_settings, local_only
from rmq_formats.codecs.java_properties import format_properties, parse_properties
from rmq_formats.errors import DecodeError, OptionError

log = logging.getLogger("rmq.namesrv")

_HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
_LOCAL_ONLY_CODES: Final = frozenset(
    {
        RequestCode.PUT_KV_CONFIG, RequestCode.DELETE_KV_CONFIG, RequestCode.WIPE_WRITE_PERM_OF_BROKER,
        RequestCode.ADD_WRITE_PERM_OF_BROKER, RequestCode.REGISTER_TOPIC_IN_NAMESRV,
        RequestCode.DELETE_TOPIC_IN_NAMESRV, RequestCode.UPDATE_NAMESRV_CONFIG,
    }
)  # fmt: skip
_CRC_MASK: Final = 0x7FFFFFFF


class NamesrvProcessor:
    """Request handlers over the routes and the key-value configuration; UPDATE_NAMESRV_CONFIG replaces ``config``."""

    def __init__(
        self,
        config: NamesrvConfig,
        kv_config: KVConfig,
        clock_ms: Callable[[], int],
        notify: Callable[[MinBrokerIdNotice], None],
    ) -> None:
        self.routes = RouteInfo()
        self._set_config(config)
        self._kv_config = kv_config
        self._clock_ms = clock_ms
        self._notify = notify
        self._started_ms = clock_ms()

    def _set_config(self, config: NamesrvConfig) -> None:
        self.config = config
        self.routes.options = RouteOptions(config.support_acting_master, config.delete_topic_with_broker_registration)

    def handlers(self) -> dict[int, Handler]:
        """Return the handlers by request code; only registrations may have long bodies."""
        handlers = self._handlers()
        if not self.config.remote_admin_enable:
            handlers = local_only(handlers, _LOCAL_ONLY_CODES)
        return self.config.limit_bodies(
            handlers,
            with_lists=(RequestCode.REGISTER_TOPIC_IN_NAMESRV,),
            with_messages=(RequestCode.REGISTER_BROKER,),  # its topics have a limit of their own
        )

    def _handlers(self) -> dict[int, Handler]:
        routes = self.routes
        return {
            RequestCode.PUT_KV_CONFIG: self.put_kv_config,
            RequestCode.GET_KV_CONFIG: self.get_kv_config,
            RequestCode.DELETE_KV_CONFIG: self.delete_kv_config,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.get_kv_list,
            RequestCode.REGISTER_BROKER: self.register_broker,
            RequestCode.UNREGISTER_BROKER: self.unregister_broker,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.BROKER_HEARTBEAT: self.broker_heartbeat,
            RequestCode.GET_BROKER_MEMBER_GROUP: self.get_member_group,
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.get_route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.get_cluster_info,
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: partial(self.set_write_perm, writable=False),
            RequestCode.ADD_WRITE_PERM_OF_BROKER: partial(self.set_write_perm, writable=True),
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self._topic_list(
                lambda _: routes.topics(), lambda config: config.enable_all_topic_list
            ),
            RequestCode.REGISTER_TOPIC_IN_NAMESRV: self.register_topic,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
            RequestCode.GET_TOPICS_BY_CLUSTER: self._topic_list(
                lambda request: routes.topics_of_cluster(read_fields(request, namesrv_requests.ClusterName).cluster)
            ),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self._topic_list(
                lambda _: routes.system_topics(), lambda _: True
            ),
            RequestCode.GET_UNIT_TOPIC_LIST: self._topic_list(lambda _: routes.topics_by_flag(UNIT_FLAG)),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._topic_list(lambda _: routes.topics_by_flag(UNIT_SUB_FLAG)),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._topic_list(
                lambda _: routes.topics_by_flag(UNIT_SUB_FLAG, without_flags=UNIT_FLAG)
            ),
            RequestCode.UPDATE_NAMESRV_CONFIG: self.update_config,
            RequestCode.GET_NAMESRV_CONFIG: self.get_config,
        }

    # The key-value configuration.

    def put_kv_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Set a key of a namespace: PUT_KV_CONFIG (100)."""
        entry = read_fields(request, namesrv_requests.KVConfigValue)
        if self._kv_config.size_with(entry.namespace, entry.key, entry.value) > self.config.max_kv_config_bytes:
            remark = f"the configuration would be larger than maxKvConfigBytes={self.config.max_kv_config_bytes}"
            raise ResponseError(ResponseCode.INVALID_PARAMETER, remark)
        self._kv_config.put(entry.namespace, entry.key, entry.value)
        _log_request(connection, "put %(namespace)s %(key)s: %(value)s", **structs.asdict(entry))
        return request.response()

    def get_kv_config(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Return the value of a key: GET_KV_CONFIG (101)."""
        entry = read_fields(request, namesrv_requests.KVConfigKey)
        value = self._kv_config.get(entry.namespace, entry.key)
        if value is None:
            remark = f"No config item, Namespace: {entry.namespace} Key: {entry.key}"
            return request.response(ResponseCode.QUERY_NOT_FOUND, remark)
        return request.response(ext_fields={"value": value})

    def delete_kv_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Delete a key: DELETE_KV_CONFIG (102)."""
        entry = read_fields(request, namesrv_requests.KVConfigKey)
        self._kv_config.delete(entry.namespace, entry.key)
        _log_request(connection, "deleted %(namespace)s %(key)s", **structs.asdict(entry))
        return request.response()

    def get_kv_list(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Return all keys of a namespace: GET_KVLIST_BY_NAMESPACE (219)."""
        namespace = read_fields(request, namesrv_requests.Namespace).namespace
        body = self._kv_list(namespace)
        if not body:
            return request.response(ResponseCode.QUERY_NOT_FOUND, f"No config item, Namespace: {namespace}")
        return request.response(body=body)

    def _kv_list(self, namespace: str) -> bytes:
        table = self._kv_config.table(namespace)
        return b"" if table is None else encode_body(KVTable(table=dict(table)))

    # Brokers.

    def register_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Register a broker and its topics: REGISTER_BROKER (103)."""
        broker = read_fields(request, RegisterBroker)
        if broker.body_crc32 and zlib.crc32(request.body) & _CRC_MASK != broker.body_crc32:
            return request.response(ResponseCode.SYSTEM_ERROR, "crc32 not match")
        is_new = self.routes.data_version(broker.cluster_name, broker.broker_addr) is None
        result = self.routes.register(
            broker,
            _decode_registration_body(request, broker, self.config.max_registration_topics),
            zone=request.ext_fields.get(ZONE_NAME),
            connection=connection,
            now_ms=self._clock_ms(),
        )
        if result is None:
            return request.response(ResponseCode.SYSTEM_ERROR, "register broker failed")
        if is_new:
            _log_broker(broker, "registered")
        if result.notice is not None:
            self._send_notices([result.notice])
        fields = {"haServerAddr": result.ha_server_addr, "masterAddr": result.master_addr}
        body = self._kv_list(ORDER_TOPIC_CONFIG) if self.config.return_order_topic_config_to_broker else b""
        return request.response(
            ext_fields={name: value for name, value in fields.items() if value is not None}, body=body
        )

    def unregister_broker(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Unregister a broker: UNREGISTER_BROKER (104); only on the broker's own single connection."""
        broker = read_fields(request, BrokerId)
        if not self.routes.may_unregister(connection, broker.broker_addr):
            log.warning(
                "%(client)s may not unregister %(broker)s, which another connection has registered",
                {"client": connection.remote_address, "broker": broker.broker_name},
            )
            remark = f"broker {broker.broker_name} was registered on another connection"
            raise ResponseError(ResponseCode.NO_PERMISSION, remark)
        self.unregister([broker], "unregistered")
        return request.response()

    def unregister(self, brokers: list[BrokerId], why: str) -> None:
        """Unregister brokers, and notify the other brokers of their groups."""
        for broker in brokers:
            _log_broker(broker, why)
        self._send_notices(self.routes.unregister(brokers))

    def _send_notices(self, notices: list[MinBrokerIdNotice]) -> None:
        if self.config.notify_min_broker_id_changed:
            for notice in notices:
                self._notify(notice)

    def query_data_version(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Respond with ``changed`` if a data version is not the registered one: QUERY_DATA_VERSION (322)."""
        broker = read_fields(request, BrokerId)
        version = decode_body(request.body, DataVersion, is_request=True)
        changed = self.routes.is_changed(broker.cluster_name, broker.broker_addr, version)
        self.routes.touch(broker.cluster_name, broker.broker_addr, self._clock_ms())
        registered_version = self.routes.data_version(broker.cluster_name, broker.broker_addr)
        body = b"" if registered_version is None else encode_body(registered_version)
        return request.response(ext_fields={"changed": str(changed).lower()}, body=body)

    def broker_heartbeat(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Record a broker's heartbeat: BROKER_HEARTBEAT (904)."""
        broker = read_fields(request, namesrv_requests.BrokerHeartbeat)
        self.routes.touch(broker.cluster_name, broker.broker_addr, self._clock_ms())
        return request.response()

    def get_member_group(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Return a master and its slaves: GET_BROKER_MEMBER_GROUP (901)."""
        fields = read_fields(request, namesrv_requests.GetBrokerMemberGroup)
        group = self.routes.member_group(fields.cluster_name, fields.broker_name)
        return request.response(body=encode_body(BrokerMembers(broker_member_group=group)))

    def get_cluster_info(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Return all brokers and clusters: GET_BROKER_CLUSTER_INFO (106)."""
        return request.response(body=encode_body(self.routes.cluster_info()))

    def set_write_perm(self, request: RemotingCommand, connection: Connection, *, writable: bool) -> RemotingCommand:
        """Allow or forbid writes to a broker's topics: codes ADD_ (327) and WIPE_WRITE_PERM_OF_BROKER (205)."""
        action, count_field = ("added", "addTopicCount") if writable else ("wiped", "wipeTopicCount")
        name = read_fields(request, namesrv_requests.BrokerName).broker_name
        count = self.routes.set_write_perm(name, writable=writable)
        text = "%(done)s the write perm of %(count)d topics of %(broker)s"
        _log_request(connection, text, done=action, count=count, broker=name)
        return request.response(ext_fields={count_field: str(count)})

    # Topics.

    def get_route(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Return the route of a topic: GET_ROUTEINFO_BY_TOPIC (105)."""
        topic = read_fields(request, namesrv_requests.GetRoute).topic
        wait_ms = 1000 * self.config.wait_seconds_for_service
        if self.config.need_wait_for_service and self._clock_ms() - self._started_ms < wait_ms:
            return request.response(ResponseCode.SYSTEM_ERROR, "name server not ready")
        route = self.routes.route(topic)
        if route is None:
            remark = f"No topic route info in name server for the topic: {topic}{_HELP}"
            return request.response(ResponseCode.TOPIC_NOT_EXIST, remark)
        if self.config.order_message_enable:
            order = self._kv_config.get(ORDER_TOPIC_CONFIG, topic)
            route = structs.replace(route, order_topic_conf=UNSET if order is None else order)
        zone = requested_zone(request.ext_fields)
        return request.response(body=encode_body(route if zone is None else filter_by_zone(route, zone)))

    def register_topic(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Register a topic's queues: REGISTER_TOPIC_IN_NAMESRV (217)."""
        topic = read_fields(request, Topic).topic
        self.routes.register_topic(topic, decode_body(request.body, TopicRouteData, is_request=True).queue_datas)
        return request.response()

    def delete_topic(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Delete a topic: DELETE_TOPIC_IN_NAMESRV (216)."""
        fields = read_fields(request, namesrv_requests.DeleteTopicInNamesrv)
        self.routes.delete_topic(fields.topic, fields.cluster_name)
        _log_request(connection, "deleted topic %(topic)s", topic=fields.topic)
        return request.response()

    def _topic_list(
        self,
        list_topics: Callable[[RemotingCommand], TopicList],
        is_enabled: Callable[[NamesrvConfig], bool] = lambda config: config.enable_topic_list,
    ) -> Handler:
        """Return the handler of a request for a list of topics, which a setting may disable."""

        def respond(request: RemotingCommand, _connection: Connection) -> RemotingCommand:
            if not is_enabled(self.config):
                return request.response(ResponseCode.SYSTEM_ERROR, "disable")
            return request.response(body=encode_body(list_topics(request)))

        return respond

    # Settings.

    def update_config(self, request: RemotingCommand, connection: Connection) -> RemotingCommand:
        """Change mutable settings until the next start, all or none: UPDATE_NAMESRV_CONFIG (318)."""
        try:
            changes = parse_properties(str(request.body, "utf-8"))
            values = changed_settings(self.config, changes, FIXED_VALUES)
        except (UnicodeDecodeError, DecodeError) as error:
            raise ResponseError(ResponseCode.SYSTEM_ERROR, "string2Properties error") from error
        except OptionError as error:
            raise ResponseError(ResponseCode.NO_PERMISSION, f"Can not update config in black list. {error}") from error
        self._set_config(replace(self.config, **values))  # type: ignore[arg-type] # converted to the fields' types
        _log_request(connection, "changed the settings %(settings)s", settings=", ".join(sorted(values)))
        return request.response()

    def get_config(self, request: RemotingCommand, _connection: Connection) -> RemotingCommand:
        """Return the settings: GET_NAMESRV_CONFIG (319)."""
        return request.response(body=format_properties(as_properties(self.config)).encode())


def _decode_registration_body(request: RemotingCommand, broker: RegisterBroker, max_topics: int) -> RegisterBrokerBody:
    """Decode a registration's body, which brokers before 3.0.11 encode differently."""
    if request.version >= Version.V3_0_11 or not request.body:
        return decode_registration(request.body, broker.compressed, request.version, max_topics)
    check_topic_count(request.body, max_topics)
    topics = decode_body(request.body, TopicConfigs, is_request=True)
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigAndMapping(
            data_version=topics.data_version, topic_config_table=topics.topic_config_table
        )
    )


def _log_request(connection: Connection, event: str, **values: object) -> None:
    log.info(f"%(client)s {event}", {"client": connection.remote_address, **values})


def _log_broker(broker: BrokerId, event: str) -> None:
    log.info(
        "broker %(broker)s %(broker_id)d at %(address)s %(what)s",
        {"broker": broker.broker_name, "broker_id": broker.broker_id, "address": broker.broker_addr, "what": event},
    )
