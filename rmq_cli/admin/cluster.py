"""Clusters and brokers: ``rmq admin clusterList, brokerStatus, getBrokerConfig, statsAll, exportMetadata``."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmq_cli.admin.options import Broker, ClusterName, addresses
from rmq_cli.admin.result_table import ResultTable, Value
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS, warn
from rmq_core.remoting.clock import now_ms
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_core.client import Admin
    from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig, TopicConfig

_OF_GROUPS: Final = ("%RETRY%", "%DLQ%")


async def cluster_list(
    admin: "Admin",
    *,
    cluster: ClusterName = None,
    more: Annotated[bool, typer.Option("-m", "--moreStats", help="Show today's messages instead of rates.")] = False,
    interval_s: Annotated[
        int | None, typer.Option("-i", "--interval", min=1, metavar="S", help="Repeat every S seconds, until Ctrl-C.")
    ] = None,
) -> AsyncIterator[ResultTable]:
    """List clusters and their brokers, with their rates."""
    yield await _cluster_list(admin, cluster, more=more)
    while interval_s is not None:
        await asyncio.sleep(interval_s)
        yield await _cluster_list(admin, cluster, more=more)


async def _cluster_list(admin: "Admin", cluster: str | None, *, more: bool) -> ResultTable:
    from rmq_core.remoting.errors import TransportError  # noqa: PLC0415 # --help does not need it

    names = ("msgPutTotalTodayNow", "msgGetTotalTodayNow") if more else ("putTps", "getTransferredTps")
    columns = ("in_total", "out_total") if more else ("in_tps", "out_tps")
    rows: list[tuple[Value, ...]] = []
    is_complete = True
    for name, broker in sorted((await admin.cluster()).broker_addr_table.items()):
        for broker_id, address in sorted(broker.broker_addrs.items()):
            if cluster not in (None, broker.cluster):
                continue
            try:
                info = await admin.broker_info(address)
            except TransportError as error:  # name servers know a broker for two minutes after its end
                warn(str(error))
                info, is_complete = {}, False
            numbers = [_first_number(info.get(key, "")) for key in (*names, "commitLogDiskRatio")]
            rows.append((broker.cluster, name, broker_id, address, info.get("brokerVersionDesc"), *numbers))
    code = EXIT_CLEAN if rows and is_complete else EXIT_FINDINGS
    return ResultTable(
        ("cluster", "broker_name", "broker_id", "address", "version", *columns, "disk_ratio"), rows, code=code
    )


def _first_number(text: str) -> float | None:
    """Return the first of some blank-separated numbers: the rate of the last ten seconds."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None


async def broker_status(admin: "Admin", *, broker: Broker = None, cluster: ClusterName = None) -> ResultTable:
    """Show the runtime statistics of brokers."""
    return await _values_by_broker(admin.broker_info, await addresses(admin, broker, cluster))


async def get_broker_config(admin: "Admin", *, broker: Broker = None, cluster: ClusterName = None) -> ResultTable:
    """Show the settings of brokers."""
    return await _values_by_broker(admin.brokers.config, await addresses(admin, broker, cluster))


async def _values_by_broker(
    request: Callable[[str], Awaitable[Mapping[str, str]]], broker_addresses: list[str]
) -> ResultTable:
    rows: list[tuple[Value, ...]] = []
    for address in broker_addresses:
        rows += [(address, name, value) for name, value in sorted((await request(address)).items())]
    return ResultTable(("broker", "name", "value"), rows)


async def stats_all(
    admin: "Admin",
    *,
    active: Annotated[bool, typer.Option("-a", "--activeTopic", help="Only topics with messages today.")] = False,
    topic: Annotated[str | None, typer.Option("-t", "--topic", metavar="T", help="Only this topic.")] = None,
) -> ResultTable:
    """Show the rates of all topics and consumer groups."""
    from rmq_core.client import NoRouteError  # noqa: PLC0415 # --help does not need it

    rows: list[tuple[Value, ...]] = []
    for name in await admin.topics() if topic is None else [topic]:
        if name.startswith(_OF_GROUPS):
            continue
        try:
            masters = await admin.masters_of(name)
        except NoRouteError:
            if topic is not None:
                raise
            continue  # it was deleted meanwhile, or its broker is gone
        put_rate, put_day = await _sum_counters(admin, masters, "TOPIC_PUT_NUMS", name)
        groups: set[str] = set()
        for address in masters:
            groups.update(await admin.brokers.groups_of(address, name))
        groups.discard(name)  # 5.3.3 lists the topic's own name among them
        if not groups and (put_day or not active):
            rows.append((name, None, 0, put_rate, None, put_day, None))
        for group in sorted(groups):
            got_rate, got_day = await _sum_counters(admin, masters, "GROUP_GET_NUMS", f"{name}@{group}")
            if put_day or got_day or not active:
                behind = await _group_lag(admin, masters, group, name)
                rows.append((name, group, behind, put_rate, got_rate, put_day, got_day))
    columns = ("topic", "group", "accumulation", "in_tps", "out_tps", "in_messages_day", "out_messages_day")
    return ResultTable(columns, rows)


async def _sum_counters(admin: "Admin", masters: list[str], name: str, key: str) -> tuple[float, int]:
    """Return the rate of the last minute and the sum of the last day, over all brokers."""
    stats_by_master = [await admin.brokers.stats(address, name, key) for address in masters]
    counted = [stats for stats in stats_by_master if stats is not None]
    # Of each broker the longest period that it has, as in StatsAllSubCommand#compute24HourSum.
    day_sums = [stats.stats_day.sum or stats.stats_hour.sum or stats.stats_minute.sum for stats in counted]
    return sum((stats.stats_minute.tps for stats in counted), 0.0), sum(day_sums)


async def _group_lag(admin: "Admin", masters: list[str], group: str, topic: str) -> int:
    stats_by_master = [await admin.brokers.consume_stats(address, group, topic) for address in masters]
    queues = [offsets for stats in stats_by_master for offsets in stats.offset_table.values()]
    return max(0, sum(offsets.broker_offset - offsets.consumer_offset for offsets in queues))


async def export_metadata(
    admin: "Admin",
    *,
    broker: Broker = None,
    cluster: ClusterName = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "-f",
            "--filePath",
            metavar="DIR",
            help="Write a file in this directory. [default: print]",
            show_default=False,
        ),
    ] = None,
    topics_only: Annotated[bool, typer.Option("-t", "--topic", help="Topics only.")] = False,
    groups_only: Annotated[bool, typer.Option("-g", "--subscriptionGroup", help="Consumer groups only.")] = False,
    with_special: Annotated[
        bool, typer.Option("-s", "--specialTopic", help="Retry and dead-letter topics too.")
    ] = False,
) -> ResultTable:
    """Export the settings of topics and groups as JSON. Of all user topics and consumer groups."""
    import msgspec  # noqa: PLC0415 # --help does not need it

    if topics_only and groups_only:
        raise OptionError("-t and -g: give one of them")
    masters = await addresses(admin, broker, cluster)
    document: dict[str, object] = {}
    if not groups_only:
        document["topicConfigTable"] = await _topics(admin, masters, with_special=with_special)
    if not topics_only:
        document["subscriptionGroupTable"] = await _groups(admin, masters)
    document["exportTime"] = now_ms()
    text = msgspec.json.encode(document, order="sorted")
    if directory is None:
        return ResultTable((), (), lines=[text + b"\n"], always_lines=True)
    name = "topic" if topics_only else "subscriptionGroup" if groups_only else "metadata"
    file = directory / f"{name}.json"
    beside = file.with_name(f"{file.name}.tmp")
    directory.mkdir(parents=True, exist_ok=True)
    beside.write_bytes(msgspec.json.format(text, indent=2) + b"\n")
    beside.replace(file)
    return ResultTable(("exported",), [(str(file),)])


async def _topics(admin: "Admin", masters: list[str], *, with_special: bool) -> "dict[str, TopicConfig]":
    """Collect the settings of user topics; their numbers of queues are added over all brokers."""
    from msgspec.structs import replace  # noqa: PLC0415

    from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS  # noqa: PLC0415

    topics: dict[str, TopicConfig] = {}
    for address in masters:
        hidden = SYSTEM_TOPICS.union(await admin.brokers.system_topics(address))
        for name, topic in (await admin.brokers.topics(address)).topic_config_table.items():
            is_special = name.startswith(_OF_GROUPS) and not with_special
            if name in hidden or name.startswith(SYSTEM_TOPIC_PREFIX) or is_special:
                continue
            other = topics.get(name)
            if other is None:
                topics[name] = topic
                continue
            read_queues = topic.read_queue_nums + other.read_queue_nums
            write_queues = topic.write_queue_nums + other.write_queue_nums
            topics[name] = replace(topic, read_queue_nums=read_queues, write_queue_nums=write_queues)
    return topics


async def _groups(admin: "Admin", masters: list[str]) -> "dict[str, SubscriptionGroupConfig]":
    """Collect the settings of user groups; their numbers of retry queues are added over all brokers."""
    from msgspec.structs import replace  # noqa: PLC0415

    from rmq_core.broker.tables.names import SYSTEM_GROUP_PREFIX, SYSTEM_GROUPS  # noqa: PLC0415

    groups: dict[str, SubscriptionGroupConfig] = {}
    for address in masters:
        for name, group in (await admin.brokers.groups(address)).subscription_group_table.items():
            if name in SYSTEM_GROUPS or name.startswith(SYSTEM_GROUP_PREFIX):
                continue
            other = groups.get(name)
            queues = group.retry_queue_nums + (other.retry_queue_nums if other else 0)
            groups[name] = replace(group, retry_queue_nums=queues)
    return groups
