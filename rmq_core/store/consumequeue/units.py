"""A ConsumeQueue unit with its place."""

from typing import NamedTuple


class StoredUnit(NamedTuple):
    """A ConsumeQueue unit and its queue offset."""

    queue_offset: int
    physical_offset: int
    size: int
    tags_code: int
