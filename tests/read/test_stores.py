"""Which stores are meant by paths, patterns and TOML files, and of which broker each one is."""

from pathlib import Path

import pytest

from rmq_formats.errors import OptionError, StoreLayoutError, StoreNotFoundError
from rmq_formats.read.stores import BrokerStore, find_stores, names_several, plan_stores


def make(root: Path, broker: str | None = None, cluster: str = "C") -> Path:
    (root / "commitlog").mkdir(parents=True)
    if broker is not None:
        (root / "config").mkdir()
        topics = f'{{"topicConfigTable":{{"rmq_sys_SYNC_BROKER_MEMBER_{broker}":{{}},"{cluster}_REPLY_TOPIC":{{}}}}}}'
        (root / "config" / "topics.json").write_text(topics)
    return root


def names(*given: Path | str) -> list[tuple[str | None, str | None]]:
    return [(store.cluster, store.broker) for store in find_stores([str(one) for one in given])]


def test_wildcards_name_brokers_and_what_is_not_there_stays_in_the_list(tmp_path: Path) -> None:
    for name in ("broker-b", "broker-a", ".broker-hidden"):
        make(tmp_path / name / "store")
    (tmp_path / "broker-c").mkdir()
    (tmp_path / "broker-file").write_text("")
    assert names(tmp_path / "*" / "store") == [(None, "broker-a"), (None, "broker-b"), (None, "broker-c")]
    assert names(tmp_path / "broker-[b]" / "store") == [(None, "broker-b")]
    with pytest.raises(StoreNotFoundError, match="no directory matches"):
        find_stores([str(tmp_path / "x*" / "store")])


def test_what_the_store_tells_goes_before_its_path(tmp_path: Path) -> None:
    make(tmp_path / "one" / "store", "told-a", "East")
    make(tmp_path / "two" / "store")
    identity = make(tmp_path / "three" / "store", "ignored") / "brokerIdentity"
    identity.write_bytes(b"\0\x16West#told-c#1")
    assert names(*(tmp_path / name / "store" for name in ("one", "two", "three"))) == [
        ("East", "told-a"), (None, "two"), ("West", "told-c"),
    ]  # fmt: skip


def test_a_toml_file_goes_before_all(tmp_path: Path) -> None:
    make(tmp_path / "one", "told", "Told")
    make(tmp_path / "two", "told", "Told")
    file = tmp_path / "cluster.toml"
    file.write_text(
        'cluster = "All"\n[[brokers]]\nname = "a"\nroot = "one"\n'
        f'[[brokers]]\nname = "b"\nroot = "{tmp_path}/two"\ncluster = "Own"\n'
    )
    assert names(file) == [("All", "a"), ("Own", "b")]
    assert [store.path for store in find_stores([str(file)])] == [str(tmp_path / "one"), str(tmp_path / "two")]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("brokers = 1", r"no \[\[brokers\]\]"),
        ("[[brokers]]\nname = 'a'", "broker a has no root"),
        ("[[brokers]]\nroots = 'a'", "unknown key 'roots'"),
        ("[[brokers]]\nroot = 1", "root must be a text"),
        ("stores = []", "unknown key 'stores'"),
        ("=", "not TOML"),
    ],
)
def test_a_toml_file_that_is_not_as_described_is_one_error(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(text)
    with pytest.raises(OptionError, match=rf"cluster\.toml: .*{message}"):
        find_stores([str(file)])


def test_one_broker_twice_and_paths_within_each_other_are_refused(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one", "same"), make(tmp_path / "two", "same")
    other = make(tmp_path / "other", "same", "OtherCluster")
    with pytest.raises(OptionError, match="both of broker same"):
        find_stores([str(one), str(two)])
    assert names(one, other) == [("C", "same"), ("OtherCluster", "same")]
    (tmp_path / "link").symlink_to(one)
    for given, message in (
        ([one, one], "comes twice"), ([one, tmp_path / "link"], "are one store"), ([one, one / "commitlog"], "within"),
    ):  # fmt: skip
        with pytest.raises(OptionError, match=message):
            find_stores([str(path) for path in given])


def test_a_directory_that_has_wildcards_in_its_name_is_itself(tmp_path: Path) -> None:
    assert not names_several(str(make(tmp_path / "a[1]*")))
    assert names_several(str(tmp_path / "b*"))
    assert names_several("s3://bucket/*/store?scheme=http")
    assert not names_several("s3://bucket/store?scheme=http")


def test_plans_come_in_order_and_one_layout_among_others_is_refused() -> None:
    stores = [BrokerStore(name, None, name) for name in ("a", "b", "c")]

    def plan(store: BrokerStore) -> str:
        if store.path == "b":
            raise StoreNotFoundError("b: no such store")
        return store.path

    found = plan_stores(stores, plan)
    assert (found[0], found[2]) == ("a", "c")
    assert isinstance(found[1], StoreNotFoundError)

    def refuse(store: BrokerStore) -> str:
        if store.path == "b":
            raise StoreLayoutError("b: odd")
        return store.path

    with pytest.raises(StoreLayoutError, match="different layouts in one read: b: odd"):
        plan_stores(stores, refuse)
