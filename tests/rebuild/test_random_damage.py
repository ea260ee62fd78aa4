"""Logs that were damaged at random: their rebuild ends, and is the same in one task and in many."""

import os
import random
from pathlib import Path

import pytest

from tests.support.stores.rebuilt_stores import SMALL, Splits, built, rebuild, small_store, stored_messages
from tests.support.torture import rounds


def damage(store: Path, chance: random.Random) -> None:
    """Overwrite some stretches, and sometimes cut the last file."""
    files = sorted((store / "commitlog").iterdir())
    for _ in range(chance.randrange(1, 6)):
        path = chance.choice(files)
        data = bytearray(path.read_bytes())
        size = chance.choice([1, 1, 2, 8, 100, 1500])
        at = chance.randrange(len(data) - size)
        data[at : at + size] = chance.choice([chance.randbytes(size), bytes(size), data[:size]])
        path.write_bytes(data)
    if chance.random() < 0.2:
        os.truncate(files[-1], chance.randrange(4096))


@pytest.mark.torture
@pytest.mark.parametrize("seed", rounds(12))
def test_a_rebuild_of_a_damaged_log_is_the_same_however_it_is_cut(tmp_path: Path, seed: int) -> None:
    store = small_store(tmp_path / "store", 90)
    damage(store, random.Random(seed))
    reports = [rebuild(store, tmp_path / f"out-{splits}", SMALL, Splits(splits)) for splits in (1, 3, 11)]
    assert built(tmp_path / "out-1") == built(tmp_path / "out-3") == built(tmp_path / "out-11")
    # A unit is made of a sound record, or is left out with a finding.
    assert {report.messages for report in reports} == {sum(1 for _ in stored_messages(store))}
    left_out = reports[0].messages - reports[0].units
    assert 0 <= left_out <= sum(reports[0].finding_counts.values())
