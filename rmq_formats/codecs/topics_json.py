"""Topic configs, as in ``config/topics.json`` and in config in RocksDB.

Source: ``TopicConfigSerializeWrapper``, ``TopicConfig``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_formats.codecs.fastjson import as_integer, as_mapping, loads, read_member


@dataclass(frozen=True, slots=True)
class StoredTopicConfig:
    """Config of one topic of ``topics.json``. Defaults are Java's, for members that the file leaves out.

    Attributes:
        read_queue_nums: queues that consumers see.
        write_queue_nums: queues that producers see.
        perm: 4 read, 2 write, 1 inherit, 8 priority.
        topic_filter_type: SINGLE_TAG or MULTI_TAG.
        topic_sys_flag: 1 unit, 2 unit-sub.
        attributes: such as ``message.type`` or ``queue.type``.
    """

    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)

    @property
    def has_batch_queues(self) -> bool:
        """True if the topic's queues are BatchConsumeQueues."""
        return self.attributes.get("queue.type") == "BatchCQ"


def topic_configs(text: str) -> dict[str, StoredTopicConfig]:
    """Parse a ``topics.json`` to topic configs by name, in the file's order. Raises DecodeError."""
    table = as_mapping(as_mapping(loads(text), "topics.json").get("topicConfigTable"), "topicConfigTable")
    return {name: _topic_config(name, as_mapping(config, f"topic {name}")) for name, config in table.items()}


def topic_config(name: str, text: str) -> StoredTopicConfig:
    """Parse the config of one topic, as config in RocksDB has it. Raises DecodeError."""
    return _topic_config(name, as_mapping(loads(text), f"topic {name}"))


def topic_names(text: str) -> list[str]:
    """Parse the topic names of a ``topics.json``, in the file's order. Raises DecodeError."""
    return list(topic_configs(text))


def _topic_config(name: str, config: Mapping[str, object]) -> StoredTopicConfig:
    attributes = as_mapping(config.get("attributes"), "attributes")
    return StoredTopicConfig(
        topic_name=read_member(config, "topicName", name),
        read_queue_nums=read_member(config, "readQueueNums", 16),
        write_queue_nums=read_member(config, "writeQueueNums", 16),
        perm=read_member(config, "perm", 6),
        topic_filter_type=read_member(config, "topicFilterType", "SINGLE_TAG"),
        topic_sys_flag=read_member(config, "topicSysFlag", 0),
        order=read_member(config, "order", False),
        attributes={key: read_member(attributes, key, "") for key in attributes},
    )


def data_version_counter(text: str) -> int:
    """Parse the counter of a data version, of a config file or alone; 0 without one. Raises DecodeError."""
    members = as_mapping(loads(text), "a data version")
    version = as_mapping(members.get("dataVersion", members), "dataVersion")
    return as_integer("counter", version.get("counter", 0))
