"""Policies of ACL 2.0: which actions on which resources a subject may do, and from where.

Of the entries that fit a request one decides: the one for the very name before those for prefixes, of these the longest
first, then those for all names of a type, and last those for everything. Where several are alike, a Deny decides.
(RocketMQ 5.3.3 takes the shortest prefix first, and of a name and a prefix the one that was stored first, so that the
same policies give other answers when they are made in another order; its later versions have the order here, but an
Allow decides among equals. Source: ``AclAuthorizationHandler#comparePolicyEntries``.)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from rmq_core.remoting.bodies.access import PolicyEntryInfo
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError

_MOST_ADDRESSES: Final = 256  # of an entry, each of which is looked at
_RETRY_PREFIXES: Final = ("%RETRY%", "%DLQ%")


class ResourceType(StrEnum):
    """What a resource is. Source: ``ResourceType``."""

    ANY = "*"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """What may be done with a resource. Source: ``org.apache.rocketmq.common.action.Action``."""

    ALL = "All"
    PUB = "Pub"
    SUB = "Sub"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"
    GET = "Get"
    LIST = "List"


_ACTIONS: Final = {action.lower(): action for action in Action}
_TYPES: Final = {kind.lower(): kind for kind in ResourceType}


@dataclass(frozen=True, slots=True)
class Need:
    """What a request needs: one of some actions on one resource."""

    kind: ResourceType
    name: str
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def topic_need(topic: str, *actions: Action) -> Need:
    """Name what a request needs of a topic; one of retries or dead letters belongs to its group."""
    for prefix in _RETRY_PREFIXES:
        if topic.startswith(prefix):
            return Need(ResourceType.GROUP, topic.removeprefix(prefix), frozenset(actions))
    return Need(ResourceType.TOPIC, topic, frozenset(actions))


def group_need(group: str, *actions: Action) -> Need:
    """Name what a request needs of a group."""
    return Need(ResourceType.GROUP, group, frozenset(actions))


def cluster_need(cluster: str, *actions: Action) -> Need:
    """Name what a request needs of the cluster."""
    return Need(ResourceType.CLUSTER, cluster, frozenset(actions))


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry of a policy.

    Attributes:
        kind: of its resources.
        name: of the resource, or what its names begin with.
        is_prefix: which of the two ``name`` is; all names begin with the empty one.
        actions: which it is about.
        networks: of the clients that it is about; none are all.
        is_allowed: what it decides.
    """

    kind: ResourceType
    name: str
    is_prefix: bool
    actions: frozenset[Action]
    networks: tuple[IPv4Network | IPv6Network, ...]
    is_allowed: bool

    def fits(self, need: Need, host: str) -> bool:
        """Tell whether it is about a request."""
        if self.kind is not ResourceType.ANY:
            is_named = need.name.startswith(self.name) if self.is_prefix else need.name == self.name
            if self.kind is not need.kind or not is_named:
                return False
        if Action.ALL not in self.actions and not self.actions & need.actions:
            return False
        return not self.networks or any(ip_address(host) in network for network in self.networks)

    @property
    def rank(self) -> tuple[bool, bool, int, bool]:
        """Its place among the entries that fit; the lowest decides."""
        return self.kind is ResourceType.ANY, self.is_prefix, -len(self.name), self.is_allowed


def decision(policies: Iterable[Iterable[Entry]], need: Need, host: str) -> bool | None:
    """Decide whether a need is met; None if no entry is about it.

    Args:
        policies: entries of the Custom policies, and behind them those of the Default ones.
        need: what is needed.
        host: address of the client, without a port.
    """
    for entries in policies:
        fitting = [entry for entry in entries if entry.fits(need, host)]
        if fitting:
            return min(fitting, key=lambda entry: entry.rank).is_allowed
    return None


def parse_entry(info: PolicyEntryInfo) -> Entry:
    """Parse an entry as administrators send it.

    Raises:
        ResponseError: with the original's words (``AclInfo#validate``, ``PolicyEntry``).
    """
    kind, name, is_prefix = _parse_resource(info.resource)
    if not info.actions:
        raise refusal("The actions is empty.")
    if any(action.lower() == "any" for action in info.actions):
        raise refusal("The actions can not be Any.")
    unknown = [action for action in info.actions if action.lower() not in _ACTIONS]
    if unknown:  # the original drops them, and so an entry means less than it says
        raise refusal(f"The action {unknown[0]} is unknown.")
    if (info.decision or "").lower() not in {"allow", "deny"}:
        raise refusal("The decision is null or illegal.")
    return Entry(
        kind, name, is_prefix,
        frozenset(_ACTIONS[action.lower()] for action in info.actions),
        _parse_addresses(info.source_ips or []),
        (info.decision or "").lower() == "allow",
    )  # fmt: skip


def canonical(info: PolicyEntryInfo) -> PolicyEntryInfo:
    """Spell an entry that parses as answers have it: names of actions and decisions as in the original."""
    entry = parse_entry(info)
    resource = "*" if entry.kind is ResourceType.ANY else f"{entry.kind}:{entry.name}{'*' if entry.is_prefix else ''}"
    return PolicyEntryInfo(
        actions=list(dict.fromkeys(str(_ACTIONS[action.lower()]) for action in info.actions)),
        decision="Allow" if entry.is_allowed else "Deny",
        resource=resource,
        source_ips=list(info.source_ips or []),
    )


def _parse_resource(text: str | None) -> tuple[ResourceType, str, bool]:
    """Parse ``*``, ``Topic:name``, ``Topic:prefix*`` or ``Topic:*``."""
    if text == "*":
        return ResourceType.ANY, "", True
    word, colon, name = (text or "").partition(":")
    kind = _TYPES.get(word.lower())
    if kind is None or kind is ResourceType.ANY or not colon or not name:
        raise refusal("The resource is null.")
    head, star, rest = name.partition("*")
    if rest:  # the original cuts the name there, and so an entry means more than it says
        raise refusal(f"The resource {text} has a * that is not its end.")
    return kind, head, bool(star)


def _parse_addresses(texts: list[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    if len(texts) > _MOST_ADDRESSES:
        raise refusal(f"The source ip has more than {_MOST_ADDRESSES} entries.")
    if any(not text.strip() for text in texts):
        raise refusal("The source ip is empty.")
    try:
        return tuple(ip_network(text.strip(), strict=False) for text in texts)
    except ValueError:
        raise refusal("The source ip is invalid.") from None


def refusal(remark: str) -> ResponseError:
    """Make the original's answer to a request that may not be, or to a policy that is none."""
    return ResponseError(ResponseCode.NO_PERMISSION, remark)
