"""The ordered queues of a topic in the name servers' key-value configuration: ``broker-a:4;broker-b:4``.

Name servers return it to brokers at their registration, and to clients in a topic's route, if so configured.

Source: ``DefaultMQAdminExtImpl#createOrUpdateOrderConf``.
"""

from collections.abc import Mapping
from typing import Final

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.namesrv_requests import KVConfigKey, KVConfigValue

_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


async def put_order_config(cluster: Cluster, topic: str, queues: Mapping[str, int], *, whole: bool) -> str:
    """Register the ordered queues of a topic with all name servers.

    Args:
        cluster: the client, for its name servers.
        topic: the topic.
        queues: numbers of queues by broker name.
        whole: whether to replace all entries; else those of other brokers stay.

    Returns:
        What they know now.

    Raises:
        BrokerError: a name server refuses.
        TransportError: one does not answer.
    """
    entries = {} if whole else _parse(await _get_order_config(cluster, topic))
    entries |= {name: str(count) for name, count in queues.items()}
    text = ";".join(f"{name}:{count}" for name, count in entries.items())
    fields = KVConfigValue(namespace=_NAMESPACE, key=topic, value=text)
    for address in cluster.namesrv.split(";"):
        await cluster.request(address, RequestCode.PUT_KV_CONFIG, fields)
    return text


async def _get_order_config(cluster: Cluster, topic: str) -> str:
    fields = KVConfigKey(namespace=_NAMESPACE, key=topic)
    answer = await cluster.request_name_servers(RequestCode.GET_KV_CONFIG, fields, also=(ResponseCode.QUERY_NOT_FOUND,))
    return answer.ext_fields.get("value", "")


def _parse(text: str) -> dict[str, str]:
    """Parse the number of queues by broker."""
    return dict(entry.rsplit(":", 1) for entry in text.split(";") if ":" in entry)
