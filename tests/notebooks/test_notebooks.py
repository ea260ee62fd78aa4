"""The notebooks run from top to bottom, on the small shop's store and on those that the original wrote."""

import re
from collections.abc import Callable
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from nbformat import NotebookNode

from tests.conftest import MIXED_DELAY_LEVELS

DIRECTORY = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path.stem for path in DIRECTORY.glob("*.ipynb"))
CELL_TIMEOUT_S = 400  # on a busy machine

# What a reader of the shop's store is to see.
SHOWN = {
    "01_first_messages": ["access path index", r"%DLQ%billing"],
    "02_inside_a_commitlog": ["leads to the record: True", "has its tag's hash:  True", r"found: \[\d+"],
    "03_what_happened_to_this_order": [r"order-4711: 37 messages in 6 topics", "given up .* 17 tries", "sent again"],
    "04_backlog_and_lag": ["194 moments, 3 groups", "analytics", "shipping"],
    "05_rebuild_and_verify": [
        "The store is sound", r"consumequeue +(\d+) of \1 files", r"index +(\d+) of \1 files",
        r"commitlog.body_crc at \d+",
    ],
    "06_lakehouse": [
        r"3 \{'messages': 0", r"rows in the table +([\d,]+)\s+different .* \1\s+messages .* \1\s", r"1\.249,00",
        "version 2: ", r"'messages': 4, 'undecoded': 1", "after.since: text '02.03.2024', wanted DATE",
        r"'messages': 1, 'undecoded': 0", "Alan",
    ],
    "07_every_engine": ["all the same: True", "access path msgId", "found by its queue: 1"],
}  # fmt: skip
# And of one that the original wrote: those that need no Spark.
SHOWN_OF_THE_ORIGINAL = {
    "02_inside_a_commitlog": ["leads to the record: True", "has its tag's hash:  True", r"found: \[\d+"],
    "03_what_happened_to_this_order": ["%DLQ%golden_cg: step", r"given up .* 2 tries"],
    "05_rebuild_and_verify": ["The store is sound", r"consumequeue +(\d+) of \1 files", r"commitlog.body_crc at \d+"],
    "07_every_engine": ["all the same: True", "access path msgId", "found by its queue: 1"],
}


def read(name: str) -> NotebookNode:
    return nbformat.read(DIRECTORY / f"{name}.ipynb", as_version=4)


@pytest.fixture(scope="session")
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the notebooks of one run put their stores and tables."""
    return tmp_path_factory.mktemp("notebooks")


Run = Callable[..., str]


@pytest.fixture
def run(own_places: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a notebook with parameters; all that it printed and showed."""
    for name in ("TMPDIR", "IPYTHONDIR", "JUPYTER_RUNTIME_DIR", "MPLCONFIGDIR"):
        monkeypatch.setenv(name, str(own_places))

    def run_notebook(name: str, **parameters: str) -> str:
        notebook = read(name)
        (cell,) = (cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
        cell.source += "".join(f"\n{key} = {value!r}" for key, value in parameters.items())
        resources = {"metadata": {"path": str(DIRECTORY)}}
        NotebookClient(notebook, timeout=CELL_TIMEOUT_S, kernel_name="python3", resources=resources).execute()
        return "\n".join(_texts(notebook))

    return run_notebook


def _texts(notebook: NotebookNode) -> list[str]:
    """Outputs as text. What is told on stderr but for the JVM's own greeting is a fault."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "stream" and output.name == "stderr":
                assert "jdk.incubator.vector" in output.text, output.text
            elif output.output_type == "stream":
                found.append(output.text)
            else:
                found += [str(output.data[kind]) for kind in ("text/plain", "text/html") if kind in output.data]
    return found


def test_there_is_a_notebook_for_each_story() -> None:
    assert list(SHOWN) == NOTEBOOKS


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_begins_with_what_it_shows_and_needs(name: str) -> None:
    notebook = read(name)
    nbformat.validate(notebook)
    opening = notebook.cells[0]
    assert opening.cell_type == "markdown"
    assert opening.source.startswith("# ")
    assert "**What this shows.**" in opening.source
    assert "**What it needs.**" in opening.source
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "STORE = " in next(cell.source for cell in code if "parameters" in cell.metadata.get("tags", []))


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_carries_the_outputs_of_one_run(name: str) -> None:
    notebook = read(name)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert not [output for cell in code for output in cell.outputs if output.output_type == "error"]
    shown = "\n".join(_texts(notebook))
    _assert_shown(shown, SHOWN[name])
    assert str(DIRECTORY.parent) not in shown
    assert (DIRECTORY / f"{name}.ipynb").stat().st_size < 1 << 20


def test_notebooks_carry_pictures() -> None:
    shown = [output for name in NOTEBOOKS for cell in read(name).cells for output in cell.get("outputs", [])]
    assert len([output for output in shown if "image/png" in output.get("data", {})]) >= 5


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_its_links_lead_somewhere(name: str) -> None:
    text = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "markdown")
    links = [link for link in re.findall(r"\]\(([^)]+)\)", text) if "://" not in link]
    assert [link for link in links if not (DIRECTORY / link).exists()] == []


def _assert_shown(shown: str, patterns: list[str]) -> None:
    assert [pattern for pattern in patterns if not re.search(pattern, shown)] == []
    assert "object at 0x" not in shown, "something has no form for people"


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name in SHOWN_OF_THE_ORIGINAL])
def test_it_runs_on_the_shops_store(run: Run, name: str) -> None:
    _assert_shown(run(name), SHOWN[name])


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.parametrize("name", [name for name in NOTEBOOKS if name not in SHOWN_OF_THE_ORIGINAL])
def test_it_runs_on_spark(run: Run, name: str) -> None:
    _assert_shown(run(name), SHOWN[name])


@pytest.mark.long
@pytest.mark.parametrize("name", list(SHOWN_OF_THE_ORIGINAL))
def test_it_runs_on_a_store_of_the_original(run: Run, golden: Callable[[str], Path], name: str) -> None:
    parameters = {"DELAY_LEVELS": MIXED_DELAY_LEVELS} if name.startswith("05") else {}
    shown = run(name, STORE=str(golden("mixed") / "store"), **parameters)
    _assert_shown(shown, SHOWN_OF_THE_ORIGINAL[name])
