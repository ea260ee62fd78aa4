"""Lite topics: our proxy in front of brokers that have them, call by call and with official clients."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest

from rmq_core.client import Admin
from rmq_core.proxy.server import Proxy
from rmq_core.remoting.bodies.configs import SubscriptionGroupConfig
from rmq_core.remoting.loop import run
from tests.interop import peer
from tests.interop.test_grpc_clients import played
from tests.interop.test_namesrv_against_java import SMALL_FILES, brokers, free_port, java, settings, wait_for
from tests.namesrv.test_command import running
from tests.proxy.lite_parents import Make, parents_at
from tests.proxy.lite_scenarios import *  # noqa: F403 # the tests themselves
from tests.support.processes.broker_processes import configured

pytestmark = [pytest.mark.peer, pytest.mark.xdist_group("lite_topics")]
LIGHT = "enableLmq=true\nenableMultiDispatch=true\n"


@contextmanager
def java_broker(directory: Path) -> Iterator[str]:
    """Java's newest broker, and our name server; the address of that."""
    with peer.running(peer.NEWEST), ExitStack() as stack:
        log = stack.enter_context((directory / "java.log").open("wb"))
        address = stack.enter_context(running("-c", settings(directory / "namesrv")))[1]
        conf = directory / "broker.conf"
        ports = f"listenPort={free_port()}\nhaListenPort={free_port()}\n"
        conf.write_text(f"{SMALL_FILES}{LIGHT}brokerName=lite-a\nnamesrvAddr={address}\n{ports}")
        stack.enter_context(java(log, "broker", str(directory / "store"), str(conf)))
        wait_for(lambda: brokers(address) == {"lite-a"})
        yield address


@contextmanager
def our_broker(directory: Path) -> Iterator[str]:
    """Our broker and its name server; the address of that."""
    with configured(directory, LIGHT) as started:
        yield started.namesrv


BROKERS: tuple[Callable[[Path], AbstractContextManager[str]], ...] = (java_broker, our_broker)
"""Brokers with lite topics: each starts one below a directory, and gives the address of its name server."""


@pytest.fixture(scope="module", params=BROKERS, ids=lambda start: start.__name__)
def namesrv(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with request.param(tmp_path_factory.mktemp("lite")) as address:
        yield address


@pytest.fixture
async def parents(namesrv: str, request: pytest.FixtureRequest) -> AsyncIterator[Make]:
    async with parents_at(namesrv, asks_again=request.node.callspec.params["namesrv"] is java_broker) as make:
        yield make


@asynccontextmanager
async def proxied(namesrv: str, groups: dict[str, tuple[bool, dict[str, str]]]) -> AsyncIterator[str]:
    """A proxy; groups that are bound to the topic Parent, in order or not, have attributes."""
    async with Admin(namesrv) as admin:
        await admin.create_topic("Parent", queues=4, attributes="+message.type=LITE")
        for name, (in_order, more) in groups.items():
            attributes = {"+lite.bind.topic": "Parent", **more}
            config = SubscriptionGroupConfig(group_name=name, consume_message_orderly=in_order, attributes=attributes)
            await admin.create_group(config)
    async with Proxy(namesrv, "127.0.0.1:0") as proxy:
        yield proxy.address


@pytest.mark.long
def test_all_flows_of_the_java_client_pass(namesrv: str) -> None:
    groups = {
        "lite_g": (False, {}),
        "lite_g2": (False, {}),
        "lite_fifo": (True, {}),
        "lite_one": (False, {"+lite.sub.model": "Exclusive"}),
    }

    async def play() -> str:
        async with proxied(namesrv, groups) as address:
            arguments = "lite5", address, "Parent", "lite_g", "lite_fifo", "lite_one"
            return await asyncio.to_thread(peer.run, *arguments, java_options=peer.QUICK_START)

    told = json.loads(run(play()).splitlines()[-1])
    assert told["ok"] is True, told


def test_both_consumers_of_the_python_client_get_children(namesrv: str, request: pytest.FixtureRequest) -> None:
    again = ["--asks-again"] if request.node.callspec.params["namesrv"] is java_broker else []

    async def play() -> list[dict[str, object]]:
        async with proxied(namesrv, {"lite_py": (False, {}), "lite_py_simple": (False, {})}) as address:
            options = ["--count", "4", *again]
            flows = (asyncio.to_thread(played, flow, address, *options) for flow in ("lite", "lite_simple"))
            return await asyncio.gather(*flows)

    told = run(play())
    assert [one.get("ok") for one in told] == [True, True], json.dumps(told)
