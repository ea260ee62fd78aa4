"""Consumer groups and connected clients: ``rmq admin updateSubGroup``, ``consumerConnection`` and others."""

from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.admin.options import Broker, ClusterName, Group, Switch, Topic, addresses, named_addresses
from rmq_cli.admin.result_table import ResultTable
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS
from rmq_formats.errors import DecodeError, OptionError

if TYPE_CHECKING:
    from rmq_core.client import Admin
    from rmq_core.remoting.bodies.clients import ConnectionBody
    from rmq_core.remoting.bodies.configs import GroupRetryPolicy


async def update_group(
    admin: "Admin",
    *,
    group: Group,
    broker: Broker = None,
    cluster: ClusterName = None,
    enable: Annotated[Switch, typer.Option("-s", "--consumeEnable", help="Whether it may consume.")] = "true",
    from_min: Annotated[
        Switch, typer.Option("-m", "--consumeFromMinEnable", help="Whether it may start at the min offset.")
    ] = "false",
    broadcast: Annotated[
        Switch, typer.Option("-d", "--consumeBroadcastEnable", help="Whether it may consume by broadcasting.")
    ] = "false",
    in_order: Annotated[Switch, typer.Option("-o", "--consumeMessageOrderly", help="Consume orderly.")] = "false",
    retry_queues: Annotated[
        int, typer.Option("-q", "--retryQueueNums", min=0, metavar="N", help="Queues of its retry topic.")
    ] = 1,
    retries: Annotated[
        int, typer.Option("-r", "--retryMaxTimes", min=-1, metavar="N", help="Retries before a dead letter.")
    ] = 16,
    broker_id: Annotated[
        int, typer.Option("-i", "--brokerId", min=0, metavar="N", help="Broker id it consumes from.")
    ] = 0,
    slow_broker_id: Annotated[
        int,
        typer.Option(
            "-w", "--whichBrokerWhenConsumeSlowly", min=0, metavar="N", help="Broker id to read from when far behind."
        ),
    ] = 1,
    notify: Annotated[
        Switch, typer.Option("-a", "--notifyConsumerIdsChanged", help="Whether members hear of joins and leaves.")
    ] = "true",
    retry_policy: Annotated[
        str | None,
        typer.Option(
            "-p",
            "--groupRetryPolicy",
            metavar="JSON",
            help='Delays of retries: {"type":"CUSTOMIZED","customizedRetryPolicy":{"next":[1000,5000]}}.',
        ),
    ] = None,
    attributes: Annotated[
        str, typer.Option("--attributes", metavar="CHANGES", help="As +key=value,-key; 5.3.3 has no key yet.")
    ] = "",
) -> ResultTable:
    """Create a consumer group, or change its settings. On all masters, unless -b or -c selects brokers."""
    from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig  # noqa: PLC0415 # --help does not need it

    config = SubscriptionGroupConfig(
        group_name=group,
        consume_enable=enable == "true",
        consume_from_min_enable=from_min == "true",
        consume_broadcast_enable=broadcast == "true",
        consume_message_orderly=in_order == "true",
        retry_queue_nums=retry_queues,
        retry_max_times=retries,
        broker_id=broker_id,
        which_broker_when_consume_slowly=slow_broker_id,
        notify_consumer_ids_changed_enable=notify == "true",
        group_retry_policy=_retry_policy(retry_policy),
        attributes=_attribute_changes(attributes),
    )
    masters = await addresses(admin, broker, cluster)
    for address in masters:
        await admin.create_group(config, broker=address)
    return ResultTable(("broker", "group", "retry_max_times"), [(address, group, retries) for address in masters])


def _retry_policy(text: str | None) -> "GroupRetryPolicy":
    from rmq_core.remoting.bodies.codec import decode_body  # noqa: PLC0415 # --help does not need it
    from rmq_core.remoting.bodies.configs import GroupRetryPolicy  # noqa: PLC0415

    if text is None:
        return GroupRetryPolicy()
    try:
        return decode_body(text.encode(), GroupRetryPolicy)
    except DecodeError as error:
        raise OptionError(f"-p {text}: {error}") from error


def _attribute_changes(text: str) -> dict[str, str]:
    from rmq_core.remoting.bodies.configs import parse_attribute_changes  # noqa: PLC0415 # --help does not need it

    try:
        return parse_attribute_changes(text)
    except DecodeError as error:
        raise OptionError(f"--attributes {text}: {error}") from error


async def delete_group(
    admin: "Admin",
    *,
    group: Group,
    broker: Broker = None,
    cluster: ClusterName = None,
    offsets_too: Annotated[Switch, typer.Option("-r", "--removeOffset", help="Delete its offsets too.")] = "false",
) -> ResultTable:
    """Delete a consumer group. Requires -b or -c."""
    masters = await named_addresses(admin, "deleteSubGroup", broker, cluster)
    for address in masters:
        await admin.delete_group(group, clean_offsets=offsets_too == "true", broker=address)
    return ResultTable(("broker", "deleted_group"), [(address, group) for address in masters])


async def consumer_connection(admin: "Admin", *, group: Group, broker: Broker = None) -> ResultTable:
    """List the members of a consumer group, and what they subscribe."""
    members: dict[str, ConnectionBody] = {}
    subscribed: set[str] = set()
    kinds: set[str] = set()
    for address in await addresses(admin, broker, None):
        connections = await admin.brokers.consumers(address, group)
        if connections is not None:
            members |= {member.client_id: member for member in connections.connection_set}
            subscribed |= {f"{entry.topic}: {entry.sub_string}" for entry in connections.subscription_table.values()}
            kinds.add(f"{connections.consume_type}, {connections.message_model}, {connections.consume_from_where}")
    return _connections(members, "; ".join((*sorted(kinds), *sorted(subscribed))))


async def producer_connection(admin: "Admin", *, group: Group, topic: Topic) -> ResultTable:
    """List the members of a producer group at the brokers of a topic."""
    members: dict[str, ConnectionBody] = {}
    for address in await admin.masters_of(topic):
        connections = await admin.brokers.producers(address, group)
        if connections is not None:
            members |= {member.client_id: member for member in connections.connection_set}
    return _connections(members, "")


def _connections(members: "dict[str, ConnectionBody]", note: str) -> ResultTable:
    rows = [
        (client_id, member.client_addr, str(member.language), member.version)
        for client_id, member in sorted(members.items())
    ]
    code = EXIT_CLEAN if rows else EXIT_FINDINGS
    return ResultTable(("client_id", "address", "language", "version"), rows, note=note, code=code)
