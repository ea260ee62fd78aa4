"""Columns of the tables that dispatch shares with its kernel; importing them does not import numba."""

from typing import Final

# Instead of a unit's store time (ms): it is in a light queue (LMQ), and has none in ConsumeQueueExt.
LIGHT_UNIT: Final = -(1 << 63)

# Columns of a target table, int64[queues, TARGET_COLUMNS]: where the next unit of each queue goes.
TARGET_NEXT: Final = 0  # its queue offset
TARGET_ADDRESS: Final = 1  # its place in memory
TARGET_ROOM: Final = 2  # units that may be written from there on
TARGET_DIRTY: Final = 3  # 1: something was written
TARGET_BOUND: Final = 4  # whether TARGET_NEXT is valid: what a unit before it means
BOUND_TO_ONE_TOPIC: Final = 1  # it is there already
BOUND_TO_A_SLAVES: Final = 2  # likewise, or the master has made its topic anew
TARGET_RECORD_END: Final = 5  # one past the record of the last unit; records before that have theirs
TARGET_COLUMNS: Final = 6

# Arguments and results of a run of dispatch, int64[RUN_NUMBERS].
RUN_POSITION: Final = 0  # in and out: where in the log file
RUN_DATA_BYTES: Final = 1  # in: bytes of the file that are to be looked at
RUN_FILE_OFFSET: Final = 2  # in
RUN_FILE_BYTES: Final = 3  # in
RUN_INDEX_SLOTS: Final = 4  # in
RUN_INDEX_LIMIT: Final = 5  # in: number of the first entry that has no room yet; -1: keys are not appended here
RUN_INDEX_ENTRIES: Final = 6  # in: number of the first entry that the file cannot have
RUN_WALK_STATUS: Final = 7  # out: see walk_frames
RUN_UNITS: Final = 8  # out: units found
RUN_KEYS: Final = 9  # out: keys found
RUN_PLACED: Final = 10  # out: units done with
RUN_WRITTEN: Final = 11  # out: units written
RUN_INDEXED: Final = 12  # out: 1 if the keys are in
RUN_TIMESTAMP: Final = 13  # out: store timestamp of the last unit's message
RUN_LAST_OFFSET: Final = 14  # out: physical offset of the last record; -1 if there was none
RUN_TAGS_FROM: Final = 15  # in: physical offset of the first record whose TAGS are a key
RUN_LIGHT: Final = 16  # in: 1: records give units to light queues (LMQ), too
RUN_FRAMES: Final = 17  # out: records, and damage, that the walk found
RUN_NUMBERS: Final = 18
