"""The table of topics of a broker."""

from rmq_core.broker.tables.attributes import BATCH_QUEUES, QUEUE_TYPE
from rmq_core.remoting.bodies.configs import DataVersion, TopicConfig, TopicConfigs
from tests.broker.conftest import Asker


async def test_topics_with_batch_queues_are_known_after_each_change(asker: Asker) -> None:
    def config(name: str, *, batches: bool) -> TopicConfig:
        return TopicConfig(topic_name=name, attributes={QUEUE_TYPE: BATCH_QUEUES} if batches else {})

    topics = asker.broker.state.topics
    topics.put_all([config("A", batches=True), config("B", batches=True), config("C", batches=False)])
    assert topics.batch_topics() == {"A", "B"}
    topics.put(config("A", batches=False))
    topics.remove("C")
    assert topics.batch_topics() == {"B"}
    topics.remove("B")
    assert topics.batch_topics() == set()
    table = {"D": config("D", batches=True), "E": config("E", batches=False)}
    topics.adopt(TopicConfigs(data_version=DataVersion(counter=99), topic_config_table=table))
    assert topics.batch_topics() == {"D"}
