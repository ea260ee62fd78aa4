"""The consumer group configurations of a broker (``subscriptionGroup.json``). Source: ``SubscriptionGroupManager``."""

from collections.abc import Callable
from typing import Final

from rmq_core.broker.tables import names
from rmq_core.broker.tables.table_file import PendingChanges, TableFile, TableFiles
from rmq_core.remoting.bodies.configs import DataVersion, SubscriptionGroupConfig, SubscriptionGroups

_FILE: Final = "subscriptionGroup.json"


class Groups:
    """Configurations of consumer groups, in ``subscriptionGroup.json``; ``forbidden`` stays for Java brokers."""

    def __init__(self, files: TableFiles, clock_ms: Callable[[], int], *, lmq_enabled: bool) -> None:
        """Load the table, and add system groups. With ``lmq_enabled`` each LMQ group exists."""
        self._lmq_enabled = lmq_enabled
        self._clock_ms = clock_ms
        saved = files.load(_FILE, SubscriptionGroups)
        self.version: DataVersion = saved.data_version
        self.file = TableFile(files, _FILE, self.body)
        self.forbidden = saved.forbidden_table
        system_groups = {name: SubscriptionGroupConfig(group_name=name) for name in names.SYSTEM_GROUPS}
        self.table: dict[str, SubscriptionGroupConfig] = system_groups | saved.subscription_group_table
        self._pending = PendingChanges(self.table)
        self.file.on_written(self._pending.confirm)

    def get(self, group: str) -> SubscriptionGroupConfig | None:
        """Return a group's configuration; None for an unknown group. Source: ``LmqSubscriptionGroupManager``."""
        config = self.table.get(group)
        return SubscriptionGroupConfig(group_name=group) if config is None and self.is_lmq_group(group) else config

    def is_lmq_group(self, group: str) -> bool:
        """Return whether a group belongs to light queues (LMQ) of this broker."""
        return self._lmq_enabled and names.is_valid_lmq_group(group)

    def find(self, group: str, auto: bool) -> SubscriptionGroupConfig | None:
        """Find a group; create a missing system group, or any if ``auto``. Source: ``findSubscriptionGroupConfig``."""
        config = self.get(group)
        auto = auto and len(self.table) < names.MAX_AUTO_CREATED_TOPICS
        if config is None and (auto or names.is_system_group(group)) and names.is_group(group):
            config = self.put(SubscriptionGroupConfig(group_name=group))
        return config

    def put(self, group: SubscriptionGroupConfig) -> SubscriptionGroupConfig:
        self.put_all([group])
        return group

    def put_all(self, groups: list[SubscriptionGroupConfig]) -> None:
        for group in groups:
            self._pending.record(self.file.changes + 1, group.group_name, self.table.get(group.group_name), group)
            self.table[group.group_name] = group
        self._changed()

    def remove(self, group: str) -> bool:
        config = self.table.pop(group, None)
        if config is not None:
            self._pending.record(self.file.changes + 1, group, config, None)
            self._changed()
        return config is not None

    def revert(self, since: int, until: int) -> None:
        self._pending.revert(since, until)
        self._changed()

    def _changed(self) -> None:
        self.version = self.version.next(self._clock_ms())
        self._save()

    def adopt(self, groups: SubscriptionGroups) -> None:
        """Replace a slave's table by its master's."""
        if groups.data_version != self.version:
            self.table.clear()
            self.table.update(groups.subscription_group_table)
            self.forbidden = groups.forbidden_table
            self.version = groups.data_version
            self._save()

    def _save(self) -> None:
        self.file.changes += 1
        self.file.save()

    def body(self) -> SubscriptionGroups:
        return SubscriptionGroups(
            data_version=self.version, forbidden_table=self.forbidden, subscription_group_table=self.table
        )
