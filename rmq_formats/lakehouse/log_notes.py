"""What a commit says of the logs that it was exported from: that of one store as it is, those of brokers by broker."""

import json
from collections.abc import Sequence
from typing import Final, Protocol

_BROKERS: Final = "brokers"


class Noted(Protocol):
    """Part of a commit that has rows of one log."""

    @property
    def broker(self) -> str | None:
        """Identifier of the broker; None where the table has one store."""
        ...

    @property
    def metadata(self) -> str | None:
        """What the commit says of the log."""
        ...


def note_of(parts: Sequence[Noted]) -> str | None:
    """Join what a commit says of the logs."""
    if parts[0].broker is None:
        return parts[0].metadata
    return json.dumps({_BROKERS: {part.broker: part.metadata for part in parts}})


def own_note(metadata: str | None, broker: str | None) -> str | None:
    """Return what a commit says of the log of one broker; see ``note_of``."""
    if broker is None or metadata is None:
        return metadata
    try:
        found = json.loads(metadata)[_BROKERS][broker]
    except (ValueError, TypeError, KeyError):  # another program's metadata
        return None
    return found if isinstance(found, str) else None
