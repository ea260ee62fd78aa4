"""What the attributes of groups and topics say about lite topics. Source: ``LiteMetadataUtil``."""

from typing import Final

from rmq_core.broker.state import BrokerState
from rmq_core.broker.tables.attributes import (
    LITE_EXCLUSIVE,
    LITE_EXPIRATION,
    LITE_MODEL,
    LITE_MOST_EVENTS,
    LITE_RESET_WHEN_LEFT,
    LITE_RESET_WHEN_TAKEN,
    LITE_WILDCARD,
)
from rmq_core.broker.tables.topics import is_lite
from rmq_core.remoting.bodies.lite import LITE_PARENT

_MOST_EVENTS: Final = 100_000  # of a client, whatever its group says: the original's queue has no more
_NEVER: Final = -1


class LiteGroups:
    """Reads attributes as they are now."""

    def __init__(self, state: BrokerState) -> None:
        self._state = state

    def _attribute(self, group: str, name: str) -> str | None:
        found = self._state.groups.table.get(group)
        return None if found is None else found.attributes.get(name)

    def parent(self, group: str) -> str | None:
        """The topic that a group is bound to; None if it is no group of lite topics."""
        return self._attribute(group, LITE_PARENT)

    def is_exclusive(self, group: str) -> bool:
        """Whether a child has one client of the group only: the last that has subscribed."""
        return self._attribute(group, LITE_MODEL) == LITE_EXCLUSIVE

    def is_wildcard(self, group: str) -> bool:
        """Whether each client of the group gets messages of all children."""
        return self._attribute(group, LITE_WILDCARD) is not None

    def resets_when_taken(self, group: str) -> bool:
        """Whether a client that takes a child from another begins at its first message."""
        return (self._attribute(group, LITE_RESET_WHEN_TAKEN) or "").lower() == "true"

    def resets_when_left(self, group: str) -> bool:
        """Whether the group begins at a child's first message, when a client has unsubscribed from it."""
        return (self._attribute(group, LITE_RESET_WHEN_LEFT) or "").lower() == "true"

    def most_events(self, group: str) -> int:
        """Children with new messages that a client is told of at once."""
        text = self._attribute(group, LITE_MOST_EVENTS) or ""
        most = int(text) if text.isdecimal() else 0
        return min(most or self._state.config.max_client_event_count, _MOST_EVENTS)

    def by_parent(self) -> dict[str, list[str]]:
        """Groups by the topic that they are bound to."""
        found: dict[str, list[str]] = {}
        for name, group in self._state.groups.table.items():
            parent = group.attributes.get(LITE_PARENT)
            if parent is not None:
                found.setdefault(parent, []).append(name)
        return found

    def minutes(self) -> dict[str, int]:
        """After how many minutes without a message a child is deleted, by parent; -1 for never."""
        table = self._state.topics.table
        return {name: self.minutes_of(name) for name, topic in table.items() if is_lite(topic)}

    def minutes_of(self, parent: str) -> int:
        """The same of one parent."""
        text = self._state.topics.table[parent].attributes.get(LITE_EXPIRATION, "")
        return int(text) if text.isascii() and text.isdecimal() else _NEVER
