"""Config files, kept as the original keeps them: the text before in ``.bak``, which counts where the file is lost.

The original overwrites a file in place; here it is replaced whole.

Source: ``ConfigManager#persist``, ``#load``, ``MixAll#string2File``.
"""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

from rmq_core.store.disk import Disk
from rmq_formats.config_json import loads
from rmq_formats.errors import DecodeError

T = TypeVar("T")


def save(path: str, text: str, disk: Disk | None = None) -> None:
    """Give a config file a new text; the one before goes to ``.bak``. Nothing is done where both are the same.

    Raises:
        OSError: it cannot be written; the file has its old text then.
    """
    disk = disk or Disk()
    disk.make_directory(str(Path(path).parent))
    data = text.encode()
    try:
        before = Path(path).read_bytes()
    except FileNotFoundError:
        before = b""
    if before == data:
        return
    if before:
        disk.replace(f"{path}.bak", before)
    disk.replace(path, data)


def load(path: str, parse: Callable[[str], T]) -> T | None:
    """What a config file says, or else its ``.bak``; None where neither can be read.

    Args:
        path: of the file.
        parse: makes a value of its text; DecodeError and ValueError mean that it cannot.
    """
    for candidate in (path, f"{path}.bak"):
        try:
            text = Path(candidate).read_text(encoding="utf-8")
            if text:
                return parse(text)
        except (OSError, DecodeError, ValueError):
            continue
    return None


def dump_numbers(numbers: Mapping[str, int]) -> str:
    """Text of a table of numbers."""
    return json.dumps(dict(numbers), sort_keys=True)


def load_numbers(path: str) -> dict[str, int]:
    """A table of numbers; empty where there is none."""

    def parse(text: str) -> dict[str, int]:
        found = loads(text)
        if not isinstance(found, dict):
            raise DecodeError("not a JSON object")
        return {str(name): number for name, number in found.items() if isinstance(number, int)}

    return load(path, parse) or {}
