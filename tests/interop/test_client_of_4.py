"""The Java client of RocketMQ 4, which many services still have, at our name server and broker."""

import json
from pathlib import Path

import pytest

from tests.cli.admin.conftest import Cluster
from tests.interop import peer
from tests.support.processes.broker_processes import configured

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("client_of_4")]

BATCH = 32
TOPIC = "Old"
WAIT_S = "120"


@pytest.mark.long
def test_it_sends_and_consumes(tmp_path: Path) -> None:
    with configured(tmp_path, "") as running:
        cluster = Cluster(running.namesrv, running.broker)

        def stored() -> dict[tuple[int, int], None]:
            rows = cluster.rows("topicStatus", "-t", TOPIC)
            return {(row["queue_id"], offset): None for row in rows for offset in range(row["max_offset"])}

        def load(mode: str) -> int:
            arguments = "client4", "Load", running.namesrv, mode, TOPIC, "2", "0.1"
            report = json.loads(peer.run(*arguments, java_options=peer.QUICK_START).splitlines()[-1])
            assert report["failed"] == 0
            return len(stored())

        single = load("send")
        assert single > BATCH
        assert (load("batch") - single) % BATCH == 1  # it begins with a single one
        arguments = "client4", "Consume", running.namesrv, TOPIC, str(len(stored())), WAIT_S
        lines = peer.run(*arguments, java_options=peer.QUICK_START).splitlines()
        given = [json.loads(line) for line in lines if line.startswith("{")]
        assert {(one["queue_id"], one["queue_offset"]) for one in given} == stored().keys()
        assert cluster.rows("consumerProgress")[0]["diff"] == 0
        assert running.stop() == 0
