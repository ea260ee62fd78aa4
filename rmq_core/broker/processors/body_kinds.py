"""Requests with messages or lists, which may have large bodies; see ``ServerSettings.limit_bodies``."""

from typing import Final

from rmq_core.remoting.codes import RequestCode

WITH_MESSAGES: Final = frozenset(
    (
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        # A pull's body is not read; without a check pulls are faster.
        RequestCode.PULL_MESSAGE,
        RequestCode.LITE_PULL_MESSAGE,
    )
)
WITH_LISTS: Final = frozenset(
    (
        RequestCode.HEART_BEAT,
        RequestCode.PROXIED_CLIENTS,
        RequestCode.LITE_SUBSCRIPTION_CTL,
        RequestCode.LOCK_BATCH_MQ,
        RequestCode.UNLOCK_BATCH_MQ,
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
        RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST,
    )
)
