"""What the tests of this directory share: commands as hypothesis makes them, and damaged frames."""

from collections.abc import Iterator

from hypothesis import strategies as st

from rmq_core.remoting.codes import JSON, ROCKETMQ, LanguageCode
from rmq_core.remoting.header import RemotingCommand

INT32 = st.integers(-(1 << 31), (1 << 31) - 1)
INT16 = st.integers(-32767, 32767)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
FULL_TEXTS = TEXTS.filter(bool)
LANGUAGES = st.sampled_from([code.name for code in LanguageCode])

# What both forms can carry: the binary one has no empty texts and numbers of 16 bits.
COMMANDS = st.builds(
    RemotingCommand,
    code=INT16,
    flag=INT32,
    language=LANGUAGES,
    opaque=INT32,
    version=st.integers(0, 32767),
    remark=st.none() | FULL_TEXTS,
    fields=st.dictionaries(FULL_TEXTS, FULL_TEXTS, max_size=8),
    body=st.binary(max_size=50),
    serialize_type=st.sampled_from([JSON, ROCKETMQ]),
)


def equal(one: RemotingCommand, other: RemotingCommand) -> bool:
    """Whether two commands say the same, however their fields are kept."""
    return (
        one.ext_fields == other.ext_fields
        and bytes(one.body) == bytes(other.body)
        and all(
            getattr(one, name) == getattr(other, name)
            for name in ("code", "flag", "language", "opaque", "version", "remark", "serialize_type")
        )
    )


def damaged(data: bytes) -> Iterator[bytes]:
    """The data cut off at every byte, and with every byte changed in three ways."""
    for at in range(len(data)):
        yield data[:at]
        for change in (0x01, 0x80, 0xFF):
            yield data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
