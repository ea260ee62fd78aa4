"""Schedules of chance over a master and its slave; see ``two_nodes``. A failure prints its seed and its steps."""

import logging
import random
from pathlib import Path

import pytest

from tests.ha.two_nodes import TwoNodes, quick_retries
from tests.torture import rounds

pytestmark = pytest.mark.torture
STEPS = 120


@pytest.mark.parametrize("seed", [*rounds(6), None])
async def test_a_slave_keeps_its_promises(tmp_path: Path, seed: int | None) -> None:
    seed = random.randrange(1 << 30) if seed is None else seed
    nodes = TwoNodes(tmp_path, seed)
    try:
        with quick_retries():
            await nodes.run(STEPS)
    except AssertionError as error:
        error.add_note(f"seed {seed}, after the steps {' '.join(nodes.steps)}")
        raise
    finally:
        logging.getLogger(__name__).info("seed %d: %s", seed, dict(nodes.counts))
