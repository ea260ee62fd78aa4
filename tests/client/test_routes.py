"""The routes that a client keeps."""

import asyncio

import pytest

from rmq_core.client.cluster import Cluster
from rmq_core.client.options import ClientOptions
from rmq_core.client.routes import Route
from rmq_core.remoting.bodies.routes import TopicRouteData
from rmq_formats.errors import ClusterError
from tests.client.conftest import FakeCluster


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
        await cluster.lmq_route("%LMQ%a", topics[0])
        asked.clear()
        await cluster.refresh_routes()
        assert asked == topics


async def test_a_route_is_cached_and_fetched_again_after_each_interval(
    fakes: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched: list[str] = []
    fetch = Cluster.route_data

    async def counted(self: Cluster, topic: str) -> TopicRouteData:
        fetched.append(topic)
        return await fetch(self, topic)

    monkeypatch.setattr(Cluster, "route_data", counted)
    async with Cluster(fakes.namesrv, ClientOptions(route_poll_interval_s=3600)) as cluster:
        for _ in range(5):
            assert isinstance(await cluster.route("T"), Route)
    assert fetched == ["T"]
    async with Cluster(fakes.namesrv, ClientOptions(route_poll_interval_s=0.01)) as cluster:
        await cluster.route("U")
        async with asyncio.timeout(60):
            while fetched.count("U") < 3:
                await asyncio.sleep(0.005)


@pytest.mark.parametrize("error", [ClusterError("no answer"), ZeroDivisionError()])
async def test_periodic_work_goes_on_after_an_error(error: Exception) -> None:
    runs = 0
    is_repeated = asyncio.Event()

    async def work() -> None:
        nonlocal runs
        runs += 1
        if runs == 1:
            raise error
        is_repeated.set()

    async with Cluster("127.0.0.1:1", ClientOptions()) as cluster:
        cluster.run_every(0.001, work)
        async with asyncio.timeout(60):
            await is_repeated.wait()
