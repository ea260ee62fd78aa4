"""The source and the sink ``rmq`` at our own broker."""

from collections.abc import Iterator

import pytest

from tests.spark.live.scenarios import *  # noqa: F403 # the tests themselves
from tests.support.processes.broker_processes import configured

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]
_CONF = "mappedFileSizeCommitLog=1048576\nenablePropertyFilter=true\ndiskMaxUsedSpaceRatio=99\n"


@pytest.fixture(scope="module")
def namesrv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The name server's address of ``rmq standalone``."""
    with configured(tmp_path_factory.mktemp("live"), _CONF) as running:
        yield running.namesrv
