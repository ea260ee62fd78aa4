"""A new store's broker has its kernels before it listens: who finds it finds what was stored."""

import os
import signal
import subprocess
import threading
from pathlib import Path

import pytest

from rmq_core.broker.broker import Broker
from rmq_core.broker.config import BrokerConfig
from rmq_core.remoting.client import RemotingClient
from rmq_core.remoting.codes import RequestCode
from rmq_core.store.config import FlushDiskType
from tests.broker.conftest import Asker, messages, small_store
from tests.broker_processes import COMMAND, START_S

CONFIG = BrokerConfig(listen_port=0)


@pytest.mark.parametrize("flush", FlushDiskType)
async def test_the_first_message_can_be_read_when_it_is_answered(
    kernel_gate: threading.Event, tmp_path: Path, flush: FlushDiskType
) -> None:
    threading.Timer(0.05, kernel_gate.set).start()
    async with Broker(CONFIG, small_store(tmp_path / "store", flush)) as broker, RemotingClient({}) as client:
        assert kernel_gate.is_set()
        asker = Asker(broker, client, {})
        assert [(await asker.send("T", body)).code for body in (b"1", b"2")] == [0, 0]
        assert [message.body for message in messages(await asker.pull("T"))] == [b"1", b"2"]
        end = await asker.ask(RequestCode.GET_MAX_OFFSET, {"topic": "T", "queueId": 0})
        assert end.ext_fields["offset"] == "2"


@pytest.mark.parametrize("delay_s", [0.2, 0.6, 1.0])
@pytest.mark.long
def test_a_broker_that_is_stopped_while_it_starts_leaves_a_complete_store(tmp_path: Path, delay_s: float) -> None:
    store = tmp_path / "store"
    command = [*COMMAND, "standalone", "--store", str(store), "--listen", "127.0.0.1:0", "--broker-listen",
               "127.0.0.1:0"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    threading.Timer(delay_s, process.send_signal, [signal.SIGTERM]).start()
    _, errors = process.communicate(timeout=START_S)
    assert b"Traceback" not in errors
    assert not (store / "abort").exists()


def test_a_broker_without_kernels_is_one_line_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / "numba.py").write_text("raise ImportError('no numba')\n")
    command = [*COMMAND, "broker", "--store", str(tmp_path / "store"), "--listen", "127.0.0.1:0"]
    searched = os.pathsep.join([str(tmp_path), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": searched}
    done = subprocess.run(command, capture_output=True, text=True, timeout=START_S, check=False, env=environment)
    assert (done.returncode, done.stderr) == (2, "rmq: the kernels of dispatch cannot be loaded: no numba\n")
    assert not (tmp_path / "store").exists()
