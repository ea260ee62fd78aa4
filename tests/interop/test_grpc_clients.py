"""All flows of the official Python, Java, Node.js and Go clients of RocketMQ 5 at our proxy and a broker of ours."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rmq_core.client import Admin, ClientOptions, Credentials, Tls
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.loop import run
from tests.interop import go_peer, peer
from tests.support.certificates import Authority
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import COMMAND, configured

PROGRAM = Path(__file__).parent / "grpc" / "py5.py"
FLOWS = ("simple", "push", "fifo", "delay", "tran")
NODE_PROGRAM = PROGRAM.with_name("node5.cjs")
NODE_CLIENT = "1.0.8"
TOPICS = {"NormalT": "NORMAL", "FifoT": "FIFO", "DelayT": "DELAY", "TranT": "TRANSACTION", "PriorityT": "PRIORITY"}
SETTINGS = "transactionTimeOut=3000\ntransactionCheckInterval=2000\nrecallMessageEnable=true\n"
PATIENCE_S = 150


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where ``rmq proxy`` listens, beside ``rmq standalone``."""
    directory = tmp_path_factory.mktemp("grpc")

    async def prepare(namesrv: str) -> None:
        async with Admin(namesrv) as admin:
            for topic, kind in TOPICS.items():
                await admin.create_topic(topic, queues=4, attributes=f"+message.type={kind}")
            for group in ("fifo_g", "j_fifo", "node_fifo", "go_fifo"):
                await admin.create_group(SubscriptionGroupConfig(group_name=group, consume_message_orderly=True))

    with configured(directory, SETTINGS) as running, (directory / "proxy.log").open("wb") as log:
        run(prepare(running.namesrv))
        command = [*COMMAND, "proxy", "--namesrv", running.namesrv, "--listen", "127.0.0.1:0"]
        process = warm_processes.Popen(command, stdout=subprocess.PIPE, stderr=log)
        try:
            assert process.stdout is not None
            word, address = process.stdout.readline().decode().split()
            assert word == "proxy", (directory / "proxy.log").read_text()
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=30)


def played(flow: str, endpoints: str, *more: str, roots: Path | None = None) -> dict[str, object]:
    """What a flow tells in its last line."""
    command = [sys.executable, "-W", "ignore", str(PROGRAM), flow, "--endpoints", endpoints, "--wait", "90", *more]
    environment = os.environ | ({} if roots is None else {"GRPC_DEFAULT_SSL_ROOTS_FILE_PATH": str(roots)})
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False, env=environment)
    lines = done.stdout.splitlines() or [done.stderr[-2000:]]
    told: dict[str, object] = json.loads(lines[-1]) if lines[-1].startswith("{") else {"error": lines[-1]}
    return told


@pytest.mark.long
@pytest.mark.xdist_group("grpc_clients")
def test_all_flows_of_the_python_client_pass(endpoints: str) -> None:
    with ThreadPoolExecutor(2) as pool:
        told = dict(zip(FLOWS, pool.map(lambda flow: played(flow, endpoints), FLOWS), strict=True))
    assert {flow: one.get("ok") for flow, one in told.items()} == dict.fromkeys(FLOWS, True), told


@pytest.mark.long
@pytest.mark.peer
@pytest.mark.xdist_group("grpc_clients")
def test_all_flows_of_the_java_client_pass(endpoints: str) -> None:
    told = json.loads(peer.run("client5", endpoints, "8", java_options=peer.QUICK_START).splitlines()[-1])
    assert told["ok"] is True, told


@pytest.mark.peer
@pytest.mark.skipif(shutil.which("npm") is None, reason="needs Node.js, which nothing else does")
@pytest.mark.xdist_group("grpc_clients")
@pytest.mark.long
def test_all_flows_of_the_node_client_pass(endpoints: str) -> None:
    home = Path(os.environ.get("PEER_HOME") or Path.home() / ".cache" / "rocketmq-peer")
    modules = home / f"node-client-{NODE_CLIENT}"
    package = f"rocketmq-client-nodejs@{NODE_CLIENT}"
    if not (modules / "node_modules" / "rocketmq-client-nodejs" / "package.json").exists():
        install = ["npm", "install", "--prefix", str(modules), "--no-audit", "--no-fund", "--ignore-scripts", package]
        subprocess.run(install, check=True, capture_output=True, timeout=PATIENCE_S)
    command = ["node", str(NODE_PROGRAM), str(modules), endpoints, "6"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert done.stdout, done.stderr[-2000:]
    told = json.loads(done.stdout.splitlines()[-1])
    assert told["ok"] is True, (told, done.stderr[-2000:])


@pytest.mark.long
@pytest.mark.peer
@pytest.mark.skipif(not go_peer.IS_THERE, reason="needs Go and its module proxy")
@pytest.mark.xdist_group("grpc_clients")
def test_all_flows_of_the_go_client_pass(endpoints: str) -> None:
    told = go_peer.run(endpoints, 6, name=go_peer.GRPC)[-1]
    assert told["ok"] is True, told


@pytest.mark.long
@pytest.mark.xdist_group("grpc_clients")
def test_the_python_client_signs_its_calls_and_speaks_tls(tmp_path: Path) -> None:
    """At ``rmq standalone --proxy``, which asks its own broker for users; with a wrong secret it gets nowhere."""
    authority = Authority(tmp_path)
    signed = authority.sign("server", "127.0.0.1")
    tls = tmp_path / "tls.properties"
    tls.write_text(
        f"tls.server.certPath={signed.cert}\ntls.server.keyPath={signed.key}\ntls.client.trustCertPath={authority.cert}\n"
    )
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"tls.server.mode=enforcing\ntls.config.file={tls}\nauthenticationEnabled=true\nauthorizationEnabled=true\n"
        'innerClientAuthenticationCredentials={"accessKey":"inner","secretKey":"of-inner"}\n'
    )
    free = ["--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0", "--proxy", "127.0.0.1:0"]
    command = [*COMMAND, "standalone", "--store", str(tmp_path / "store"), "-c", str(conf), *free]
    with (tmp_path / "log").open("wb") as log:
        process = warm_processes.Popen(command, stdout=subprocess.PIPE, stderr=log)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().decode().replace(",", "").split()
        assert words[:2] == ["name", "server"], (tmp_path / "log").read_text()

        async def prepare() -> None:
            trusting = ClientOptions(tls=Tls(trust_cert_path=str(authority.cert)))
            async with Admin(words[2], trusting, credentials=Credentials("inner", "of-inner")) as admin:
                await admin.create_topic("NormalT", queues=4, attributes="+message.type=NORMAL")

        run(prepare())
        told = played("simple", words[-1], "--tls", "--ak", "inner", "--sk", "of-inner", roots=authority.cert)
        assert told.get("ok") is True, told
        wrong = played("simple", words[-1], "--tls", "--ak", "inner", "--sk", "wrong", roots=authority.cert)
        assert wrong.get("ok") is not True
        assert "check signature failed" in (tmp_path / "log").read_text()
        assert "of-inner" not in (tmp_path / "log").read_text()
    finally:
        process.terminate()
        process.communicate(timeout=30)
