"""Our producer and consumers at our own broker."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.scenarios import *  # noqa: F403 # the tests themselves
from tests.client.scenarios import SETTINGS

pytestmark = [pytest.mark.xdist_group("client_at_our_broker")]
STANDALONE = "from rmq_core.cli.main import main; main()"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server's address of ``rmq standalone``."""
    directory = tmp_path_factory.mktemp("client")
    settings = directory / "broker.conf"
    settings.write_text(SETTINGS + "mappedFileSizeCommitLog=1048576\ndiskMaxUsedSpaceRatio=99\n")
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", STANDALONE, "standalone", "--store", str(directory / "store"), "-c", str(settings),
             "--listen", "127.0.0.1:0", "--broker-listen", "127.0.0.1:0"],
            stdout=subprocess.PIPE, stderr=log, text=True,
        )  # fmt: skip
        with process:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"name server ([0-9.]+:[0-9]+)", line)
            assert found, line + Path(log.name).read_text()
            yield found[1]
            process.terminate()
