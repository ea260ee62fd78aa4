"""Benchmarks POP: Java's push consumer pops and acknowledges, at our broker and at Apache's, in turn."""

from functools import partial
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.broker import Rates, Running, beside_java_in_turn, build_peer, java_broker, load, loaded, our_broker
from benchmarks.measure import Figure
from rmq_core.client import Admin
from rmq_core.remoting.bodies.codec import encode_body
from rmq_core.remoting.bodies.configs import MessageRequestMode, SubscriptionGroupConfig
from rmq_core.remoting.codes import RequestCode

TOPIC: Final = "LoadPop"
CONSUMED: Final = 20_000
ROUNDS: Final = 3


def figures(work: Path) -> list[Figure]:
    """Measure consumption by POP, each time with a new group, on new stores under ``work``."""
    build_peer()
    rates = {"ours": Rates(), "java": Rates()}
    with our_broker(work / "pop-ours", "ASYNC_FLUSH") as ours, java_broker(work / "pop-java", "ASYNC_FLUSH") as java:
        brokers = {"ours": ours, "java": java}
        for broker in brokers.values():
            load(broker.namesrv, "batch", TOPIC, 4)
        for number in range(ROUNDS + 1):
            for name, broker in brokers.items():
                group = f"load-pop-{number}"
                uvloop.run(_set_pop_mode(broker, group))
                run = partial(loaded, broker.namesrv, "pop", TOPIC, CONSUMED, group)
                if number:
                    rates[name].measure(broker.pid, run)
                else:  # for warming up: Java compiles meanwhile
                    run()
    return [beside_java_in_turn("consumption by POP, Java's push consumer", rates["ours"], rates["java"])]


async def _set_pop_mode(broker: Running, group: str) -> None:
    """Set the group's request mode for the topic to POP."""
    mode = MessageRequestMode(topic=TOPIC, consumer_group=group, mode="POP", pop_share_queue_num=-1)
    async with Admin(broker.namesrv) as admin:
        await admin.create_group(SubscriptionGroupConfig(group_name=group))
        await admin._cluster.request(broker.broker, RequestCode.SET_MESSAGE_REQUEST_MODE, None, encode_body(mode))
