"""Attributes of topics and groups: valid attributes, and checks of changes.

Source: ``AttributeUtil``, ``TopicAttributes``, ``SubscriptionGroupAttributes``.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

from msgspec import structs

from rmq_core.remoting.bodies.configs import ADD, DELETE, SubscriptionGroupConfig, TopicConfig
from rmq_core.remoting.bodies.pop import LITE_PARENT, LITE_QUOTA
from rmq_core.remoting.codes import ResponseCode
from rmq_core.remoting.errors import ResponseError

MESSAGE_TYPE: Final = "message.type"
LITE: Final = "LITE"  # of 5.5
PRIORITY: Final = "PRIORITY"
PRIORITY_FACTOR: Final = "priority.factor"
LITE_EXPIRATION: Final = "lite.topic.expiration"
LITE_MODEL: Final = "lite.sub.model"
LITE_EXCLUSIVE: Final = "Exclusive"
LITE_MAX_EVENTS: Final = "lite.sub.client.max.event.cnt"
LITE_RESET_ON_EVICTION: Final = "lite.sub.reset.offset.exclusive"
LITE_RESET_ON_UNSUBSCRIBE: Final = "lite.sub.reset.offset.unsubscribe"
LITE_WILDCARD: Final = "lite.sub.wildcard"
_LITE_EXPIRATION_MINUTES: Final = 30 * 24 * 60
QUEUE_TYPE: Final = "queue.type"
BATCH_QUEUES: Final = "BatchCQ"
MAX_LONG: Final = (1 << 63) - 1
_LONG: Final = re.compile(r"[+-]?[0-9]{1,20}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Attribute:
    """Attribute of topics or groups; ``find_problem`` returns the error of a value, empty for a valid one.

    An unchangeable attribute is set at the creation of a topic only.
    """

    find_problem: Callable[[str], str]
    is_changeable: bool = True


def _one_of(*values: str) -> Callable[[str], str]:
    return lambda value: "" if value in values else f"value is not in set: [{', '.join(values)}]"


def _number(low: int, high: int) -> Callable[[str], str]:
    def find_problem(value: str) -> str:
        if not _LONG.fullmatch(value):
            return f'For input string: "{value}"'
        return "" if low <= int(value) <= high else f"value is not in range({low}, {high})"

    return find_problem


def _boolean(value: str) -> str:
    return "" if value.lower() in ("true", "false") else "boolean attribute format is wrong."


def _any_text(_: str) -> str:
    return ""


Attributes = Mapping[str, Attribute]
CLEANUP_POLICY: Final = "cleanup.policy"
COMPACTED: Final = "COMPACTION"
TOPIC_ATTRIBUTES: Final[Attributes] = {
    QUEUE_TYPE: Attribute(_one_of(BATCH_QUEUES, "SimpleCQ"), is_changeable=False),
    CLEANUP_POLICY: Attribute(_one_of("DELETE", COMPACTED), is_changeable=False),
    MESSAGE_TYPE: Attribute(_one_of("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", PRIORITY, LITE)),
    "reserve.time": Attribute(_number(-1, MAX_LONG)),
    LITE_EXPIRATION: Attribute(_number(-1, _LITE_EXPIRATION_MINUTES)),  # of 5.5; says nothing of other topics
}
GROUP_ATTRIBUTES: Final[Attributes] = {  # others that a file has stay
    PRIORITY_FACTOR: Attribute(_number(0, 100)),  # of 5.4
    LITE_PARENT: Attribute(_any_text),  # this and the others: of 5.5
    LITE_MODEL: Attribute(_one_of("Shared", LITE_EXCLUSIVE)),
    LITE_QUOTA: Attribute(_number(-1, MAX_LONG)),  # for proxies
    LITE_MAX_EVENTS: Attribute(_number(10, MAX_LONG)),
    LITE_RESET_ON_EVICTION: Attribute(_boolean),
    LITE_RESET_ON_UNSUBSCRIBE: Attribute(_boolean),
    LITE_WILDCARD: Attribute(_any_text),  # any value: that it is there counts
}


_Config = TypeVar("_Config", TopicConfig, SubscriptionGroupConfig)


def change_attributes(attributes: Attributes, current: _Config | None, changed: _Config) -> _Config:
    """Copy a topic or group, and apply its attribute changes. Source: ``updateSingleTopicConfigWithoutPersist``."""
    before = None if current is None else current.attributes
    return structs.replace(changed, attributes=apply_attribute_changes(attributes, before, changed.attributes))


def apply_attribute_changes(
    attributes: Attributes, before: Mapping[str, str] | None, changes: Mapping[str, str]
) -> dict[str, str]:
    """Apply changes to the attributes of a topic or group, None for a new one. Raises ResponseError.

    Changes are values by keys with a sign: ``{"+message.type": "FIFO", "-reserve.time": ""}``.

    Source: ``AttributeUtil#alterCurrentAttributes``.
    """
    changed_attributes = dict(before or {})
    changed_keys: set[str] = set()
    for signed_key, value in changes.items():
        sign, key = signed_key[:1], signed_key[1:]
        if not key or ADD in key or DELETE in key:
            raise _refusal("kv string format wrong.")
        if key in changed_keys:
            raise _refusal(f"alter duplication key. key: {key}")
        changed_keys.add(key)
        _check(attributes, before, sign, key, value)
        if sign == ADD:
            changed_attributes[key] = value
        else:
            del changed_attributes[key]
    return changed_attributes


def _check(attributes: Attributes, before: Mapping[str, str] | None, sign: str, key: str, value: str) -> None:
    if before is None and sign != ADD:
        raise _refusal(f"only add attribute is supported while creating topic. key: {key}")
    if sign not in (ADD, DELETE):
        raise _refusal(f"wrong format key: {key}")
    if sign == DELETE and before is not None and key not in before:
        raise _refusal(f"attempt to delete a nonexistent key: {key}")
    attribute = attributes.get(key)
    if attribute is None:
        raise _refusal(f"unsupported key: {key}")
    if before is not None and not attribute.is_changeable:
        raise _refusal(f"attempt to update an unchangeable attribute. key: {key}")
    if sign == ADD and (problem := attribute.find_problem(value)):
        raise _refusal(problem)


def _refusal(remark: str) -> ResponseError:
    return ResponseError(ResponseCode.SYSTEM_ERROR, remark)
