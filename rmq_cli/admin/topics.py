"""Topic commands: ``rmq admin topicList, topicRoute, topicStatus, updateTopic, deleteTopic``."""

from contextlib import suppress
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.admin.options import Broker, ClusterName, Route, Switch, Topic, addresses
from rmq_cli.admin.result_table import ResultTable
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_core.client import Admin


async def topic_list(
    admin: "Admin",
    *,
    with_clusters: Annotated[
        bool, typer.Option("-c", "--clusterModel", help="Also show their clusters and groups.")
    ] = False,
) -> ResultTable:
    """List the topics that the name servers know."""
    from rmq_core.client import NoRouteError  # noqa: PLC0415 # --help does not need it

    topics = await admin.topics()
    if not with_clusters:
        return ResultTable(("topic",), [(topic,) for topic in topics])
    rows = []
    for topic in topics:
        clusters: set[str] = set()
        groups: set[str] = set()
        with suppress(NoRouteError):  # it was deleted meanwhile, or its broker is gone
            clusters.update(broker.cluster for broker in (await admin.route(topic)).broker_datas)
            for address in await admin.masters_of(topic):
                groups.update(await admin.brokers.groups_of(address, topic))
        groups.discard(topic)  # 5.3.3 lists the topic's own name among them
        rows.append((topic, " ".join(sorted(clusters)), " ".join(sorted(groups))))
    return ResultTable(("topic", "clusters", "groups"), rows)


async def topic_route(
    admin: "Admin",
    *,
    topic: Topic,
    _as_list: Annotated[bool, typer.Option("-l", "--list", help="Accepted for mqadmin's sake; always on.")] = False,
) -> ResultTable:
    """List the brokers and queues of a topic."""
    route = await admin.route(topic)
    brokers = {broker.broker_name: broker for broker in route.broker_datas}
    rows = []
    for queues in sorted(route.queue_datas, key=lambda queue_data: queue_data.broker_name):
        broker = brokers.get(queues.broker_name)
        cluster = broker.cluster if broker else None
        places = sorted(broker.broker_addrs.items()) if broker else []
        addresses_by_id = " ".join(f"{broker_id}={address}" for broker_id, address in places)
        numbers = (queues.read_queue_nums, queues.write_queue_nums, queues.perm)
        rows.append((queues.broker_name, cluster, addresses_by_id, *numbers))
    return ResultTable(("broker_name", "cluster", "addresses", "read_queues", "write_queues", "perm"), rows)


async def topic_status(admin: "Admin", *, topic: Topic, cluster: Route = None) -> ResultTable:
    """Show min and max offset of each queue of a topic. Also the store time of its last message."""
    from rmq_core.remoting.bodies.codec import parse_queue_key  # noqa: PLC0415 # --help does not need it

    rows = []
    for address in await admin.masters_of(cluster or topic):
        for key, queue in (await admin.brokers.topic_stats(address, topic)).offset_table.items():
            place = parse_queue_key(key)
            last_ms = queue.last_update_timestamp
            rows.append((place.broker_name, place.queue_id, queue.min_offset, queue.max_offset, last_ms))
    return ResultTable(
        ("broker_name", "queue_id", "min_offset", "max_offset", "last_update_timestamp_ms"), sorted(rows)
    )


async def update_topic(
    admin: "Admin",
    *,
    topic: Topic,
    broker: Broker = None,
    cluster: ClusterName = None,
    read_queues: Annotated[
        int, typer.Option("-r", "--readQueueNums", min=1, metavar="N", help="Readable queues on each broker.")
    ] = 8,
    write_queues: Annotated[
        int, typer.Option("-w", "--writeQueueNums", min=0, metavar="N", help="Writable queues on each broker.")
    ] = 8,
    perm: Annotated[int, typer.Option("-p", "--perm", min=0, max=7, metavar="N", help="4 read, 2 write, 6 both.")] = 6,
    order: Annotated[Switch, typer.Option("-o", "--order", help="Ordered topic; name servers are told too.")] = "false",
    attributes: Annotated[
        str | None,
        typer.Option("-a", "--attributes", metavar="CHANGES", help="For example +message.type=FIFO,-reserve.time."),
    ] = None,
    unit: Annotated[Switch, typer.Option("-u", "--unit", help="Whether it is a unit topic.")] = "false",
    unit_sub: Annotated[Switch, typer.Option("-s", "--hasUnitSub", help="Whether units subscribe to it.")] = "false",
) -> ResultTable:
    """Create a topic, or change its settings. On all masters, unless -b or -c selects brokers."""
    masters = await addresses(admin, broker, cluster)
    for address in masters:
        await admin.create_topic(
            topic,
            queues=read_queues,
            write_queues=write_queues,
            perm=perm,
            order=order == "true",
            attributes=attributes,
            sys_flag=(unit == "true") | (unit_sub == "true") << 1,
            broker=address,
        )
    if order == "true":
        await _register_ordered_queues(admin, topic, masters, write_queues, whole=broker is None)
    columns = ("broker", "topic", "read_queues", "write_queues", "perm", "order")
    return ResultTable(
        columns, [(master, topic, read_queues, write_queues, perm, order == "true") for master in masters]
    )


async def _register_ordered_queues(admin: "Admin", topic: str, masters: list[str], queues: int, *, whole: bool) -> None:
    """Register the number of ordered queues of each broker with the name servers."""
    table = (await admin.cluster()).broker_addr_table
    names = [name for name in sorted(table) if not set(masters).isdisjoint(table[name].broker_addrs.values())]
    await admin.keep_in_order(topic, dict.fromkeys(names, queues), whole=whole)


async def delete_topic(admin: "Admin", *, topic: Topic, cluster: ClusterName = None) -> ResultTable:
    """Delete a topic in one cluster. Also at the name servers; -c must name the cluster."""
    if cluster is None:
        raise OptionError("deleteTopic: say in which cluster, with -c")
    masters = await admin.masters(cluster)
    await admin.delete_topic(topic, cluster)
    return ResultTable(("broker", "deleted_topic"), [(address, topic) for address in masters])
