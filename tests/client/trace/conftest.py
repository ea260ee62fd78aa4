"""A broker of ours as a process, with a topic of traces."""

from collections.abc import Iterator

import pytest

from tests.support.processes.broker_processes import Standalone, configured

SETTINGS = (
    "traceTopicEnable=true\nmappedFileSizeCommitLog=1048576\nmappedFileSizeConsumeQueue=2000\nmaxHashSlotNum=500\n"
    f"maxIndexNum=2000\nmessageDelayLevel={' '.join(['1s'] * 18)}\ndiskMaxUsedSpaceRatio=99\n"
)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Standalone]:
    """``rmq standalone``; its store is ``store`` beside the log."""
    with configured(tmp_path_factory.mktemp("trace"), SETTINGS) as running:
        yield running
