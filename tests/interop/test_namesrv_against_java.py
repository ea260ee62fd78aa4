"""The real Java broker and mqadmin at our name server, beside a Java name server as the oracle.

One broker registers with three name servers: two of ours, and Java's. What Java's answers, ours has to.
"""

import asyncio
import json
import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pytest

from rmq_core.remoting.bodies.codec import decode_body
from rmq_core.remoting.bodies.routes import ClusterInfo, TopicRouteData
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.errors import TransportError
from rmq_core.remoting.header import RemotingCommand, request
from rmq_formats.codecs import fastjson
from tests.interop import peer
from tests.namesrv.test_command import running
from tests.support.processes.broker_processes import PATIENT

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("namesrv_against_java")]

SMALL_FILES = f"""{PATIENT}
brokerClusterName=InteropCluster
brokerId=0
brokerIP1=127.0.0.1
autoCreateTopicEnable=true
mappedFileSizeCommitLog=1048576
mappedFileSizeConsumeQueue=2000
maxHashSlotNum=500
maxIndexNum=2000
diskMaxUsedSpaceRatio=99
"""
NAMESPACE = "rmq_interop_test"
# The second broker has binary headers, and asks for data versions before it registers.
BROKERS = {
    "interop-a": ("", ""),
    "interop-b": ("forceRegister=false\n", "-Drocketmq.serialize.type=ROCKETMQ"),
}


def ask(address: str, code: int, fields: dict[str, str] | None = None, body: bytes = b"") -> RemotingCommand:
    """One request on a connection of its own."""

    async def invoke() -> RemotingCommand:
        async with RemotingClient() as client:
            return await client.invoke(address, request(code, dict(fields or {}), body), 5)

    return asyncio.run(invoke())


def wait_for(what: Callable[[], bool], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if what():
                return
        except TransportError:
            pass
        time.sleep(0.1)
    pytest.fail(f"not within {seconds} s")


def free_port() -> int:
    """A port that is free, and the one two below, which a broker takes too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port: int = first.getsockname()[1]
            try:
                second.bind(("127.0.0.1", port - 2))
            except OSError:
                continue
            return port


@contextmanager
def java(log: IO[bytes], *arguments: str, options: str = "") -> Iterator["subprocess.Popen[bytes]"]:
    """A process of the original; killed at the end."""
    environment = {**os.environ, "PEER_HEAP": "512m", "PEER_JAVA_OPTS": f"{peer.QUICK_START} {options}"}
    process = subprocess.Popen(["bash", peer.SCRIPT, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment)
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=20)


@dataclass(frozen=True)
class Cluster:
    """Three name servers that know the same two brokers.

    Attributes:
        ours: addresses of two of our name servers.
        java: the address of Java's.
        brokers: addresses by name.
        doomed: the process of the second one.
    """

    ours: list[str]
    java: str
    brokers: dict[str, str]
    doomed: "subprocess.Popen[bytes]"

    def mqadmin(self, *arguments: str, namesrv: str | None = None) -> str:
        """Run a command, at both of ours."""
        where = namesrv or ";".join(self.ours)
        return peer.command(arguments[0], "-n", where, *arguments[1:])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    peer.build()
    directory = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        log = stack.enter_context((directory / "java.log").open("wb"))
        java_port = free_port()
        stack.enter_context(java(log, "namesrv", str(java_port)))
        ours = [stack.enter_context(running("-c", settings(directory / str(number))))[1] for number in range(2)]
        namesrvs = [*ours, f"127.0.0.1:{java_port}"]
        wait_for(lambda: ask(namesrvs[-1], 106).code == 0)
        addresses, processes = {}, []
        for name, (more, options) in BROKERS.items():
            port = free_port()
            addresses[name] = f"127.0.0.1:{port}"
            conf = directory / f"{name}.conf"
            conf.write_text(
                f"{SMALL_FILES}brokerName={name}\nnamesrvAddr={';'.join(namesrvs)}\n"
                f"listenPort={port}\nhaListenPort={free_port()}\n{more}"
            )
            arguments = "broker", str(directory / name), str(conf)
            processes.append(stack.enter_context(java(log, *arguments, options=options)))
        wait_for(lambda: all(brokers(address) == set(BROKERS) for address in namesrvs))
        yield Cluster(ours, namesrvs[-1], addresses, processes[1])


def brokers(address: str) -> set[str]:
    """Names of the brokers that a name server knows."""
    return set(decode_body(ask(address, 106).body, ClusterInfo).broker_addr_table)


def settings(directory: Path) -> str:
    directory.mkdir()
    file = directory / "namesrv.conf"
    file.write_text(f"bindAddress=127.0.0.1\nlistenPort=0\nkvConfigPath={directory}/kvConfig.json\n")
    return str(file)


def told(answer: RemotingCommand) -> tuple[Any, ...]:
    """What an answer says, without order where there is none."""
    fields = {name: value for name, value in answer.ext_fields.items() if value}
    body = _sorted(fastjson.loads(str(answer.body, "utf-8") or "null"))
    if isinstance(body, dict) and body.get("brokerAddr"):  # of any broker: the first in Java's hash table
        body["brokerAddr"] = "some"
    return answer.code, answer.remark, fields, body


def _sorted(value: object) -> object:
    if isinstance(value, dict):
        return {key: _sorted(item) for key, item in value.items()}
    return sorted(map(_sorted, value), key=json.dumps) if isinstance(value, list) else value


@pytest.mark.parametrize(
    ("code", "fields"),
    [
        (105, {"topic": "TBW102"}),
        (105, {"topic": "none"}),
        (106, {}),
        (206, {}),
        (224, {"cluster": "InteropCluster"}),
        (224, {"cluster": "none"}),
        (304, {}),
        (311, {}),
        (312, {}),
        (313, {}),
        (101, {"namespace": "none", "key": "none"}),
        (219, {"namespace": "none"}),
        (102, {"namespace": "none", "key": "none"}),
        (904, {"clusterName": "none", "brokerName": "none", "brokerAddr": "none"}),
        (999, {}),
    ],
)
def test_answers_are_those_of_the_java_name_server(cluster: Cluster, code: int, fields: dict[str, str]) -> None:
    expected = told(ask(cluster.java, code, fields))
    assert [told(ask(address, code, fields)) for address in cluster.ours] == [expected] * 2


def test_registered_data_versions_are_compared_as_in_java(cluster: Cluster) -> None:
    fields = {
        "brokerName": "interop-a", "brokerAddr": cluster.brokers["interop-a"], "clusterName": "InteropCluster",
        "brokerId": "0",
    }  # fmt: skip
    version = b'{"counter":1,"stateVersion":0,"timestamp":1}'
    expected = told(ask(cluster.java, 322, fields, version))
    assert told(ask(cluster.ours[0], 322, fields, version)) == expected
    registered = bytes(ask(cluster.java, 322, fields, version).body)
    assert told(ask(cluster.ours[0], 322, fields, registered)) == told(ask(cluster.java, 322, fields, registered))
    assert ask(cluster.ours[0], 322, fields, registered).ext_fields["changed"] == "false"


@pytest.mark.parametrize("name", ["interop-a", "none"])
def test_member_groups_are_those_of_the_java_name_server(cluster: Cluster, name: str) -> None:
    fields = {"clusterName": "InteropCluster", "brokerName": name}
    code, remark, *group = told(ask(cluster.java, 901, fields))
    assert (code, remark) == (0, "not set any response code")  # it forgot to: ours says nothing
    assert told(ask(cluster.ours[0], 901, fields)) == (0, None, *group)


def test_mqadmin_sees_the_cluster_through_our_name_server(cluster: Cluster) -> None:
    with ThreadPoolExecutor(2) as pool:
        clusters = pool.submit(cluster.mqadmin, "clusterList")
        topics = pool.submit(cluster.mqadmin, "topicList")
        route = pool.submit(cluster.mqadmin, "topicRoute", "-t", "TBW102")
    lines = [line.split() for line in clusters.result().splitlines() if line.startswith("InteropCluster")]
    assert ["InteropCluster", "interop-a", "0", cluster.brokers["interop-a"]] in [line[:4] for line in lines]
    assert {"TBW102", "InteropCluster", "interop-a"} <= set(topics.result().split())
    shown = re.sub(r"\s", "", route.result())  # from 5.4 on each member has a line of its own
    assert f'"brokerAddrs":{{0:"{cluster.brokers["interop-a"]}"' in shown
    assert '"readQueueNums":8' in shown


def test_a_topic_made_by_mqadmin_is_routed_and_gone_when_it_is_deleted(cluster: Cluster) -> None:
    cluster.mqadmin("updateTopic", "-b", cluster.brokers["interop-a"], "-t", "Made", "-r", "3", "-w", "2")
    for address in [*cluster.ours, cluster.java]:
        wait_for(lambda address=address: ask(address, 105, {"topic": "Made"}).code == 0)  # type: ignore[misc]
    expected = told(ask(cluster.java, 105, {"topic": "Made"}))
    assert [told(ask(address, 105, {"topic": "Made"})) for address in cluster.ours] == [expected] * 2
    route = decode_body(ask(cluster.ours[0], 105, {"topic": "Made"}).body, TopicRouteData)
    assert (route.queue_datas[0].read_queue_nums, route.queue_datas[0].write_queue_nums) == (3, 2)
    assert ask(cluster.brokers["interop-a"], 215, {"topic": "Made"}).code == 0
    for address in [*cluster.ours, cluster.java]:
        assert ask(address, 216, {"topic": "Made", "clusterName": "InteropCluster"}).code == 0
        assert ask(address, 105, {"topic": "Made"}).code == 17


def test_mqadmin_sets_and_deletes_key_values_on_both(cluster: Cluster) -> None:
    entry = {"namespace": NAMESPACE, "key": "k"}
    cluster.mqadmin("updateKvConfig", "-s", NAMESPACE, "-k", "k", "-v", "中 v")
    assert [ask(address, 101, entry).ext_fields for address in cluster.ours] == [{"value": "中 v"}] * 2
    cluster.mqadmin("deleteKvConfig", "-s", NAMESPACE, "-k", "k")
    assert [ask(address, 101, entry).code for address in cluster.ours] == [22] * 2


def test_mqadmin_wipes_write_perm_and_it_can_be_added_again(cluster: Cluster) -> None:
    everywhere = [*cluster.ours, cluster.java]

    def perms() -> list[int]:
        routes = [decode_body(ask(address, 105, {"topic": "TBW102"}).body, TopicRouteData) for address in everywhere]
        return [queue.perm for route in routes for queue in route.queue_datas if queue.broker_name == "interop-a"]

    def topics(address: str) -> int:
        """A late registration may have brought a deleted topic back to one of them."""
        names = json.loads(bytes(ask(address, 206).body))["topicList"]
        routes = [decode_body(ask(address, 105, {"topic": name}).body, TopicRouteData) for name in names]
        return sum(any(queue.broker_name == "interop-a" for queue in route.queue_datas) for route in routes)

    shown = cluster.mqadmin("wipeWritePerm", "-b", "interop-a", namesrv=";".join(everywhere))
    counts = dict(re.findall(r"^wipe write perm of broker\[interop-a\] in name server\[(.*)\] OK, (\d+)", shown, re.M))
    assert perms() == [5, 5, 5]
    assert counts == {address: str(topics(address)) for address in everywhere}
    added = [told(ask(address, 327, {"brokerName": "interop-a"})) for address in everywhere]
    assert added == [(0, None, {"addTopicCount": counts[address]}, None) for address in everywhere]
    assert perms() == [6, 6, 6]


def test_the_entry_of_a_broker_that_is_killed_disappears(cluster: Cluster) -> None:
    cluster.doomed.kill()
    for address in [*cluster.ours, cluster.java]:
        wait_for(lambda address=address: brokers(address) == {"interop-a"}, 10)  # type: ignore[misc]
        topics = bytes(ask(address, 206).body)
        assert b"interop-a" in topics
        assert b"interop-b" not in topics
