from rmq_core.remoting import acl
from rmq_core.remoting.header import request

ALICE = acl.Credentials("alice", "secret", "token")


def test_signature_is_java_s() -> None:
    assert acl.signature("secret", {"a": "abc"}, b"") == "aUq9EIQtFh3bxU34oNV89k0NvMk="
    assert acl.signature("secret", {"b": "b", "a": "a"}, b"c") == "aUq9EIQtFh3bxU34oNV89k0NvMk="


def test_a_signature_among_the_fields_does_not_count() -> None:
    assert acl.signature("secret", {"a": "abc", "Signature": "x"}, b"") == acl.signature("secret", {"a": "abc"}, b"")


def test_who_signed_is_known_and_nobody_else() -> None:
    command = request(10, {"topic": "T"}, b"body")
    acl.sign(command, ALICE)
    assert set(command.ext_fields) == {"topic", "AccessKey", "SecurityToken", "Signature"}
    assert acl.is_signed_by(command, ALICE)
    assert not acl.is_signed_by(command, acl.Credentials("alice", "other"))
    assert not acl.is_signed_by(command, acl.Credentials("bob", "secret"))
    command.ext_fields["topic"] = "U"
    assert not acl.is_signed_by(command, ALICE)


def test_what_is_not_signed_is_signed_by_nobody() -> None:
    assert not acl.is_signed_by(request(10), ALICE)
    assert not acl.is_signed_by(request(10, {"AccessKey": "ä", "Signature": "中"}), ALICE)


def test_signing_again_after_a_retry_gives_a_sound_signature() -> None:
    command = request(10, {"topic": "T"})
    acl.sign(command, ALICE)
    command.ext_fields["topic"] = "U"
    acl.sign(command, ALICE)
    assert acl.is_signed_by(command, ALICE)


def test_credentials_do_not_show_their_secret() -> None:
    assert repr(ALICE) == "Credentials(access_key='alice')"
