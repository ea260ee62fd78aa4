"""Options that commands of ``rmq admin`` share, under mqadmin's letters and names, and how they are read."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer

from rmq_cli.arguments import parse_time
from rmq_cli.produce import NAMESRV_HELP
from rmq_formats.errors import OptionError
from rmq_formats.times import check_milliseconds, is_day

if TYPE_CHECKING:
    from rmq_core.client import Admin

Namesrv = Annotated[
    str,
    typer.Option("-n", "--namesrvAddr", "--namesrv", metavar="HOST:PORT", envvar="NAMESRV_ADDR", help=NAMESRV_HELP),
]
Json = Annotated[bool, typer.Option("--json", help="One JSON object a line.")]
Topic = Annotated[str, typer.Option("-t", "--topic", metavar="T", help="The topic.")]
Group = Annotated[
    str,
    typer.Option("-g", "--groupName", "--consumerGroup", "--producerGroup", "--group", metavar="G", help="The group."),
]
Broker = Annotated[
    str | None,
    typer.Option("-b", "--brokerAddr", "--broker", metavar="HOST:PORT", help="At this broker only, by its address."),
]
ClusterName = Annotated[
    str | None, typer.Option("-c", "--clusterName", "--cluster", metavar="C", help="In this cluster only.")
]
Route = Annotated[
    str | None,
    typer.Option("-c", "--cluster", metavar="C", help="Search this cluster's brokers instead of the topic's."),
]
BodyFormat = Annotated[str, typer.Option("-f", "--bodyFormat", metavar="CHARSET", help="The body's charset.")]
# mqadmin's switches take ``true`` or ``false``.
Switch = Literal["true", "false"]
Force = Annotated[Switch, typer.Option("-f", "--force", help="Accepted for mqadmin's sake; always on.")]

_NOW: Final = "now"
_JAVA_TIME: Final = "%Y-%m-%d#%H:%M:%S:%f"


async def addresses(admin: "Admin", broker: str | None, cluster: str | None) -> list[str]:
    """Return the addresses of the selected brokers: one, all of a cluster, or all masters.

    Raises OptionError for both a broker and a cluster, and NoRouteError if there is no such cluster.
    """
    if broker is not None and cluster is not None:
        raise OptionError("-b and -c: give one of them")
    return [broker] if broker is not None else await admin.masters(cluster)


async def named_addresses(admin: "Admin", command: str, broker: str | None, cluster: str | None) -> list[str]:
    """Return the addresses of a broker or of a cluster's brokers. Raises OptionError if neither is given."""
    if broker is None and cluster is None:
        raise OptionError(f"{command}: give -b or -c")
    return await addresses(admin, broker, cluster)


def check_charset(option: str, name: str) -> str:
    """Return a charset's name; refuse an unknown one. Raises OptionError."""
    try:
        b"a".decode(name, "replace")
    except (LookupError, ValueError):
        raise OptionError(f"{option} {name}: not a charset such as UTF-8 or GBK") from None
    return name


def time_ms(option: str, text: str) -> int:
    """Parse a time: ``now``, ms since 1970, mqadmin's ``2026-07-31#12:00:00:000``, or ISO 8601; UTC without a zone.

    Raises OptionError for another form, or a time in seconds.
    """
    if text == _NOW:
        return int(datetime.now(UTC).timestamp() * 1000)
    if text.isascii() and text.removeprefix("-").isdecimal() and not is_day(text):
        try:
            return check_milliseconds(int(text))
        except ValueError as error:
            raise OptionError(f"{option} {text}: {error}") from None
    try:
        moment = datetime.strptime(text, _JAVA_TIME) if "#" in text else parse_time(text)
    except (ValueError, OptionError):
        raise OptionError(f"{option} {text}: not a time such as 2026-07-31T12:00:00+08:00") from None
    if isinstance(moment, int):
        return moment
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
