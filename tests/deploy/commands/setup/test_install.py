"""``forebay install``: the files that it puts on a host, the files that it keeps, and what it refuses."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from deploy.commands.setup import install as command
from deploy.commands.setup.host import Host, Step
from deploy.commands.setup.install import _uninstalled
from deploy.commands.setup.installation import (
    EXAMPLE,
    ROLES,
    UNITS,
    Installation,
    first_configuration,
    folders_outside,
    new_tokens,
    plan_installation,
    unit,
)
from deploy.main import main
from forebay.model.errors import SettingsError, StoreError, UsageError
from forebay.security import roles as security
from forebay.settings.reading.load import from_values, load
from tests.conftest import missing

PROGRAM = "/opt/forebay/bin/forebay"
UNIT_PATHS = {role: f"etc/systemd/system/{name}" for role, name in UNITS.items()}
#: a configuration with its folders below /srv/forebay
ELSEWHERE = """
stream = "flights"
data = "/srv/forebay"
[kafka]
topics = ["t"]
"bootstrap.servers" = "b:1"
[security]
token_file = "/etc/forebay/tokens"
"""


def run(prefix: Path, *arguments: str) -> int:
    return main(["install", "--prefix", str(prefix), "--program", PROGRAM, *arguments])


def tree(prefix: Path) -> dict[str, tuple[int, str]]:
    """Every path below ``prefix`` with its mode and content; of tokens only how many."""
    found = {}
    for path in sorted(prefix.rglob("*")):
        text = path.read_text() if path.is_file() else ""
        if path.name == "tokens":
            text = str(len(text.splitlines()))
        found[str(path.relative_to(prefix))] = (stat.S_IMODE(path.stat().st_mode), text)
    return found


def outcomes(prefix: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    capsys.readouterr()
    assert run(prefix, "--json", *arguments) == 0
    return {step["what"]: step["outcome"] for step in json.loads(capsys.readouterr().out)}


def test_install_changes_nothing_without_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    out, err = capsys.readouterr()
    first, *steps = out.splitlines()
    assert first == f"what would be done below {tmp_path}:"
    assert steps and all(step.startswith("would ") for step in steps)
    assert err == (
        f"roles: driver, agent, receiver, because {tmp_path}/etc/systemd/system has no unit of Forebay; "
        "choose some of them with --role\n"
        f"nothing was changed below {tmp_path}: add --apply to do it\n"
    )
    assert run(tmp_path, "--apply") == 0
    first, *steps = capsys.readouterr().out.splitlines()
    assert first == f"what is done below {tmp_path}:"
    assert steps and not any(step.startswith("would ") for step in steps)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_and_secrets_are_for_the_service_alone_whatever_the_umask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], umask: int
) -> None:
    before = os.umask(umask)
    try:
        assert run(tmp_path, "--yes") == 0
    finally:
        os.umask(before)
    found = tree(tmp_path)
    assert {found[path][0] for path in UNIT_PATHS.values()} == {0o644}
    for folder in ("etc/forebay", "var/lib/forebay"):
        assert found[folder][0] == 0o700
    for file in ("etc/forebay/forebay.toml", "etc/forebay/tokens"):
        assert found[file][0] == 0o600
    assert all(found[path][1] for path in UNIT_PATHS.values())
    assert load(tmp_path / "etc/forebay/forebay.toml", {}).security.token_file == "/etc/forebay/tokens"
    message = "".join(capsys.readouterr())
    lines = [line.split() for line in (tmp_path / "etc/forebay/tokens").read_text().splitlines() if line[0] != "#"]
    assert [role for role, _ in lines] == list(security.ROLES)
    for _, token in lines:
        assert len(token) >= 40 and token not in message
    assert len({token for _, token in lines}) == len(security.ROLES)


def test_a_second_call_changes_nothing_and_an_upgrade_writes_the_units_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    configuration = tmp_path / "etc/forebay/forebay.toml"
    configuration.write_text(configuration.read_text().replace('stream = "orders"', 'stream = "flights"'))
    before = tree(tmp_path)
    again = outcomes(tmp_path, capsys, "--yes")
    assert set(again.values()) <= {"as it is", "kept", "run", "left"} and tree(tmp_path) == before
    (tmp_path / UNIT_PATHS["driver"]).write_text("[Service]\nExecStart=/of/an/older/release\n")
    upgraded = outcomes(tmp_path, capsys, "--yes")
    assert [what for what, outcome in upgraded.items() if outcome == "replaced"] == [f"/{UNIT_PATHS['driver']}"]
    assert tree(tmp_path) == before


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_services_can_enter_the_new_folders_above_their_own_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    given, host = tmp_path / "given.toml", tmp_path / "host"
    given.write_text(ELSEWHERE)
    (host / "srv").mkdir(parents=True)
    (host / "srv").chmod(0o711)
    before = os.umask(umask)
    try:
        assert run(host, "--configuration", str(given), "--yes") == 0
    finally:
        os.umask(before)
    found = tree(host)
    assert found["srv"][0] == 0o711  # it was there
    for folder in ("srv/forebay", "etc", "etc/systemd", "etc/systemd/system", "etc/sysusers.d", "var", "var/lib"):
        assert found[folder][0] == 0o755, folder
    for name in ("wal", "journal", "blocks", "classes"):
        assert found[f"srv/forebay/{name}"][0] == 0o700
        for path in UNIT_PATHS.values():
            assert f"\nReadWritePaths=-/srv/forebay/{name}\n" in found[path][1]


def test_repeated_call_takes_the_roles_of_the_host_and_names_the_restarts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--role", "agent", "--role", "receiver", "--yes") == 0
    said = capsys.readouterr().err
    assert "systemctl enable --now forebay-agent.service forebay-receiver@1" in said and "restart" not in said
    assert "roles:" not in said
    assert run(tmp_path, "--yes") == 0  # as if the first call had ended before it printed the commands
    said = capsys.readouterr().err
    assert "systemctl enable --now forebay-agent.service forebay-receiver@1" in said
    enabled = tmp_path / "etc/systemd/system/multi-user.target.wants"
    enabled.mkdir()
    (enabled / "forebay-receiver@1.service").symlink_to(tmp_path / UNIT_PATHS["receiver"])
    (tmp_path / UNIT_PATHS["agent"]).write_text("an older release's")
    assert run(tmp_path, "--yes") == 0
    said = capsys.readouterr().err
    assert f"roles: agent, receiver, because their units are in {tmp_path}/etc/systemd/system; add" in said
    assert "enable" not in said
    assert "systemctl restart forebay-agent.service, systemctl restart forebay-receiver@1\n" in said
    assert not (tmp_path / UNIT_PATHS["driver"]).exists()
    assert (tmp_path / UNIT_PATHS["agent"]).read_text() == unit("agent")
    (enabled / "forebay-agent.service").symlink_to(tmp_path / UNIT_PATHS["agent"])
    assert run(tmp_path, "--role", "driver", "--role", "agent", "--yes") == 0
    said = capsys.readouterr().err
    assert (
        "systemctl enable --now forebay-driver.service;" in said and "systemctl restart forebay-agent.service\n" in said
    )
    shutil.rmtree(enabled)
    assert run(tmp_path, "--uninstall", "--yes") == 0
    assert not list((tmp_path / "etc/systemd/system").iterdir())


def test_full_disk_leaves_no_host_with_some_of_its_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The next call would take only their roles."""
    before = os.fsync

    def full(descriptor: int) -> None:
        if "forebay-receiver" in os.readlink(f"/proc/self/fd/{descriptor}"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        before(descriptor)

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        assert run(tmp_path, "--yes") == StoreError.exit_code
    assert "No space left on device" in capsys.readouterr().err
    assert [path for path in tree(tmp_path) if ".service" in path or ".new" in path] == []
    assert run(tmp_path, "--yes") == 0
    assert all((tmp_path / path).exists() for path in UNIT_PATHS.values())


@pytest.mark.parametrize("installed", [False, True])
def test_configuration_that_is_not_utf_8_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], installed: bool
) -> None:
    given, host = tmp_path / "given.toml", tmp_path / "host"
    given.write_bytes(ELSEWHERE.encode() + b"# caf\xe9\n")
    if installed:
        assert run(host, "--yes") == 0
    before = tree(host)
    capsys.readouterr()
    assert run(host, "--configuration", str(given), "--yes") == SettingsError.exit_code
    said = capsys.readouterr().err
    assert said.startswith(f"forebay: --configuration: {given} is not UTF-8 text") and said.count("\n") == 1
    assert tree(host) == before


def test_kept_file_that_is_not_utf_8_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path, "--yes") == 0
    (tmp_path / "etc/forebay/tokens").write_bytes(b"# caf\xe9\noperator 0123456789abcdef\n")
    (tmp_path / UNIT_PATHS["agent"]).write_bytes(b"# caf\xe9\n")
    done = outcomes(tmp_path, capsys, "--yes")
    assert (done["/etc/forebay/tokens"], done[f"/{UNIT_PATHS['agent']}"]) == ("kept", "replaced")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("", "security.token_file is not set, "),
        ('token_file = "/srv/tokens"', "security.token_file is /srv/tokens, "),
        ('token_file = "credential:other"', "security.token_file is credential:other, "),
    ],
)
@pytest.mark.parametrize("installed", [False, True])
def test_configuration_with_other_tokens_than_the_units_is_refused_before_any_change(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, reason: str, installed: bool
) -> None:
    given, host = tmp_path / "given.toml", tmp_path / "host"
    given.write_text(ELSEWHERE.replace('token_file = "/etc/forebay/tokens"', line))
    if installed:
        assert run(host, "--yes") == 0
        (host / UNIT_PATHS["agent"]).write_text("an older release's")
        shutil.copy(given, host / "etc/forebay/forebay.toml")
    before = tree(host)
    source = host / "etc/forebay/forebay.toml" if installed else given
    for apply in ((), ("--yes",)):
        capsys.readouterr()
        assert run(host, "--configuration", str(given), *apply) == SettingsError.exit_code
        said = capsys.readouterr().err
        assert said.startswith(f"forebay: {source}: {reason}but the units give each service /etc/forebay/tokens")
        assert 'write token_file = "/etc/forebay/tokens" below [security]' in said and "Nothing was changed" in said
        assert tree(host) == before
    assert run(host, "--uninstall", "--yes") == 0


@pytest.mark.parametrize("named", ["/etc/forebay//tokens", "credential:tokens"])
def test_other_names_of_the_units_token_file_are_accepted(tmp_path: Path, named: str) -> None:
    given = tmp_path / "given.toml"
    given.write_text(ELSEWHERE.replace("/etc/forebay/tokens", named))
    assert run(tmp_path / "host", "--configuration", str(given), "--yes") == 0


@pytest.mark.parametrize("arguments", [(), ("--uninstall",)])
def test_ordinary_user_on_an_installed_host_gets_one_sentence(
    closed_folder: Path,
    capsys: pytest.CaptureFixture[str],
    as_ordinary_user: Callable[[], AbstractContextManager[None]],
    arguments: tuple[str, ...],
) -> None:
    prefix = closed_folder.parent
    (prefix / "etc").mkdir()
    (prefix / "etc").chmod(0o755)
    (prefix / "etc/forebay").symlink_to(closed_folder)
    with as_ordinary_user():
        assert run(prefix, *arguments) == UsageError.exit_code
    message = "this user may not read it: run this command as root, with `sudo`"
    assert capsys.readouterr().err == f"forebay: {prefix}/etc/forebay/forebay.toml: {message}\n"


def test_ordinary_user_who_may_not_see_a_folder_of_the_configuration_gets_one_sentence(
    closed_folder: Path,
    capsys: pytest.CaptureFixture[str],
    as_ordinary_user: Callable[[], AbstractContextManager[None]],
) -> None:
    prefix = closed_folder.parent
    given = prefix / "given.toml"
    given.write_text(ELSEWHERE.replace("/srv/forebay", "/closed"))
    given.chmod(0o644)
    with as_ordinary_user():
        assert run(prefix, "--configuration", str(given)) == UsageError.exit_code
    assert f"forebay: {prefix}/closed/blocks: this user may not read it: run" in capsys.readouterr().err


def test_folders_that_others_could_read_are_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc/forebay").mkdir(parents=True)
    (tmp_path / "etc/forebay").chmod(0o755)
    assert outcomes(tmp_path, capsys, "--yes")["/etc/forebay"] == "replaced"
    assert stat.S_IMODE((tmp_path / "etc/forebay").stat().st_mode) == 0o700


def test_a_host_gets_the_units_of_its_roles_and_no_tokens_of_another_hosts_driver(tmp_path: Path) -> None:
    assert run(tmp_path, "--role", "agent", "--role", "receiver", "--yes") == 0
    assert not (tmp_path / UNIT_PATHS["driver"]).exists()
    assert (tmp_path / UNIT_PATHS["agent"]).exists() and (tmp_path / UNIT_PATHS["receiver"]).exists()
    assert all(line.startswith("#") for line in (tmp_path / "etc/forebay/tokens").read_text().splitlines())


def test_configuration_and_tokens_may_be_given(tmp_path: Path) -> None:
    given, tokens = tmp_path / "given.toml", tmp_path / "given-tokens"
    given.write_text(first_configuration().replace("file:///var/lib/forebay/wal", "file:///data/wal"))
    tokens.write_text("agent 0123456789abcdef\n")
    host = tmp_path / "host"
    assert run(host, "--configuration", str(given), "--tokens", str(tokens), "--yes") == 0
    assert (host / "etc/forebay/forebay.toml").read_text() == given.read_text()
    assert (host / "etc/forebay/tokens").read_text() == tokens.read_text()
    assert stat.S_IMODE((host / "etc/forebay/tokens").stat().st_mode) == 0o600
    for path in UNIT_PATHS.values():
        assert "\nReadWritePaths=-/data/wal\n" in (host / path).read_text()
    assert (host / "data/wal").is_dir()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no token"),
        (b"oops\n", "4 characters"),
        (b"redaer 0123456789abcdef-secret\n", "line 1: begins with no role"),
        ("operator 0123456789abcdef-secr\u00e9t\n".encode(), "not ASCII text"),
    ],
)
def test_tokens_that_services_could_not_read_are_refused_before_anything_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    given, host = tmp_path / "given", tmp_path / "host"
    given.write_bytes(content)
    assert run(host, "--tokens", str(given), "--yes") == SettingsError.exit_code
    said = capsys.readouterr().err
    assert message in said and str(given) in said and "Traceback" not in said and "0123456789" not in said
    assert not host.exists()


def test_a_folder_of_any_name_is_one_word_of_a_unit(tmp_path: Path) -> None:
    """As systemd reads it: quotes, its own specifiers and escapes."""
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not here: apt-get install systemd")
    names = ("/data/my wal", "/data/100%", "/data/it's", '/data/"quoted"', "/data/back\\slash")
    text = unit("agent", writable=names)
    for word in (
        '"-/data/my wal"', "-/data/100%%", "\"-/data/it's\"", '"-/data/\\"quoted\\""', '"-/data/back\\\\slash"',
    ):  # fmt: skip
        assert f"\nReadWritePaths={word}\n" in text
    (tmp_path / "forebay-agent.service").write_text(text.replace(PROGRAM, "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "--no-pager", "verify", str(tmp_path / "forebay-agent.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "ReadWritePaths" not in verified.stderr, verified.stderr
    with pytest.raises(SettingsError, match="unprintable characters"):
        unit("agent", writable=["/data/two\nlines"])


def test_folders_in_the_services_own_are_not_named_again() -> None:
    assert folders_outside(load(EXAMPLE, {})) == []


def test_folders_of_a_configuration_with_one_data_folder_are_writable_for_the_services() -> None:
    short = {"stream": "flights", "kafka": {"topics": ["t"], "bootstrap.servers": "b:1"}}
    assert folders_outside(from_values({**short, "data": "/var/lib/forebay"})) == []
    outside = ["/srv/f/blocks", "/srv/f/classes", "/srv/f/journal", "/srv/f/wal"]
    assert folders_outside(from_values({**short, "data": "/srv/f"})) == outside


def test_a_configuration_that_this_release_cant_read_stops_it_before_anything_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    (tmp_path / "etc/forebay/forebay.toml").write_text("stream = 1\n")
    (tmp_path / UNIT_PATHS["driver"]).write_text("an older release's")
    before = tree(tmp_path)
    capsys.readouterr()
    assert run(tmp_path, "--yes") == SettingsError.exit_code
    assert "forebay.toml" in capsys.readouterr().err
    assert tree(tmp_path) == before
    assert run(tmp_path, "--uninstall", "--yes") == 0  # which needs no configuration


def test_uninstalling_keeps_what_people_and_services_wrote_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    (tmp_path / "var/lib/forebay/wal").mkdir()
    done = outcomes(tmp_path, capsys, "--uninstall", "--yes")
    assert done["/var/lib/forebay"] == done["/etc/forebay"] == "kept"
    left = [path for path in tree(tmp_path) if "forebay/" in path]
    assert left == ["etc/forebay/forebay.toml", "etc/forebay/tokens", "var/lib/forebay/wal"]
    assert not list((tmp_path / "etc/systemd/system").iterdir())
    assert outcomes(tmp_path, capsys, "--uninstall", "--yes").keys() == {"/etc/forebay", "/var/lib/forebay"}


def test_uninstalling_one_role_leaves_the_others_what_they_need(tmp_path: Path) -> None:
    assert run(tmp_path, "--yes") == 0
    assert run(tmp_path, "--role", "receiver", "--uninstall", "--yes") == 0
    assert not (tmp_path / UNIT_PATHS["receiver"]).exists()
    assert (tmp_path / "etc/sysusers.d/forebay.conf").exists() and (tmp_path / UNIT_PATHS["driver"]).exists()


def test_uninstalling_asks_systemd_only_for_units_that_are_there(tmp_path: Path) -> None:
    """It refuses a call that names another one: on a host with one role, or after an uninstall that was cut off."""
    asked: list[tuple[str, ...]] = []

    class Booted(Host):
        def run(self, *command: str) -> Step:
            asked.append(command)
            return Step("run", " ".join(command))

    assert run(tmp_path, "--role", "receiver", "--role", "agent", "--yes") == 0
    wanted = plan_installation(ROLES, PROGRAM, load(EXAMPLE, {}), "", "")
    assert list(_uninstalled(Booted(tmp_path, True), wanted, ROLES, True))
    assert asked == [
        ("systemctl", "disable", "forebay-agent.service", "forebay-receiver@.service"),
        ("systemctl", "stop", "forebay-receiver@*.service"),
        ("systemctl", "stop", "forebay-agent.service"),
        ("systemctl", "daemon-reload"),
    ]


def test_interrupted_installation_is_completed_by_the_next(tmp_path: Path) -> None:
    def made(tokens: str = "operator 0123456789abcdef\n") -> Installation:
        return plan_installation(ROLES, PROGRAM, load(EXAMPLE, {}), EXAMPLE.read_text(), tokens)

    whole = tmp_path / "whole"
    steps = len(list(Host(whole, True).put(made())))
    for cut in range(steps):
        prefix = tmp_path / str(cut)
        cut_off = Host(prefix, True).put(made())
        for _ in range(cut):
            next(cut_off)
        next_unit = next((path for path in UNIT_PATHS.values() if not (prefix / path).exists()), None)
        if next_unit is not None:  # killed within a step
            half_written = (prefix / next_unit).with_name(f".{Path(next_unit).name}.new")
            half_written.parent.mkdir(parents=True, exist_ok=True)
            half_written.write_text("[Unit]\nDescr")
        list(Host(prefix, True).put(made()))
        assert tree(prefix) == tree(whole), cut


def test_unwritable_place_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").write_text("a file, where a folder would have to be")
    assert run(tmp_path, "--yes") == StoreError.exit_code
    output = capsys.readouterr().err
    assert str(tmp_path / "etc") in output and "Traceback" not in output


@pytest.mark.parametrize("program", ["forebay", "/opt/my forebay/bin/forebay", "/opt/%i/forebay"])
def test_a_program_that_a_unit_cant_name_is_refused(tmp_path: Path, program: str) -> None:
    assert main(["install", "--prefix", str(tmp_path), "--program", program, "--yes"]) == UsageError.exit_code
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_the_services_cant_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("forebay", "python"):
        (tmp_path / "bin" / name).touch()
    monkeypatch.setattr(command, "_HIDDEN", (str(tmp_path),))
    with pytest.raises(UsageError, match="can't see"):
        command._require_visible(str(tmp_path / "bin" / "forebay"))
    monkeypatch.setattr(command, "_HIDDEN", ("/elsewhere",))
    command._require_visible(str(tmp_path / "bin" / "forebay"))


def test_only_root_changes_the_system(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(Host, "put", lambda *_: pytest.fail("it went on"))
    assert main(["install", "--yes"]) == UsageError.exit_code
    assert "--prefix" in capsys.readouterr().err


def test_tokens_differ_at_each_call() -> None:
    assert new_tokens(ROLES) != new_tokens(ROLES)
