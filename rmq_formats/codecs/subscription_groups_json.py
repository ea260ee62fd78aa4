"""Configs of consumer groups, as in ``config/subscriptionGroup.json`` and in config in RocksDB.

Source: ``SubscriptionGroupManager``, ``SubscriptionGroupConfig``.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from rmq_formats.codecs.fastjson import as_mapping, loads, read_member


@dataclass(frozen=True, slots=True)
class StoredGroupConfig:
    """Config of one consumer group of ``subscriptionGroup.json``. Defaults are Java's, for members that are missing.

    Attributes:
        consume_from_min_enable: whether a new member may begin with the first message.
        retry_max_times: repeated deliveries of a message, before it becomes a dead letter.
    """

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    consume_message_orderly: bool = False
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    consume_timeout_minute: int = 15
    group_sys_flag: int = 0
    attributes: Mapping[str, str] = field(default_factory=dict, hash=False)


def group_configs(text: str) -> dict[str, StoredGroupConfig]:
    """Parse a ``subscriptionGroup.json`` to group configs by name, in the file's order. Raises DecodeError."""
    table = as_mapping(as_mapping(loads(text), "subscriptionGroup.json").get("subscriptionGroupTable"), "its table")
    return {name: _group_config(name, as_mapping(config, f"group {name}")) for name, config in table.items()}


def group_config(name: str, text: str) -> StoredGroupConfig:
    """Parse the config of one consumer group, as config in RocksDB has it. Raises DecodeError."""
    return _group_config(name, as_mapping(loads(text), f"group {name}"))


def _group_config(name: str, config: Mapping[str, object]) -> StoredGroupConfig:
    attributes = as_mapping(config.get("attributes"), "attributes")
    return StoredGroupConfig(
        group_name=read_member(config, "groupName", name),
        consume_enable=read_member(config, "consumeEnable", True),
        consume_from_min_enable=read_member(config, "consumeFromMinEnable", True),
        consume_broadcast_enable=read_member(config, "consumeBroadcastEnable", True),
        consume_message_orderly=read_member(config, "consumeMessageOrderly", False),
        retry_queue_nums=read_member(config, "retryQueueNums", 1),
        retry_max_times=read_member(config, "retryMaxTimes", 16),
        consume_timeout_minute=read_member(config, "consumeTimeoutMinute", 15),
        group_sys_flag=read_member(config, "groupSysFlag", 0),
        attributes={key: read_member(attributes, key, "") for key in attributes},
    )
