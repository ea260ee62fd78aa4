"""Typed table of a topic, by Spark or without: columns of the message, comment and properties."""

from collections.abc import Iterable
from typing import Final

from rmq_formats.errors import OptionError
from rmq_lakehouse.spec import TypedTopic
from rmq_lakehouse.table_fit import TOPIC_PROPERTY

METADATA: Final = ("topic", "queue_id", "queue_offset", "physical_offset", "store_timestamp", "keys", "tags")


def table_comment(topic: TypedTopic) -> str:
    """Return the comment of a new table."""
    return topic.comment or f"bodies of topic {topic.topic}, decoded as {topic.format}"


def table_properties(topic: TypedTopic) -> tuple[tuple[str, str], ...]:
    """Return the properties by which later exports know the table."""
    return (TOPIC_PROPERTY, topic.topic), ("rmq.key", ",".join(topic.key) or "none")


def check_column_names(topic: TypedTopic, metadata: Iterable[str], body: Iterable[str]) -> None:
    """Refuse a column of the body whose name the table has already, in any case. Raises OptionError."""
    names = {name.lower() for name in metadata}
    for name in body:
        if name.lower() in names:
            raise OptionError(
                f"topic {topic.topic!r}: column {name!r} of the schema is a column of the message or comes twice; "
                "metadata_prefix names those of the message"
            )
        names.add(name.lower())
