"""Options that commands and jobs have alike, each declared once; ``rmq --help`` needs no other module for them."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_AS_IN_STORE: Final = "default: as the store's files have it, else RocketMQ's"
CONFIG_HELP: Final = (
    "The broker's broker.conf (Java's properties, or TOML): sizes, messageDelayLevel, storePathCommitLog. "
    "A size option wins over it."
)


def expand_home(path: Any) -> Any:
    """Replace a leading ``~`` by the user's home, as a shell does where it sees one: not within ``--out=~/x``."""
    if isinstance(path, str):
        return os.path.expanduser(path)  # noqa: PTH111 # of URIs, too, and a name of no user stays
    if isinstance(path, Path):
        return Path(os.path.expanduser(path))  # noqa: PTH111
    if isinstance(path, list | tuple):
        return type(path)(map(expand_home, path))
    return path


@dataclass(frozen=True, slots=True)
class Option:
    """Option of a command and of the job that does the same; ``--index-slots`` is ``index_slots``.

    Attributes:
        kind: type of the value; bool is a flag, and a list option may be given several times.
        metavar: name of the value in the help; None for flags.
        choices: allowed values, which a job checks as it parses; a command's work checks them.
        is_path: path or URI, which a job makes absolute, as executors run in other directories.
        job_help: text that a job adds to the help.
    """

    name: str
    kind: type
    metavar: str | None
    help: str
    default: str | None = None
    choices: tuple[str, ...] = ()
    is_path: bool = False
    job_help: str = ""

    @property
    def flag(self) -> str:
        """Option as users type it."""
        return f"--{self.name.replace('_', '-')}"


SIZE_OPTIONS: Final = (
    Option("commitlog_file_bytes", int, "BYTES", f"mappedFileSizeCommitLog; {_AS_IN_STORE}."),
    Option("consumequeue_file_bytes", int, "BYTES", f"mappedFileSizeConsumeQueue; {_AS_IN_STORE}."),
    Option("consumequeue_ext_file_bytes", int, "BYTES", f"mappedFileSizeConsumeQueueExt, 0 is none; {_AS_IN_STORE}."),
    Option("batchconsumequeue_file_bytes", int, "BYTES", f"mapperFileSizeBatchConsumeQueue; {_AS_IN_STORE}."),
    Option("index_slots", int, "N", f"maxHashSlotNum; {_AS_IN_STORE}."),
    Option("index_entries", int, "N", f"maxIndexNum; {_AS_IN_STORE}."),
    Option("delay_levels", str, "LEVELS", "messageDelayLevel; default: as the store's queues have it."),
    Option(
        "index_tags", str, "auto|yes|no", "Whether TAGS are indexed, as since 5.4; auto asks the store.",
        choices=("auto", "yes", "no"),
    ),
)  # fmt: skip

REPORT: Final = Option("report", str, "FILE", "Write the JSON report to this file too.")
RESUME: Final = Option("resume", bool, None, "Resume an interrupted run in the store, even another user's.")
START_ANEW: Final = Option(
    "start_anew", bool, None, "Rename the files of an interrupted run in the store, and begin again."
)
ACCEPT: Final = Option(
    "accept",
    list,
    "NAME",
    "Allow TOPIC, or TOPIC/QUEUE, to lose messages or to get a lower max offset; all allows every queue. Repeatable.",
)
REBUILD_OPTIONS: Final = (
    Option("out", str, "DIR", "Write to this directory or URI; of several stores, by broker.", is_path=True),
    Option(
        "what", str, "WHAT", "What to rebuild: all, consumequeue or index.",
        default="all", choices=("all", "consumequeue", "index"),
    ),
    Option("topics_json", str, "FILE", "List of live topics, for --only-live-topics; default: config/topics.json."),
    Option("only_live_topics", bool, None, "Leave out topics that topics.json lacks: the deleted ones."),
    Option("from_log_alone", bool, None, "Make queues from the log alone, and ignore the store's queues."),
    RESUME,
    START_ANEW,
    Option("plan", bool, None, "Print the changes for consumers; write nothing."),
    ACCEPT,
    Option("work", str, "DIR", "With --plan: directory or URI for its files; default: a temporary one.", is_path=True),
)  # fmt: skip
VERIFY_OPTIONS: Final = (
    Option("findings", str, "PATH", "Write the findings to this path, as a table."),
    Option(
        "findings_format", str, "FORMAT", "json (lines) or parquet.",
        default="json", choices=("json", "parquet", "delta"), job_help=" With Spark also delta.",
    ),
    Option("html", str, "FILE", "Write an HTML page to this file."),
    Option("tier", str, "DIR", "The broker's tieredStoreFilePath, a path or URI: verify its files too.", is_path=True),
    Option(
        "work", str, "DIR",
        "For intermediate files; default: the temporary directory.",
        is_path=True, job_help=" All executors must see it.",
    ),
)  # fmt: skip
