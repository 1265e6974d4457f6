"""The host that ``forebay install`` changes: the owner of its folders, and the folders above them."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from deploy.commands.setup.host import Host
from deploy.commands.setup.installation import EXAMPLE, ROLES, plan_installation
from forebay.model.errors import StoreError
from forebay.settings.reading.load import from_values, load

PROGRAM = "/opt/forebay/bin/forebay"


def test_folders_within_folders_belong_to_the_services_too(tmp_path: Path) -> None:
    settings = from_values(
        {
            "stream": "flights",
            "data": "/srv/forebay",
            "kafka": {"topics": ["t"], "bootstrap.servers": "b:1"},
            "driver": {"journal": "file:///srv/forebay"},
            "wal": {"url": "file:///srv/forebay/a/wal"},
        }
    )
    wanted = plan_installation(ROLES, PROGRAM, settings, "", "")
    host = Host(tmp_path / "host", True)
    list(host.put(wanted))
    (tmp_path / "host/etc/passwd").write_text(f"forebay:x:{os.getuid()}:{os.getgid()}::/:/bin/false\n")
    chown = next(step.what for step in host.give(wanted, "forebay") if step.what.startswith("chown")).split()
    assert {"/srv/forebay", "/srv/forebay/a/wal", "/srv/forebay/blocks"} <= set(chown) and "/srv/forebay/a" not in chown
    (tmp_path / "host/srv/forebay/a/wal/segment").touch()
    chown = next(step.what for step in host.give(wanted, "forebay") if step.what.startswith("chown")).split()
    assert "/srv/forebay/blocks" in chown and not {"/srv/forebay", "/srv/forebay/a/wal"} & set(chown)


def test_folder_above_that_the_services_can_not_enter_is_named_with_the_command_that_opens_it(tmp_path: Path) -> None:
    (tmp_path / "srv/forebay/wal").mkdir(parents=True)
    (tmp_path / "srv").chmod(0o755)
    (tmp_path / "srv/forebay").chmod(0o700)
    host, other = Host(tmp_path, True), (os.getuid() + 1, os.getgid() + 1)
    (step,) = host._closed(["/srv/forebay/wal", "/srv/forebay/blocks"], "forebay", *other)
    assert (step.outcome, step.what) == ("left", "/srv/forebay")
    assert step.detail.startswith("mode 0700: ") and step.detail.endswith(f"run chmod o+x {tmp_path}/srv/forebay")
    assert list(host._closed(["/srv/forebay/wal"], "forebay", os.getuid(), 0)) == []
    (tmp_path / "srv/forebay").chmod(0o701)
    assert list(host._closed(["/srv/forebay/wal"], "forebay", *other)) == []
    (step,) = host._closed(["/srv/forebay/wal"], "forebay", other[0], (tmp_path / "srv/forebay").stat().st_gid)
    assert step.detail.endswith(f"run chmod g+x {tmp_path}/srv/forebay")


def test_user_is_found_beside_a_user_whose_entry_is_not_utf_8(tmp_path: Path) -> None:
    wanted = plan_installation(ROLES, PROGRAM, load(EXAMPLE, {}), EXAMPLE.read_text(), "")
    host = Host(tmp_path, True)
    list(host.put(wanted))
    entry = f"forebay:x:{os.getuid()}:{os.getgid()}::/:/bin/false\n"
    (tmp_path / "etc/passwd").write_bytes(b"andre:x:1000:1000:Andr\xe9:/home/andre:/bin/sh\n" + entry.encode())
    assert next(host.give(wanted, "forebay")).what.startswith("chown forebay:forebay /etc/forebay")
    for damaged in ("", "forebay", "forebay:x:12", "forebay:x::", "forebay:x:12:a:"):
        (tmp_path / "etc/passwd").write_text(f"{damaged}\n")
        with pytest.raises(StoreError, match="has no user forebay"):
            list(host.give(wanted, "forebay"))


def test_user_of_the_system_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may be in a directory service, and then it is not in /etc/passwd."""
    entry = pwd.struct_passwd(("forebay", "x", 812, 813, "", "/", "/bin/false"))
    monkeypatch.setattr(pwd, "getpwnam", lambda name: {"forebay": entry}[name])
    assert Host(Path("/"), True)._ids("forebay") == (812, 813)
    with pytest.raises(StoreError, match="has no user other"):
        Host(Path("/"), True)._ids("other")


def test_output_of_a_command_that_is_not_utf_8_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="failed: caf"):
        Host(tmp_path, True).run("sh", "-c", r"printf 'caf\351' >&2; exit 1")
