"""``rmq offsets``: offsets in their queues, and changes of them."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rmq_formats.codecs.fastjson import loads
from rmq_formats.store import Store
from tests.cli.conftest import Rmq, one_line
from tests.support.stores.store_files import tree
from tests.support.stores.store_with_queues import write_config, write_log, write_queue
from tests.support.stores.verified_stores import FIRST_MS, copied, message, sound_store

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
FASTJSON = '{"dataVersion":{"counter":7},"offsetTable":{"Orders@g":{0:3,1:40},"Clicks@h":{0:-5},"Gone@g":{2:9}}}'


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("offsets") / "store"
    sound_store(root, [*map(message, range(60)), *(message(1, topic=SCHEDULE, queue_id=2) for _ in range(4))])
    (root / "config").mkdir()
    (root / "config" / "consumerOffset.json").write_text(FASTJSON)
    (root / "config" / "delayOffset.json").write_text('{"offsetTable":{3:9}}')
    return root


@pytest.fixture
def store(base: Path, tmp_path: Path) -> Path:
    return copied(base, tmp_path / "store")


def shown(rmq: Rmq, *arguments: object) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(rmq("offsets", *arguments, "--json").stdout)
    return parsed


def committed(store: Path, name: str = "consumerOffset.json") -> Any:
    parsed: Any = loads((store / "config" / name).read_text())
    return parsed["offsetTable"]


def test_offsets_are_shown_in_their_queues(rmq: Rmq, store: Path) -> None:
    before = tree(store)
    done = rmq("offsets", store, "--json")
    assert done.exit_code == 1
    rows = {(row["group"], row["topic"], row["queue_id"]): row for row in json.loads(done.stdout)["offsets"]}
    keys = ("min_offset", "max_offset", "lag_messages", "state")
    assert {name: tuple(row[key] for key in keys) for name, row in rows.items()} == {
        ("g", "Orders", 0): (0, 15, 12, "inside"),
        ("g", "Orders", 1): (0, 15, -25, "beyond"),
        ("h", "Clicks", 0): (0, 15, 20, "negative"),
        ("g", "Gone", 2): (0, 0, -9, "beyond"),
        (None, SCHEDULE, 2): (0, 4, -5, "beyond"),
    }  # fmt: skip
    text = rmq("offsets", store)
    for part in ("delay level 3", "25 beyond the", "no messages", "negative"):
        assert part in " ".join(text.stdout.split())
    assert tree(store) == before


@pytest.mark.parametrize(
    ("name", "table", "fault"),
    [
        ("consumerOffset.json", '{"Orders@g":{"0":null}}', "Orders@g: 0 has a bad value (expected an integer"),
        ("consumerOffset.json", '{"Orders@g":{"0":99999999999999999999}}', "Orders@g: 0 has a bad value"),
        ("consumerOffset.json", '{"Orders@g":{"0":"many"}}', "Orders@g: 0 has a bad value"),
        ("consumerOffset.json", '{"Orders@g":{"x":1}}', "Orders@g has a bad queue id"),
        ("consumerOffset.json", "[]", "offsetTable is not a JSON object"),
        ("delayOffset.json", '{"3":null}', "offsetTable: 3 has a bad value"),
    ],
)
def test_offsets_that_cannot_be_read_end_with_one_line(
    rmq: Rmq, store: Path, name: str, table: str, fault: str
) -> None:
    (store / "config" / name).write_text(f'{{"offsetTable":{table}}}')
    done = rmq("offsets", store)
    assert done.exit_code == 2
    line = one_line(done.stderr)
    assert f"/config/{name}: {fault}" in line
    assert line.endswith("Correct it, or restore it from a backup")
    assert "config.lost" in rmq("verify", store, "--workers", 1).stdout


@pytest.mark.parametrize(("value", "offset"), [("7.5", 7), ("true", 1), ('"1,000"', 1000), ('"-3"', -3)])
def test_values_that_fastjson_reads_as_longs_are_read_so(rmq: Rmq, store: Path, value: str, offset: int) -> None:
    path = store / "config" / "consumerOffset.json"
    path.write_text(f'{{"offsetTable":{{"Orders@g":{{"0":{value},"-1":5}}}}}}')
    rows = shown(rmq, store, "--group", "g")["offsets"]
    assert {row["queue_id"]: row["committed_offset"] for row in rows} == {0: offset}  # no queue has the number -1
    assert "config.lost" not in rmq("verify", store, "--workers", 1).stdout


def test_an_offset_that_is_text_is_read_as_a_number_everywhere(rmq: Rmq, store: Path) -> None:
    path = store / "config" / "consumerOffset.json"
    path.write_text('{"offsetTable":{"Orders@g":{"0":"99"}}}')
    assert [row["committed_offset"] for row in shown(rmq, store, "--group", "g")["offsets"]] == [99]
    for command in ("dump", "inspect"):
        assert '"0":99' in "".join(rmq(command, path, "--json").stdout.split())
    assert "consumer_offset" in rmq("verify", store, "--workers", 1).stdout
    assert "99" in rmq("doctor", store).stdout
    assert shown(rmq, store, "clamp", "--apply")["applied"]
    assert committed(store)["Orders@g"] == {"0": 15}


def test_offsets_inside_of_their_queues_exit_0(rmq: Rmq, store: Path) -> None:
    assert rmq("offsets", store, "--group", "g", "--topic", "Orders", "--queue", 0).exit_code == 0


def test_a_plan_writes_nothing(rmq: Rmq, store: Path) -> None:
    before = tree(store)
    done = rmq("offsets", store, "clamp")
    assert done.exit_code == 1
    assert "4 offsets to change; --apply does it" in done.stdout
    assert tree(store) == before


def test_clamped_offsets_are_in_their_queues_and_the_former_file_is_saved(rmq: Rmq, store: Path) -> None:
    report = shown(rmq, store, "clamp", "--apply")
    assert report["applied"]
    assert committed(store) == {"Orders@g": {"0": 3, "1": 15}, "Clicks@h": {"0": 0}, "Gone@g": {"2": 0}}
    assert loads((store / "config/consumerOffset.json").read_text())["dataVersion"] == {"counter": 7}  # type: ignore[index]
    assert committed(store, "delayOffset.json") == {"3": 4}
    kept = Path(report["quarantine"])
    assert (kept / "config/consumerOffset.json").read_text() == FASTJSON
    assert (store / "config/consumerOffset.json.bak").read_text() == FASTJSON
    again = rmq("offsets", store, "clamp", "--apply")
    assert (again.exit_code, "nothing to change" in again.stdout) == (0, True)


@pytest.mark.parametrize("action", [["clamp", "--group", "g"], ["reset", "--group", "g", "--time", str(FIRST_MS)]])
def test_no_offset_is_moved_to_an_end_of_a_queue_that_lacks_messages_of_the_log(
    rmq: Rmq, store: Path, action: list[str]
) -> None:
    shutil.rmtree(store / "consumequeue" / "Orders" / "1")
    before = tree(store)
    done = rmq("offsets", store, *action, "--apply")
    assert done.exit_code == 2
    assert "Orders/1: the queue's ends are not known" in one_line(done.stderr)
    assert tree(store) == before
    done_for_h = rmq("offsets", store, "clamp", "--group", "h", "--apply")
    assert done_for_h.exit_code == 0
    assert rmq("offsets", store, "set", "--group", "g", "--topic", "Orders", "--queue", 1, "--offset", 0).exit_code == 1


def test_a_zero_unit_at_a_queues_begin_is_not_its_end(rmq: Rmq, store: Path) -> None:
    path = store / "consumequeue" / "Orders" / "0" / f"{0:020d}"
    path.write_bytes(bytes(20) + path.read_bytes()[20:])
    (row,) = shown(rmq, store, "--group", "g", "--topic", "Orders", "--queue", 0)["offsets"]
    assert (row["min_offset"], row["max_offset"], row["state"]) == (1, 15, "inside")


def test_an_offset_is_set_and_refused_outside_of_its_queue(rmq: Rmq, store: Path) -> None:
    given = ("set", "--group", "g", "--topic", "Orders", "--queue", 1, "--apply")
    (change,) = shown(rmq, store, *given, "--offset", 12)["changes"]
    assert (change["committed_offset"], change["new_offset"], change["skipped"]) == (40, 12, -3)
    assert committed(store)["Orders@g"] == {"0": 3, "1": 12}
    done = rmq("offsets", store, *given, "--offset", 16)
    assert done.exit_code == 2
    assert one_line(done.stderr) == "--offset 16: Orders/1 has the offsets 0 to 15"


def test_a_group_is_reset_to_a_time(rmq: Rmq, store: Path) -> None:
    report = shown(rmq, store, "reset", "--group", "g", "--topic", "Orders", "--time", FIRST_MS + 21, "--apply")
    assert [change["new_offset"] for change in report["changes"]] == [5, 5]
    report = shown(rmq, store, "reset", "--group", "g", "--topic", "Orders", "--time", "2100-01-01T00:00:00", "--apply")
    assert [change["new_offset"] for change in report["changes"]] == [15, 15]


@pytest.mark.parametrize("offsets", [[0, 1, 2, 10, 11, 12], [3, 4, 5, 0, 1, 2]])
def test_a_reset_gives_the_place_in_the_queue_not_the_offset_that_the_record_states(
    rmq: Rmq, tmp_path: Path, offsets: list[int]
) -> None:
    store, first = tmp_path / "store", offsets[0]
    write_queue(store, dict(enumerate(write_log(store, offsets), first)))
    write_config(store, "Orders", offsets={"Orders@g": {"0": first}})
    (change,) = shown(rmq, store, "reset", "--group", "g", "--time", FIRST_MS + 3)["changes"]
    assert (change["new_offset"], change["skipped"]) == (first + 3, 3)


def test_the_bak_stays_where_a_change_begins_with_a_file_that_does_not_parse(rmq: Rmq, store: Path) -> None:
    path = store / "config" / "consumerOffset.json"
    path.rename(f"{path}.bak")
    path.write_bytes(bytes(100))
    assert shown(rmq, store, "clamp", "--group", "g", "--apply")["applied"]
    assert Path(f"{path}.bak").read_text() == FASTJSON
    assert committed(store)["Orders@g"] == {"0": 3, "1": 15}


def test_a_delay_level_is_set(rmq: Rmq, store: Path) -> None:
    assert rmq("offsets", store, "set", "--delay-level", 3, "--offset", 2, "--apply").exit_code == 0
    assert committed(store, "delayOffset.json") == {"3": 2}
    assert (store / "config/consumerOffset.json").read_text() == FASTJSON


def test_the_offsets_of_light_queues_are_set_in_their_table(rmq: Rmq, store: Path) -> None:
    (store / "config/consumerOffset.json").unlink()
    path = store / "config/lmqConsumerOffset.json"
    path.write_text('{"lmqOffsetTable":{"%LMQ%a@%LMQ%g":5},"offsetTable":{"Orders@g":{0:99}}}')
    assert shown(rmq, store, "clamp", "--apply")["applied"]
    assert loads(path.read_text()) == {"lmqOffsetTable": {"%LMQ%a@%LMQ%g": 0}, "offsetTable": {"Orders@g": {"0": 15}}}


@pytest.mark.parametrize("metadata", ["read", "unreadable", "only its .bak"])
def test_messages_in_tiered_storage_are_no_expired_ones(
    rmq: Rmq, golden: Callable[[str], Path], tmp_path: Path, metadata: str
) -> None:
    store = copied(golden("tiered") / "store", tmp_path / "store")
    *expired, _ = sorted((store / "commitlog").iterdir())
    for path in expired:
        path.unlink()
    path = store / "config" / "tieredStoreMetadata.json"
    if metadata == "unreadable":
        path.write_text("{")
    elif metadata == "only its .bak":  # as a broker leaves it that is killed while it writes the file
        path.rename(f"{path}.bak")
    rows = shown(rmq, store, "--group", "variant_cg")["offsets"]
    assert [(row["committed_offset"], row["min_offset"], row["max_offset"], row["state"]) for row in rows] == [
        (3, 0, 180, "inside"), (4, 0, 179, "inside"),
    ]  # fmt: skip
    assert shown(rmq, store, "clamp")["changes"] == []
    assert "have expired before the group" not in rmq("doctor", store).stdout
    assert "config.offset.below" not in rmq("verify", store, "--json").stdout
    reset = ("offsets", store, "reset", "--group", "variant_cg", "--time", FIRST_MS)
    assert "Orders/0 has offsets from 0 on, and the log from 141 on; tiered" in one_line(rmq(*reset).stderr)
    chosen = ("--group", "variant_cg", "--topic", "Orders", "--queue", 0)
    assert [row["skipped"] for row in shown(rmq, store, "set", *chosen, "--offset", 140)["changes"]] == [137]


def test_messages_in_compacted_logs_are_no_expired_ones(
    rmq: Rmq, golden: Callable[[str], Path], tmp_path: Path
) -> None:
    store = copied(golden("compaction") / "store", tmp_path / "store")
    *expired, _ = sorted((store / "commitlog").iterdir())
    for path in expired:
        path.unlink()
    first = next(item for item in Store(store).compacted().messages() if item.topic == "Profiles")
    assert first.queue_offset < 177  # with which the log begins
    offset = first.queue_offset + 1
    (store / "config" / "consumerOffset.json").write_text(f'{{"offsetTable":{{"Profiles@g":{{"0":{offset}}}}}}}')
    (row,) = shown(rmq, store)["offsets"]
    assert (row["min_offset"], row["max_offset"], row["state"]) == (first.queue_offset, 250, "inside")
    assert shown(rmq, store, "clamp")["changes"] == []
    reset = ("offsets", store, "reset", "--group", "g", "--time", FIRST_MS)
    assert "the log from 177 on" in one_line(rmq(*reset).stderr)


def test_a_running_broker_is_refused(rmq: Rmq, store: Path) -> None:

    lock = store / "lock"
    lock.touch()
    hold = "import fcntl,sys; f=open(sys.argv[1],'r+'); fcntl.lockf(f,fcntl.LOCK_EX,1,0); print(1,flush=True); input()"
    with subprocess.Popen([sys.executable, "-c", hold, str(lock)], stdin=-1, stdout=-1) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        done = rmq("offsets", store, "clamp", "--apply")
        holder.communicate(b"\n")
    assert done.exit_code == 2
    assert "running broker has locked this store" in one_line(done.stderr)
    assert (store / "config/consumerOffset.json").read_text() == FASTJSON


def test_a_link_out_of_the_store_is_not_written_through(rmq: Rmq, store: Path, tmp_path: Path) -> None:
    (store / "config").rename(tmp_path / "elsewhere")
    (store / "config").symlink_to(tmp_path / "elsewhere")
    before = tree(tmp_path / "elsewhere")
    done = rmq("offsets", store, "clamp", "--apply")
    assert done.exit_code == 2
    assert "symbolic link" in one_line(done.stderr)
    assert tree(tmp_path / "elsewhere") == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["set", "--group", "g", "--topic", "Orders"], "--offset: required by set"),
        (["reset", "--group", "g"], "--time: required by reset"),
        (["--offset", "3"], "--offset: required by set"),
        (["set", "--offset", "3", "--topic", "Orders"], "set: give --group or --delay-level"),
        (["set", "--offset", "3", "--group", "g"], "set: give --topic, too"),
        (["clamp", "--group", "nobody"], "no committed offset of that group"),
        (["--apply"], "--apply: needs set, reset or clamp"),
        (["--delay-level", "1", "--group", "g"], "--delay-level: cannot be combined with"),
        (["--delay-level", "1", "--queue", "0"], "--delay-level: cannot be combined with"),
    ],
)
def test_what_does_not_go_together_is_refused(rmq: Rmq, store: Path, arguments: list[str], said: str) -> None:
    done = rmq("offsets", store, *arguments)
    assert done.exit_code == 2
    assert said in one_line(done.stderr)


@pytest.mark.parametrize("command", ["offsets {} clamp --apply", "checkpoint {} --apply", "repair {} --apply",
                                     "repair {} --what config --apply"])  # fmt: skip
@pytest.mark.parametrize("kind", ["empty", "file", "above", "no log", "unpacked on Windows"])
def test_what_is_no_store_gets_no_lock_and_one_line(
    rmq: Rmq, store: Path, tmp_path: Path, command: str, kind: str
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    if kind == "file":
        place = place / "file"
        place.write_bytes(b"hello")
    elif kind == "above":
        store.rename(place / "store")
    elif kind == "no log":
        shutil.rmtree(store / "commitlog")
        place = store
    elif kind == "unpacked on Windows":
        (place / "commitlog\\00000000000000000000").write_bytes(bytes(100))
        (place / "checkpoint").write_bytes(bytes(4096))
    before = tree(tmp_path)
    done = rmq(*[word.format(place) for word in command.split()])
    assert done.exit_code == 2
    assert str(place) in one_line(done.stderr)
    assert tree(tmp_path) == before
