from rmq_core.remoting import codes


def test_every_code_of_5_3_3_is_there_once() -> None:
    of_later_versions = {
        codes.RequestCode.DELETE_TOPIC_IN_BROKER_LIST,
        codes.RequestCode.DELETE_SUBSCRIPTION_GROUP_LIST,
        *(one for one in codes.RequestCode if 200_070 <= one <= 200_079),  # lite topics
    }
    ours = {codes.RequestCode.PROXIED_CLIENTS}
    assert len({*codes.RequestCode} - of_later_versions - ours) == 153
    quotas = {codes.ResponseCode.LMQ_QUOTA_EXCEEDED, codes.ResponseCode.LITE_SUBSCRIPTION_QUOTA_EXCEEDED}  # of 5.5
    assert len({*codes.ResponseCode} - quotas) == 66
    assert codes.RequestCode.SEND_MESSAGE_V2 == 310
    assert codes.RequestCode.BATCH_ACK_MESSAGE == 200151
    assert codes.ResponseCode.PULL_OFFSET_MOVED == 21
    assert codes.ResponseCode.RPC_TIME_OUT == -1006


def test_versions_are_ordinals_of_java_s_enum() -> None:
    assert codes.CURRENT_VERSION == 479
    assert codes.CURRENT_VERSION_NAME == "V5_3_3"
    assert (codes.Version.V3_4_9, codes.Version.V4_9_4, codes.Version.V5_0_0) == (121, 401, 413)


def test_language_names_are_those_of_the_codes() -> None:
    assert set(codes.LanguageName.__args__) == {code.name for code in codes.LanguageCode}
