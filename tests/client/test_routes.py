"""The routes that a client keeps."""

import pytest

from rmq_core.client.cluster.cluster import Cluster
from rmq_core.client.cluster.routes import Route
from rmq_core.client.options import ClientOptions
from rmq_core.remoting.bodies import TopicRouteData


async def test_routes_are_refreshed_in_the_order_in_which_they_came(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not in that of a set, which is another in each process: a run in virtual time is repeatable."""
    async with Cluster("127.0.0.1:1", ClientOptions()) as cluster:
        asked: list[str] = []

        async def data(self: Cluster, topic: str) -> TopicRouteData:
            asked.append(topic)
            return TopicRouteData()

        monkeypatch.setattr(Cluster, "route_data", data)
        topics = [f"T{number}" for number in range(20)]
        for topic in topics:
            assert isinstance(await cluster.route(topic), Route)
        await cluster.light_route("%LMQ%a", topics[0])
        asked.clear()
        await cluster.refresh_routes()
        assert asked == topics
