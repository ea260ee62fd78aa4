"""Tests of the client."""

import pytest

pytest.register_assert_rewrite("tests.client.scenarios")
