"""The topic configurations of a broker (``topics.json``). Source: ``TopicConfigManager``."""

from collections.abc import Callable, Collection, Set
from typing import Final

from msgspec import structs

from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables import names
from rmq_core.broker.tables.attributes import BATCH_QUEUES, LITE, MESSAGE_TYPE, QUEUE_TYPE
from rmq_core.broker.tables.table_file import PendingChanges, TableFile, TableFiles
from rmq_core.remoting.bodies.configs import DataVersion, TopicConfig, TopicConfigAndMapping, TopicConfigs
from rmq_core.store.commitlog.lmq_offsets import is_lmq
from rmq_formats.codecs.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, TEMPLATE_TOPIC, TIMER_TOPIC

_FILE: Final = "topics.json"


class Topics:
    """Topic configurations of a broker, in ``topics.json``.

    ``unwritten`` has topics that the file may lack, with their change's number; their messages are not acknowledged.
    """

    def __init__(
        self, files: TableFiles, config: BrokerConfig, clock_ms: Callable[[], int], *, lmq_enabled: bool
    ) -> None:
        """Load the table, and add system topics. With ``lmq_enabled`` each light queue is a topic."""
        self._lmq_enabled = lmq_enabled
        self._clock_ms = clock_ms
        self._listeners: list[Callable[[Collection[str] | None], None]] = []
        saved = files.load(_FILE, TopicConfigs)
        self.version: DataVersion = saved.data_version
        system_topics = _system_topics(config)
        self.table: dict[str, TopicConfig] = {
            topic.topic_name: topic for topic in system_topics
        } | saved.topic_config_table
        self._with_batch_queues = self._find_batch_topics()
        self.file = TableFile(
            files, _FILE, lambda: TopicConfigs(data_version=self.version, topic_config_table=self.table)
        )
        self.unwritten: dict[str, int] = {}
        self._pending = PendingChanges(self.table)
        self.file.on_written(self._on_written)
        self.system = SYSTEM_TOPICS | {topic.topic_name for topic in system_topics}

    def on_change(self, listener: Callable[[Collection[str] | None], None]) -> None:
        """Register a callback for changes; its argument is the changed topics, or None after other changes."""
        self._listeners.append(listener)

    def get(self, topic: str) -> TopicConfig | None:
        """Return the configuration of a topic or light queue; None if unknown. Source: ``LmqTopicConfigManager``."""
        config = self.table.get(topic)
        if config is None and self._lmq_enabled and is_lmq(topic):
            return TopicConfig(topic_name=topic, read_queue_nums=1, write_queue_nums=1, perm=names.PERM_READ_WRITE)
        return config

    def batch_topics(self) -> Set[str]:
        return self._with_batch_queues

    def _find_batch_topics(self) -> set[str]:
        return {name for name, topic in self.table.items() if has_batch_queues(topic)}

    def is_system(self, topic: str) -> bool:
        return topic in self.system or topic.startswith(SYSTEM_TOPIC_PREFIX)

    @property
    def is_full(self) -> bool:
        """True if no more topics are created for messages."""
        return len(self.table) >= names.MAX_AUTO_CREATED_TOPICS

    def create_topic_in_send_message(
        self, topic: str, template: str, queue_count: int, sys_flag: int, auto: bool
    ) -> TopicConfig | None:
        """Create a message's topic from a template, if allowed. Source: ``createTopicInSendMessageMethod``."""
        template_config = self.table.get(template)
        if self.is_full or template_config is None or not template_config.perm & names.PERM_INHERIT:
            return None
        if template == TEMPLATE_TOPIC and not auto:
            return None
        count = max(0, min(queue_count, template_config.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=template_config.perm & ~names.PERM_INHERIT,
                topic_sys_flag=sys_flag,
                topic_filter_type=template_config.topic_filter_type,
            )
        )

    def get_or_create(self, topic: str, queue_count: int, sys_flag: int = 0, *, order: bool = False) -> TopicConfig:
        """Return a retry or dead-letter topic; create a missing one. Source: ``createTopicInSendMessageBackMethod``."""
        config = self.table.get(topic)
        if config is not None:
            return config if config.order == order else self.put(structs.replace(config, order=order))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                topic_sys_flag=sys_flag,
                order=order,
            )
        )

    def put(self, topic: TopicConfig) -> TopicConfig:
        self.put_all([topic])
        return topic

    def put_all(self, topics: list[TopicConfig]) -> None:
        names = [topic.topic_name for topic in topics]
        for topic in topics:
            self._pending.record(self.file.changes + 1, topic.topic_name, self.table.get(topic.topic_name), topic)
            self.table[topic.topic_name] = topic
            if has_batch_queues(topic):
                self._with_batch_queues.add(topic.topic_name)
            else:
                self._with_batch_queues.discard(topic.topic_name)
        self.unwritten |= dict.fromkeys(names, self.file.changes + 1)
        self._changed(names)

    def update_order(self, ordered: set[str]) -> None:
        """Mark the ordered topics of the name server; no topic loses its mark. Source: ``updateOrderTopicConfig``."""
        changed = [topic for topic in self.table.values() if topic.topic_name in ordered and not topic.order]
        if changed:
            self.put_all([structs.replace(topic, order=True) for topic in changed])

    def remove(self, topic: str) -> bool:
        config = self.table.pop(topic, None)
        if config is not None:
            self._pending.record(self.file.changes + 1, topic, config, None)
            self._with_batch_queues.discard(topic)
            self._changed(None)
        return config is not None

    @property
    def pending_names(self) -> set[str]:
        """Names of topics with an unwritten change, such as a removal."""
        return self._pending.names

    def revert(self, since: int, until: int) -> None:
        for name in self._pending.revert(since, until):
            self.unwritten.pop(name, None)
        self._with_batch_queues = self._find_batch_topics()
        self._changed(None)

    def touch(self) -> None:
        """Make the broker register again without a changed topic."""
        self._changed(None)

    def _changed(self, names: Collection[str] | None) -> None:
        self.version = self.version.next(self._clock_ms())
        self._save()
        for listener in self._listeners:
            listener(names)

    def adopt(self, configs: TopicConfigs) -> None:
        """Replace a slave's table by its master's."""
        if configs.data_version != self.version:
            self.table.clear()
            self.table.update(configs.topic_config_table)
            self._with_batch_queues = self._find_batch_topics()
            self.version = configs.data_version
            self._save()

    def _save(self) -> None:
        self.file.changes += 1
        self.file.save()

    def _on_written(self, changes: int) -> None:
        self._pending.confirm(changes)
        self.unwritten = {topic: change for topic, change in self.unwritten.items() if change > changes}

    def registered(self, permission: int, only: Collection[str] | None = None) -> TopicConfigAndMapping:
        """Return topics for a registration, restricted to the broker's permission. Source: ``registerBrokerAll``."""
        table = self.table if only is None else {name: self.table[name] for name in only if name in self.table}
        if permission & names.PERM_READ_WRITE != names.PERM_READ_WRITE:
            table = {name: structs.replace(topic, perm=topic.perm & permission) for name, topic in table.items()}
        return TopicConfigAndMapping(data_version=self.version, topic_config_table=table)


def has_batch_queues(topic: TopicConfig) -> bool:
    """Return whether a topic's queues are BatchConsumeQueues."""
    return bool(topic.attributes) and topic.attributes.get(QUEUE_TYPE) == BATCH_QUEUES


def is_lite(topic: TopicConfig) -> bool:
    """Return whether a topic is the parent of lite topics."""
    return bool(topic.attributes) and topic.attributes.get(MESSAGE_TYPE) == LITE


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """Return the system topics that every broker has. Source: ``TopicConfigManager#init``."""
    inherit, both = names.PERM_INHERIT, names.PERM_READ_WRITE
    cluster, broker = config.broker_cluster_name, config.broker_name
    single = [
        (names.SELF_TEST_TOPIC, 1, both),
        (names.BENCHMARK_TOPIC, 1024, both),
        (cluster, 16, inherit | both * config.cluster_topic_enable),
        (broker, 1, inherit | both * config.broker_topic_enable),
        (names.OFFSET_MOVED_TOPIC, 1, both),
        (names.SCHEDULE_TOPIC, 18, both),
        (f"{cluster}_{names.REPLY_POSTFIX}", 1, both),
        (f"{names.REVIVE_PREFIX}{cluster}", config.revive_queue_num, both),
        (f"{names.SYNC_MEMBER_PREFIX}{broker}", 1, inherit),
        (names.HALF_TOPIC, 1, both),
        (names.OP_HALF_TOPIC, 1, both),
    ]
    if config.auto_create_topic_enable:
        single.append((TEMPLATE_TOPIC, config.default_topic_queue_nums, inherit | both))
    if config.trace_topic_enable:
        single.append((config.msg_trace_topic_name, 1, both))
    if config.timer_wheel_enable:
        single.append((TIMER_TOPIC, 1, both))
    return [
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for name, queues, perm in single
    ]
