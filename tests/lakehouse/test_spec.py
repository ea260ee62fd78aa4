"""The spec file: what it may say, and one clear error for what it may not."""

from pathlib import Path

import pytest

from rmq_formats.errors import OptionError
from rmq_lakehouse.spec import load_spec
from rmq_lakehouse.table_name import placed

TOPIC = 'topic = "Orders"\nformat = "json"\nschema = "id STRING"\ntable = "orders"\n'


def spec(tmp_path: Path, text: str) -> str:
    path = tmp_path / "spec.toml"
    path.write_text(text)
    return str(path)


def test_paths_are_beside_the_spec_and_json_is_read_by_its_name(tmp_path: Path) -> None:
    (topic,) = load_spec(spec(tmp_path, "[[topics]]\n" + TOPIC))
    assert (topic.topic, topic.table, topic.key) == ("Orders", str(tmp_path / "orders"), ())
    path = tmp_path / "spec.json"
    path.write_text(
        '{"topics": [{"topic": "A", "format": "avro", "schema_file": "a.avsc", "table": "s3a://lake/a", "key": ["k"]}]}'
    )
    (topic,) = load_spec(str(path))
    assert (topic.schema_file, topic.table, topic.key) == (str(tmp_path / "a.avsc"), "s3a://lake/a", ("k",))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topics = []", "names no topic"),
        ("[[topics]", "spec.toml"),
        ("[[topics]]\ntopic = 3", r"\$\.topics\[0\]"),
        ("[[topics]]\n" + TOPIC + "colour = 1", "unknown field `colour`"),
        ("[[topics]]\n" + TOPIC.replace('"json"', '"xml"'), "'xml'"),
        ("[[topics]]\n" + TOPIC + 'schema_file = "x"', "give either schema or schema_file"),
        ("[[topics]]\n" + TOPIC + 'message = "m"', "message is required for format protobuf"),
        ("[[topics]]\n" + TOPIC.replace('"json"', '"protobuf"') + 'message = "m"', "needs a schema_file"),
        ("[[topics]]\n" + TOPIC + "[[topics]]\n" + TOPIC, "topic 'Orders' comes twice"),
        (
            "[[topics]]\n" + TOPIC + "[[topics]]\n" + TOPIC.replace("Orders", "More"),
            "table .*orders' comes twice",
        ),
    ],
    ids=["none", "toml", "type", "field", "format", "schemas", "message", "descriptors", "topics", "tables"],
)
def test_mistakes_are_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(OptionError, match=said):
        load_spec(spec(tmp_path, text))


@pytest.mark.parametrize("name", ["spec.toml", "spec.json"])
def test_a_spec_that_is_not_utf8_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xff\xfe")
    with pytest.raises(OptionError, match=name):
        load_spec(str(tmp_path / name))


def test_a_spec_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"nowhere\.toml: cannot be read"):
        load_spec(str(tmp_path / "nowhere.toml"))


def test_relative_paths_are_made_absolute_uris_and_names_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert [placed(path) for path in ("t", "./a.b.c", "/t")] == [str(tmp_path / "t"), str(tmp_path / "a.b.c"), "/t"]
    assert [placed("../t", Path("/lake/specs")), placed("t", Path("/lake"))] == ["/lake/specs/../t", "/lake/t"]
    for other in ("s3a://lake/t", "file:/lake/t", "spark_catalog.sales.t", ""):
        assert placed(other) == other
