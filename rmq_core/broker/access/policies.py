"""Policies of ACL 2.0: allowed actions of a subject on resources, by address.

One of the matching entries decides: an entry for the exact name before entries for prefixes (the longest first), then
entries for all names of a type, then entries for all resources. Among equal entries, a Deny decides.
(RocketMQ 5.3.3 prefers the shortest prefix, and of a name and a prefix the one stored first, so that decisions depend
on the order in which policies were created. Its later versions have the order used here, except that an Allow decides
among equals. Source: ``AclAuthorizationHandler#comparePolicyEntries``.)
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Final

from rmq_core.remoting.bodies.configs import PolicyEntryInfo
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError

_MAX_ADDRESSES: Final = 256  # addresses of an entry, all of which are compared
_RETRY_PREFIXES: Final = ("%RETRY%", "%DLQ%")


class ResourceType(StrEnum):
    """Type of a resource. Source: ``ResourceType``."""

    ANY = "*"
    CLUSTER = "Cluster"
    NAMESPACE = "Namespace"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """Action on a resource. Source: ``org.apache.rocketmq.common.action.Action``."""

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
class Permission:
    """Permission required by a request: one of some actions on one resource."""

    kind: ResourceType
    name: str
    actions: frozenset[Action]

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}"


def topic_permission(topic: str, *actions: Action) -> Permission:
    """Return a permission on a topic; a retry or dead-letter topic counts as its group."""
    for prefix in _RETRY_PREFIXES:
        if topic.startswith(prefix):
            return Permission(ResourceType.GROUP, topic.removeprefix(prefix), frozenset(actions))
    return Permission(ResourceType.TOPIC, topic, frozenset(actions))


def group_permission(group: str, *actions: Action) -> Permission:
    """Return a permission on a group."""
    return Permission(ResourceType.GROUP, group, frozenset(actions))


def cluster_permission(cluster: str, *actions: Action) -> Permission:
    """Return a permission on the cluster."""
    return Permission(ResourceType.CLUSTER, cluster, frozenset(actions))


@dataclass(frozen=True, slots=True)
class Entry:
    """Entry of a policy. The empty prefix matches all names; an entry without networks matches all clients."""

    kind: ResourceType
    name: str
    is_prefix: bool
    actions: frozenset[Action]
    networks: tuple[IPv4Network | IPv6Network, ...]
    is_allowed: bool

    def matches(self, permission: Permission, host: str) -> bool:
        if self.kind is not ResourceType.ANY:
            is_named = permission.name.startswith(self.name) if self.is_prefix else permission.name == self.name
            if self.kind is not permission.kind or not is_named:
                return False
        if Action.ALL not in self.actions and not self.actions & permission.actions:
            return False
        return not self.networks or any(ip_address(host) in network for network in self.networks)

    @property
    def rank(self) -> tuple[bool, bool, int, bool]:
        """Precedence among the matching entries; the lowest decides."""
        return self.kind is ResourceType.ANY, self.is_prefix, -len(self.name), self.is_allowed


def decide(policies: Iterable[Iterable[Entry]], permission: Permission, host: str) -> bool | None:
    """Return the decision on a permission for a client's host; None without a matching entry.

    ``policies`` are the entries of the Custom policies, then those of the Default policies.
    """
    for entries in policies:
        matching = [entry for entry in entries if entry.matches(permission, host)]
        if matching:
            return min(matching, key=lambda entry: entry.rank).is_allowed
    return None


def parse_entry(info: PolicyEntryInfo) -> Entry:
    """Parse an administrator's entry. Raises ResponseError in the words of ``AclInfo#validate``, ``PolicyEntry``."""
    kind, name, is_prefix = _parse_resource(info.resource)
    if not info.actions:
        raise refusal("The actions is empty.")
    if any(action.lower() == "any" for action in info.actions):
        raise refusal("The actions can not be Any.")
    unknown = [action for action in info.actions if action.lower() not in _ACTIONS]
    if unknown:  # the original ignores unknown actions
        raise refusal(f"The action {unknown[0]} is unknown.")
    if (info.decision or "").lower() not in {"allow", "deny"}:
        raise refusal("The decision is null or illegal.")
    return Entry(
        kind,
        name,
        is_prefix,
        frozenset(_ACTIONS[action.lower()] for action in info.actions),
        _parse_addresses(info.source_ips or []),
        (info.decision or "").lower() == "allow",
    )


def canonical_entry(info: PolicyEntryInfo) -> PolicyEntryInfo:
    """Return a valid entry in the spelling of responses, with the original's names of actions and decisions."""
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
    if rest:  # the original ignores the rest of the name
        raise refusal(f"The resource {text} has a * that is not its end.")
    return kind, head, bool(star)


def _parse_addresses(texts: list[str]) -> tuple[IPv4Network | IPv6Network, ...]:
    if len(texts) > _MAX_ADDRESSES:
        raise refusal(f"The source ip has more than {_MAX_ADDRESSES} entries.")
    if any(not text.strip() for text in texts):
        raise refusal("The source ip is empty.")
    try:
        return tuple(ip_network(text.strip(), strict=False) for text in texts)
    except ValueError:
        raise refusal("The source ip is invalid.") from None


def refusal(remark: str) -> ResponseError:
    """Return the original's response to a forbidden request or an invalid policy."""
    return ResponseError(ResponseCode.NO_PERMISSION, remark)
