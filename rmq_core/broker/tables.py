"""What brokers keep in JSON files: a table in memory, written when it changes or now and then.

The files are the original's, by name and content, so that a Java broker goes on with them; they are standard
JSON where fastjson's are not, which it reads as well.

Source: ``ConfigManager``.
"""

import logging
from collections.abc import Callable
from typing import TypeVar

import msgspec

from rmq_core.remoting.bodies import decode_body, encode_body
from rmq_core.store import config_files
from rmq_formats.paths import config_dir

log = logging.getLogger("rmq.broker")
Run = Callable[[Callable[[], None]], object]
_T = TypeVar("_T", bound=msgspec.Struct)


def run_now(write: Callable[[], None]) -> None:
    """Write at once."""
    write()


def load_table(root: str, name: str, kind: type[_T]) -> _T:
    """The table in a file of a store, or in its ``.bak``; an empty one if there is none.

    Args:
        root: the store's directory.
        name: of the file.
        kind: what it holds.
    """
    table = config_files.load(f"{config_dir(root)}/{name}", lambda text: decode_body(text.encode(), kind))
    return kind() if table is None else table


def save_table(root: str, name: str, table: msgspec.Struct, run: Run = run_now) -> None:
    """Write a table. A disk that does not take it is logged: the broker goes on, and tries again next time.

    Args:
        root: the store's directory.
        name: of the file.
        table: what it is to hold; made to text at once.
        run: runs the writing, on another thread perhaps; at once by default.
    """
    path = f"{config_dir(root)}/{name}"
    text = msgspec.json.format(encode_body(table), indent=1).decode()

    def write() -> None:
        try:
            config_files.save(path, text)
        except OSError as error:
            log.error("%(path)s cannot be written: %(error)s", {"path": path, "error": error})

    run(write)
