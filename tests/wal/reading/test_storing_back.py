"""A block that a task had to read from the WAL is sent to its host's agent, and is read there the next time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from executor_agent.main import Agent
from forebay.settings.schema import Settings
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.blocks import cached_path, local_path
from wal.reading import BlockReference, ReadPlan, per_process, read_block, this_host

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    """No agent is remembered as one that took no copy."""
    per_process._opened.clear()
    yield
    per_process._opened.clear()


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def settings(stored: Stored) -> Settings:
    return stored.settings()


@pytest.fixture
def lost(stored: Stored) -> BlockReference:
    """A block whose host has no copy of it any more."""
    reference = stored.add(*block({("a", 0): filler(50)}))
    local_path(stored.blocks_directory, "s", reference.id).unlink()
    return reference


def plan(stored: Stored, url: str, store_back: bool = True, local: bool = False) -> ReadPlan:
    made = stored.plan(agent_urls={this_host(): url}, store_back=store_back)
    return made if local else msgspec.structs.replace(made, blocks_directory=None)


def test_block_read_from_the_wal_is_read_locally_the_next_time(
    stored: Stored, settings: Settings, lost: BlockReference
) -> None:
    with Agent(settings) as agent:
        first = read_block(lost, plan(stored, agent.url))
        assert (first.tier, first.failures) == ("wal", ())
        assert agent.store.usage().copies == (f"s/{lost.id}",)
        again = lost.also_at((this_host(),))
        elsewhere = read_block(again, plan(stored, agent.url))
        assert (elsewhere.tier, elsewhere.batches) == ("agent", first.batches)
        here = read_block(again, plan(stored, agent.url, local=True))
        assert (here.tier, here.batches) == ("local", first.batches)


def test_blocks_are_stored_back_only_if_enabled_and_read_from_the_wal(
    stored: Stored, settings: Settings, lost: BlockReference
) -> None:
    whole = stored.add(*block({("a", 0): filler(50)}, sequence=2))
    with Agent(settings) as agent:
        assert read_block(lost, plan(stored, agent.url, store_back=False)).tier == "wal"
        local = read_block(whole, plan(stored, agent.url, local=True))
        assert local.tier == "local"
        assert agent.store.usage().copies == ()


def test_an_agent_that_takes_no_copy_is_counted_once_and_fails_no_read(
    stored: Stored, settings: Settings, lost: BlockReference
) -> None:
    """INV-6: such an agent does not cost a time-out for each block."""
    with Agent(settings) as agent:
        url = agent.url
    reads = [read_block(lost, plan(stored, url)) for _ in range(2)]
    assert [read.tier for read in reads] == ["wal", "wal"]
    assert reads[0].counts.failures == {"agent: not stored back": 1}
    assert reads[1].counts.failures == {}


def test_damaged_stored_copy_is_replaced(stored: Stored, settings: Settings, lost: BlockReference) -> None:
    """INV-5."""
    with Agent(settings) as agent:
        read_block(lost, plan(stored, agent.url))
        path = cached_path(stored.blocks_directory, "s", lost.id)
        whole = path.read_bytes()
        path.write_bytes(whole[:-80] + bytes(80))
        found = read_block(lost.also_at((this_host(),)), plan(stored, agent.url))
        assert (found.tier, [failure.kind for failure in found.failures]) == ("wal", ["damaged"])
        assert path.read_bytes() == whole
