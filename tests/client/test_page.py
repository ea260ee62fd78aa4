"""The Python of docs/client.md runs, and what the page says of defaults is so."""

import re
import sys
from pathlib import Path

import pytest

from rmq_core.client import Admin, ProducerOptions, PushOptions
from tests.client.test_at_our_broker import namesrv as namesrv  # noqa: PLC0414 # the fixture
from tests.support.processes import warm_processes

PAGE = (Path(__file__).parents[2] / "docs" / "client.md").read_text()


@pytest.mark.long
def test_its_programs_run(namesrv: str) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    outputs = []
    for program in programs:
        assert program.count("127.0.0.1:9876") == 1
        done = warm_processes.run(
            [sys.executable, "-c", program.replace("127.0.0.1:9876", namesrv)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, "")
        outputs.append(done.stdout)
    sent, pushed, shared, pulled, light, popped, administered = outputs
    assert sent.startswith("SEND_OK ")
    assert "Orders Paid ['4711'] b'paid' 0" in pushed
    assert len(shared.splitlines()) == 12
    assert sorted(pulled.splitlines()) == sorted(shared.splitlines()) == sorted(popped.splitlines())
    assert light == "Devices 0 b'to one device'\n"
    assert "'Invoices'" in administered
    assert "b'paid'" in administered


def test_its_defaults_are_the_codes() -> None:
    push, producer = PushOptions(), ProducerOptions()
    for name in ("concurrency", "max_cached_messages", "max_span"):
        assert re.search(rf"`{name}` \({getattr(push, name):,}\)", PAGE), name
    for name, text in (("retries", "2"), ("send_timeout_s", "3 s"), ("default_topic_queue_nums", "4")):
        assert f"{getattr(producer, name):g}" == text.split()[0]
        assert re.search(rf"`{name}`[,)]? ?\(?{text}", PAGE), name
    assert re.search(rf"Bodies\*\* of {producer.compress_above_bytes:,} bytes", PAGE)
    for least_ms, duration_ms in producer.backoff.steps_ms[2:]:
        shown = f"{least_ms} ms" if least_ms < 1000 else f"{least_ms / 1000:g} s"
        assert f" {shown} " in PAGE
        assert f" {duration_ms // 1000} s " in PAGE


def test_the_methods_that_it_names_are_there() -> None:
    also = re.search(r"^Also: (.*)$", PAGE, re.MULTILINE)
    assert also is not None
    names = re.findall(r"`(\w+)`", also[1])
    assert len(names) > 10
    offsets = {"min", "max", "search", "committed", "commit", "offsets"}
    assert [name for name in names if not hasattr(Admin, name) and name not in offsets] == []
