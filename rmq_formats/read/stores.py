"""Several stores that are read together: which ones are meant, and of which cluster and broker each one is.

They are given as paths, as patterns (``/data/broker-*/store``), or as TOML files that name them::

    cluster = "DefaultCluster"          # of all that do not name one; may be left out

    [[brokers]]
    name = "broker-a"                   # may be left out
    root = "broker-a/store"             # relative to the file, absolute or a URI
    cluster = "Other"                   # may be left out

A broker's name is the TOML file's, else what the store tells (the broker's own topics in ``config/topics.json``, or
``brokerIdentity`` of the controller mode), else what the wildcards stand for, else the part in which its path differs
from the others.
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

from rmq_formats.codecs import paths
from rmq_formats.errors import OptionError, RmqError, StoreError, StoreLayoutError, StoreNotFoundError
from rmq_formats.storage.segments import Storage, canonical_path, open_storage, split_query
from rmq_formats.storage.store_files import open_store

_MAX_THREADS: Final = 16  # the stores' threads wait for disks and networks

TOML: Final = ".toml"
_MEMBER_TOPIC: Final = re.compile(rb'"rmq_sys_SYNC_BROKER_MEMBER_([^"\\]+)"\s*:')
_REPLY_TOPIC: Final = re.compile(rb'"([^"\\]+)_REPLY_TOPIC"\s*:')
_IDENTITY: Final = re.compile(rb"([\w.%|-]+)#([\w.%|-]+)#\d+")  # BrokerMetadata#encodeToStr
_FILE_KEYS: Final = ("cluster", "brokers")
_BROKER_KEYS: Final = ("name", "root", "cluster")

_Plan = TypeVar("_Plan")
Argument = TypeVar("Argument")
Output = TypeVar("Output")


@dataclass(frozen=True, slots=True)
class BrokerStore:
    """A store of a broker.

    Attributes:
        path: its root, absolute or a URI.
        cluster: the broker's cluster; None where nothing tells it.
        broker: the broker's name; None for a store that is read by itself.
    """

    path: str
    cluster: str | None = None
    broker: str | None = None

    def __str__(self) -> str:
        return self.path if self.broker is None else f"{self.broker} ({self.path})"


def names_several(path: str) -> bool:
    """Return whether a path stands for several stores: a TOML file, or a pattern that is no directory itself."""
    if path.endswith(TOML):
        return True
    return _has_wildcard(path) and ("://" in path or not Path(path).exists())


def find_stores(patterns: Sequence[str]) -> tuple[BrokerStore, ...]:
    """Find the stores that paths, patterns and TOML files stand for, and their brokers.

    Stores need not be there: who reads them says so.

    Args:
        patterns: paths, absolute or URIs.

    Raises:
        OptionError: nothing matches a pattern, a TOML file is not as described, paths overlap, or two stores are of
            one broker.
        StoreError: a directory or TOML file that cannot be read.
    """
    meant_stores = _resolve_arguments(patterns)
    _refuse_overlaps([meant.path for meant in meant_stores])
    broker_names = in_threads(_read_missing_names, meant_stores)
    unlike = _distinguishing_parts([meant.path for meant in meant_stores])
    stores = tuple(
        BrokerStore(meant.path, meant.cluster or cluster, meant.name or broker or meant.matched or part)
        for meant, (cluster, broker), part in zip(meant_stores, broker_names, unlike, strict=True)
    )
    _refuse_same_brokers(stores)
    return stores


def store_paths(patterns: Sequence[str]) -> list[str]:
    """Return the paths of the stores that paths, patterns and TOML files stand for; no store is read.

    Raises:
        OptionError: nothing matches a pattern, or a TOML file is not as described.
        StoreError: a directory or TOML file that cannot be read.
    """
    return [meant.path for meant in _resolve_arguments(patterns)]


def all_stores_failed_error(job: str, stores: Sequence[BrokerStore], reason: str) -> StoreError:
    """Build the error of a job that could be done for none of some stores, with the reason of the first of them."""
    more = f"; nor that of the other {len(stores) - 1}" if len(stores) > 1 else ""
    return StoreError(f"no {job} could be done: the store of broker {stores[0].broker} not: {reason}{more}")


def plan_stores(
    stores: Sequence[BrokerStore], plan: Callable[[BrokerStore], _Plan]
) -> list[_Plan | StoreNotFoundError]:
    """Plan the read of each store, some at a time; return the error of a missing store in its place.

    Raises:
        StoreLayoutError: some stores are of a layout that cannot be read so.
        RmqError: another error of the first store that has one.
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


# --- what is meant --------------------------------------------------------------------------


def in_threads(function: Callable[[Argument], Output], arguments: Sequence[Argument]) -> list[Output]:
    """Apply a function to each of some stores, which wait for disks and networks more than for a processor."""
    if len(arguments) <= 1:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(min(_MAX_THREADS, len(arguments))) as pool:
        return list(pool.map(function, arguments))


@dataclass(frozen=True, slots=True)
class _StoreArgument:
    """Store of an argument: named by a TOML file, or matched by a pattern's wildcards."""

    path: str
    cluster: str | None = None
    name: str | None = None
    matched: str | None = None


def _resolve_arguments(paths: Sequence[str]) -> list[_StoreArgument]:
    return [meant for path in paths for meant in _resolve_argument(path)]


def _resolve_argument(path: str) -> list[_StoreArgument]:
    if path.endswith(TOML):
        return _listed_in(path)
    return _matching(path) if names_several(path) else [_StoreArgument(path)]


def _has_wildcard(path: str) -> bool:
    """Return whether a path has wildcards; in a URI a ``?`` begins the query."""
    return re.search("[*[]" if "://" in path else "[*?[]", split_query(path)[0]) is not None


def _matching(pattern: str) -> list[_StoreArgument]:
    """List what a pattern matches: each directory that the wildcards match, and what is to be below it."""
    location, query = split_query(pattern) if "://" in pattern else (pattern, "")
    parts = location.split("/")
    wild = [number for number, part in enumerate(parts) if _has_wildcard(part)]
    store = open_store(("/".join(parts[: wild[0]]) or "/") + query)
    directories = [(store.root.rstrip("/"), "")]
    for part in parts[wild[0] : wild[-1] + 1]:
        directories = [
            (f"{directory}/{name}", f"{matched}/{name}".lstrip("/"))
            for directory, matched in directories
            for name in (_names_like(store.storage, directory or "/", part) if _has_wildcard(part) else [part])
        ]
    if not directories:
        raise StoreNotFoundError(f"{pattern}: no directory matches")
    below = "".join(f"/{part}" for part in parts[wild[-1] + 1 :])
    return [_StoreArgument(directory + below, matched=matched) for directory, matched in directories]


def _names_like(storage: Storage, directory: str, pattern: str) -> list[str]:
    return [
        entry.name
        for entry in storage.entries(directory)
        if entry.is_directory and fnmatchcase(entry.name, pattern) and (entry.name[0] != "." or pattern[0] == ".")
    ]


def _listed_in(path: str) -> list[_StoreArgument]:
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
        root = _beside(path, broker["root"])
        stores.append(_StoreArgument(root, broker.get("cluster", content.get("cluster")), broker.get("name")))
    return stores


def _check_keys(path: str, table: dict[str, Any], known_keys: Sequence[str]) -> None:
    for key in table:
        if key not in known_keys:
            raise OptionError(f"{path}: unknown key {key!r}; there are {', '.join(known_keys)}")


def _beside(file: str, root: str) -> str:
    """Return a root that a file names, as an absolute path or a URI."""
    if "://" in root:
        return root.rstrip("/")
    if "://" not in file:
        return str((Path(file).parent / os.path.expanduser(root)).absolute())  # noqa: PTH111 # as a shell does
    location, query = split_query(file)
    return f"{location.rpartition('/')[0]}/{root.strip('/')}{query}"


# --- which broker ---------------------------------------------------------------------------


def _read_missing_names(meant: _StoreArgument) -> tuple[str | None, str | None]:
    return (None, None) if meant.cluster and meant.name else read_broker_names(meant.path)


def read_broker_names(path: str) -> tuple[str | None, str | None]:
    """Read the names of cluster and broker from a store; None for a name that is absent or ambiguous."""
    try:
        store = open_store(path)
        identity = _IDENTITY.search(_small_file(store.storage, f"{store.root}/brokerIdentity"))
        if identity is not None:
            return identity[1].decode(errors="replace"), identity[2].decode(errors="replace")
        topics = _small_file(store.storage, f"{paths.config_dir(store.root)}/topics.json")
    except StoreError:
        return None, None
    clusters, brokers = set(_REPLY_TOPIC.findall(topics)), set(_MEMBER_TOPIC.findall(topics))
    return _single(clusters), _single(brokers)


def _single(names: set[bytes]) -> str | None:
    return next(iter(names)).decode(errors="replace") if len(names) == 1 else None


def _small_file(storage: Storage, path: str) -> bytes:
    try:
        return storage.read_bytes(path)
    except StoreNotFoundError:
        return b""


def _distinguishing_parts(store_paths: Sequence[str]) -> list[str]:
    """Return what each path has between the parts that all begin and end with; of one path its last name."""
    split = [path.split("/") for path in store_paths]
    if len(split) == 1:
        named = [part for part in split[0] if part]
        return ["/".join(named[-2:-1] if named[-1] == "store" and len(named) > 1 else named[-1:])]
    shortest = min(len(parts) for parts in split)
    begin = next((n for n in range(shortest) if len({parts[n] for parts in split}) > 1), shortest)
    end = next((n for n in range(shortest - begin) if len({parts[-1 - n] for parts in split}) > 1), shortest - begin)
    return ["/".join(parts[begin : len(parts) - end]) or parts[-1] for parts in split]


def _refuse_overlaps(store_paths: Sequence[str]) -> None:
    places = sorted((canonical_path(path), path) for path in store_paths)
    for (place, path), (other, below) in pairwise(places):
        if place == other:
            raise OptionError(f"{path}: comes twice" if path == below else f"{path} and {below} are one store")
        if other.is_relative_to(place):
            raise OptionError(f"{below}: is within {path}, which is read too")


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
