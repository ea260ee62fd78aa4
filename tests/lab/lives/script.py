"""Writes the script of one store's life by chance, for ``tests/interop/peer/Lives.java``."""

import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

FAULT: Final = "Fault"  # the topic that is damaged; every other queue has to stay as it is
BATCH: Final = "Batched"
HALF: Final = "RMQ_SYS_TRANS_HALF_TOPIC"
OP: Final = "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DELAYED: Final = "SCHEDULE_TOPIC_XXXX"
FIRST_MS: Final = 1_795_000_000_000
_DAY_MS: Final = 86_400_000
_DELAY_LEVELS: Final = ("1s 5s 10s 30s", "2s 7s 1m", "1s 5s 10s 30s 1m 2m")
_TOPICS: Final = ("Orders", "Clicks", "Idle", "a|b", "%RETRY%group")


@dataclass(slots=True)
class Life:
    """Script of one store's life.

    Attributes:
        root: of the store, when the script has been played.
        before: a copy of the store before the last start and stop, which should have changed nothing.
        lines: the script.
        settings: the broker's settings, in Java's names.
        topics: queue count of each topic that was not deleted.
        queues: topic and id of each queue that has got messages since it was last deleted.
        deleted: topics that were.
    """

    root: Path
    before: Path
    lines: list[str] = field(default_factory=list)
    settings: dict[str, str] = field(default_factory=dict)
    topics: dict[str, int] = field(default_factory=dict)
    queues: set[tuple[str, int]] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)

    @property
    def end_file(self) -> Path:
        """The file that has the physical offset at which the log ends, when the script has been played."""
        return self.before.with_suffix(".end")

    @property
    def has_rocksdb(self) -> bool:
        """Whether the queues are in RocksDB."""
        return "storeType" in self.settings

    @property
    def jumps(self) -> bool:
        """Whether the script sets the clock."""
        return "duplicationEnable" in self.settings

    @property
    def may_be_killed(self) -> bool:
        """Whether the script may kill the process.

        With duplicationEnable a kill brings a deleted topic back with the messages before the checkpoint's
        confirmPhyOffset, and never with those behind it: Java itself has lost them.
        """
        return not self.has_rocksdb and not (self.jumps and self.deleted)

    def step(self, *words: object) -> None:
        """Add a command."""
        self.lines.append("\t".join(map(str, words)))

    def open(self) -> None:
        """Start the broker's store with the settings of now."""
        self.step("open", self.root, *(f"{key}={value}" for key, value in self.settings.items()))

    def put(self, topic: str, queue_id: int, count: int, body_bytes: int, **properties: str) -> None:
        """Send messages to a queue."""
        self.topics[topic] = max(self.topics.get(topic, 0), queue_id + 1)
        self.queues.add((topic, queue_id))
        self.step("put", topic, queue_id, count, body_bytes, *(f"{name}={value}" for name, value in properties.items()))

    def delete(self, topic: str) -> None:
        """Delete a topic."""
        self.step("delete", topic)
        self.topics.pop(topic, None)
        self.queues = {queue for queue in self.queues if queue[0] != topic}
        self.deleted.add(topic)


def write_life(dice: random.Random, work: Path, name: str) -> Life:
    """Write a life: sessions of a broker, between which files expire, settings change, or the process is killed.

    Args:
        dice: source of all chance.
        work: directory of the store.
        name: of the store.
    """
    life = Life(work / name, work / f"{name}.before")
    life.settings = _settings(dice)
    killed = 0
    life.open()
    if life.jumps:
        life.step("clock", FIRST_MS)
    life.put(FAULT, 0, 5, 80, TAGS="fault", KEYS="fault#")
    for _ in range(dice.randint(2, 5)):
        for _ in range(dice.randint(2, 6)):
            _send(dice, life)
        life.put(FAULT, 0, dice.randint(5, 20), 80, TAGS="fault", KEYS="fault#")
        if dice.random() < 0.25 and life.may_be_killed:
            killed += 1
            picture = life.root.with_name(f"{name}.killed{killed}")
            # With duplicationEnable, which sets the clock, a start dispatches the log up to the checkpoint's
            # confirmPhyOffset, then from the furthest queue's end on: what was behind stays in no queue of Java's
            # (CommitLog#recoverAbnormally).
            if life.jumps or dice.random() < 0.5:
                life.step("kill", picture)
            else:
                life.step("lag", picture)
                for _ in range(dice.randint(1, 3)):
                    _send(dice, life, deletes=False)
                life.step("killbehind", picture)
            life.root = picture
            if not life.jumps and dice.random() < 0.5:
                life.step("tear", picture, dice.randint(1, 20), dice.choice(["zeros", "flip"]))
        else:
            life.step("close")
            if dice.random() < 0.3:
                life.step("expire", dice.randint(1, 3))
        _change_settings(dice, life)
        life.open()
        if dice.random() < 0.3:
            life.step("clean")
    life.put(FAULT, 0, 10, 80, KEYS="fault#")
    life.step("close")
    life.open()  # whatever a start still changes, it has changed now
    life.step("close")
    life.step("copy", life.root, life.before)
    life.open()
    life.step("look", life.end_file)
    life.step("close")
    return life


def _settings(dice: random.Random) -> dict[str, str]:
    settings = {
        "mappedFileSizeCommitLog": str(dice.choice([16384, 32768])),
        "mappedFileSizeConsumeQueue": str(dice.choice([400, 2000])),
        "maxHashSlotNum": "50",
        "maxIndexNum": str(dice.choice([60, 200])),
        "messageDelayLevel": _DELAY_LEVELS[0],
        "enableLmq": "true",
        "enableMultiDispatch": "true",
        "batchTopics": BATCH,
        "mapperFileSizeBatchConsumeQueue": "920",
    }
    layout = dice.random()
    if layout < 0.15:
        settings["storeType"] = "defaultRocksDB"
    elif layout < 0.45:
        settings["duplicationEnable"] = "true"
    if dice.random() < 0.1:
        settings["messageIndexEnable"] = "false"
    return settings


def _change_settings(dice: random.Random, life: Life) -> None:
    if dice.random() < 0.2:
        life.settings["messageDelayLevel"] = dice.choice(_DELAY_LEVELS)
    if dice.random() < 0.1:
        life.settings["maxIndexNum"] = str(dice.choice([40, 120]))
    if dice.random() < 0.05:
        life.settings["messageIndexEnable"] = dice.choice(["false", "true"])
    if dice.random() < 0.1 and not life.has_rocksdb:
        life.settings |= {"enableConsumeQueueExt": "true", "mappedFileSizeConsumeQueueExt": "4096"}
    elif dice.random() < 0.1 and "enableConsumeQueueExt" in life.settings:
        life.settings["enableConsumeQueueExt"] = "false"


def _deletable(life: Life) -> list[str]:
    """List the topics and light queues that may be deleted."""
    return [name for name in life.topics if name not in {FAULT, HALF, OP, DELAYED}]


def _send(dice: random.Random, life: Life, *, deletes: bool = True) -> None:
    topic, queue_id = dice.choice(_TOPICS), dice.randrange(2)
    kind = dice.random()
    if kind < 0.45:
        properties = {"KEYS": "key#"} if dice.random() < 0.7 else {}
        if dice.random() < 0.6:
            properties["TAGS"] = f"tag{dice.randrange(3)}"
        life.put(topic, queue_id, dice.randint(1, 40), dice.randint(1, 300), **properties)
    elif kind < 0.6:
        level = dice.randint(1, 3)
        life.put(
            DELAYED,
            level - 1,
            dice.randint(1, 10),
            60,
            DELAY=str(level),
            REAL_TOPIC="Orders",
            REAL_QID="0",
            TAGS="late",
        )
    elif kind < 0.7:
        life.put(
            HALF, 0, dice.randint(1, 5), 70, REAL_TOPIC="Orders", REAL_QID="0", PGROUP="payments", UNIQ_KEY="half#"
        )
        if dice.random() < 0.5:
            committed: dict[str, str] = {"@COMMIT": "1", "TRAN_MSG": "true", "PGROUP": "payments"}
            life.put("Orders", 0, dice.randint(1, 3), 70, REAL_TOPIC="Orders", REAL_QID="0", **committed)
        life.put(OP, 0, 1, 8, TAGS="d")
    elif kind < 0.78:
        queues = [f"%LMQ%device{dice.randrange(4)}" for _ in range(dice.randint(1, 2))]
        life.put("Devices", 0, dice.randint(1, 8), 40, INNER_MULTI_DISPATCH=",".join(dict.fromkeys(queues)))
        for name in queues:
            life.topics[name] = 1
    elif kind < 0.82 and not life.has_rocksdb:
        life.put(BATCH, 0, dice.randint(1, 8), 50, KEYS="batch#")
    elif kind < 0.87 and life.jumps:
        life.step("clock", FIRST_MS + dice.choice([-16 * 365, -1, 1, 40 * 365]) * _DAY_MS + dice.randrange(_DAY_MS))
    elif kind < 0.92:
        # A queue's second life begins at 0: that it began behind a gap nothing tells from lost units of its first one.
        if topic not in life.deleted or (topic, queue_id) in life.queues:
            life.step("skip", topic, queue_id, dice.randint(1, 12))
        life.put(topic, queue_id, dice.randint(1, 20), 60, KEYS="gap#")
    elif deletes:
        gone = dice.choice(_deletable(life) or [topic])
        life.delete(gone)
        if dice.random() < 0.6:
            life.put(gone if not gone.startswith("%LMQ%") else topic, 0, dice.randint(1, 30), 90, KEYS="again#")
