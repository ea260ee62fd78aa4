"""Tests of the client."""

import pytest

pytest.register_assert_rewrite(
    "tests.client.scenarios", "tests.client.consumer_scenarios", "tests.client.pull_scenarios"
)
