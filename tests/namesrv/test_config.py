from pathlib import Path

import pytest

from rmq_core.namesrv.config import NamesrvConfig, load_config
from rmq_formats.errors import OptionError


def test_defaults_are_java_s() -> None:
    config, passed_over = load_config(environ={})
    assert config == NamesrvConfig()
    assert passed_over == []
    assert (config.bind_address, config.listen_port) == ("127.0.0.1", 9876)
    assert config.limits.idle_timeout_s == 120
    assert config.limits.max_frame_bytes == 16 << 20


def test_later_sources_go_over_earlier_ones(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=1\nbindAddress=file\norderMessageEnable=true\nserverWorkerThreads=8\n")
    environ = {"RMQ_NAMESRV_LISTEN_PORT": "2", "RMQ_NAMESRV_BIND_ADDRESS": "env", "RMQ_OTHER": "x"}
    config, passed_over = load_config(file, {"listen_port": 3, "bind_address": None}, environ)
    assert (config.listen_port, config.bind_address, config.order_message_enable) == (3, "env", True)
    assert passed_over == ["serverWorkerThreads"]


def test_toml_takes_either_name(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.toml"
    file.write_text("listenPort = 1\norder_message_enable = true\nscanNotActiveBrokerInterval = 100\n")
    config, _ = load_config(file, environ={})
    assert (config.listen_port, config.order_message_enable) == (1, True)
    assert config.scan_not_active_broker_interval_ms == 100


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("a.conf", "listenPort=many", "listenPort: 'many' is not of type int"),
        ("a.conf", "listenPort=70000", "listenPort: 70000 is not between 0 and 65535"),
        ("a.conf", "orderMessageEnable=perhaps", "'perhaps' is not of type bool"),
        ("a.conf", "kvConfgPath=/x", "unknown key 'kvConfgPath'"),
        ("a.conf", "useTLS=true", "useTLS=true is not supported: the only value is false"),
        ("a.toml", "enableControllerInNamesrv = true", "enableControllerInNamesrv=true is not supported"),
        ("a.conf", "listenPort=\\u12", "four hex digits"),
        ("a.conf", "\xff", "unknown key"),
        ("a.toml", "listenPort = true", "True is not of type int"),
        ("a.toml", "listenPort = ", "a.toml"),
        ("a.toml", "bindAddress = 5", "5 is not of type str"),
    ],
)
def test_a_bad_file_is_told_in_one_line_with_its_place(tmp_path: Path, name: str, text: str, reason: str) -> None:
    file = tmp_path / name
    file.write_text(text)
    with pytest.raises(OptionError, match=reason) as raised:
        load_config(file, environ={})
    assert str(file) in str(raised.value)


def test_a_file_that_is_not_there_or_not_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="No such file"):
        load_config(tmp_path / "none.conf", environ={})
    (tmp_path / "a.conf").write_bytes(b"a=\xff\xfe")
    with pytest.raises(OptionError, match=r"a\.conf"):
        load_config(tmp_path / "a.conf", environ={})


def test_a_bad_variable_is_told_by_name() -> None:
    with pytest.raises(OptionError, match="RMQ_NAMESRV_LISTEN_PORT"):
        load_config(environ={"RMQ_NAMESRV_LISTEN_PORT": "x"})
    with pytest.raises(OptionError, match="unknown variable RMQ_NAMESRV_PORT"):
        load_config(environ={"RMQ_NAMESRV_PORT": "1"})
