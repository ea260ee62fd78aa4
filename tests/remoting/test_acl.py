"""Signatures, as Java computes them.

The golden ones are what ``AclClientRPCHook#doBeforeRequest`` of Apache RocketMQ 5.3.3 adds to requests with these
fields and bodies, on a JDK 17.
"""

from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.access import acl
from rmq_core.remoting.codes import JSON, ROCKETMQ
from rmq_core.remoting.frames import decode_frame, encode_frame
from rmq_core.remoting.header import request

ALICE = acl.Credentials("alice", "secret", "token")
ALL_BYTES = bytes(range(256))
PROPERTIES = (
    "KEYS\1A1v4dnj9-k0\2run\1A1v4dnj9\2UNIQ_KEY\1AFD0000000000000000000000000000022BE04E0E2F2A6F43EB6E0000\2"
    "WAIT\1true\2TAGS\1tagA\2"
)
SEND = {
    "a": "PopAclProducer", "b": "ATpop", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1795357922159", "h": "0",
    "i": PROPERTIES, "j": "0", "k": "false", "m": "false", "n": "acl-a",
}  # fmt: skip


class Golden(NamedTuple):
    """What Java signs a request with."""

    signer: acl.Credentials
    fields: dict[str, str]
    body: bytes
    signature: str


# fmt: off
GOLDEN = {
    "no fields and no body": Golden(acl.Credentials("admin", "admin1234"), {}, b"", "Xuw6618gWEcqh4nhFpoI3z/l6ys="),
    "a send": Golden(acl.Credentials("alice", "alice1234"), SEND, b"1v4dnj9-0", "TS1AmDo+Mpx4RJfgdHkBfM5ORIY="),
    "a token": Golden(
        acl.Credentials("alice", "alice1234", "token-ä"), {"topic": "T", "queueId": "0"}, ALL_BYTES,
        "iZ3ekg6qq0BZZ44o8IOeLr6YB9M=",
    ),
    "names in the order of UTF-16, and an empty value": Golden(
        acl.Credentials("中", "密钥 🔑"),
        {"\ue000": "private use", "😀": "above it", "a": "", "Zz": "upper", "zz": "😀 value"}, ALL_BYTES,
        "iuf+z4n/ogXEklt6o1wE+7ZP3qs=",
    ),
    "a batch, and a secret longer than a block": Golden(
        acl.Credentials("k", "a secret that is longer than the 64 bytes of a block of SHA-1, so it is hashed itself"),
        {"b": "batch"}, bytes(300_000), "d5/l04uFwIrCaBM0jkFv/SjKMl8=",
    ),
    "an empty token": Golden(acl.Credentials("k", "s", ""), {"a": "1"}, b"", "NeKmvagvwV2eX57bmhJL/QBd40g="),
}
# fmt: on


@pytest.mark.parametrize("name", GOLDEN)
def test_signature_is_java_s(name: str) -> None:
    golden = GOLDEN[name]
    command = request(310, dict(golden.fields), golden.body)
    acl.sign(command, golden.signer)
    assert command.ext_fields["Signature"] == golden.signature
    assert acl.is_signed_with(command, golden.signer.secret_key)


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=8)
fields_of_requests = st.dictionaries(names, st.text(st.characters(exclude_categories=["Cs"]), max_size=20), max_size=8)


@given(fields_of_requests, st.binary(max_size=100), st.sampled_from([JSON, ROCKETMQ]))
def test_what_is_signed_is_still_so_at_the_other_side(fields: dict[str, str], body: bytes, serialize_type: int) -> None:
    command = request(10, fields, body, serialize_type=serialize_type)
    acl.sign(command, ALICE)
    arrived = decode_frame(encode_frame(command))
    assert acl.is_signed_with(arrived, ALICE.secret_key)
    arrived.ext_fields["AccessKey"] = "mallory"
    assert not acl.is_signed_with(arrived, ALICE.secret_key)


@given(fields_of_requests, st.binary(min_size=1, max_size=40), st.data())
def test_a_changed_byte_is_found(fields: dict[str, str], body: bytes, data: st.DataObject) -> None:
    command = request(10, fields, body)
    acl.sign(command, ALICE)
    at = data.draw(st.integers(0, len(body) - 1))
    command.body = body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]
    assert not acl.is_signed_with(command, ALICE.secret_key)


def test_a_signature_among_the_fields_does_not_count() -> None:
    assert acl.signature("secret", {"a": "abc", "Signature": "x"}, b"") == acl.signature("secret", {"a": "abc"}, b"")


def test_who_signed_is_known_and_nobody_else() -> None:
    command = request(10, {"topic": "T"}, b"body")
    acl.sign(command, ALICE)
    assert set(command.ext_fields) == {"topic", "AccessKey", "SecurityToken", "Signature"}
    assert acl.is_signed_with(command, ALICE.secret_key)
    assert not acl.is_signed_with(command, "other")
    command.ext_fields["topic"] = "U"
    assert not acl.is_signed_with(command, ALICE.secret_key)


def test_what_is_not_signed_is_signed_by_nobody() -> None:
    assert not acl.is_signed_with(request(10), ALICE.secret_key)
    assert not acl.is_signed_with(request(10, {"AccessKey": "ä", "Signature": "中"}), ALICE.secret_key)


def test_signing_again_after_a_retry_gives_a_sound_signature() -> None:
    command = request(10, {"topic": "T"})
    acl.sign(command, ALICE)
    command.ext_fields["topic"] = "U"
    acl.sign(command, ALICE)
    assert acl.is_signed_with(command, ALICE.secret_key)


def test_credentials_do_not_show_their_secret() -> None:
    assert repr(ALICE) == "Credentials(access_key='alice')"
