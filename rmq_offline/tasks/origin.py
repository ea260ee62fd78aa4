"""Origin of the notes that a run leaves in a store for the run after it: who wrote a note, where, and for which root.

A store is evidence: a note in it may be somebody else's. What proves a note to be this user's is a seal, an HMAC over
the note and its origin, with a key that is kept outside of all stores, in ``$XDG_STATE_HOME/rmq-lake/key`` (default
``~/.local/state``). Without a fitting seal a note is followed only if the operator says so.
"""

import functools
import hashlib
import hmac
import json
import os
import secrets
import socket
import stat
from argparse import Namespace
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any, Final

from rmq_formats.errors import OptionError, StoreError, without_secrets

NOTE_VERSION: Final = 1
_KEY_BYTES: Final = 32
_WORDS: Final = (
    "Give --resume to complete it, or --start-anew to rename it and begin again (Spark sinks: option leftover)"
)
_DIFFERENCES: Final = {
    "version": "was written by another version of rmq",
    "root": "was written for another directory (the store was copied or moved)",
    "machine": "was written on another machine",
    "boot": "was written before this machine's last start",
}


class InterruptedRunPolicy(StrEnum):
    """Decision of the operator on the work files of an interrupted run."""

    REFUSE = "refuse"  # complete what this user's own run left here, and refuse all else
    RESUME = "resume"  # complete it, whoever left it
    START_ANEW = "start-anew"  # rename it


def parse_interrupted_run_policy(arguments: Namespace) -> InterruptedRunPolicy:
    """Translate the options ``--resume`` and ``--start-anew``. Raises OptionError for both at once."""
    if arguments.resume and arguments.start_anew:
        raise OptionError("--resume and --start-anew: give one of them")
    if arguments.resume:
        return InterruptedRunPolicy.RESUME
    return InterruptedRunPolicy.START_ANEW if arguments.start_anew else InterruptedRunPolicy.REFUSE


def add_seal(note: Mapping[str, Any], root: str) -> dict[str, Any]:
    """Add origin and seal to a note, a dictionary of JSON values, about the store at a root."""
    whole = {**note, "origin": _origin(root)}
    return {**whole, "seal": seal(whole)}


def seal(note: Mapping[str, Any]) -> str:
    """Compute the seal of a note; empty for a user without a key."""
    key = own_key()
    if key is None:
        return ""
    text = json.dumps(note, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def check_origin(
    note: Mapping[str, Any], root: str, path: str | Path, subject: str, leftover: InterruptedRunPolicy
) -> None:
    """Raise StoreError for a foreign note about a ``subject``, unless the operator resumes it."""
    reason = foreign_reason(note, root)
    if reason is not None and leftover is not InterruptedRunPolicy.RESUME:
        raise StoreError(f"{path}: {subject} {reason}. {_WORDS}")


def foreign_reason(note: Mapping[str, Any], root: str) -> str | None:
    """Return the reason why a note may not be this user's; None for a note with this user's seal."""
    origin, signature = note.get("origin"), note.get("seal")
    if not isinstance(origin, dict) or not isinstance(signature, str):
        return "has no origin: rmq 0.1.0 or another program wrote the file"
    here = _origin(root)
    for name, difference in _DIFFERENCES.items():
        if origin.get(name) != here[name]:
            return difference
    expected = seal({key: value for key, value in note.items() if key != "seal"})
    if not expected or not hmac.compare_digest(expected.encode(), signature.encode("utf-8", "replace")):
        return f"has no seal of this user's key ({_key_file()}): another user may have written the file"
    return None


def _origin(root: str) -> dict[str, Any]:
    if "://" in root:
        identity = without_secrets(root)
    else:
        status = Path(root).stat()
        identity = f"{status.st_dev}:{status.st_ino}"
    return {"version": NOTE_VERSION, "root": identity, "machine": _machine(), "boot": boot_id()}


def boot_id() -> str:
    """Return the machine's boot id; empty where the system has none."""
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text(encoding="ascii").strip() if path.exists() else ""


def _machine() -> str:
    with suppress(OSError, ValueError):
        text = Path("/etc/machine-id").read_text(encoding="ascii").strip()
        if text:
            return text
    return socket.gethostname()


def _key_file() -> Path:
    state = os.environ.get("XDG_STATE_HOME") or ""
    home = Path(state)
    if not home.is_absolute():
        with suppress(RuntimeError):  # a user without a home directory
            home = Path("~/.local/state").expanduser()
    return home / "rmq-lake" / "key"


def own_key() -> bytes | None:
    """Read the user's key, which is made at the first use; None if that fails."""
    path = _key_file()
    return _key_in(path) if path.is_absolute() else None


@functools.lru_cache(maxsize=4)
def _key_in(path: Path) -> bytes | None:
    try:
        if not path.exists():
            _make_key(path)
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(descriptor, "rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
                return None
            key = file.read(_KEY_BYTES + 1)
    except (OSError, RuntimeError):
        return None
    return key if len(key) == _KEY_BYTES else None


def _make_key(path: Path) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = path.with_name(f"key.{secrets.token_hex(8)}")
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_KEY_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):  # of two runs the first one's key stays
            os.link(beside, path)
    finally:
        beside.unlink()
