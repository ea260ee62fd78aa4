"""A rebuild as a card in a notebook."""

from pathlib import Path

from tests.support.stores.rebuilt_stores import patch, rebuild, small_store


def test_a_notebook_shows_what_was_made(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    shown = rebuild(store, None)._repr_html_()
    assert "120 messages" in shown
    assert "files made" in shown
    assert "commitlog" not in shown.replace(str(store), "")


def test_a_notebook_shows_what_was_found(tmp_path: Path) -> None:
    store = small_store(tmp_path / "store")
    patch(store, 4, bytes(4))  # no magic
    report = rebuild(store, None)
    shown = report._repr_html_()
    assert report.finding_counts
    assert all(code in shown for code in report.finding_counts)
    assert "finding" in shown
