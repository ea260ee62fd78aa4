"""The parts of the lab by name; one is imported when it is first played."""

from collections.abc import Callable
from importlib import import_module

from tests.lab.rounds import Part, Round


def _play(module: str) -> Callable[[Round], None]:
    def play(one: Round) -> None:
        import_module(f"tests.lab.{module}").play(one)

    return play


PARTS = {
    part.name: part
    for part in (
        Part("decoders", "inputs", _play("decoders.fuzz")),
        Part("kernels", "records", _play("decoders.segments")),
        Part("power", "states", _play("power")),
        Part("interleavings", "steps", _play("interleavings")),
        Part("brokers", "states", _play("brokers")),
        Part("clusters", "steps", _play("clusters.schedule")),
        Part("frames", "frames", _play("frames")),
        Part("calls", "calls", _play("calls")),
        Part("damage", "flips", _play("damage")),
        Part("kills", "kills", _play("kills")),
        Part("lives", "stores", _play("lives.schedule")),
        Part("tables", "steps", _play("tables.schedule")),
    )
}
