"""Bodies of lite topics: what clients subscribe to.

Source: ``LiteSubscriptionCtlRequestBody``, ``LiteSubscriptionDTO``, ``OffsetOption``.
"""

from msgspec import UNSET

from rmq_core.remoting.bodies.codec import BodyStruct, Maybe


class OffsetOption(BodyStruct, frozen=True, kw_only=True):
    """Where a client begins with a child.

    Attributes:
        type: ``POLICY`` (0 as before, 1 first, 2 next), ``OFFSET``, ``TAIL_N`` or ``TIMESTAMP``.
        value: of that type.
    """

    type: str
    value: int


class LiteSubscription(BodyStruct, frozen=True, kw_only=True):
    """A change of what a client subscribes to.

    Attributes:
        action: ``PARTIAL_ADD``, ``PARTIAL_REMOVE``, ``COMPLETE_ADD`` (these and no others) or ``COMPLETE_REMOVE``.
        client_id: of the client.
        group: that it is in.
        lite_topic_set: names of children.
        offset_option: where to begin; UNSET is as before.
        topic: that they are children of.
        version: of the client's list.
    """

    action: str
    client_id: str
    group: str
    lite_topic_set: list[str] = []  # noqa: RUF012 # made anew for each struct
    offset_option: Maybe[OffsetOption] = UNSET
    topic: str
    version: int = 0


class LiteSubscriptions(BodyStruct, frozen=True, kw_only=True):
    """Body of LITE_SUBSCRIPTION_CTL (200071)."""

    subscription_set: list[LiteSubscription] = []  # noqa: RUF012
