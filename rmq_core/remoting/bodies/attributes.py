"""Parses changes to the attributes of topics and groups, as people write them and requests carry them.

Source: ``AttributeParser``.
"""

from rmq_formats.errors import DecodeError

ADD = "+"
DELETE = "-"


def parse_attribute_changes(text: str) -> dict[str, str]:
    """Parse ``+message.type=FIFO,-reserve.time``: values by signed keys, empty where a key is deleted.

    Raises:
        DecodeError: an entry is not a change.
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
