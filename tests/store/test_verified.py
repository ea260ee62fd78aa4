"""What a store derives from its log, ``rmq verify`` finds sound, whatever kinds of queues it has."""

from pathlib import Path

import pytest

from rmq_offline.tasks.runner import ProcessRunner
from rmq_offline.verify.job import verify_store
from rmq_offline.verify.phases.plan import VerifyOptions
from tests.store.small_stores import KINDS, config_of_kind, fill, opened


@pytest.mark.parametrize("kind", KINDS)
def test_the_queues_and_the_index_of_a_store_are_sound(tmp_path: Path, kind: str) -> None:
    config = config_of_kind(kind, tmp_path / "store")
    store = opened(config)
    for _ in fill(store, 300):
        pass
    assert store.shutdown()
    report = verify_store(config.root, VerifyOptions(delay_levels_ms=(1000, 5000)), ProcessRunner(1))
    codes = {item.kind.code for item in report.findings}
    # Bodies are random, sizes small, and the config names the topic with batch queues alone.
    passed_over = ("commitlog.", "store.", "consumequeue.topic.unknown")
    assert [code for code in sorted(codes) if not code.startswith(passed_over)] == []
