"""Cluster and broker commands: ``rmq admin clusterList, brokerStatus, getBrokerConfig``."""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Annotated

import typer

from rmq_cli.admin.answer import Answer, Value
from rmq_cli.admin.options import Broker, ClusterName, addresses
from rmq_cli.output import EXIT_CLEAN, EXIT_FINDINGS, warn

if TYPE_CHECKING:
    from rmq_core.client import Admin


async def cluster_list(
    admin: "Admin",
    *,
    cluster: ClusterName = None,
    more: Annotated[bool, typer.Option("-m", "--moreStats", help="Show today's messages instead of rates.")] = False,
    interval_s: Annotated[
        int | None, typer.Option("-i", "--interval", min=1, metavar="S", help="Repeat every S seconds, until Ctrl-C.")
    ] = None,
) -> AsyncIterator[Answer]:
    """List clusters and their brokers, with their rates."""
    yield await _cluster_list(admin, cluster, more=more)
    while interval_s is not None:
        await asyncio.sleep(interval_s)
        yield await _cluster_list(admin, cluster, more=more)


async def _cluster_list(admin: "Admin", cluster: str | None, *, more: bool) -> Answer:
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
    return Answer(
        ("cluster", "broker_name", "broker_id", "address", "version", *columns, "disk_ratio"), rows, code=code
    )


def _first_number(text: str) -> float | None:
    """Return the first of some blank-separated numbers: the rate of the last ten seconds."""
    try:
        return float(text.split(maxsplit=1)[0])
    except (IndexError, ValueError):
        return None


async def broker_status(admin: "Admin", *, broker: Broker = None, cluster: ClusterName = None) -> Answer:
    """Show the runtime statistics of brokers."""
    rows: list[tuple[Value, ...]] = []
    for address in await addresses(admin, broker, cluster):
        rows += [(address, name, value) for name, value in sorted((await admin.broker_info(address)).items())]
    return Answer(("broker", "name", "value"), rows)


async def get_broker_config(admin: "Admin", *, broker: Broker = None, cluster: ClusterName = None) -> Answer:
    """Show the settings of brokers."""
    rows: list[tuple[Value, ...]] = []
    for address in await addresses(admin, broker, cluster):
        rows += [(address, name, value) for name, value in sorted((await admin.brokers.config(address)).items())]
    return Answer(("broker", "name", "value"), rows)
