"""A metric in Prometheus' text format."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_ESCAPES: Final = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})


@dataclass(frozen=True, slots=True)
class Family:
    """Prometheus metric with its samples.

    Attributes:
        name: of the metric.
        about: its help text.
        labels: the labels' names.
        samples: the labels' values, and the metric's.
    """

    name: str
    about: str
    labels: tuple[str, ...]
    samples: Iterable[tuple[tuple[str, ...], float]]

    @property
    def text(self) -> str:
        """The metric in Prometheus' text format, version 0.0.4."""
        lines = [f"# HELP {self.name} {self.about}\n# TYPE {self.name} gauge\n"]
        for values, number in self.samples:
            labels = ",".join(f'{n}="{v.translate(_ESCAPES)}"' for n, v in zip(self.labels, values, strict=True))
            lines.append(f"{self.name}{{{labels}}} {number}\n")
        return "".join(lines)
