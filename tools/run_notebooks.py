"""Runs the notebooks on their default store, and saves their outputs: ``make notebooks``."""

import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

DIRECTORY: Final = Path(__file__).parents[1] / "notebooks"
CELL_TIMEOUT_S: Final = 400
_KEPT_KINDS: Final = ("text/html", "image/png", "text/plain")
_STYLE_ID: Final = re.compile(r"\bT_[0-9a-f]{5}")  # of a table by pandas
_TEMPORARY_NAME: Final = re.compile(r"(rmq-notebook-)\w+")


def run_notebook(path: Path) -> None:
    """Run a notebook from top to bottom, and write it with its outputs."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(DIRECTORY)}}
    NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=resources).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [_portable(output, cell.id) for output in cell.outputs if output.get("name") != "stderr"]
    notebook.metadata.pop("language_info", None)
    nbformat.write(notebook, path)


def _portable(output: NotebookNode, cell_id: str) -> NotebookNode:
    """Remove from an output directories of this machine, ids made at random, and kinds that no page shows."""
    if output.output_type == "stream":
        output.text = _without_directories(output.text)
    else:
        kinds = [kind for kind in _KEPT_KINDS if kind in output.data]
        if "text/html" in kinds or "image/png" in kinds:
            kinds.remove("text/plain")
        output.data = {kind: _STYLE_ID.sub(f"T_{cell_id}", _without_directories(output.data[kind])) for kind in kinds}
    return output


def _without_directories(text: str) -> str:
    for directory, name in ((tempfile.gettempdir(), "/tmp"), (str(DIRECTORY.parent), "."), (str(Path.home()), "~")):
        text = text.replace(directory, name)
    return _TEMPORARY_NAME.sub(r"\1…", text)


def main() -> None:
    """Run the notebooks that are named, or all."""
    names = sys.argv[1:] or sorted(path.stem for path in DIRECTORY.glob("*.ipynb"))
    for name in names:
        sys.stderr.write(f"{name}\n")
        run_notebook(DIRECTORY / f"{name}.ipynb")


if __name__ == "__main__":
    main()
