"""Several stores that are read together, with the cluster and broker of each store.

Arguments are paths, patterns (``/data/broker-*/store``), or TOML files that list stores::

    cluster = "DefaultCluster"          # of brokers without a cluster; optional

    [[brokers]]
    name = "broker-a"                   # optional
    root = "broker-a/store"             # relative to the file, absolute or a URI
    cluster = "Other"                   # optional

A broker's name comes from the TOML file, else from the store (the broker's own topics in ``config/topics.json``, or
``brokerIdentity`` of the controller mode), else from the part of the path that the wildcards match, else from the part
in which the stores' paths differ.
"""

import os
import re
import tomllib
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, TypeVar

from rmq_formats.errors import OptionError, RmqError, StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.storage.segments import Storage, canonical_path, open_storage, split_query
from rmq_formats.storage.store_files import open_store

_MAX_THREADS: Final = 16  # the stores' threads wait for disks and networks

TOML: Final = ".toml"
_FILE_KEYS: Final = ("cluster", "brokers")
_BROKER_KEYS: Final = ("name", "root", "cluster")

_Plan = TypeVar("_Plan")
Argument = TypeVar("Argument")
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class BrokerStore:
    """Store of a broker, with the names of broker and cluster."""

    path: str  # absolute or a URI
    cluster: str | None = None  # None if it is unknown
    broker: str | None = None  # None for a store that is read alone

    def __str__(self) -> str:
        return self.path if self.broker is None else f"{self.broker} ({self.path})"


def names_several(path: str) -> bool:
    """Return whether a path stands for several stores: a TOML file, or a pattern that is not itself a directory."""
    return path.endswith(TOML) or (_has_wildcard(path) and ("://" in path or not Path(path).exists()))


def find_stores(patterns: Sequence[str]) -> tuple[BrokerStore, ...]:
    """Find the stores of paths, patterns and TOML files, and their brokers; stores may be missing.

    Raises:
        OptionError: nothing matches a pattern, a bad TOML file, overlapping paths, or two stores of the same broker.
        StoreError: a directory or TOML file that cannot be read.
    """
    arguments = _resolve_arguments(patterns)
    roots = [argument.path for argument in arguments]
    _refuse_overlaps(roots)
    names_in_stores = in_threads(_read_missing_names, arguments)
    stores = tuple(
        BrokerStore(argument.path, argument.cluster or cluster, argument.name or broker or argument.matched or part)
        for argument, (cluster, broker), part in zip(
            arguments, names_in_stores, _distinguishing_parts(roots), strict=True
        )
    )
    _refuse_same_brokers(stores)
    return stores


def store_paths(patterns: Sequence[str]) -> list[str]:
    """Return the paths of the stores of paths, patterns and TOML files; no store is read. Raises as ``find_stores``."""
    return [argument.path for argument in _resolve_arguments(patterns)]


def all_stores_failed_error(job: str, stores: Sequence[BrokerStore], reason: str) -> StoreError:
    """Build the error of a job that failed for all stores, with the reason of the first store."""
    failed = f"failed for all {len(stores)} stores" if len(stores) > 1 else "failed"
    return StoreError(f"{job}: {failed}. Broker {stores[0].broker}: {reason}")


def plan_stores(
    stores: Sequence[BrokerStore], plan: Callable[[BrokerStore], _Plan]
) -> list[_Plan | StoreNotFoundError]:
    """Plan the read of each store in threads; a missing store has its error in the place of a plan.

    Raises:
        StoreLayoutError: some stores have a layout that ``plan`` cannot read.
        RmqError: any other error of a store.
    """

    def attempt(store: BrokerStore) -> _Plan | RmqError:
        try:
            return plan(store)
        except RmqError as error:
            return error

    results = in_threads(attempt, stores)
    plans: list[_Plan | StoreNotFoundError] = []
    for result in results:
        if isinstance(result, StoreLayoutError) and not all(isinstance(other, StoreLayoutError) for other in results):
            raise StoreLayoutError(f"stores of different layouts in one read: {result}")
        if isinstance(result, RmqError) and not isinstance(result, StoreNotFoundError):
            raise result
        plans.append(result)
    return plans


def in_threads(function: Callable[[Argument], Output], arguments: Sequence[Argument]) -> list[Output]:
    """Apply a function to each argument in threads; a single argument needs no thread."""
    if len(arguments) <= 1:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(min(_MAX_THREADS, len(arguments))) as pool:
        return list(pool.map(function, arguments))


@dataclass(frozen=True, slots=True)
class _StoreArgument:
    """Store of an argument; ``matched`` is the part of the path that a pattern's wildcards match."""

    path: str
    cluster: str | None = None
    name: str | None = None
    matched: str | None = None


def _resolve_arguments(paths: Sequence[str]) -> list[_StoreArgument]:
    stores: list[_StoreArgument] = []
    for path in paths:
        if path.endswith(TOML):
            stores += _read_toml(path)
        else:
            stores += _match_pattern(path) if names_several(path) else [_StoreArgument(path)]
    return stores


def _has_wildcard(path: str) -> bool:
    """Return whether a path has wildcards; in a URI a ``?`` begins the query."""
    return re.search("[*[]" if "://" in path else "[*?[]", split_query(path)[0]) is not None


def _match_pattern(pattern: str) -> list[_StoreArgument]:
    """List the stores of a pattern: in each directory that the wildcards match, the rest of the path."""
    location, query = split_query(pattern) if "://" in pattern else (pattern, "")
    parts = location.split("/")
    wild = [number for number, part in enumerate(parts) if _has_wildcard(part)]
    store = open_store(("/".join(parts[: wild[0]]) or "/") + query)
    directories = [(store.root.rstrip("/"), "")]
    for part in parts[wild[0] : wild[-1] + 1]:
        directories = [
            (f"{directory}/{name}", f"{matched}/{name}".lstrip("/"))
            for directory, matched in directories
            for name in (_match_names(store.storage, directory or "/", part) if _has_wildcard(part) else [part])
        ]
    if not directories:
        raise StoreNotFoundError(f"{pattern}: no directory matches")
    below = "".join(f"/{part}" for part in parts[wild[-1] + 1 :])
    return [_StoreArgument(directory + below, matched=matched) for directory, matched in directories]


def _match_names(storage: Storage, directory: str, pattern: str) -> list[str]:
    return [
        entry.name
        for entry in storage.entries(directory)
        if entry.is_directory and fnmatchcase(entry.name, pattern) and (entry.name[0] != "." or pattern[0] == ".")
    ]


def _read_toml(path: str) -> list[_StoreArgument]:
    storage, name = open_storage(path)
    try:
        content = tomllib.loads(storage.read_bytes(name).decode())
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise OptionError(f"{path}: not TOML ({error})") from error
    _check_keys(path, content, _FILE_KEYS)
    brokers = content.get("brokers")
    if not isinstance(brokers, list) or not brokers or not all(isinstance(broker, dict) for broker in brokers):
        raise OptionError(f"{path}: has no [[brokers]]")
    stores: list[_StoreArgument] = []
    for broker in brokers:
        _check_keys(path, broker, _BROKER_KEYS)
        for key, value in [("cluster", content.get("cluster")), *broker.items()]:
            if value is not None and (not isinstance(value, str) or not value):
                raise OptionError(f"{path}: {key} must be a text")
        if "root" not in broker:
            raise OptionError(f"{path}: broker {broker.get('name', len(stores) + 1)} has no root")
        root = _absolute_root(path, broker["root"])
        stores.append(_StoreArgument(root, broker.get("cluster", content.get("cluster")), broker.get("name")))
    return stores


def _check_keys(path: str, table: dict[str, Any], known_keys: Sequence[str]) -> None:
    for key in table:
        if key not in known_keys:
            raise OptionError(f"{path}: unknown key {key!r}; there are {', '.join(known_keys)}")


def _absolute_root(file: str, root: str) -> str:
    """Return a root in a TOML file as an absolute path or a URI."""
    if "://" in root:
        return root.rstrip("/")
    if "://" not in file:
        return str((Path(file).parent / os.path.expanduser(root)).absolute())  # noqa: PTH111 # as a shell does
    location, query = split_query(file)
    return f"{location.rpartition('/')[0]}/{root.strip('/')}{query}"


def _read_missing_names(argument: _StoreArgument) -> tuple[str | None, str | None]:
    if argument.cluster and argument.name:
        return None, None
    try:
        return open_store(argument.path).broker_names
    except StoreError:  # which the read of the store reports
        return None, None


def _distinguishing_parts(store_paths: Sequence[str]) -> list[str]:
    """Return each path without the begin and the end that all paths share; of a single path the last name."""
    split = [path.split("/") for path in store_paths]
    if len(split) == 1:
        named = [part for part in split[0] if part]
        return ["/".join(named[-2:-1] if named[-1] == "store" and len(named) > 1 else named[-1:])]
    shortest = min(len(parts) for parts in split)
    begin = next((n for n in range(shortest) if len({parts[n] for parts in split}) > 1), shortest)
    end = next((n for n in range(shortest - begin) if len({parts[-1 - n] for parts in split}) > 1), shortest - begin)
    return ["/".join(parts[begin : len(parts) - end]) or parts[-1] for parts in split]


def _refuse_overlaps(store_paths: Sequence[str]) -> None:
    sorted_paths = sorted((canonical_path(path), path) for path in store_paths)
    for (canonical, path), (next_canonical, next_path) in pairwise(sorted_paths):
        if canonical == next_canonical:
            raise OptionError(f"{path}: comes twice" if path == next_path else f"{path} and {next_path} are one store")
        if next_canonical.is_relative_to(canonical):
            raise OptionError(f"{next_path}: is within {path}, which is read too")


def _refuse_same_brokers(stores: Sequence[BrokerStore]) -> None:
    by_name: dict[str | None, list[BrokerStore]] = {}
    for store in stores:
        for other in by_name.setdefault(store.broker, []):
            if not store.cluster or not other.cluster or store.cluster == other.cluster:
                raise OptionError(
                    f"{other.path} and {store.path} are both of broker {store.broker}; if they are of different "
                    "brokers, name these in a TOML file"
                )
        by_name[store.broker].append(store)
