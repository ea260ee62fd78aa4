"""The consumer groups of a broker: ``subscriptionGroup.json``.

Source: ``SubscriptionGroupManager``.
"""

from collections.abc import Callable
from typing import Final

from msgspec import structs

from rmq_core.broker import names
from rmq_core.broker.attributes import OF_GROUPS, altered
from rmq_core.broker.tables import load_table, save_table
from rmq_core.remoting.bodies import DataVersion, SubscriptionGroupConfig, SubscriptionGroups

_FILE: Final = "subscriptionGroup.json"


class Groups:
    """The table of groups.

    Attributes:
        table: by name.
        version: changes with it.
        forbidden: what groups may not do with topics; kept for a Java broker on the same store.
    """

    def __init__(self, root: str, clock_ms: Callable[[], int]) -> None:
        """Load the table, and see that the system's groups are in it."""
        self._root = root
        self._clock_ms = clock_ms
        saved = load_table(root, _FILE, SubscriptionGroups)
        self.version: DataVersion = saved.data_version
        self.forbidden = saved.forbidden_table
        own = {name: SubscriptionGroupConfig(group_name=name) for name in names.SYSTEM_GROUPS}
        self.table: dict[str, SubscriptionGroupConfig] = own | saved.subscription_group_table

    def find(self, group: str, auto: bool) -> SubscriptionGroupConfig | None:
        """A group, made if it is not there and may be; else None. Source: ``findSubscriptionGroupConfig``.

        Args:
            group: its name.
            auto: whether any group may be made.
        """
        known = self.table.get(group)
        if known is None and (auto or names.is_system_group(group)) and names.is_group(group):
            known = self.put(SubscriptionGroupConfig(group_name=group))
        return known

    def altered(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """A group with the attributes that it gets by the changes that a request has in their place.

        Raises:
            ResponseError: a change that cannot be made.

        Source: ``updateSubscriptionGroupConfigWithoutPersist``.
        """
        known = self.table.get(group.group_name)
        before = None if known is None else known.attributes
        return structs.replace(group, attributes=altered(OF_GROUPS, before, group.attributes))

    def put(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        """Make or replace a group."""
        self.put_all([group])
        return group

    def put_all(self, groups: list[SubscriptionGroupConfig]) -> None:
        """Make or replace groups."""
        self.table.update({group.group_name: group for group in groups})
        self._changed()

    def remove(self, group: str) -> bool:
        """Remove a group; whether it was there."""
        known = self.table.pop(group, None)
        if known is not None:
            self._changed()
        return known is not None

    def _changed(self) -> None:
        self.version = self.version.next(self._clock_ms())
        self.save()

    def adopt(self, groups: SubscriptionGroups) -> None:
        """Have the groups of a master, as a slave does."""
        if groups.data_version != self.version:
            self.table.clear()
            self.table.update(groups.subscription_group_table)
            self.forbidden = groups.forbidden_table
            self.version = groups.data_version
            self.save()

    def save(self) -> None:
        """Write the file."""
        save_table(self._root, _FILE, self.body())

    def body(self) -> SubscriptionGroups:
        """The table as slaves and administrators are told it."""
        return SubscriptionGroups(
            data_version=self.version, forbidden_table=self.forbidden, subscription_group_table=self.table
        )
