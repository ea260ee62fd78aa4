import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs import paths
from rmq_formats.errors import FormatError, LengthError


@given(st.integers(0, (1 << 63) - 1))
def test_a_segment_name_can_be_read_back(start_offset: int) -> None:
    name = paths.segment_name(start_offset)
    assert len(name) == 20
    assert paths.parse_segment_name(name) == start_offset


def test_segment_names_are_start_offsets_in_twenty_digits() -> None:
    assert paths.segment_name(0) == "00000000000000000000"
    assert paths.segment_name(1 << 30) == "00000000001073741824"


@pytest.mark.parametrize("start_offset", [-1, 1 << 63])
def test_an_offset_outside_of_a_long_has_no_segment_name(start_offset: int) -> None:
    with pytest.raises(LengthError):
        paths.segment_name(start_offset)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "0",
        "0" * 19,
        "0" * 21,
        "-" + "0" * 19,
        "+" + "0" * 19,
        "９" * 20,
        "9" * 20,
        " " * 20,
        "0" * 19 + "\n",
    ],
)
def test_other_names_are_not_segments(name: str) -> None:
    assert paths.parse_segment_name(name) is None


def test_an_index_file_has_a_name_of_seventeen_digits() -> None:
    assert paths.is_index_file_name("20261121031359119")
    for name in ("2026112103135911", "202611210313591190", "2026112103135911x", "²0261121031359119", ""):
        assert not paths.is_index_file_name(name)


@pytest.mark.parametrize("root", ["/data/store", "s3://bucket/store", "store"])
def test_the_tree_hangs_on_its_root(root: str) -> None:
    assert paths.commitlog_dir(root) == f"{root}/commitlog"
    assert paths.consumequeue_dir(root) == f"{root}/consumequeue"
    assert paths.consumequeue_ext_dir(root) == f"{root}/consumequeue_ext"
    assert paths.index_dir(root) == f"{root}/index"
    assert paths.config_dir(root) == f"{root}/config"
    assert paths.checkpoint_file(root) == f"{root}/checkpoint"
    assert paths.abort_file(root) == f"{root}/abort"
    assert paths.lock_file(root) == f"{root}/lock"
    queue = paths.queue_dir(paths.consumequeue_dir(root), "%RETRY%cg", 3)
    assert queue == f"{root}/consumequeue/%RETRY%cg/3"


@pytest.mark.parametrize(
    ("root", "expected"), [("/", "/commitlog"), ("s3://b/", "s3://b/commitlog"), ("", "commitlog")]
)
def test_a_root_may_end_with_a_slash(root: str, expected: str) -> None:
    assert paths.commitlog_dir(root) == expected


@pytest.mark.parametrize("topic", ["T", "%RETRY%a|b_c-1", "x" * 255, "...", "主题", "é" * 127])
def test_topics_that_can_be_a_directory_are_safe(topic: str) -> None:
    assert paths.is_safe_topic(topic)


@pytest.mark.parametrize("topic", ["", ".", "..", "a/b", "../x", "/", "a\0b", "x" * 256, "é" * 128, "\ud800"])
def test_topics_that_could_lead_elsewhere_are_not_safe(topic: str) -> None:
    assert not paths.is_safe_topic(topic)
    with pytest.raises(FormatError):
        paths.queue_dir("/store/consumequeue", topic, 0)
