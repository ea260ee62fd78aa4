"""A second broker beside a standalone one, for tests of clusters of two."""

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rmq_core.client import Admin
from rmq_core.remoting.loop import run
from tests.support.processes import warm_processes
from tests.support.processes.broker_processes import COMMAND

SMALL_FILES = "mappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=2000\ndiskMaxUsedSpaceRatio=99\n"


@contextmanager
def second_broker(directory: Path, namesrv: str) -> Iterator[None]:
    """``rmq broker`` named broker-b."""
    conf = directory / "b.conf"
    conf.write_text(f"{SMALL_FILES}brokerName=broker-b\n")
    command = [*COMMAND, "broker", "--store", str(directory / "b"), "-c", str(conf), "--namesrv", namesrv]
    with (directory / "b.log").open("wb") as log:
        process = warm_processes.Popen([*command, "--listen", "127.0.0.1:0"], stdout=subprocess.DEVNULL, stderr=log)
    try:
        run(until_two_brokers(namesrv))
        yield
    finally:
        process.terminate()
        process.wait(timeout=60)


async def until_two_brokers(namesrv: str) -> None:
    async with asyncio.timeout(120), Admin(namesrv) as admin:
        while len(await admin.masters()) < 2:
            await asyncio.sleep(0.1)
