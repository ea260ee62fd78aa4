"""Sets the style of the notebooks' pictures and tables when it is imported."""

from typing import Any, Final

import matplotlib as mpl
import pandas as pd
from cycler import cycler
from matplotlib_inline.backend_inline import set_matplotlib_formats

GREEN, BLUE, AMBER, RED, VIOLET, SAND, SLATE = (
    "#5f9e8f", "#5b7ea6", "#d19a3c", "#c2453d", "#8d6fa8", "#b7a98a", "#59666f",
)  # fmt: skip
PALETTE: Final = [BLUE, GREEN, AMBER, VIOLET, RED, SAND, SLATE, "#8fb8d8", "#a9cfa0", "#e0b7a6"]
EMPTY: Final = "#ecede9"

set_matplotlib_formats("retina")  # type: ignore[no-untyped-call] # ships no types
mpl.rcParams |= {
    "figure.figsize": (10, 3.6),
    "figure.constrained_layout.use": True,
    "figure.facecolor": "white",
    "font.size": 10,
    "axes.titlesize": 11.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.edgecolor": "#c5cac7",
    "axes.labelcolor": SLATE,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.prop_cycle": cycler(color=PALETTE),
    "grid.color": "#eceeeb",
    "xtick.color": SLATE,
    "ytick.color": SLATE,
    "legend.frameon": False,
    "date.converter": "concise",
}
pd.options.display.max_colwidth = 90
pd.options.display.max_rows = 40


def table(frame: pd.DataFrame) -> Any:
    """Show a table in a notebook: no row numbers, text to the left, thousands apart."""
    texts = [name for name in frame.columns if frame[name].dtype == object]
    times = [name for name in frame.columns if pd.api.types.is_datetime64_any_dtype(frame[name])]
    style = frame.style.hide(axis="index").format(thousands=",", precision=2, na_rep="")
    for name in times:
        style = style.format("{:%Y-%m-%d %H:%M:%S}", subset=[name], na_rep="")
        style = style.set_properties(subset=[name], **{"white-space": "nowrap"})
    for name in texts:
        style = style.set_properties(subset=[name], **{"text-align": "left"})
    heads: Any = {name: [{"selector": "th", "props": "text-align: left"}] for name in texts}
    return style.set_table_styles(heads)
