"""``--metrics-port``: what Prometheus is told."""

import re
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from rmq_core.broker.metrics.prometheus import Family
from tests.cli.admin.conftest import BROKER, SETTINGS, Cluster
from tests.client.scenarios import fresh
from tests.support.processes.broker_processes import configured, failure

SAMPLE = re.compile(r'([a-z_0-9]+){((?:[a-zA-Z_]+="(?:[^"\\\\]|\\\\.)*",?)*)} (-?[0-9.e+]+)')
PLACE = f'cluster="DefaultCluster",broker="{BROKER}"'


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Cluster, str]]:
    """A cluster, and where its metrics are."""
    with configured(tmp_path_factory.mktemp("metrics"), SETTINGS, "--metrics-port", "0") as running:
        told = re.search(r"metrics on (http://127\.0\.0\.1:[0-9]+/metrics)", running.errors.read_text())
        assert told
        yield Cluster(running.namesrv, running.broker), told[1]


def scrape(address: str) -> dict[str, dict[str, float]]:
    """Values by name and labels; each line has to be one of the format."""
    with urllib.request.urlopen(address, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        text = answer.read().decode()
    found: dict[str, dict[str, float]] = {}
    for line in text.splitlines():
        if not line.startswith(("# HELP ", "# TYPE ")):
            sample = SAMPLE.fullmatch(line)
            assert sample, line
            found.setdefault(sample[1], {})[sample[2]] = float(sample[3])
    return found


def test_a_scrape_has_the_offsets_of_topics_and_groups(measured: tuple[Cluster, str]) -> None:
    cluster, address = measured
    topic, group = fresh("Topic"), fresh("group")
    cluster.send(topic, "a", "b", "c")
    cluster.consume(topic, group, 2)
    found = scrape(address)
    consumed = f'{PLACE},topic="{topic}",group="{group}"'
    assert found["rocketmq_producer_offset"][f'{PLACE},topic="{topic}"'] == 3
    assert found["rocketmq_consumer_offset"][consumed] == 2
    assert found["rocketmq_message_accumulation"][consumed] == 1
    behind = f'group="{group}",topic="{topic}",countOfOnlineConsumers="0",msgModel="1"'
    assert found["rocketmq_group_diff"][behind] == 1
    assert found["rocketmq_group_get_latency_by_storetime"][consumed] > 0
    assert found["rocketmq_producer_tps"][f'{PLACE},topic="{topic}"'] > 0
    assert found["rocketmq_consumer_message_size"][consumed] > 0
    broker = f'cluster="DefaultCluster",brokerIP="{cluster.broker}",broker="{BROKER}"'
    assert found["rocketmq_broker_tps"][broker] > 0
    assert found["rocketmq_broker_qps"][broker] > 0
    (put,) = found["rocketmq_brokeruntime_msg_put_total_today_now"].values()
    assert put >= 3


def test_each_metric_name_occurs_once(measured: tuple[Cluster, str]) -> None:
    with urllib.request.urlopen(measured[1], timeout=60) as answer:
        types = [line for line in answer.read().decode().splitlines() if line.startswith("# TYPE ")]
    assert len(types) == len(set(types)) > 20


@pytest.mark.parametrize("path", ["/", "/metricsx"])
def test_nothing_else_is_there(measured: tuple[Cluster, str], path: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(measured[1].removesuffix("/metrics") + path, timeout=60)


def test_what_is_no_scrape_does_not_end_it(measured: tuple[Cluster, str]) -> None:
    port = int(measured[1].split(":")[2].split("/")[0])
    for data in (b"POST /metrics HTTP/1.1\r\n\r\n", b"x" * 100_000, b"\r\n\r\n"):
        with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            try:
                answer = connection.recv(1000)
            except ConnectionResetError:  # it had more to say than was read
                answer = b""
            assert not answer or answer.startswith(b"HTTP/1.1 405 ")
    assert scrape(measured[1])


@pytest.mark.long
def test_a_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        free = "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"
        said = failure("standalone", "--store", str(tmp_path / "store"), *free, "--metrics-port", port)
    assert f"127.0.0.1:{port}: cannot listen" in said
    assert "--metrics-port" in failure("broker", "--store", str(tmp_path / "store"), "--metrics-port", "99999")


def test_labels_are_escaped() -> None:
    family = Family("name", "What it is.", ("label",), [(('a"b\\c\nd',), 1.5)])
    assert family.text == '# HELP name What it is.\n# TYPE name gauge\nname{label="a\\"b\\\\c\\nd"} 1.5\n'
