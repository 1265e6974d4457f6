"""What the embedded Kafka needs."""

from __future__ import annotations

import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from forebay.errors import UsageError
from forebay.kafka.jars import fetch_jars, find_java, jars_present, key_store
from tests.conftest import missing


def test_java_reads_the_key_store_that_carries_pythons_certificates(tmp_path: Path) -> None:
    keytool = shutil.which("keytool")
    if keytool is None:
        missing("keytool, which comes with Java")
    certificates = ssl.create_default_context().get_ca_certs(binary_form=True)[:3]
    (tmp_path / "store").write_bytes(key_store(certificates))
    done = subprocess.run(
        [str(keytool), "-list", "-keystore", str(tmp_path / "store"), "-storepass", "changeit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("trustedCertEntry") == len(certificates)


def test_a_missing_java_is_named_with_the_command_to_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    with pytest.raises(UsageError, match="apt-get install -y openjdk-17-jre-headless"):
        find_java()


def test_jars_that_cannot_be_fetched_leave_nothing_that_looks_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("forebay.kafka.jars.find_java", lambda: "/bin/false")
    with pytest.raises(UsageError, match="could not be fetched"):
        fetch_jars(tmp_path)
    assert not jars_present(tmp_path)
    assert list(tmp_path.iterdir()) == []
