"""Units of a ConsumeQueue for administrators (code 321)."""

# ruff: noqa: RUF012 # an empty list as a default is made anew for each struct

from msgspec import UNSET

from rmq_core.remoting.bodies.clients import SubscriptionData
from rmq_core.remoting.bodies.codec import BodyStruct, Maybe


class QueueUnit(BodyStruct, frozen=True, kw_only=True):
    """A ConsumeQueue unit (``ConsumeQueueData``).

    Attributes:
        eval: whether a group's filter may let its message through, by its ConsumeQueueExt unit.
        extend_data_json: that unit.
        msg: what is wrong with it.
        physic_offset: of the record.
        physic_size: of the record, B.
        tags_code: of the message.
    """

    eval: bool = False
    extend_data_json: Maybe[str] = UNSET
    msg: Maybe[str] = UNSET
    physic_offset: int
    physic_size: int
    tags_code: int


class QueueUnits(BodyStruct, frozen=True, kw_only=True):
    """Units of a queue, and its bounds (code 321); with a group, its subscription and its filter as text."""

    filter_data: Maybe[str] = UNSET
    max_queue_index: int
    min_queue_index: int
    queue_data: list[QueueUnit] = []
    subscription_data: Maybe[SubscriptionData] = UNSET


class QueueExtData(BodyStruct, frozen=True, kw_only=True):
    """A ConsumeQueueExt unit in the answer of 321."""

    bit_map_size: int
    filter_bit_map: str
    msg_store_time: int
    size: int
    tags_code: int
