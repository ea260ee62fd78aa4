"""Reads a file of settings: Java's properties, or TOML."""

import tomllib
from pathlib import Path

from rmq_formats.codecs.java_properties import parse_properties
from rmq_formats.errors import FormatError, OptionError


def read_settings_file(path: Path) -> dict[str, object]:
    """Read the keys and values of a file, unconverted; it is TOML if its name ends so. Raises OptionError."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise OptionError(f"{path}: {error.strerror}") from error
    try:
        text = data.decode()
        return tomllib.loads(text) if path.suffix == ".toml" else dict(parse_properties(text))
    except (UnicodeDecodeError, tomllib.TOMLDecodeError, FormatError) as error:
        raise OptionError(f"{path}: {error}") from error
