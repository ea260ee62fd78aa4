"""The topics of a broker: ``topics.json``.

Source: ``TopicConfigManager``.
"""

from collections.abc import Callable
from typing import Final

from msgspec import structs

from rmq_core.broker import names
from rmq_core.broker.attributes import OF_TOPICS, altered
from rmq_core.broker.config import BrokerConfig
from rmq_core.broker.tables import load_table, save_table
from rmq_core.remoting.bodies import DataVersion, TopicConfig, TopicConfigAndMapping, TopicConfigs
from rmq_formats.topics import SYSTEM_TOPIC_PREFIX, SYSTEM_TOPICS, TIMER_TOPIC

_FILE: Final = "topics.json"


class Topics:
    """The table of topics.

    Attributes:
        table: by name.
        version: changes with it.
        system: names that are RocketMQ's own.
    """

    def __init__(self, root: str, config: BrokerConfig, clock_ms: Callable[[], int]) -> None:
        """Load the table, and see that the system's topics are in it.

        Args:
            root: the store's directory.
            config: settings.
            clock_ms: the time, ms since 1970.
        """
        self._root = root
        self._clock_ms = clock_ms
        self._listeners: list[Callable[[], None]] = []
        saved = load_table(root, _FILE, TopicConfigs)
        self.version: DataVersion = saved.data_version
        own = _system_topics(config)
        self.table: dict[str, TopicConfig] = {topic.topic_name: topic for topic in own} | saved.topic_config_table
        self.system = SYSTEM_TOPICS | {topic.topic_name for topic in own}

    def on_change(self, listener: Callable[[], None]) -> None:
        """Have a function called after each change."""
        self._listeners.append(listener)

    def get(self, topic: str) -> TopicConfig | None:
        """A topic; None if there is none."""
        return self.table.get(topic)

    def is_system(self, topic: str) -> bool:
        """Whether a topic is RocketMQ's own."""
        return topic in self.system or topic.startswith(SYSTEM_TOPIC_PREFIX)

    def make_for_send(
        self, topic: str, template: str, queue_count: int, sys_flag: int, auto: bool
    ) -> TopicConfig | None:
        """Make the topic of a message as a template says; None if the template does not allow it.

        Source: ``createTopicInSendMessageMethod``.
        """
        model = self.table.get(template)
        if model is None or not model.perm & names.PERM_INHERIT or (template == names.TEMPLATE_TOPIC and not auto):
            return None
        count = max(0, min(queue_count, model.write_queue_nums))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=count,
                write_queue_nums=count,
                perm=model.perm & ~names.PERM_INHERIT,
                topic_sys_flag=sys_flag,
                topic_filter_type=model.topic_filter_type,
            )
        )

    def make(self, topic: str, queue_count: int, sys_flag: int = 0, *, order: bool = False) -> TopicConfig:
        """A retry or dead-letter topic, made if it is not there. Source: ``createTopicInSendMessageBackMethod``."""
        known = self.table.get(topic)
        if known is not None:
            return known if known.order == order else self.put(structs.replace(known, order=order))
        return self.put(
            TopicConfig(
                topic_name=topic,
                read_queue_nums=queue_count,
                write_queue_nums=queue_count,
                topic_sys_flag=sys_flag,
                order=order,
            )
        )

    def altered(self, topic: TopicConfig) -> TopicConfig:
        """A topic with the attributes that it gets by the changes that a request has in their place.

        Raises:
            ResponseError: a change that cannot be made.

        Source: ``updateSingleTopicConfigWithoutPersist``.
        """
        known = self.table.get(topic.topic_name)
        before = None if known is None else known.attributes
        return structs.replace(topic, attributes=altered(OF_TOPICS, before, topic.attributes))

    def put(self, topic: TopicConfig) -> TopicConfig:
        """Make or replace a topic."""
        self.put_all([topic])
        return topic

    def put_all(self, topics: list[TopicConfig]) -> None:
        """Make or replace topics."""
        self.table.update({topic.topic_name: topic for topic in topics})
        self._changed()

    def update_order(self, ordered: set[str]) -> None:
        """Have exactly those topics be ordered that the name server says are; retry topics aside.

        Source: ``updateOrderTopicConfig``.
        """
        changed = [topic for topic in self.table.values() if topic.topic_name in ordered and not topic.order]
        if changed:
            self.put_all([structs.replace(topic, order=True) for topic in changed])

    def remove(self, topic: str) -> bool:
        """Remove a topic; whether it was there."""
        known = self.table.pop(topic, None)
        if known is not None:
            self._changed()
        return known is not None

    def touch(self) -> None:
        """Have name servers be told anew, although no topic has changed."""
        self._changed()

    def _changed(self) -> None:
        self.version = self.version.next(self._clock_ms())
        self.save()
        for listener in self._listeners:
            listener()

    def adopt(self, configs: TopicConfigs) -> None:
        """Have the topics of a master, as a slave does."""
        if configs.data_version != self.version:
            self.table.clear()
            self.table.update(configs.topic_config_table)
            self.version = configs.data_version
            self.save()

    def save(self) -> None:
        """Write the file."""
        save_table(self._root, _FILE, TopicConfigs(data_version=self.version, topic_config_table=self.table))

    def registered(self, permission: int) -> TopicConfigAndMapping:
        """The table as name servers are told it; a broker that may not be read or written shares that with all.

        Source: ``BrokerController#registerBrokerAll``.
        """
        table = self.table
        if permission & names.PERM_READ_WRITE != names.PERM_READ_WRITE:
            table = {name: structs.replace(one, perm=one.perm & permission) for name, one in table.items()}
        return TopicConfigAndMapping(data_version=self.version, topic_config_table=table)


def _system_topics(config: BrokerConfig) -> list[TopicConfig]:
    """The topics that every broker has. Source: ``TopicConfigManager#init``."""
    inherit, both = names.PERM_INHERIT, names.PERM_READ_WRITE
    cluster, broker = config.broker_cluster_name, config.broker_name
    one = [
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
        one.append((names.TEMPLATE_TOPIC, config.default_topic_queue_nums, inherit | both))
    if config.trace_topic_enable:
        one.append((config.msg_trace_topic_name, 1, both))
    if config.timer_wheel_enable:
        one.append((TIMER_TOPIC, 1, both))
    return [
        TopicConfig(topic_name=name, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
        for name, queues, perm in one
    ]
