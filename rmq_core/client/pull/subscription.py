"""Subscriptions: all messages of a topic, messages with some tags, or messages that match an SQL92 expression.

Source: ``FilterAPI#buildSubscriptionData``, ``PullAPIWrapper#processPullResult``.
"""

from typing import Final

from rmq_core.client.message import ReceivedMessage
from rmq_core.remoting.bodies import SubscriptionData
from rmq_core.remoting.clock import now_ms
from rmq_formats.codecs.hashing import java_string_hash
from rmq_formats.errors import OptionError

ALL: Final = "*"
_TAG, _SQL92 = "TAG", "SQL92"
_OR: Final = "||"


def subscription(
    topic: str, tags: str = ALL, *, sql: str | None = None, version: int | None = None
) -> SubscriptionData:
    """Build a subscription.

    Args:
        tags: ``*``, or tags with ``||`` between them.
        sql: an SQL92 expression over properties instead.
        version: brokers keep the highest: a time in ms since 1970; now if it is None.

    Raises:
        OptionError: tags and an expression, or tags without a tag.
    """
    version = now_ms() if version is None else version
    if sql is not None:
        if tags != ALL:
            raise OptionError(f"{topic}: tags or an SQL92 expression, not both")
        return SubscriptionData(topic=topic, sub_string=sql, expression_type=_SQL92, sub_version=version)
    expression = tags.strip() or ALL
    if expression == ALL:
        return SubscriptionData(topic=topic, sub_string=ALL, sub_version=version)
    tag_list = list(dict.fromkeys(tag.strip() for tag in expression.split(_OR) if tag.strip()))
    if not tag_list:
        raise OptionError(f"{topic}: no tag in {tags!r}")
    codes = list(dict.fromkeys(java_string_hash(tag) for tag in tag_list))
    return SubscriptionData(topic=topic, sub_string=tags, tags_set=tag_list, code_set=codes, sub_version=version)


def filter_messages(messages: list[ReceivedMessage], data: SubscriptionData) -> list[ReceivedMessage]:
    """Select the messages whose tags match exactly: brokers compare only hash codes of tags, which may collide."""
    if not data.tags_set:
        return messages
    tags = frozenset(data.tags_set)
    return [message for message in messages if message.tags in tags]
