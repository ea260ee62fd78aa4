"""Reads the files of ``config/`` for a verification, with their ``.bak`` files, as a broker does."""

from typing import Final

from rmq_formats.errors import StoreError, StoreNotFoundError
from rmq_formats.storage.segments import Entry, Storage
from rmq_offline.verify import checkpoint_and_config, finding_kinds
from rmq_offline.verify.checkpoint_and_config import ConfigFile
from rmq_offline.verify.findings import Finding, FindingList

MAX_CONFIG_BYTES: Final = 1 << 28  # limit: a file of 100,000 topics has some 30 MB; parsed it takes many times its size


def read_config_texts(storage: Storage, directory: str, findings: FindingList) -> dict[str, str]:
    """Read each config file that exists as a broker does, from it or its ``.bak``; empty if neither is readable."""
    try:
        entries = {entry.name: entry for entry in storage.entries(directory)}
    except StoreError as error:
        findings.add(Finding(finding_kinds.CONFIG_LOST, str(error), directory))
        return dict.fromkeys(checkpoint_and_config.JSON_FILES, "")
    texts = {}
    for name in checkpoint_and_config.JSON_FILES:
        path = f"{directory}/{name}"
        config = _read(storage, path, path, entries.get(name))
        backup = _read(storage, f"{path}.bak", path, entries.get(f"{name}.bak"))
        for finding in checkpoint_and_config.check_config_file(path, config, backup):
            findings.add(finding)
        if config.exists or backup.exists:
            texts[name] = (checkpoint_and_config.select_config_data(config, backup) or b"").decode("utf-8", "replace")
    return texts


def _read(storage: Storage, path: str, config_path: str, entry: Entry | None) -> ConfigFile:
    """Read a config file, or the ``.bak`` of the one at ``config_path``."""
    if entry is None:
        return ConfigFile(None, None)
    if entry.is_directory:
        return ConfigFile(None, "it is a directory")
    if entry.size_bytes > MAX_CONFIG_BYTES:
        return ConfigFile(None, f"it has {entry.size_bytes} bytes, more than {MAX_CONFIG_BYTES}")
    try:
        data = storage.read_bytes(path)
    except StoreNotFoundError:  # a broker deleted it since it was listed, to rewrite it
        return ConfigFile(None, None)
    except (StoreError, OSError):
        return ConfigFile(None, "it cannot be read")
    return ConfigFile(data, checkpoint_and_config.config_fault(config_path, data))
