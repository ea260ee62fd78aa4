"""The options of a store's sizes and of its broker's settings, as commands and jobs have them."""

from dataclasses import dataclass
from typing import Final

_AS_IN_STORE: Final = "default: as the store's files have it"
CONFIG_HELP: Final = (
    "The broker's broker.conf (Java's properties, or TOML): sizes, messageDelayLevel, storePathCommitLog. "
    "A size option wins over it."
)


@dataclass(frozen=True, slots=True)
class SizeOption:
    """Option of a size, or of another setting that no file of a store has; ``--index-slots`` is ``index_slots``."""

    name: str
    kind: type
    metavar: str
    help: str


SIZE_OPTIONS: Final = (
    SizeOption("commitlog_file_bytes", int, "BYTES", f"mappedFileSizeCommitLog; {_AS_IN_STORE}."),
    SizeOption("consumequeue_file_bytes", int, "BYTES", f"mappedFileSizeConsumeQueue; {_AS_IN_STORE}."),
    SizeOption(
        "consumequeue_ext_file_bytes", int, "BYTES", f"mappedFileSizeConsumeQueueExt, 0 is none; {_AS_IN_STORE}."
    ),
    SizeOption("batchconsumequeue_file_bytes", int, "BYTES", f"mapperFileSizeBatchConsumeQueue; {_AS_IN_STORE}."),
    SizeOption("index_slots", int, "N", f"maxHashSlotNum; {_AS_IN_STORE}."),
    SizeOption("index_entries", int, "N", f"maxIndexNum; {_AS_IN_STORE}."),
    SizeOption("delay_levels", str, "LEVELS", "messageDelayLevel; default: as the store's queues have it."),
    SizeOption("index_tags", str, "auto|yes|no", "Whether TAGS are indexed, as since 5.4; auto asks the store."),
)
