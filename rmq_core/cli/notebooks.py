"""``rmq notebooks``: copies the notebooks to where they can be opened and changed."""

import shutil
from pathlib import Path
from typing import Annotated

import typer

from rmq_core.cli import packaged
from rmq_formats.errors import OptionError


def notebooks(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where to put them; made if it is not there.")],
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that differ, as those that you have run.")
    ] = False,
) -> int:
    """Copy the notebooks and their modules into a directory.

    Files of the same names that differ are not replaced: nothing is copied then, without --overwrite.
    """
    source, target = packaged.folder("notebooks"), Path(directory)
    files = sorted(path for path in source.iterdir() if path.suffix in {".ipynb", ".py"})
    changed = [path.name for path in files if _differs(path, target / path.name)]
    if changed and not overwrite:
        names = ", ".join(changed)
        raise OptionError(f"{directory}: has {names} already, with other content; --overwrite replaces them")
    target.mkdir(parents=True, exist_ok=True)
    for path in files:
        shutil.copyfile(path, target / path.name)
        typer.echo(str(target / path.name))
    return 0


def _differs(path: Path, other: Path) -> bool:
    return other.exists() and (not other.is_file() or other.read_bytes() != path.read_bytes())
