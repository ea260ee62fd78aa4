"""Bodies of topics, groups, offsets, users and policies: what brokers store, register and copy to slaves."""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from msgspec import UNSET, field

from rmq_core.remoting.bodies.codec import (
    BodyStruct,
    GroupRetryPolicyType,
    Int,
    Long,
    Maybe,
    RequestMode,
    TopicFilterType,
)
from rmq_formats.errors import DecodeError

ADD = "+"
DELETE = "-"


class DataVersion(BodyStruct, frozen=True, kw_only=True):
    """The version of a table; two are equal if all three members are."""

    counter: int = 0
    state_version: int = 0
    timestamp: int = 0

    def next(self, now_ms: int, state_version: int = 0) -> "DataVersion":
        """Return the next version, after a change."""
        return DataVersion(counter=self.counter + 1, state_version=state_version, timestamp=now_ms)


class TopicConfig(BodyStruct, frozen=True, kw_only=True):
    """A topic on a broker. ``perm``: 4 read, 2 write, 1 inherit, 8 priority."""

    attributes: dict[str, str] = {}
    order: bool = False
    perm: int = 6
    read_queue_nums: int = 16
    topic_filter_type: TopicFilterType = "SINGLE_TAG"
    topic_name: str = ""
    topic_sys_flag: int = 0
    write_queue_nums: int = 16


class TopicQueueMapping(BodyStruct, frozen=True, kw_only=True):
    """The queues of a static topic on a broker (``TopicQueueMappingInfo``)."""

    bname: Maybe[str] = UNSET
    curr_id_map: dict[int, int] = {}
    dirty: bool = False
    epoch: int = 0
    scope: Maybe[str] = "__global__"
    topic: Maybe[str] = UNSET
    total_queues: int = 0


class TopicConfigs(BodyStruct, frozen=True, kw_only=True):
    """A table of topics (``TopicConfigSerializeWrapper``; ``topics.json``)."""

    data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}


class TopicConfigAndMapping(BodyStruct, frozen=True, kw_only=True):
    """A table of topics with the mappings of static topics, as a broker registers it."""

    data_version: DataVersion = DataVersion()
    mapping_data_version: DataVersion = DataVersion()
    topic_config_table: dict[str, TopicConfig] = {}
    topic_queue_mapping_detail_map: dict[str, object] = {}
    topic_queue_mapping_info_map: dict[str, TopicQueueMapping] = {}


class TopicsOfMaster(TopicConfigAndMapping, frozen=True, kw_only=True):
    """Table of topics for a slave, with a member of ours that Java ignores and does not send.

    ``topics_dropped`` has, by deleted topic, the length of the master's log at its deletion. Earlier messages are dead,
    later messages belong to a new topic of that name.
    """

    topics_dropped: Maybe[dict[str, int]] = UNSET


class TopicConfigList(BodyStruct, frozen=True, kw_only=True):
    """Topics to create (code 18)."""

    topic_config_list: list[TopicConfig] = []


class SimpleSubscription(BodyStruct, frozen=True, kw_only=True):
    """A subscription that the members of a group must have."""

    expression: Maybe[str] = UNSET
    expression_type: Maybe[str] = UNSET
    topic: Maybe[str] = UNSET
    version: int = 0


class ExponentialRetryPolicy(BodyStruct, frozen=True, kw_only=True):
    """A retry policy with exponentially growing delays, in milliseconds."""

    initial: int = 5_000
    max: int = 7_200_000
    multiplier: int = 2


class CustomizedRetryPolicy(BodyStruct, frozen=True, kw_only=True):
    """A retry policy with a list of delays, in milliseconds."""

    next: list[int] = []


class GroupRetryPolicy(BodyStruct, frozen=True, kw_only=True):
    """The retry policy of a consumer group."""

    customized_retry_policy: Maybe[CustomizedRetryPolicy] = UNSET
    exponential_retry_policy: Maybe[ExponentialRetryPolicy] = UNSET
    type: GroupRetryPolicyType = "CUSTOMIZED"


class SubscriptionGroupConfig(BodyStruct, frozen=True, kw_only=True):
    """A consumer group on a broker."""

    attributes: dict[str, str] = {}
    broker_id: int = 0
    consume_broadcast_enable: bool = True
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_message_orderly: bool = False
    consume_timeout_minute: int = 15
    group_name: str = ""
    group_retry_policy: GroupRetryPolicy = GroupRetryPolicy()
    group_sys_flag: int = 0
    notify_consumer_ids_changed_enable: bool = True
    retry_max_times: int = 16
    retry_queue_nums: int = 1
    subscription_data_set: Maybe[list[SimpleSubscription]] = UNSET
    which_broker_when_consume_slowly: int = 1


class SubscriptionGroups(BodyStruct, frozen=True, kw_only=True):
    """A table of groups (code 201; ``subscriptionGroup.json``)."""

    data_version: DataVersion = DataVersion()
    forbidden_table: dict[str, dict[str, int]] = {}
    subscription_group_table: dict[str, SubscriptionGroupConfig] = {}


class GroupConfigList(BodyStruct, frozen=True, kw_only=True):
    """Groups to create (code 225)."""

    group_config_list: list[SubscriptionGroupConfig] = []


class GroupsToDelete(BodyStruct, frozen=True, kw_only=True):
    """Groups to delete (code 5003)."""

    clean_offset: bool = False
    group_name_list: list[str] = []


class OffsetTable(BodyStruct, frozen=True, kw_only=True):
    """Consumer offsets, by ``topic@group`` and queue (code 43; ``consumerOffset.json``)."""

    data_version: DataVersion = DataVersion()
    lmq_offset_table: Maybe[dict[str, Long]] = UNSET  # of groups of light queues, where a broker has those
    offset_table: dict[str, dict[Int, Long]] = {}


class MessageRequestMode(BodyStruct, frozen=True, kw_only=True):
    """Request mode of a group for a topic: PULL or POP (code 401)."""

    consumer_group: str = ""
    mode: RequestMode = "PULL"
    pop_share_queue_num: int = 0
    topic: str = ""


class MessageRequestModes(BodyStruct, frozen=True, kw_only=True):
    """Pull or pop, for all topics and groups (code 402)."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = field(default_factory=dict)


def parse_attribute_changes(text: str) -> dict[str, str]:
    """Parse ``+message.type=FIFO,-reserve.time``: values by signed keys, empty where a key is deleted.

    Raises DecodeError. Source: ``AttributeParser``.
    """
    changes: dict[str, str] = {}
    for change in filter(None, text.split(",")):
        key, has_value, value = change.partition("=")
        if has_value and ADD not in key:
            raise DecodeError(f"add/alter attribute format is wrong: {key}")
        if not has_value and DELETE not in key:
            raise DecodeError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise DecodeError(f"key duplication: {key}")
        changes[key] = value
    return changes


class BloomBits(BodyStruct, frozen=True, kw_only=True):
    """The bit positions of a group in a Bloom filter, and the filter's size."""

    bit_num: int = 0
    bit_pos: list[int] = []


class GroupFilter(BodyStruct, frozen=True, kw_only=True):
    """A group's filter expression for a topic. ``dead_time``, in ms, is 0 while the group is there."""

    bloom_filter_data: BloomBits = BloomBits()
    born_time: int = 0
    client_version: int = 0
    consumer_group: str = ""
    dead: bool = False
    dead_time: int = 0
    expression: str = ""
    expression_type: str = ""
    topic: str = ""


class TopicFilters(BodyStruct, frozen=True, kw_only=True):
    """The filters of a topic, by group."""

    group_filter_data: dict[str, GroupFilter] = {}
    topic: str = ""


class FilterTable(BodyStruct, frozen=True, kw_only=True):
    """All filters, by topic (``consumerFilter.json``)."""

    filter_data_by_topic: dict[str, TopicFilters] = {}


# Users and their policies, as administrators send them (codes 3001 to 3010) and as the broker's file has them.
# Source: ``UserInfo``, ``AclInfo``.


class UserInfo(BodyStruct, frozen=True, kw_only=True):
    """A user, or changes of a user. ``user_type``: Super or Normal; ``user_status``: enable or disable."""

    password: Maybe[str | None] = UNSET
    user_status: Maybe[str | None] = UNSET
    user_type: Maybe[str | None] = UNSET
    username: Maybe[str | None] = UNSET

    def __repr__(self) -> str:
        return f"<user {self.username!r} {self.user_type} {self.user_status}>"


class PolicyEntryInfo(BodyStruct, frozen=True, kw_only=True):
    """Policy entry: allowed or denied actions of a subject on a resource; an empty list of addresses means all."""

    actions: list[str] = []
    decision: str | None = None
    resource: str | None = None
    source_ips: Maybe[list[str] | None] = UNSET


class PolicyInfo(BodyStruct, frozen=True, kw_only=True):
    """Entries of one type; Default entries count if no Custom entry fits."""

    entries: list[PolicyEntryInfo] = []
    policy_type: Maybe[str | None] = UNSET


class AclInfo(BodyStruct, frozen=True, kw_only=True):
    """The policies of a subject, ``User:name``."""

    policies: list[PolicyInfo] = []
    subject: Maybe[str | None] = UNSET
