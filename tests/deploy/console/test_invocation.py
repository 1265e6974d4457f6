"""The configuration of a call: where it is looked for, and the command that a user gets who may not read it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from deploy.console import invocation
from deploy.console.invocation import Invocation
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import SettingsError

OrdinaryUser = Callable[[], AbstractContextManager[None]]


@pytest.fixture
def no_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)


@pytest.mark.parametrize("named_by", ["nothing", "--config", "FOREBAY_CONFIG"])
@pytest.mark.parametrize("mode", [0o000, 0o755])
@pytest.mark.usefixtures("no_variable")
def test_user_who_may_not_read_the_configuration_gets_the_command_of_a_user_who_may(
    closed_folder: Path, as_ordinary_user: OrdinaryUser, monkeypatch: pytest.MonkeyPatch, named_by: str, mode: int
) -> None:
    """Of a file in a closed folder, and of a closed file."""
    path = closed_folder / "forebay.toml"
    path.chmod(0o000)
    closed_folder.chmod(mode)
    monkeypatch.setattr(invocation, "_DEFAULT_FILES", (closed_folder.parent / "absent.toml", path))
    call = Invocation()
    if named_by == "--config":
        call.config = path
    elif named_by == "FOREBAY_CONFIG":
        monkeypatch.setenv("FOREBAY_CONFIG", str(path))
    with as_ordinary_user(), pytest.raises(SettingsError) as caught:
        _ = call.config_path
    message = str(caught.value)
    assert message.startswith(f"{path}: this user may not read it: run `sudo -u {closed_folder.owner()} ")
    assert f"/bin/forebay --config {path} COMMAND`" in message
    assert caught.value.exit_code == 2


@pytest.mark.usefixtures("no_variable")
def test_first_existing_default_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = [tmp_path / "file/in-a-file.toml", tmp_path / "absent.toml", tmp_path / "one.toml", tmp_path / "two.toml"]
    for path in (tmp_path / "file", *files[2:]):
        path.touch()
    monkeypatch.setattr(invocation, "_DEFAULT_FILES", tuple(files))
    assert Invocation().config_path == files[2]
    monkeypatch.setattr(invocation, "_DEFAULT_FILES", tuple(files[:2]))
    with pytest.raises(SettingsError, match="no configuration: neither "):
        _ = Invocation().config_path


def test_named_file_that_is_absent_is_left_to_its_reader(tmp_path: Path) -> None:
    call = Invocation()
    call.config = tmp_path / "absent.toml"
    assert call.config_path == tmp_path / "absent.toml"
    with pytest.raises(SettingsError, match="can't be read: No such file"):
        call.settings()


def test_mock_broker_lives_on_when_a_test_runs_as_an_ordinary_user(
    mock_broker: MockBroker, topic_name: Callable[[], str], as_ordinary_user: OrdinaryUser
) -> None:
    """It is one for all tests of a process, and a signal would end it."""
    mock_broker.create_topic(topic_name())
    with as_ordinary_user():
        assert os.geteuid() != 0
    mock_broker.create_topic(topic_name())
