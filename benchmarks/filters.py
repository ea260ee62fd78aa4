"""SQL filters on: Java's consumer of messages of which half match, at our broker and at the original's, in turn."""

import subprocess
import sys
from pathlib import Path
from typing import Final

from benchmarks.broker import PEER, java_broker, load, our_broker
from benchmarks.measure import Figure

MATCHING: Final = 150_000
_SETTINGS: Final = {
    "": "enablePropertyFilter=true\n",
    ", with bit maps": "enablePropertyFilter=true\nenableConsumeQueueExt=true\nenableCalcFilterBitMap=true\n",
}


def figures(work: Path) -> list[Figure]:
    """Messages a second that a consumer with a filter is given of a backlog, on stores under ``work``."""
    subprocess.run(["bash", str(PEER), "build"], check=True, stdout=sys.stderr)
    return [_figure(work, number, name) for number, name in enumerate(_SETTINGS)]


def _figure(work: Path, number: int, name: str) -> Figure:
    more = _SETTINGS[name]
    with our_broker(work / f"ours-filters-{number}", "ASYNC_FLUSH", more) as broker:
        ours = load(broker.namesrv, "filter", "LoadFilter", MATCHING)
    with java_broker(work / f"java-filters-{number}", "ASYNC_FLUSH", more) as broker:
        theirs = load(broker.namesrv, "filter", "LoadFilter", MATCHING)
    ratio = ours / theirs
    name = f"consumption with a SQL filter that half of the messages match{name}"
    return Figure(name, f"{ours:,.0f}/s", f"{theirs:,.0f}/s", ratio, "1.0 × Java", ratio >= 1)
