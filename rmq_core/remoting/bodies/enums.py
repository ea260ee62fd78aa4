"""Enums of Java in bodies: texts, their constants in the order of their ordinals, by which C++ clients name them."""

from typing import Annotated

from rmq_core.remoting.bodies.conversion import enum_meta
from rmq_core.remoting.codes import LanguageCode

ConsumeFromWhere = Annotated[
    str,
    enum_meta(
        "CONSUME_FROM_LAST_OFFSET", "CONSUME_FROM_LAST_OFFSET_AND_FROM_MIN_WHEN_BOOT_FIRST", "CONSUME_FROM_MIN_OFFSET",
        "CONSUME_FROM_MAX_OFFSET", "CONSUME_FROM_FIRST_OFFSET", "CONSUME_FROM_TIMESTAMP",
    ),
]  # fmt: skip
ConsumeType = Annotated[str, enum_meta("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")]
MessageModel = Annotated[str, enum_meta("BROADCASTING", "CLUSTERING", "LITE_SELECTIVE")]
TopicFilterType = Annotated[str, enum_meta("SINGLE_TAG", "MULTI_TAG")]
RequestMode = Annotated[str, enum_meta("PULL", "POP", is_open=True)]
GroupRetryPolicyType = Annotated[str, enum_meta("EXPONENTIAL", "CUSTOMIZED")]
LiteSubscriptionAction = Annotated[
    str, enum_meta("PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE", is_open=True)
]
OffsetOptionType = Annotated[str, enum_meta("POLICY", "OFFSET", "TAIL_N", "TIMESTAMP", is_open=True)]
ConsumeResult = Annotated[
    str,
    enum_meta("CR_SUCCESS", "CR_LATER", "CR_ROLLBACK", "CR_COMMIT", "CR_THROW_EXCEPTION", "CR_RETURN_NULL"),
]
Language = Annotated[str, enum_meta(*(code.name for code in LanguageCode))]
