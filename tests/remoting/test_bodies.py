import zlib
from struct import pack

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rmq_core.remoting.bodies import clients, configs, pop, routes, stats
from rmq_core.remoting.bodies.clients import ConsumerConnection, HeartbeatData, LockBatchRequest, LockBatchResponse
from rmq_core.remoting.bodies.codec import (
    BodyStruct,
    MessageQueue,
    decode_body,
    encode_body,
    parse_queue_key,
    queue_key,
)
from rmq_core.remoting.bodies.configs import (
    DataVersion,
    OffsetTable,
    SubscriptionGroupConfig,
    TopicConfig,
    TopicConfigAndMapping,
    TopicConfigs,
    TopicQueueMapping,
)
from rmq_core.remoting.bodies.routes import (
    BrokerData,
    ClusterInfo,
    KVTable,
    RegisterBrokerBody,
    TopicRouteData,
    decode_registration,
    encode_registration,
)
from rmq_core.remoting.bodies.stats import OffsetsBody, TopicOffset, TopicStats
from rmq_formats.errors import DecodeError, FormatError
from tests.remoting.command_strategies import TEXTS, damaged

HEARTBEAT = (
    b'{"clientID":"192.0.2.2@C1","consumerDataSet":[{"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
    b'"consumeType":"CONSUME_PASSIVELY","groupName":"cg1","messageModel":"CLUSTERING","subscriptionDataSet":'
    b'[{"classFilterMode":false,"codeSet":[2598919,2598920],"expressionType":"TAG","subString":"TagA || TagB",'
    b'"subVersion":1795228809535,"tagsSet":["TagA","TagB"],"topic":"TopicTest"}],"unitMode":false}],'
    b'"heartbeatFingerprint":0,"producerDataSet":[{"groupName":"pg1"}],"withoutSub":false}'
)
ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"0":"127.0.0.1:10911"},"brokerName":"broker-a","cluster":"DefaultCluster",'
    b'"enableActingMaster":false}],"filterServerTable":{},"queueDatas":[{"brokerName":"broker-a","perm":6,'
    b'"readQueueNums":4,"topicSysFlag":0,"writeQueueNums":4}]}'
)
TOPICS = (
    b'{"dataVersion":{"counter":1,"stateVersion":0,"timestamp":5},"topicConfigTable":{"T":{"attributes":{},'
    b'"order":false,"perm":6,"readQueueNums":4,"topicFilterType":"SINGLE_TAG","topicName":"T","topicSysFlag":0,'
    b'"writeQueueNums":4}}}'
)
GROUP = (
    b'{"attributes":{},"brokerId":0,"consumeBroadcastEnable":true,"consumeEnable":true,"consumeFromMinEnable":true,'
    b'"consumeMessageOrderly":false,"consumeTimeoutMinute":15,"groupName":"g","groupRetryPolicy":{"type":"CUSTOMIZED"},'
    b'"groupSysFlag":0,"notifyConsumerIdsChangedEnable":true,"retryMaxTimes":16,"retryQueueNums":1,'
    b'"whichBrokerWhenConsumeSlowly":1}'
)
CONNECTION = (
    b'{"connectionSet":[{"clientAddr":"127.0.0.1:38796","clientId":"c","language":"JAVA","version":479}],'
    b'"consumeFromWhere":"CONSUME_FROM_LAST_OFFSET","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
    b'"subscriptionTable":{}}'
)
LOCK = (
    b'{"clientId":"c","consumerGroup":"g","mqSet":[{"brokerName":"b","queueId":0,"topic":"T"}],"onlyThisBroker":false}'
)

LITE = (
    b'{"subscriptionSet":[{"action":"PARTIAL_ADD","clientId":"c","group":"g","liteTopicSet":["d1","d2"],'
    b'"offsetOption":{"type":"POLICY","value":1},"topic":"T","version":7}]}'
)


@pytest.mark.parametrize(
    ("sample", "kind"),
    [
        (HEARTBEAT, HeartbeatData),
        (ROUTE, TopicRouteData),
        (TOPICS, TopicConfigs),
        (GROUP, SubscriptionGroupConfig),
        (CONNECTION, ConsumerConnection),
        (LOCK, LockBatchRequest),
        (LITE, pop.LiteSubscriptions),
        (b'{"lockOKMQSet":[{"brokerName":"b","queueId":0,"topic":"T"}]}', LockBatchResponse),
        (b'{"table":{"k":"v"}}', KVTable),
        (b'{"counter":1,"stateVersion":2,"timestamp":3}', DataVersion),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else "",
)
def test_java_s_own_bytes_come_back_byte_for_byte(sample: bytes, kind: type[msgspec.Struct]) -> None:
    assert encode_body(decode_body(sample, kind)) == sample


def all_structs() -> list[type[BodyStruct]]:
    values = (value for module in (clients, configs, pop, routes, stats) for value in vars(module).values())
    structs = dict.fromkeys(value for value in values if isinstance(value, type) and issubclass(value, BodyStruct))
    return [kind for kind in structs if kind is not BodyStruct]


@pytest.mark.parametrize("kind", all_structs(), ids=lambda kind: kind.__name__)
def test_members_stand_in_java_s_order(kind: type[BodyStruct]) -> None:
    names = [field.encode_name for field in msgspec.structs.fields(kind)]
    assert names == sorted(names)


@pytest.mark.parametrize("kind", all_structs(), ids=lambda kind: kind.__name__)
def test_absent_members_have_defaults_and_nulls_count_as_absent(kind: type[BodyStruct]) -> None:
    fields = msgspec.structs.fields(kind)
    if any(field.required for field in fields):
        return
    nulls = msgspec.json.encode({field.encode_name: None for field in fields})
    with_nulls, empty = decode_body(nulls, kind), decode_body(b'{"unknown":{0:1}}', kind)
    for field in fields:
        value = getattr(with_nulls, field.name)
        assert value is None or value == getattr(empty, field.name)


def test_the_go_client_s_heartbeat_is_read() -> None:
    body = (
        b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g","consumeType":'
        b'"CONSUME_PASSIVELY","messageModel":"Clustering","consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET",'
        b'"subscriptionDataSet":[{"classFilterMode":false,"topic":"T","subString":"*","tagsSet":[],"codeSet":[],'
        b'"subVersion":1700000000000000000,"expressionType":"TAG"}],"unitMode":false}]}'
    )
    heartbeat = decode_body(body, HeartbeatData)
    assert heartbeat.heartbeat_fingerprint == 0
    assert heartbeat.consumer_data_set[0].subscription_data_set[0].sub_version == 1700000000000000000


def test_bare_integers_as_keys_are_read_and_quoted_ones_written() -> None:
    info = decode_body(b'{"brokerAddrTable":{"a":{"brokerAddrs":{0:"x:1",1:"y:2"}}}}', ClusterInfo)
    assert info.broker_addr_table["a"].broker_addrs == {0: "x:1", 1: "y:2"}
    assert b'"brokerAddrs":{"0":"x:1","1":"y:2"}' in encode_body(info)
    assert decode_body(b'{"offsetTable":{"t@g":{0:5}}}', OffsetTable).offset_table == {"t@g": {0: 5}}


QUEUE = MessageQueue(broker_name="b", queue_id=0, topic="T")
BARE = b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"T"}:5}}'


def test_queues_as_keys_are_read_bare_and_as_text() -> None:
    as_text = b'{"offsetTable":{"{\\"brokerName\\":\\"b\\",\\"queueId\\":0,\\"topic\\":\\"T\\"}":5}}'
    in_another_form = b'{"offsetTable":{{"topic": "T", "brokerName":"b","queueId":0} :5}}'
    for body in (BARE, as_text, in_another_form):
        offsets = decode_body(body, OffsetsBody).offset_table
        assert {parse_queue_key(key): offset for key, offset in offsets.items()} == {QUEUE: 5}


def test_queues_as_keys_are_written_bare_as_fastjson2_and_the_go_client_want_them() -> None:
    assert encode_body(OffsetsBody(offset_table={queue_key(QUEUE): 5})) == BARE


QUEUES = st.builds(MessageQueue, broker_name=TEXTS, queue_id=st.integers(0, 99), topic=TEXTS)


@given(st.dictionaries(QUEUES, st.integers(0, 9), max_size=4))
def test_any_names_of_queues_survive_as_keys(queues: dict[MessageQueue, int]) -> None:
    stats = TopicStats(offset_table={queue_key(queue): TopicOffset(max_offset=end) for queue, end in queues.items()})
    bare = decode_body(encode_body(stats), TopicStats)
    assert bare == stats
    assert {parse_queue_key(key): offset.max_offset for key, offset in bare.offset_table.items()} == queues


@pytest.mark.parametrize("body", [b"", b"[", b"[]", b'{"brokerAddrTable":5}', b"\xff", b'{"a":' + b"[" * 9999])
def test_a_body_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(DecodeError):
        decode_body(body, ClusterInfo)


def test_half_a_surrogate_pair_in_a_body_becomes_a_question_mark_as_on_java_s_way_out() -> None:
    table = decode_body(rb'{"table":{"\ud800":"\udc00x"}}', KVTable)
    assert encode_body(table) == b'{"table":{"?":"?x"}}'


@given(st.binary(max_size=60))
def test_random_bytes_are_no_body(data: bytes) -> None:
    for kind in (HeartbeatData, TopicRouteData, OffsetsBody):
        try:
            decode_body(data, kind)
        except DecodeError:
            continue


@pytest.mark.parametrize("sample", [HEARTBEAT, ROUTE], ids=["heartbeat", "route"])
def test_a_body_damaged_at_any_byte_gives_a_typed_error_or_a_body(sample: bytes) -> None:
    for damage in damaged(sample):
        try:
            decode_body(damage, HeartbeatData if sample is HEARTBEAT else TopicRouteData)
        except DecodeError:
            continue


REGISTRATION = RegisterBrokerBody(
    filter_server_list=["f:1"],
    topic_config_serialize_wrapper=TopicConfigAndMapping(
        data_version=DataVersion(counter=3, timestamp=9),
        topic_config_table={
            "A": TopicConfig(topic_name="A", read_queue_nums=3, attributes={"message.type": "FIFO"}),
            "B": TopicConfig(topic_name="B", perm=4, topic_filter_type="MULTI_TAG"),
        },
        topic_queue_mapping_info_map={"A": TopicQueueMapping(topic="A", bname="b", curr_id_map={0: 1})},
    ),
)


@pytest.mark.parametrize("compressed", [False, True])
def test_a_registration_survives(compressed: bool) -> None:
    assert decode_registration(encode_registration(REGISTRATION, compressed), compressed, 479) == REGISTRATION


JAVA_COMPRESSED = bytes.fromhex(  # what a 5.3.3 broker with compressedRegister=true sent; its field says it is not
    "78da85516d4fc230106efcee1f303169a6d198a0320263f08d8d0316f7e65aa7c4980b922610192fdb8831c4ff6e0be1c39c60af"
    "bd36d7e7eee93d2584981b6dbc58cf73916aed6a45cbf2512e629166d3c57c1bc8a78990c164a9b5f566ab51335a66d5306bf56f"
    "42c8a95c978eca5d2cedd93a9307aa1b6a362973fcbe0bc83b7dba51d84ae43d221b32e451c76738e8b83de441e8d854976694f0"
    "d796988f27c928fde0929fead55a7de7cad0336e3dcb2b6a4a2b135f305054c0f851be1b660fa0fba4420a852f7250dd54f38fc7"
    "a5c90ab3af0c3f2742cc5069941ea87b5fec3b08ff6ffdae28294610bac3a3195741afc780a317c4d04588c1e70790e7d35deddb"
    "f72da02c5763df5a04b11303ba411f7f7db1d2b95cd9dc27b2a16fa315050f10a1079e25b722a95eca3d797d939efc004ca8b560"
)


def test_java_s_compressed_registration_is_read_though_its_field_says_it_is_plain() -> None:
    assert zlib.crc32(JAVA_COMPRESSED) & 0x7FFFFFFF == 2020657872
    for compressed in (False, True):
        body = decode_registration(JAVA_COMPRESSED, compressed, 479)
        topics = body.topic_config_serialize_wrapper.topic_config_table
        assert topics["TBW102"] == TopicConfig(topic_name="TBW102", perm=7, read_queue_nums=8, write_queue_nums=8)
        assert topics["SCHEDULE_TOPIC_XXXX"].write_queue_nums == 18
        assert body.filter_server_list == []


def test_an_old_broker_s_compressed_registration_has_no_mappings() -> None:
    body = decode_registration(encode_registration(REGISTRATION, True), True, 401)
    assert body.topic_config_serialize_wrapper.topic_queue_mapping_info_map == {}


def test_no_body_is_a_registration_without_topics() -> None:
    assert decode_registration(b"", False, 479) == RegisterBrokerBody()


def test_attributes_with_a_space_are_lost_as_in_java() -> None:
    parts = [b"{}", pack(">i", 1)]
    data = pack(">i", 2) + parts[0] + parts[1]
    line = b'T 4 4 6 SINGLE_TAG {"a": "b"}'
    data += pack(">i", len(line)) + line + pack(">i", 2) + b"[]" + pack(">i", 0)
    topics = decode_registration(zlib.compress(data), True, 479).topic_config_serialize_wrapper.topic_config_table
    assert topics == {"T": TopicConfig(topic_name="T", read_queue_nums=4, write_queue_nums=4)}


def test_a_registration_damaged_at_any_byte_gives_a_typed_error_or_a_registration() -> None:
    plain = zlib.decompress(encode_registration(REGISTRATION, True))
    for damage in damaged(plain):
        try:
            decode_registration(zlib.compress(damage, 1), True, 479)
        except FormatError:
            continue
    for damage in damaged(encode_registration(REGISTRATION, True)):
        try:
            decode_registration(damage, True, 479)
        except FormatError:
            continue


def test_a_registration_that_inflates_to_too_much_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rmq_core.remoting.bodies.routes.MAX_INFLATED_BYTES", 1000)
    with pytest.raises(FormatError, match="inflates to too much"):
        decode_registration(zlib.compress(bytes(100_000)), True, 479)


def test_the_next_data_version_counts_on() -> None:
    assert DataVersion(counter=1, timestamp=5).next(9) == DataVersion(counter=2, timestamp=9)


def test_broker_addresses_are_written_without_spaces_for_the_go_client() -> None:
    data = BrokerData(broker_addrs={0: "a:1", 1: "b:2"}, broker_name="n", cluster="c")
    assert b'"brokerAddrs":{"0":"a:1","1":"b:2"},' in encode_body(data)
