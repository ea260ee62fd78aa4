"""Benchmarks SQL92 filters: Java's consumer of messages of which half match, at our broker and at Apache's, in turn."""

from pathlib import Path
from typing import Final

from benchmarks.broker import beside_java, build_peer, load_both
from benchmarks.measure import Figure

MATCHING: Final = 150_000
_SETTINGS: Final = {
    "": "enablePropertyFilter=true\n",
    ", with bit maps": "enablePropertyFilter=true\nenableConsumeQueueExt=true\nenableCalcFilterBitMap=true\n",
}


def figures(work: Path) -> list[Figure]:
    """Measure the messages a second that a consumer with a filter receives from a backlog, on stores under ``work``."""
    build_peer()
    what = "consumption with a SQL filter that half of the messages match"
    return [
        beside_java(f"{what}{name}", *load_both(work / f"filters-{number}", "filter", "LoadFilter", MATCHING, more))
        for number, (name, more) in enumerate(_SETTINGS.items())
    ]
