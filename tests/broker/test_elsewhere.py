"""Requests that change a server are taken from its own machine only, unless a setting says otherwise."""

import asyncio
import random
from pathlib import Path

import pytest

from rmq_core.broker.access.required_permissions import CHANGES
from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.namesrv.config import NamesrvConfig
from rmq_core.namesrv.server import NameServer
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.header import request
from tests.lab.virtual.loop import VirtualLoop
from tests.lab.virtual.network import Machine
from tests.lab.virtual.workers import TurnThreads
from tests.store.small_stores import NOW_MS, QuickDisk, config_of

SERVERS, OTHER, BROKER, NAMESRV = "10.0.0.1", "10.0.0.2", "10.0.0.1:10911", "10.0.0.1:9876"
MADE = {"topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
        "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
PUT = {"namespace": "n", "key": "k", "value": "v"}


async def codes(tmp_path: Path, *, allowed: bool) -> dict[tuple[str, str], int]:
    """Answers to changes, to both servers, of a client on their machine and of one elsewhere."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    names = NamesrvConfig(
        bind_address=SERVERS, listen_port=9876, kv_config_path=str(tmp_path / "kv.json"), remote_admin_enable=allowed
    )
    config = BrokerConfig(
        bind_address=SERVERS,
        listen_port=10911,
        broker_ip1=SERVERS,
        timer_wheel_enable=False,
        remote_admin_enable=allowed,
    )
    found = {}
    with Machine(SERVERS).owns():
        server = NameServer(names, lambda: NOW_MS)
        await server.start()
        threads = TurnThreads(loop, random.Random(1))
        broker = Broker(config, config_of(tmp_path / "store"), lambda: NOW_MS, QuickDisk(), threads)
        await broker.start()
    for host in (SERVERS, OTHER):
        with Machine(host).owns():
            async with RemotingClient() as client:
                for address, code, fields in (
                    (BROKER, RequestCode.UPDATE_AND_CREATE_TOPIC, MADE),
                    (BROKER, RequestCode.GET_ALL_TOPIC_CONFIG, {}),
                    (NAMESRV, RequestCode.PUT_KV_CONFIG, PUT),
                    (NAMESRV, RequestCode.GET_KV_CONFIG, PUT),
                ):
                    answer = await client.invoke(address, request(code, dict(fields)))
                    found[host, RequestCode(code).name] = answer.code
                    if answer.code:
                        assert "Set remoteAdminEnable=true" in (answer.remark or "")
    with Machine(SERVERS).owns():
        await broker.close()
        await server.close()
    return found


@pytest.mark.parametrize("allowed", [False, True])
def test_changes_are_taken_from_the_servers_machine_or_where_a_word_says_so(tmp_path: Path, allowed: bool) -> None:
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(1)) as runner:
        found = runner.run(codes(tmp_path, allowed=allowed))
    refused = {key for key, code in found.items() if code == ResponseCode.NO_PERMISSION}
    changes = {(OTHER, "UPDATE_AND_CREATE_TOPIC"), (OTHER, "PUT_KV_CONFIG")}
    assert refused == (set() if allowed else changes)
    assert set(found.values()) <= {0, int(ResponseCode.NO_PERMISSION)}


def test_what_followers_and_clients_need_is_no_change() -> None:
    needed = {
        RequestCode.HEART_BEAT, RequestCode.GET_ALL_TOPIC_CONFIG, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        RequestCode.GET_ALL_CONSUMER_OFFSET, RequestCode.GET_ALL_DELAY_OFFSET, RequestCode.UPDATE_CONSUMER_OFFSET,
    }  # fmt: skip
    assert not needed & CHANGES
