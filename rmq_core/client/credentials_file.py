"""The file of a cluster's access settings: TOML, flat YAML as the original's ``tools.yml``, or Java properties.

Source: ``AclUtils#getAclRPCHook``, ``SessionCredentials``. No error shows a value: it may be secret.
"""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from stat import S_ISREG
from typing import Any, Final

from rmq_formats.codecs.java_properties import parse_properties
from rmq_formats.errors import FormatError, OptionError

_MAX_FILE_BYTES: Final = 1 << 16  # a few lines; a larger one is another file
_POSITION: Final = re.compile(r"\(at [^()]*\)$")  # of an error of tomllib
_GROUP_AND_OTHERS: Final = 0o077
_OTHERS_OF_ROOT: Final = 0o037  # as libpq has it: a file of root's may be for a group, as those of Kubernetes are


def read_credentials_file(path: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Read a file of settings in the format of the name's suffix: TOML, YAML, or properties for any other.

    Args:
        names: names of settings. In the file they may begin with a capital, as in the original's ``key`` file.

    Returns:
        Settings by name, without those that have no value.

    Raises:
        OptionError: it cannot be read, others may read it, or it has something else; the line is named, not shown.
    """
    text = read_secret(path)
    try:
        if path.suffix == ".toml":
            entries = _flatten(tomllib.loads(text))
        elif path.suffix in {".yml", ".yaml"}:
            entries = _flat_yaml(text)
        else:
            entries = parse_properties(text)
    except (FormatError, ValueError) as error:
        where = _error_position(error)
        kind = {".toml": "TOML", ".yml": "YAML", ".yaml": "YAML"}.get(path.suffix, "properties")
        raise OptionError(f"{path}: no flat {kind} of access settings{where}") from None
    settings = {}
    spellings = {name.lower(): name for name in names}
    for name, value in entries.items():
        setting = name[:1].lower() + name[1:]
        if setting not in names:  # of a file with a secret alone, the name is that secret
            spelling = f"; {name} is spelt {spellings[name.lower()]}" if name.lower() in spellings else ""
            raise OptionError(f"{path}: has something else than {', '.join(names)}{spelling}")
        settings[setting] = value.strip()
    return {name: value for name, value in settings.items() if value}


def _error_position(error: Exception) -> str:
    """Format the position of a parse error, without the text at that position."""
    if isinstance(error, tomllib.TOMLDecodeError):
        position = _POSITION.search(str(error))
        return f" {position[0]}" if position else ""
    return f" ({error})" if isinstance(error, ValueError) else ""


def read_secret(path: Path) -> str:
    """Read a small file that only its owner may read; raises OptionError."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from None
    mode = status.st_mode
    if S_ISREG(mode) and mode & (_GROUP_AND_OTHERS if status.st_uid else _OTHERS_OF_ROOT):  # not a pipe, as of <(…)
        raise OptionError(f"{path}: others may read or change it (mode {mode & 0o777:04o}): chmod 600")
    if len(data) > _MAX_FILE_BYTES:
        raise OptionError(f"{path}: more than {_MAX_FILE_BYTES} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise OptionError(f"{path}: not UTF-8") from None


def _flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Join the names of nested tables by dots: ``tls.client.certPath`` is nested in TOML."""
    entries: dict[str, str] = {}
    for name, value in table.items():
        if isinstance(value, dict):
            entries |= _flatten(value, f"{prefix}{name}.")
        elif isinstance(value, str | bool):
            entries[prefix + name] = value if isinstance(value, str) else str(value).lower()
        else:
            raise ValueError("a value is no text")  # of the file, not of a caller
    return entries


def _flat_yaml(text: str) -> dict[str, str]:
    """Parse ``name: value`` lines with comments and simple quotes; any more of YAML is a ValueError."""
    entries: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        content = line.strip()
        if not content or content.startswith(("#", "---")):
            continue
        name, colon, rest = content.partition(":")
        value = rest.strip()
        if not colon or line[0].isspace() or (rest and not rest[0].isspace()):
            raise ValueError(f"line {number}")
        if value[:1] in {"'", '"'}:
            value, _, behind = value[1:].partition(value[0])
            if (behind.strip() and not behind.lstrip().startswith("#")) or "\\" in value:
                raise ValueError(f"line {number}: simple quotes only")
        elif value[:1] and value[0] in "[{&*!|>%@`":
            raise ValueError(f"line {number}: put the value in quotes")
        else:
            value = value.split(" #")[0].rstrip()
        entries[name.strip()] = value
    return entries
