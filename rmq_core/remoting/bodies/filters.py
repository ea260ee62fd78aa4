"""Filter data of consumer groups, as in ``consumerFilter.json``. Source: ``ConsumerFilterData``."""

# ruff: noqa: RUF012 # an empty list or dictionary as a default is made anew for each struct

from rmq_core.remoting.bodies.codec import BodyStruct


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
    """All filters, by topic."""

    filter_data_by_topic: dict[str, TopicFilters] = {}
