"""Lite topics: ``rmq admin getBrokerLiteInfo, getParentTopicInfo`` and others of mqadmin 5.5."""

from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.admin.options import Broker, ClusterName, addresses
from rmq_cli.admin.result_table import ResultTable, Value
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS

if TYPE_CHECKING:
    from rmq_core.client import Admin

Parent = Annotated[str, typer.Option("-p", "--parentTopic", metavar="T", help="The topic of the type LITE.")]
LiteGroup = Annotated[str, typer.Option("-g", "--group", metavar="G", help="The group that is bound to it.")]
ClientId = Annotated[str, typer.Option("-c", "--clientId", metavar="ID", help="The client.")]


async def _brokers(admin: "Admin", parent: str) -> list[tuple[str, str]]:
    """Names and addresses of the masters that have a topic."""
    brokers = (await admin.route(parent)).broker_datas
    return sorted((broker.broker_name, broker.broker_addrs[0]) for broker in brokers if 0 in broker.broker_addrs)


async def broker_info(
    admin: "Admin",
    *,
    broker: Broker = None,
    cluster: ClusterName = None,
    with_detail: Annotated[
        bool, typer.Option("-d", "--showDetail", help="Also the topics of the type LITE, and their groups.")
    ] = False,
) -> ResultTable:
    """Show how many lite topics, subscriptions and the like brokers have."""
    rows: list[tuple[Value, ...]] = []
    for address in await addresses(admin, broker, cluster):
        info = await admin.brokers.lite.of_broker(address)
        rows += [
            (address, "light_queues", info.current_lmq_num),
            (address, "light_queues_at_most", info.max_lmq_num),
            (address, "subscriptions", info.lite_subscription_count),
            (address, "clients", info.event_map_size),
            (address, "light_queues_under_way", info.order_info_count),
            (address, "consumer_offsets", info.offset_table_size),
        ]
        if with_detail:
            rows += [(address, f"minutes of {topic}", minutes) for topic, minutes in sorted(info.topic_meta.items())]
            rows += [
                (address, f"groups of {topic}", " ".join(sorted(groups)))
                for topic, groups in sorted(info.group_meta.items())
            ]
    return ResultTable(("broker", "name", "value"), rows)


async def parent_info(admin: "Admin", *, parent: Parent) -> ResultTable:
    """Show the number of a topic's children, and the groups that are bound to it."""
    rows = []
    for name, address in await _brokers(admin, parent):
        info = await admin.brokers.lite.of_parent(address, parent)
        rows.append((name, info.ttl, info.lite_topic_count, info.lmq_num, " ".join(sorted(info.groups or ()))))
    return ResultTable(("broker_name", "minutes", "children", "light_queues", "groups"), rows)


async def topic_info(
    admin: "Admin",
    *,
    parent: Parent,
    child: Annotated[str, typer.Option("-l", "--liteTopic", metavar="L", help="The lite topic.")],
    with_clients: Annotated[bool, typer.Option("-s", "--showClientId", help="Also list the clients.")] = False,
) -> ResultTable:
    """Show the offsets and subscribers of a lite topic."""
    rows: list[tuple[Value, ...]] = []
    for name, address in await _brokers(admin, parent):
        info = await admin.brokers.lite.of_topic(address, parent, child)
        clients = sorted((subscriber.group, subscriber.client_id) for subscriber in info.subscriber)
        names = " ".join(f"{group}:{client_id}" for group, client_id in clients)
        subscribers = names if with_clients else str(len(clients))
        offset = info.topic_offset
        row = (offset.min_offset, offset.max_offset, offset.last_update_timestamp or None)
        rows.append((name, info.sharding_to_broker, *row, subscribers))
    columns = ("broker_name", "is_its_broker", "min_offset", "max_offset", "last_timestamp_ms", "subscribers")
    return ResultTable(columns, rows)


async def client_info(
    admin: "Admin",
    *,
    parent: Parent,
    group: LiteGroup,
    client_id: ClientId,
    with_detail: Annotated[bool, typer.Option("-s", "--showDetail", help="Also list the lite topics.")] = False,
) -> ResultTable:
    """Show what a client subscribes to. The exit code is 1 if no broker knows it."""
    rows: list[tuple[Value, ...]] = []
    for name, address in await _brokers(admin, parent):
        info = await admin.brokers.lite.of_client(address, parent, group, client_id)
        if info.lite_topic_count >= 0:
            topics = " ".join(sorted(info.lite_topic_set or ())) if with_detail else None
            rows.append((name, info.lite_topic_count, info.last_access_time, topics))
    code = EXIT_CLEAN if rows else EXIT_FINDINGS
    return ResultTable(("broker_name", "lite_topics", "asked_ms", "names"), rows, code=code)


async def group_info(
    admin: "Admin",
    *,
    parent: Parent,
    group: LiteGroup,
    child: Annotated[
        str, typer.Option("-l", "--liteTopic", metavar="L", help="Only this lite topic; else those that lag most.")
    ] = "",
    most: Annotated[int, typer.Option("-k", "--topK", min=1, metavar="N", help="Maximum number for each broker.")] = 20,
) -> ResultTable:
    """Show how far a group lags in lite topics. The last row of a broker, without a name, is the sum."""
    rows: list[tuple[Value, ...]] = []
    for name, address in await _brokers(admin, parent):
        info = await admin.brokers.lite.of_group(address, group, child, most)
        since_ms = info.earliest_unconsumed_timestamp
        rows += [
            (name, lag.lite_topic, lag.lag_count, _time(lag.earliest_unconsumed_timestamp))
            for lag in info.lag_count_top_k or ()
        ]
        if info.total_lag_count >= 0:
            rows.append((name, child or None, info.total_lag_count, _time(since_ms)))
    return ResultTable(("broker_name", "lite_topic", "lag", "unconsumed_since_ms"), rows)


def _time(time_ms: int) -> int | None:
    return time_ms if time_ms > 0 else None


async def trigger_dispatch(
    admin: "Admin",
    *,
    parent: Parent,
    group: LiteGroup,
    client_id: ClientId = "",
    broker_name: Annotated[
        str | None, typer.Option("-b", "--brokerName", metavar="NAME", help="At this broker only, by its name.")
    ] = None,
) -> ResultTable:
    """Have brokers look for messages of lite topics for the clients of a group."""
    rows = []
    for name, address in await _brokers(admin, parent):
        if broker_name in (None, name):
            await admin.brokers.lite.dispatch(address, group, client_id)
            rows.append((name, group, client_id or None))
    return ResultTable(("broker_name", "group", "client"), rows, code=EXIT_CLEAN if rows else EXIT_FINDINGS)
