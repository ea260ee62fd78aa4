"""Which brokers' queues keep a topic in order, as name servers remember it: ``broker-a:4;broker-b:4``.

Name servers tell it brokers when these register, and clients with a topic's route, if they are set to.

Source: ``DefaultMQAdminExtImpl#createOrUpdateOrderConf``.
"""

from collections.abc import Mapping
from typing import Final

from rmq_core.client.cluster import Cluster
from rmq_core.remoting.codes import RequestCode, ResponseCode
from rmq_core.remoting.namesrv_requests import KVConfigKey, KVConfigValue

_NAMESPACE: Final = "ORDER_TOPIC_CONFIG"


async def keep_in_order(cluster: Cluster, topic: str, queues: Mapping[str, int], *, whole: bool) -> str:
    """Have all name servers know the ordered queues of a topic.

    Args:
        cluster: whose name servers.
        topic: which.
        queues: how many, by the brokers' names.
        whole: whether no other broker has any; else those that are known already stay.

    Returns:
        What they know now.

    Raises:
        BrokerError: a name server refuses.
        TransportError: one does not answer.
    """
    known = {} if whole else _parse(await _ask(cluster, topic))
    text = ";".join(f"{name}:{count}" for name, count in (known | {one: str(n) for one, n in queues.items()}).items())
    fields = KVConfigValue(namespace=_NAMESPACE, key=topic, value=text)
    for address in cluster.namesrv.split(";"):
        await cluster.ask(address, RequestCode.PUT_KV_CONFIG, fields)
    return text


async def _ask(cluster: Cluster, topic: str) -> str:
    fields = KVConfigKey(namespace=_NAMESPACE, key=topic)
    answer = await cluster.ask_name_servers(RequestCode.GET_KV_CONFIG, fields, also=(ResponseCode.QUERY_NOT_FOUND,))
    return answer.ext_fields.get("value", "")


def _parse(text: str) -> dict[str, str]:
    """Numbers of queues by broker."""
    return dict(one.rsplit(":", 1) for one in text.split(";") if ":" in one)
