"""Every kind of finding that a verification or a rebuild can make. Codes are stable: programs may compare them.

``docs/verify.md`` has the same list as a table; a test keeps both equal.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from rmq_formats.codecs.record_frame import Damage, DamageCode
from rmq_offline.verify import layout_finding_kinds
from rmq_offline.verify.findings import Finding, Kind, Severity

_ERROR, _WARNING, _INFO = Severity.ERROR, Severity.WARNING, Severity.INFO
_RESTORE = "restore the stretch from a replica, or quarantine it with rmq repair; what follows it is sound"
_REBUILD_QUEUE = "stop the broker and run rmq rebuild --what consumequeue"
_RENEW_DATABASE = (
    "stop the broker, move the directory of the RocksDB away, and make an empty file abort in the store: the broker "
    "then makes all of it anew"
)
_REBUILD_INDEX = "stop the broker and run rmq rebuild --what index"
_MOVE_AWAY = "move it out of the store"

# --- CommitLog: stretches and records ---------------------------------------------------
_DAMAGE_NAMES: Final = {DamageCode.PHYSICAL_OFFSET: "stale", DamageCode.PROPERTIES_CRC: "record_crc"}
_STALE = (
    "bytes of another place, as a recycled or misplaced file has them; RocketMQ would take them for new "
    "messages: quarantine them with rmq repair, and restore what should stand here from a replica"
)
DAMAGE: Final = {
    code: Kind(
        f"commitlog.{_DAMAGE_NAMES.get(code, code.name.lower())}",
        _ERROR,
        _STALE if code is DamageCode.PHYSICAL_OFFSET else _RESTORE,
    )
    for code in DamageCode
}
LOG_TAIL: Final = Kind(
    "commitlog.tail",
    _WARNING,
    "bytes after the last record, as a torn write leaves them: a broker truncates there when it starts; "
    "if messages were acknowledged beyond this point, restore them from a replica",
)
LOG_LEFTOVER: Final = Kind(
    "commitlog.leftover",
    _INFO,
    "records of an earlier life of the log behind its end, as a recovery leaves them: a broker ends its log before "
    "them and overwrites them, and no consumer gets them",
)
LOG_AFTER_BLANK: Final = Kind(
    "commitlog.after_blank",
    _WARNING,
    "bytes after the file's end mark, which nothing reads: left by a truncation, or overwritten by something else",
)
LOG_NO_BLANK: Final = Kind(
    "commitlog.blank",
    _ERROR,
    "the file ends without its end mark, so that a broker stops reading here and never reaches the next file: "
    "restore the file from a replica, or run rmq repair",
)
LOG_TOPIC: Final = Kind(
    "commitlog.topic",
    _ERROR,
    "the record's topic is no directory name, so it gets no unit in a queue; restore it from a replica",
)
LOG_PROPERTIES: Final = Kind(
    "commitlog.properties",
    _ERROR,
    "the properties do not parse, and no checksum covers them: tags, keys and user properties of this message are "
    "not to be trusted; restore the record from a replica",
)
LOG_HEADER: Final = Kind(
    "commitlog.header",
    _WARNING,
    "a header field that no checksum covers has a value that no broker writes; the body is sound",
    is_repaired=False,
)
LOG_TIME: Final = Kind(
    "commitlog.store_timestamp",
    _WARNING,
    "the record's store timestamp does not fit those around it, as of a damaged header; queries by time may miss it",
    is_repaired=False,
)
LOG_CLOCK: Final = Kind(
    "commitlog.clock",
    _WARNING,
    "the broker's clock went back by a second or more; queries by time may miss messages from here on",
    is_repaired=False,
)
LOG_CLOCK_STEP: Final = Kind(
    "commitlog.clock_step",
    _INFO,
    "the broker's clock was set back by less than a second, or a DLedger broker stored messages in another order than "
    "it stamped them",
)
QUEUE_OFFSET_REPEATED: Final = Kind(
    "commitlog.queue_offset.repeated",
    _WARNING,
    "the record's queue offset was given before, as after a crash: a broker that dispatches the log skips the record, "
    "and no consumer gets it",
    is_repaired=False,
)
QUEUE_OFFSET_DISPLACED: Final = Kind(
    "commitlog.queue_offset.displaced",
    _WARNING,
    "the record's queue offset is far from its queue's others, as of a damaged header, which no checksum covers",
    is_repaired=False,
)
QUEUE_OFFSET_GAP: Final = Kind(
    "commitlog.queue_offset.gap",
    _WARNING,
    'no record has these queue offsets: a broker closes the gap and logs "[BUG]logic queue order maybe wrong", or a '
    "damaged stretch of the log had them; their messages are in no file",
    is_repaired=False,
)

# --- CommitLog: files -------------------------------------------------------------------
SEGMENT_MISSING: Final = Kind(
    "commitlog.segment.missing",
    _ERROR,
    "a file between two others is gone; restore it from a replica, or give -c broker.conf if storePathCommitLog has "
    "several directories",
)
SEGMENT_SIZE: Final = Kind(
    "commitlog.segment.size",
    _ERROR,
    "a broker does not start with a file of another size than mappedFileSizeCommitLog; restore or quarantine it",
)
SEGMENT_OVERLAP: Final = Kind(
    "commitlog.segment.overlap", _ERROR, "the file begins inside of the one before it; one of the two is foreign"
)
SEGMENT_EMPTY: Final = Kind(
    "commitlog.segment.empty",
    _WARNING,
    "the last file has no bytes; a broker deletes it when it starts, and nothing is lost unless queues name more",
)
SEGMENT_HOLE: Final = Kind(
    "commitlog.segment.hole", _ERROR, "a file without a record between others; restore it from a replica"
)
SEGMENT_UNREADABLE: Final = Kind(
    "commitlog.segment.unreadable",
    _ERROR,
    "the file cannot be read; check the disk and the permissions",
    is_repaired=False,
)
SEGMENT_COMPRESSED: Final = Kind(
    "commitlog.segment.compressed",
    _ERROR,
    "a segment that was compressed in place, with which a broker does not start: its bytes may be the log's; "
    "decompress it (gunzip FILE) before anything else, or move it out of the store to do without it",
    is_repaired=False,
)
LOG_MISSING: Final = Kind(
    "commitlog.missing",
    _ERROR,
    "there is no CommitLog here, with which queues and Index could be compared: storePathCommitLog may be elsewhere; "
    "link or copy that directory to STORE/commitlog",
    is_repaired=False,
)
SEGMENT_FOREIGN: Final = Kind(
    "commitlog.foreign",
    _ERROR,
    "a broker does not start with a file here that is no segment; move it out of the store",
)
BACKSLASH: Final = Kind(
    "store.backslash",
    _WARNING,
    "a broker passes over it: a path of Windows in one name, as some archives have; unpack them again, or rename",
    is_repaired=False,
)
STRAY: Final = Kind("store.stray", _WARNING, f"the original passes over it; {_MOVE_AWAY}")

# --- ConsumeQueue -----------------------------------------------------------------------
QUEUE_MISSING: Final = Kind("consumequeue.missing", _ERROR, f"consumers see no message here; {_REBUILD_QUEUE}")
QUEUE_FILE_MISSING: Final = Kind("consumequeue.file.missing", _ERROR, _REBUILD_QUEUE)
QUEUE_FILE_SIZE: Final = Kind(
    "consumequeue.file.size",
    _ERROR,
    f"a broker does not start with a file of another size than mappedFileSizeConsumeQueue; {_REBUILD_QUEUE}",
)
QUEUE_FILE_NAME: Final = Kind(
    "consumequeue.file.name",
    _ERROR,
    f"no file of the queue can begin at this offset, so it was not looked at; {_REBUILD_QUEUE}",
)
QUEUE_UNREADABLE: Final = Kind(
    "consumequeue.unreadable", _ERROR, "it cannot be read; check the disk and the permissions, then rmq rebuild"
)
QUEUE_FOREIGN: Final = Kind(
    "consumequeue.foreign", _ERROR, f"a broker does not start with a file here that is no segment; {_MOVE_AWAY}"
)
QUEUE_EXPIRED: Final = Kind(
    "consumequeue.expired", _INFO, "all its messages are gone from the log; a broker deletes the file in time"
)
QUEUE_MINIMUM: Final = Kind(
    "consumequeue.minimum",
    _ERROR,
    f"the queue begins after its first message in the log; consumers cannot reach those before; {_REBUILD_QUEUE}",
)
QUEUE_BEGINS_LATE: Final = Kind(
    "consumequeue.begins_late",
    _WARNING,
    "the queue begins with its first message in one of the log's files: a broker that was killed dispatched the log "
    "from that file on. Where the topic was not deleted before, rmq rebuild STORE brings the messages back",
    is_repaired=False,
)
QUEUE_FORMER: Final = Kind(
    "consumequeue.former",
    _INFO,
    "messages of a former life: their topic was deleted and made again; the log keeps them until they expire, and no "
    "consumer gets them",
)
QUEUE_PASSED_OVER: Final = Kind(
    "consumequeue.passed_over",
    _WARNING,
    "a broker never put the message into its queue, as after a crash that lost the queue's last units, and never will: "
    "no consumer gets it; replay it if it is wanted",
    is_repaired=False,
)
QUEUE_ABSENT: Final = Kind(
    "consumequeue.absent",
    _WARNING,
    "messages of the log in a queue without files, of which no consumer offset tells: the topic was deleted and made "
    "again, or its directory is lost; in the second case stop the broker and run rmq rebuild --from-log-alone",
    is_repaired=False,
)
FORMER_DELAY: Final = Kind(
    "consumequeue.former_delay",
    _INFO,
    "the delay of this level was another one when these messages were stored; they are delivered by it",
)
FORMER_TAGS: Final = Kind(
    "consumequeue.former_tags",
    _INFO,
    "a broker with another hash of tags dispatched these messages; repairs and rebuilds leave the codes as they are. "
    "If consumers that filter by tag miss them: rmq rebuild STORE --from-log-alone",
)
UNIT_MISSING: Final = Kind(
    "consumequeue.unit.missing",
    _ERROR,
    "messages of the log that the queue does not name; a broker that was killed adds those at the queue's end when "
    f"it starts, and nothing adds the others: {_REBUILD_QUEUE}",
)
UNIT_NOT_ADDED: Final = Kind(
    "consumequeue.unit.not_added",
    _WARNING,
    "messages after the queue's last unit that no broker adds, since another queue names a later one: consumers do not "
    f"get them, and the next messages get their queue offsets; {_REBUILD_QUEUE}",
    is_repaired=False,
)
UNIT_ZERO: Final = Kind(
    "consumequeue.unit.zero",
    _ERROR,
    f"a broker takes it for the end of the queue, and drops what follows; {_REBUILD_QUEUE}",
)
UNIT_DANGLING: Final = Kind(
    "consumequeue.unit.dangling", _ERROR, f"no message of this queue is there; {_REBUILD_QUEUE}"
)
UNIT_DUPLICATE: Final = Kind("consumequeue.unit.duplicate", _ERROR, f"consumers get a message twice; {_REBUILD_QUEUE}")
UNIT_DISPLACED: Final = Kind(
    "consumequeue.unit.displaced", _ERROR, f"the message has another queue offset than this place; {_REBUILD_QUEUE}"
)
UNIT_SIZE: Final = Kind("consumequeue.unit.size", _ERROR, f"consumers get a torn message; {_REBUILD_QUEUE}")
UNIT_TAGS_CODE: Final = Kind(
    "consumequeue.unit.tags_code",
    _ERROR,
    f"consumers that filter by tag miss the message, or a delayed one comes at the wrong time; {_REBUILD_QUEUE}",
)
UNIT_LOST: Final = Kind(
    "consumequeue.unit.lost",
    _ERROR,
    "the message stands in a damaged stretch of the log: this is what was lost; restore it from a replica",
)
UNIT_BEYOND: Final = Kind(
    "consumequeue.unit.beyond",
    _ERROR,
    "the queue names messages beyond the end of the log, as after a crash that lost the log's last pages: a broker "
    "drops them when it starts; if files of the log are elsewhere, bring them back, or give -c broker.conf",
)
UNIT_CUT: Final = Kind(
    "consumequeue.unit.cut",
    _INFO,
    "the units after the end of the log are left from an earlier recovery, which cuts a queue in memory only: a broker "
    "ends the queue before them and overwrites them, and no consumer gets them",
)
UNIT_BEHIND_END: Final = Kind("consumequeue.unit.behind_end", _ERROR, f"bytes after the last unit; {_REBUILD_QUEUE}")
PRE_BLANK: Final = Kind(
    "consumequeue.pre_blank",
    _WARNING,
    f"the filler before the queue's first unit is not as it should be; {_REBUILD_QUEUE}",
)
BATCH_UNIT: Final = Kind(
    "batchconsumequeue.unit", _ERROR, f"consumers get other messages, or a search by time misses it; {_REBUILD_QUEUE}"
)
QUEUE_OF_OTHER_KIND: Final = Kind(
    "consumequeue.kind",
    _ERROR,
    f"RocketMQ refuses a store where a topic has batch queues and plain ones; {_REBUILD_QUEUE}",
)
UNIT_TIME: Final = Kind(
    "consumequeue.unit.store_timestamp", _ERROR, f"a search by time finds another message; {_RENEW_DATABASE}"
)
UNIT_UNDISPATCHED: Final = Kind(
    "consumequeue.unit.undispatched",
    _INFO,
    "messages that were not in RocksDB yet when it was last flushed, as after a kill: a broker puts them there when it "
    "starts",
)
QUEUE_END: Final = Kind(
    "consumequeue.end", _ERROR, f"the broker takes the queue for longer or shorter than it is; {_RENEW_DATABASE}"
)
QUEUE_DATABASE: Final = Kind(
    "consumequeue.database", _ERROR, f"a broker does not start with a RocksDB that it cannot read; {_RENEW_DATABASE}"
)
TOPIC_UNKNOWN: Final = Kind(
    "consumequeue.topic.unknown",
    _WARNING,
    "config/topics.json does not know the topic: it was deleted, and a rebuild brought it back, or the config was "
    "lost; create the topic, or delete its directory",
    is_repaired=False,
)
TOPIC_DELETED: Final = Kind(
    "consumequeue.topic.deleted",
    _INFO,
    "messages of a topic that config/topics.json does not know and that no queue has: it was deleted",
)
OWN_TOPIC_MISSING: Final = Kind(
    "consumequeue.topic.own",
    _WARNING,
    "a topic that the broker makes for itself has messages and no queue, and is never deleted: rmq rebuild STORE",
)
NOT_CHECKED: Final = Kind("consumequeue.not_checked", _INFO, "queues of this kind are not verified")
CONFIG_NOT_CHECKED: Final = Kind("config.not_checked", _INFO, "config of this kind is not verified")
OTHER_NOT_CHECKED: Final = Kind("store.not_checked", _INFO, "files of this kind are not verified")
PASSED_OVER: Final = (NOT_CHECKED, CONFIG_NOT_CHECKED, OTHER_NOT_CHECKED)
EXT_ADDRESS: Final = Kind(
    "consumequeue_ext.address",
    _ERROR,
    f"the unit's tags code is no address of a ConsumeQueueExt unit; {_REBUILD_QUEUE}",
)
EXT_UNIT: Final = Kind(
    "consumequeue_ext.unit", _ERROR, f"the ConsumeQueueExt unit is not that of its message; {_REBUILD_QUEUE}"
)
EXT_REUSED: Final = Kind(
    "consumequeue_ext.reused",
    _WARNING,
    "a broker that was killed gave the ConsumeQueueExt unit to a later message, too: filters may miss this one; "
    f"{_REBUILD_QUEUE}",
    is_repaired=False,
)
EXT_FORMAT: Final = Kind("consumequeue_ext.format", _ERROR, f"no ConsumeQueueExt unit is here; {_REBUILD_QUEUE}")
EXT_SURPLUS: Final = Kind(
    "consumequeue_ext.surplus",
    _INFO,
    "no unit of the queue names it, as where a broker that was killed dispatches messages again; it does no harm",
)
EXT_FILE_SIZE: Final = Kind(
    "consumequeue_ext.file.size",
    _ERROR,
    f"a broker does not start with a file of another size than mappedFileSizeConsumeQueueExt; {_REBUILD_QUEUE}",
)
EXT_UNREADABLE: Final = Kind("consumequeue_ext.unreadable", _ERROR, QUEUE_UNREADABLE.remedy)
EXT_FOREIGN: Final = Kind("consumequeue_ext.foreign", _ERROR, QUEUE_FOREIGN.remedy)

# --- IndexFile --------------------------------------------------------------------------
INDEX_MISSING: Final = Kind(
    "index.missing", _WARNING, f"no IndexFile, as where messageIndexEnable is off; otherwise {_REBUILD_INDEX}"
)
INDEX_BEGINS_LATE: Final = Kind(
    "index.begins_late",
    _WARNING,
    "messages older than the first IndexFile cannot be found by key: the Index was turned on later, or a file was "
    f"deleted by hand; {_REBUILD_INDEX}",
)
INDEX_ENTRY_MISSING: Final = Kind("index.entry.missing", _WARNING, f"messages that no key leads to; {_REBUILD_INDEX}")
INDEX_ENTRY_WRONG: Final = Kind("index.entry.wrong", _WARNING, f"a key leads to the wrong message; {_REBUILD_INDEX}")
INDEX_ENTRY_SURPLUS: Final = Kind("index.entry.surplus", _WARNING, f"no key of the log matches it; {_REBUILD_INDEX}")
INDEX_ENTRY_REPEATED: Final = Kind(
    "index.entry.repeated", _INFO, "keys indexed twice, as RocketMQ does with the last message when it recovers"
)
INDEX_ENTRY_LOST: Final = Kind(
    "index.entry.lost", _INFO, "the entry names a message in a damaged stretch of the log, see there"
)
INDEX_ENTRY_BEYOND: Final = Kind(
    "index.entry.beyond", _WARNING, f"the entry names a message beyond the end of the log; {_REBUILD_INDEX}"
)
INDEX_BEHIND: Final = Kind("index.behind", _WARNING, f"bytes after the last entry; {_REBUILD_INDEX}")
INDEX_CHAIN: Final = Kind("index.chain", _WARNING, f"queries by key miss messages; {_REBUILD_INDEX}")
INDEX_CYCLE: Final = Kind(
    "index.cycle", _ERROR, f"the chain leads forward or round: a query of RocketMQ may never end; {_REBUILD_INDEX}"
)
INDEX_SLOT: Final = Kind("index.slot", _WARNING, f"queries by key miss messages; {_REBUILD_INDEX}")
INDEX_HEADER: Final = Kind("index.header", _WARNING, f"queries by key may pass over the file; {_REBUILD_INDEX}")
INDEX_FILE_SIZE: Final = Kind(
    "index.file.size", _WARNING, f"not the size that its slots and entries take; {_REBUILD_INDEX}"
)
INDEX_FILE_SHORT: Final = Kind("index.file.short", _WARNING, f"not full, though it is not the last; {_REBUILD_INDEX}")
INDEX_FILE_SURPLUS: Final = Kind("index.file.surplus", _WARNING, f"more files than keys explain; {_REBUILD_INDEX}")
INDEX_UNREADABLE: Final = Kind(
    "index.unreadable", _WARNING, f"it cannot be read; check the disk and the permissions, then {_REBUILD_INDEX}"
)

# --- the small files --------------------------------------------------------------------
LAYOUT: Final = Kind("store.layout", _INFO, "give the option to have it checked against the broker's own setting")
ABORT: Final = Kind("store.abort", _INFO, "a broker runs on this store, or was killed; it recovers when it starts")
CHECKPOINT_MISSING: Final = Kind(
    "checkpoint.missing", _INFO, "a broker that starts without it reads the log from its first file"
)
CHECKPOINT_UNREADABLE: Final = Kind(
    "checkpoint.unreadable", _WARNING, "stop the broker and delete it: a broker then reads the log from its first file"
)
CHECKPOINT_LATER: Final = Kind(
    "checkpoint.later",
    _WARNING,
    "it says that more is on disk than the log holds, so that recovery may begin too late; delete it while the "
    "broker is stopped",
)
CHECKPOINT_EARLIER: Final = Kind(
    "checkpoint.earlier",
    _INFO,
    "a broker that starts after a kill deletes these IndexFiles, and makes their entries again only from where its "
    "recovery begins; then run rmq rebuild with --what index, or rmq repair",
)
CHECKPOINT_TRAILING: Final = Kind("checkpoint.trailing", _WARNING, "bytes after its five numbers, which nothing reads")
CONFIG_UNPARSABLE: Final = Kind(
    "config.unparsable", _WARNING, "the broker takes the .bak beside it, which parses; copy that over it"
)
CONFIG_LOST: Final = Kind(
    "config.lost",
    _ERROR,
    "neither it nor its .bak parses: the broker starts with empty settings; restore it",
    is_repaired=False,
)
CONFIG_TOPICS: Final = Kind(
    "config.topics",
    _WARNING,
    "a broker that starts with this store knows none of its topics, so that no client finds them; restore "
    "topics.json, or make the topics again with mqadmin updateTopic",
    is_repaired=False,
)
CONFIG_DATABASE: Final = Kind(
    "config.database",
    _ERROR,
    "the broker does not open this RocksDB, or opens it without what is damaged, such as consumer offsets; restore its "
    "directory",
    is_repaired=False,
)
CONSUMER_OFFSET: Final = Kind(
    "config.consumer_offset",
    _WARNING,
    "the group has consumed more than the queue holds, as after a loss; its next messages are passed over until the "
    "queue grows past that: reset it with mqadmin resetOffsetByTime",
    is_repaired=False,
)
DELAY_OFFSET: Final = Kind(
    "config.delay_offset",
    _WARNING,
    "more of this delay level was delivered than its queue holds; delayed messages are passed over until it grows",
    is_repaired=False,
)
OFFSET_BELOW: Final = Kind(
    "config.offset.below",
    _INFO,
    "messages that the group has not read have expired; it goes on at the queue's least offset",
)
OFFSET_NEGATIVE: Final = Kind(
    "config.offset.negative",
    _WARNING,
    "no queue has such an offset; the group is taken for one without an offset: set it with rmq offsets",
    is_repaired=False,
)
OFFSET_WITHOUT_QUEUE: Final = Kind(
    "config.offset.no_queue",
    _WARNING,
    "the queue is gone, and begins anew at 0: the group gets none of its next messages until it has as many; restore "
    "the queue, or rmq offsets STORE clamp",
    is_repaired=False,
)
OFFSET_OF_DELETED: Final = Kind(
    "config.offset.deleted", _INFO, "offsets of a topic that was deleted; a topic of that name begins at 0"
)
# Those that are about committed offsets alone, which ``rmq offsets`` changes and no repair does.
OF_OFFSETS: Final = frozenset({CONSUMER_OFFSET, DELAY_OFFSET, OFFSET_NEGATIVE, OFFSET_WITHOUT_QUEUE})

ALL: Final[tuple[Kind, ...]] = (
    *DAMAGE.values(),
    *(value for value in list(globals().values()) if isinstance(value, Kind)),
    *layout_finding_kinds.ALL,
)

_BY_CODE: Final = {kind.code: kind for kind in ALL}


def restore_finding(fields: Mapping[str, Any]) -> Finding:
    """Restore a finding from ``Finding.to_dict``."""
    code, severity, remedy = fields["code"], fields["severity"], fields["remedy"]
    kind = _BY_CODE.get(code) or Kind(code, Severity(severity), remedy)  # of another version
    if kind.remedy != remedy:
        kind = replace(kind, remedy=remedy)
    return Finding(
        kind, **{name: value for name, value in fields.items() if name not in {"code", "severity", "remedy"}}
    )


def with_rocksdb_remedy(kind: Kind) -> Kind:
    """Return the kind of a fault of a ConsumeQueue that is in RocksDB: with the remedy that is one there."""
    return replace(kind, remedy=kind.remedy.replace(_REBUILD_QUEUE, _RENEW_DATABASE))


# Reported by a rebuild and by ``inspect`` in place of the kinds in DAMAGE, which only a verification distinguishes.
LOG_DAMAGED: Final = Kind(
    "commitlog.damaged",
    _ERROR,
    "the stretch cannot be read; restore it from a replica, or quarantine it with rmq repair",
)


def make_damage_finding(damage: Damage, path: str | None = None) -> Finding:
    """Return a rebuild's finding for a damaged range of the CommitLog."""
    return Finding(LOG_DAMAGED, damage.code.text, path, damage.physical_offset, damage.size)
