import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_formats.codecs.hosts import Host
from rmq_formats.errors import DecodeError, LengthError, TruncatedError
from tests.support.stores.record_strategies import hosts


@pytest.mark.parametrize(
    ("address", "text"),
    [
        ("7f000001", "127.0.0.1:10911"),
        ("20010db80000000000000000000000ff", "[2001:db8::ff]:10911"),
        ("00000000000000000000000000000001", "[::1]:10911"),
        ("00" * 16, "[::]:10911"),
        ("20010db8000000010000000000000001", "[2001:db8:0:1::1]:10911"),
        ("20010db8000000010001000100010001", "[2001:db8:0:1:1:1:1:1]:10911"),  # one zero group stays
        ("20010db8000000000001000000000001", "[2001:db8::1:0:0:1]:10911"),  # the first of equal runs
        ("00000000000000000000000001020304", "[::102:304]:10911"),
        ("00000000000000000000ffff01020304", "1.2.3.4:10911"),  # a JVM maps it to IPv4
    ],
)
def test_hosts_show_as_java_and_guava_show_them(address: str, text: str) -> None:
    host = Host(bytes.fromhex(address), 10911)
    assert host.text == str(host) == text


def test_a_parsed_host_shows_the_same_text() -> None:
    for text in ("127.0.0.1:0", "[2001:db8::ff]:65535", "255.255.255.255:1"):
        assert Host.parse(text).text == text
    assert Host.parse("[2001:DB8:0:0::1]:1").text == "[2001:db8::1]:1"
    assert Host.parse("[::ffff:1.2.3.4]:5") == Host(bytes([1, 2, 3, 4]), 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1.2.3.4",
        "1.2.3.4:",
        ":1",
        "1.2.3:1",
        "1.2.3.256:1",
        "1.2.3.4:65536",
        "1.2.3.4:-1",
        "1.2.3.4:1\n",
        "1.2.3.4:١",
        "::1:80",
        "[::1]",
        "[::1:80",
        "[fe80::1%eth0]:1",
        "[1.2.3.4]:1",
        "localhost:1",
        "[:::]:1",
    ],
)
def test_texts_that_are_no_hosts_are_refused(text: str) -> None:
    with pytest.raises(DecodeError):
        Host.parse(text)


@given(hosts)
def test_a_host_comes_back_from_its_bytes(host: Host) -> None:
    data = host.to_bytes()
    assert len(data) == (20 if host.is_v6 else 8)
    assert Host.from_bytes(b"xyz" + data + b"!", 3, host.is_v6) == host
    assert Host.from_bytes(memoryview(data), 0, host.is_v6) == host
    assert host.text.endswith(f":{host.port}")


@given(hosts, st.integers(0, 19))
def test_a_cut_host_is_truncated(host: Host, size: int) -> None:
    data = host.to_bytes()
    with pytest.raises(TruncatedError):
        Host.from_bytes(data[: min(size, len(data) - 1)], 0, host.is_v6)
    with pytest.raises(TruncatedError):
        Host.from_bytes(data, -1, host.is_v6)


def test_a_host_has_an_address_of_four_or_sixteen_bytes_and_a_port_of_four() -> None:
    with pytest.raises(LengthError):
        Host(bytes(5), 1)
    with pytest.raises(LengthError):
        Host(bytes(4), 1 << 31)
