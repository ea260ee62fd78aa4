"""Consumer offsets: shows lag; resets, skips and copies offsets (``rmq admin consumerProgress`` and others).

``rmq admin consumerProgress, brokerConsumeStats, resetOffsetByTime, skipAccumulatedMessage, cloneGroupOffset``.
"""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from rmq_cli.admin.options import Broker, ClusterName, Force, Group, Route, Switch, Topic, time_ms
from rmq_cli.admin.result_table import ResultTable
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS
from rmq_formats.codecs.topics import LIGHT_QUEUE_PREFIX, TIMER_TOPIC
from rmq_formats.errors import OptionError

if TYPE_CHECKING:
    from rmq_core.client import Admin
    from rmq_core.remoting.bodies.stats import ConsumeStats

_QUEUE_COLUMNS: Final = (
    "topic", "broker_name", "queue_id", "broker_offset", "consumer_offset", "diff", "inflight", "last_timestamp_ms",
)  # fmt: skip
_QueueRow = tuple[str, str, int, int, int, int, int, int]
_DIFF: Final = 5  # the column's place
_END: Final = -1  # in place of a time


async def consumer_progress(
    admin: "Admin",
    *,
    group: Annotated[
        str | None, typer.Option("-g", "--groupName", "--group", metavar="G", help="One group, queue by queue.")
    ] = None,
    topic: Annotated[
        str | None, typer.Option("-t", "--topicName", "--topic", metavar="T", help="With -g: only this topic.")
    ] = None,
    cluster: ClusterName = None,
    with_clients: Annotated[
        Switch, typer.Option("-s", "--showClientIP", help="With -g: which member has each queue.")
    ] = "false",
) -> ResultTable:
    """Show the lag of consumer groups. Of all groups, or of one queue by queue."""
    masters = await admin.masters(cluster)
    if group is None:
        if topic is not None:
            raise OptionError("-t: give -g too")
        return await _all_progress(admin, masters)
    rows: list[_QueueRow] = []
    owners: dict[tuple[str, str, int], str] = {}
    rate = 0.0
    for address in masters:
        if with_clients == "true":
            owners |= await _owners(admin, address, group)
        stats = await admin.brokers.consume_stats(address, group, topic)
        rows += _queue_rows(stats)
        rate += stats.consume_tps
    behind = sum(row[_DIFF] for row in rows)
    code = EXIT_CLEAN if rows else EXIT_FINDINGS
    note = f"{behind:,} behind, {rate:.2f} a second"
    if with_clients == "true":
        with_owners = [(*row, owners.get(row[:3])) for row in sorted(rows)]
        return ResultTable((*_QUEUE_COLUMNS, "client"), with_owners, note=note, code=code)
    return ResultTable(_QUEUE_COLUMNS, sorted(rows), note=note, code=code)


async def _owners(admin: "Admin", address: str, group: str) -> dict[tuple[str, str, int], str]:
    """Return the addresses of the members that have queues, by topic, broker name and queue id."""
    from rmq_core.remoting.bodies.codec import parse_queue_key  # noqa: PLC0415 # --help does not need it
    from rmq_core.remoting.errors import RemotingError  # noqa: PLC0415

    members = await admin.brokers.consumers(address, group)
    owners = {}
    for member in members.connection_set if members else ():
        try:
            info = await admin.brokers.running_info(address, group, member.client_id)
        except RemotingError:  # it hangs, or is too old to answer: its queues are shown without an owner
            continue
        for key in info.mq_table:
            queue = parse_queue_key(key)
            owners[queue.topic, queue.broker_name, queue.queue_id] = member.client_addr
    return owners


async def _all_progress(admin: "Admin", masters: list[str]) -> ResultTable:
    """Build a row for each group that has members or offsets."""
    clients: dict[str, set[str]] = {}
    rates: dict[str, float] = {}
    behind: dict[str, int] = {}
    for address in masters:
        for group in (await admin.brokers.groups(address)).subscription_group_table:
            members = await admin.brokers.consumers(address, group)
            stats = await admin.brokers.consume_stats(address, group)
            if members is None and not stats.offset_table:
                continue
            client_ids = clients.setdefault(group, set())
            client_ids.update(member.client_id for member in (members.connection_set if members else ()))
            rates[group] = rates.get(group, 0.0) + stats.consume_tps
            behind[group] = behind.get(group, 0) + sum(row[_DIFF] for row in _queue_rows(stats))
    rows = [(group, len(client_ids), rates[group], behind[group]) for group, client_ids in sorted(clients.items())]
    return ResultTable(("group", "clients", "consume_tps", "diff"), rows)


def _queue_rows(stats: "ConsumeStats") -> list[_QueueRow]:
    from rmq_core.remoting.bodies.codec import parse_queue_key  # noqa: PLC0415 # --help does not need it

    rows: list[_QueueRow] = []
    for key, offsets in stats.offset_table.items():
        queue = parse_queue_key(key)
        behind = offsets.broker_offset - offsets.consumer_offset
        inflight = offsets.pull_offset - offsets.consumer_offset
        name = (queue.topic, queue.broker_name, queue.queue_id)
        numbers = (offsets.broker_offset, offsets.consumer_offset, behind, inflight, offsets.last_timestamp)
        rows.append((*name, *numbers))
    return rows


async def broker_consume_stats(
    admin: "Admin",
    *,
    broker: Annotated[str, typer.Option("-b", "--brokerAddr", metavar="HOST:PORT", help="The broker's address.")],
    in_order: Annotated[Switch, typer.Option("-o", "--order", help="Ordered topics only.")] = "false",
    level: Annotated[
        int, typer.Option("-l", "--level", min=0, metavar="N", help="Only queues with at least this lag.")
    ] = 0,
    timeout_ms: Annotated[
        int, typer.Option("-t", "--timeoutMillis", min=1, metavar="MS", help="Timeout of the request.")
    ] = 50_000,
) -> ResultTable:
    """Show the lag of all consumer groups of a broker. Queue by queue."""
    stats = await admin.brokers.all_consume_stats(broker, in_order=in_order == "true", timeout_s=timeout_ms / 1000)
    rows: list[tuple[str, *_QueueRow]] = []
    for table in stats.consume_stats_list:
        for group, group_stats in table.items():
            for topic_stats in group_stats:
                rows += [(group, *row) for row in _queue_rows(topic_stats) if row[_DIFF] >= level]
    rows.sort()
    return ResultTable(("group", *_QUEUE_COLUMNS), rows, note=f"{stats.total_diff:,} behind in all")


async def reset_offset(
    admin: "Admin",
    *,
    group: Group,
    topic: Topic,
    time: Annotated[
        str,
        typer.Option("-s", "--timestamp", metavar="TIME", help="now, -1 (the end), ms, 2026-07-31#12:00:00:000, ISO."),
    ],
    broker: Broker = None,
    queue: Annotated[int, typer.Option("-q", "--queue", min=-1, metavar="N", help="One queue; with -b.")] = -1,
    offset: Annotated[
        int | None, typer.Option("-o", "--offset", min=0, metavar="N", help="To this offset; with -b and -q.")
    ] = None,
    _force: Force = "true",
    cluster: Route = None,
) -> ResultTable:
    """Reset a group's consumer offsets to a store time."""
    if queue >= 0 and broker is None:
        raise OptionError("-q: give -b too")
    if offset is not None and queue < 0:
        raise OptionError("-o: give -b and -q too")
    masters = await admin.masters_of(_route(topic, cluster)) if broker is None else [broker]
    return await _reset(admin, masters, group, topic, time_ms("-s", time), queue, offset)


async def skip_accumulated(
    admin: "Admin", *, group: Group, topic: Topic, _force: Force = "true", cluster: Route = None
) -> ResultTable:
    """Skip all messages that a group has not consumed. Sets its consumer offsets of a topic to the end."""
    return await _reset(admin, await admin.masters_of(_route(topic, cluster)), group, topic, _END)


def _route(topic: str, cluster: str | None) -> str:
    """Return the topic that leads to the masters; without a route, the cluster's, as in ``DefaultMQAdminExtImpl``."""
    has_none = topic.startswith(LIGHT_QUEUE_PREFIX) or topic == TIMER_TOPIC
    return cluster if cluster is not None and has_none else topic


async def _reset(
    admin: "Admin",
    masters: list[str],
    group: str,
    topic: str,
    timestamp_ms: int,
    queue_id: int = -1,
    offset: int | None = None,
) -> ResultTable:
    from rmq_core.remoting.bodies.codec import parse_queue_key  # noqa: PLC0415 # --help does not need it

    rows = []
    for address in masters:
        offsets = await admin.brokers.reset_offsets(
            address, group, topic, timestamp_ms=timestamp_ms, queue_id=queue_id, offset=offset
        )
        for key, at in offsets.items():
            queue = parse_queue_key(key)
            rows.append((queue.broker_name, queue.queue_id, at))
    return ResultTable(("broker_name", "queue_id", "offset"), sorted(rows))


async def clone_offset(
    admin: "Admin",
    *,
    source: Annotated[str, typer.Option("-s", "--srcGroup", metavar="G", help="The group to copy from.")],
    target: Annotated[str, typer.Option("-d", "--destGroup", metavar="G", help="The group to copy to.")],
    topic: Topic,
    offline: Annotated[
        Switch, typer.Option("-o", "--offline", help="Even if no member of the source group subscribes to the topic.")
    ] = "true",
) -> ResultTable:
    """Copy consumer offsets from one group to another."""
    rows = []
    for address in await admin.masters_of(topic):
        offsets = await admin.brokers.consumer_offsets(address)
        # Brokers answer success where the source has no offset, too.
        if any(f"{topic}@{source}" in table for table in (offsets.offset_table, offsets.lmq_offset_table or {})):
            await admin.brokers.clone_offsets(address, source, target, topic, offline=offline == "true")
            rows.append((address, topic, source, target))
    code = EXIT_CLEAN if rows else EXIT_FINDINGS
    return ResultTable(("broker", "topic", "source", "target"), rows, code=code)
