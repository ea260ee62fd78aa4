"""Config files with a backup: the text before the last change stays in ``.bak``, which is read if the file is lost.

The original overwrites a file in place; here it is replaced whole.

Source: ``ConfigManager#persist``, ``#load``, ``MixAll#string2File``.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from rmq_core.store.files.disk import Disk
from rmq_formats.codecs.config_json import loads
from rmq_formats.errors import DecodeError

T = TypeVar("T")


def save(path: str, text: bytes, disk: Disk, *, again: bool = False, keeps_former: bool = True) -> None:
    """Write a config file if its text has changed; the text before goes to ``.bak``.

    Args:
        path: of the file.
        text: what it is to hold, in UTF-8: a thread that encoded a large one would keep the event loop from working.
        disk: where it is.
        again: the last write failed, and may have changed the file without forcing it.
        keeps_former: False where the text before has what must not stay, such as passwords: ``.bak`` has the new text
            then, too, and is written first, so that none of the former is left when this returns.

    Raises:
        OSError: it cannot be written.
    """
    disk.make_durable_directory(str(Path(path).parent))
    try:
        before = disk.read_file(path)
    except FileNotFoundError:
        before = b""
    if before == text and not again:
        return
    if before and (before != text or not keeps_former):
        disk.replace(f"{path}.bak", before if keeps_former else text)
    disk.replace(path, text)
    if not before and not keeps_former:  # a copy without its file would look as if that had been lost
        disk.replace(f"{path}.bak", text)


def load(path: str, parse: Callable[[str], T], disk: Disk) -> T | None:
    """Read and parse a config file, or its ``.bak`` if that fails; None if neither can be read.

    Args:
        path: of the file.
        parse: makes a value of its text; DecodeError and ValueError mean that it cannot.
        disk: where it is.
    """
    for candidate in (path, f"{path}.bak"):
        try:
            text = disk.read_file(candidate).decode("utf-8")
            if text:
                return parse(text)
        except (OSError, DecodeError, ValueError):
            continue
    return None


def dump_numbers(numbers: Mapping[str, int]) -> bytes:
    """Encode a table of numbers as JSON."""
    return json.dumps(dict(numbers), sort_keys=True).encode()


def load_numbers(path: str, disk: Disk) -> dict[str, int]:
    """Read a JSON table of numbers; empty if there is none."""

    def parse(text: str) -> dict[str, int]:
        document = loads(text)
        if not isinstance(document, dict):
            raise DecodeError("not a JSON object")
        return {str(name): number for name, number in document.items() if isinstance(number, int)}

    return load(path, parse, disk) or {}
