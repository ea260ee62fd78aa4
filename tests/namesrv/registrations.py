"""Registrations that the tests of this directory share."""

from rmq_core.namesrv.route_info import RegisterBrokerResult, RouteInfo
from rmq_core.remoting.bodies.configs import DataVersion, TopicConfig, TopicConfigAndMapping
from rmq_core.remoting.bodies.routes import RegisterBrokerBody
from rmq_core.remoting.namesrv_requests import BrokerId, RegisterBroker


def broker(
    name: str = "a", broker_id: int = 0, *, address: str | None = None, cluster: str = "C", **options: object
) -> RegisterBroker:
    return RegisterBroker(
        broker_name=name,
        broker_addr=address or f"{name}{broker_id}:10911",
        cluster_name=cluster,
        broker_id=broker_id,
        ha_server_addr=f"{name}{broker_id}:10912",
        **options,  # type: ignore[arg-type]
    )


def identity(registration: RegisterBroker) -> BrokerId:
    return BrokerId(
        broker_name=registration.broker_name,
        broker_addr=registration.broker_addr,
        cluster_name=registration.cluster_name,
        broker_id=registration.broker_id,
    )


def topics(*names: str, version: int = 1, state_version: int = 0, **settings: object) -> RegisterBrokerBody:
    table = {name: TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4, **settings) for name in names}  # type: ignore[arg-type]
    return RegisterBrokerBody(
        topic_config_serialize_wrapper=TopicConfigAndMapping(
            data_version=DataVersion(counter=version, state_version=state_version), topic_config_table=table
        )
    )


def register(
    routes: RouteInfo,
    registration: RegisterBroker,
    body: RegisterBrokerBody,
    now_ms: int = 0,
    connection: object = None,
) -> RegisterBrokerResult | None:
    return routes.register(registration, body, zone=None, connection=connection, now_ms=now_ms)
