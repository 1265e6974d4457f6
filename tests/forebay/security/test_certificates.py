"""https between the processes: each side refuses invalid certificates."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

import msgspec
import pytest
from litestar import get

from executor_agent.main import Agent
from forebay.http.application import application, needs
from forebay.http.client import Client
from forebay.http.server import Server
from forebay.model.errors import SettingsError, UnreachableError
from forebay.process.clock import ManualClock
from forebay.security.access import Access, Guard
from forebay.security.certificates import Certificates
from tests.support.faulty.limits import no_more_descriptors
from tests.support.processes.child import exit_code_of_child
from tests.support.servers.certificates import Authority
from tests.support.state.guarded import settings
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.reading import BlockReference, ReadPlan, read_block

# a server's thread leaves its loop's sockets to the collector
pytestmark = [
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@contextmanager
def serving(folder: Path, **security: str) -> Iterator[str]:
    @get("/v1/fine", opt=needs())
    async def fine() -> str:
        return "fine"

    guard = Guard(settings(folder, **security))
    with Server(application("t", "1", [fine], guard), "https://127.0.0.1:0", guard=guard) as server:
        assert server.url.startswith("https://")
        yield server.url


def ask(url: str, **files: Any) -> bytes:
    client = Client(url, 20.0, Access(**files))
    try:
        return client.request("GET", "/v1/fine")
    finally:
        client.close()


def test_server_certificate_needs_authority_name_and_date(authority: Authority, tmp_path: Path) -> None:
    other = Authority(tmp_path, "somebody-else")
    with serving(tmp_path, **authority.issue("host")) as url:
        assert ask(url, ca_file=str(authority.ca_file)) == b"fine"
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            ask(url, ca_file=str(other.ca_file))
        with pytest.raises(UnreachableError, match="certificate verify failed"):
            ask(url)  # the authorities of the system don't know ours
        with pytest.raises(UnreachableError):
            ask(url.replace("https:", "http:"))
        assert ask(url.replace("https:", "HTTPS:"), ca_file=str(authority.ca_file)) == b"fine"
    with (
        serving(tmp_path, **authority.issue("expired", valid_days=-1)) as url,
        pytest.raises(
            UnreachableError, match=r"certificate has expired.*; this host's clock says .*Z: correct it, or renew"
        ),
    ):
        ask(url, ca_file=str(authority.ca_file))
    with (
        serving(tmp_path, **authority.issue("elsewhere", address="127.0.0.2")) as url,
        pytest.raises(UnreachableError, match="not valid for '127"),
    ):
        ask(url, ca_file=str(authority.ca_file))


def test_server_with_authority_requires_client_certificate(authority: Authority, tmp_path: Path) -> None:
    ca_file = str(authority.ca_file)
    other = Authority(tmp_path, "somebody-else")
    with serving(tmp_path, ca_file=ca_file, **authority.issue("host")) as url:
        assert ask(url, ca_file=ca_file, **authority.issue("client")) == b"fine"
        for refused in ({}, other.issue("stranger"), authority.issue("expired", valid_days=-1)):
            with pytest.raises(UnreachableError):
                ask(url, ca_file=ca_file, **refused)


def test_a_task_reads_a_block_from_an_agent_by_https_with_its_token_and_certificate(
    authority: Authority, tmp_path: Path
) -> None:
    stored = Stored(tmp_path)
    reference = stored.add(*block({("a", 0): filler(8000, size=800)}))
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("agent token-of-an-agent\ntask token-of-the-task\n")
    files: dict[str, Any] = {"ca_file": str(authority.ca_file), **authority.issue("host")}
    security = settings(tmp_path, token_file=str(tokens), **files).security
    guarded = msgspec.structs.replace(
        stored.settings(),
        security=security,
        agent=msgspec.structs.replace(stored.settings().agent, url="https://127.0.0.1:0"),
    )
    with Agent(guarded) as agent:
        read = read_from(agent.url, reference, Access.of_tasks(guarded))
        assert read == ("agent", 1)
        assert read_from(agent.url, reference, Access(**files)) == "agent: HTTP 401"
        assert "certificate" in str(read_from(agent.url, reference, Access(token="token-of-the-task")))


def read_from(url: str, reference: BlockReference, access: Access) -> object:
    plan = ReadPlan(wal_url="memory://none", agent_urls={reference.host: url}, tiers=("agent",), access=access)
    try:
        read = read_block(reference, plan)
    except Exception as error:
        message = str(error)
        return "agent: HTTP 401" if "HTTP 401" in message else message
    return read.tier, read.ranges


def replaced(files: dict[str, str], by: dict[str, str]) -> None:
    """Replace the files as a person or tool does: first the key, then the certificate."""
    for kind in ("key_file", "cert_file"):
        os.replace(by[kind], files[kind])


def peer(url: str, ca_file: Path) -> str:
    """Return the certificate that a server shows in a new handshake."""
    parts = urlsplit(url)
    context = ssl.create_default_context(cafile=str(ca_file))
    with (
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=30) as connection,
        context.wrap_socket(connection, server_hostname=parts.hostname) as secured,
    ):
        certificate = secured.getpeercert()
        assert certificate is not None
        return str(dict(pair for names in certificate["subject"] for pair in names)["commonName"])  # type: ignore[misc]


def test_server_uses_renewed_certificate_without_restart(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """While only one of the two files is new, it keeps the old ones, and logs an error."""
    files, renewed = authority.issue("host"), authority.issue("renewed")
    with serving(tmp_path, **files) as url:
        assert peer(url, authority.ca_file) == "host"
        os.replace(renewed["key_file"], files["key_file"])
        assert peer(url, authority.ca_file) == "host"
        assert "key values mismatch; the previous certificates stay valid" in caplog.text
        os.replace(renewed["cert_file"], files["cert_file"])
        assert peer(url, authority.ca_file) == "renewed"


def test_renewed_certificate_that_could_not_be_read_is_used_as_soon_as_it_can_be(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    """Here for lack of a file descriptor, which changes nothing in the files. The log has the error once."""
    files = authority.issue("host")
    certificates = Certificates(server=True, cert_file=files["cert_file"], key_file=files["key_file"])
    first = certificates.context()
    replaced(files, authority.issue("renewed"))

    def step() -> int:
        with no_more_descriptors(os.getpid()):
            assert certificates.context() is first
            assert certificates.context() is first
        assert caplog.text.count("the previous certificates stay valid") == 1
        renewed = certificates.context()
        assert renewed is not first
        assert certificates.context() is renewed
        return 0

    assert exit_code_of_child(step) == 0  # the limit would end other threads of this process, such as the mock broker's


def test_service_does_not_wait_for_idle_clients_when_it_stops(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Their connections are kept. The server logs an error if one is left at the end of its grace period."""
    with serving(tmp_path, **authority.issue("host")) as url:
        client = Client(url, 20.0, Access(ca_file=str(authority.ca_file)))
        assert client.request("GET", "/v1/fine") == b"fine"
    assert "graceful shutdown" not in caplog.text
    with pytest.raises(UnreachableError, match="Connection refused"):
        client.request("GET", "/v1/fine")


def test_clients_use_renewed_certificate_and_authority(authority: Authority, tmp_path: Path) -> None:
    """Certificates of only the old authority are then refused, in both directions."""
    client_files, server_files = authority.issue("client"), authority.issue("host")
    believed = tmp_path / "believed.pem"
    believed.write_bytes(authority.ca_file.read_bytes())
    with serving(tmp_path, ca_file=str(believed), **server_files) as url:
        client = Client(url, 20.0, Access(ca_file=str(believed), **cast(Any, client_files)))
        assert client.request("GET", "/v1/fine") == b"fine"
        other = Authority(tmp_path, "other")
        believed.write_bytes(other.ca_file.read_bytes())
        with pytest.raises(UnreachableError, match="certificate"):
            client.request("GET", "/v1/fine")
        replaced(server_files, other.issue("host-of-other"))
        with pytest.raises(UnreachableError):  # its own certificate is still the old authority's
            client.request("GET", "/v1/fine")
        replaced(client_files, other.issue("client-of-other"))
        assert client.request("GET", "/v1/fine") == b"fine"
        client.close()


def test_log_warns_daily_about_expiring_certificate(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock(int(datetime.now(timezone.utc).timestamp() * 1000))
    files = authority.issue("host", valid_days=20)
    certificates = Certificates(server=True, clock=clock, **files)
    certificates.context()
    assert not caplog.records
    clock.advance(7 * 24 * 3600)
    for _ in range(3):
        certificates.context()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert f"{files['cert_file']} expires at" in caplog.text and "in 12 days" in caplog.text
    caplog.clear()
    clock.advance(14 * 24 * 3600)
    certificates.context()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "expired at" in caplog.text
    caplog.clear()
    replaced(files, authority.issue("renewed", valid_days=60))
    certificates.context()
    assert not caplog.records


def test_idle_server_warns_about_its_certificate(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with serving(tmp_path, **authority.issue("host", valid_days=1)):
        assert "expires at" in caplog.text


def test_invalid_certificate_is_refused_in_one_sentence(authority: Authority, tmp_path: Path) -> None:
    files, others = authority.issue("host"), authority.issue("another")
    spoilt = tmp_path / "spoilt.pem"
    spoilt.write_text("no certificate")
    for wrong, message in (
        ({**files, "key_file": others["key_file"]}, r"cannot use .*: key values mismatch"),
        ({**files, "cert_file": str(spoilt)}, "cannot use"),
        ({**files, "cert_file": str(tmp_path / "gone.pem")}, "cannot be read: No such file"),
        ({**files, "ca_file": str(spoilt)}, "no certificate of an authority"),
        ({**files, "ca_file": str(tmp_path / "gone.pem")}, "security.ca_file: .* cannot be read"),
    ):
        with pytest.raises(SettingsError, match=message):
            Guard(settings(tmp_path, **wrong)).tls()
        with pytest.raises(SettingsError, match=message):
            Access.of(settings(tmp_path, **wrong), "operator")


def test_scheme_and_certificate_must_agree(authority: Authority, tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="https needs security"),
        Server(application("t", "1", []), "https://127.0.0.1:0", guard=Guard(settings(tmp_path))),
    ):
        pass
    with (
        pytest.raises(SettingsError, match="with certificates, write https://"),
        Server(
            application("t", "1", []), "http://127.0.0.1:0", guard=Guard(settings(tmp_path, **authority.issue("host")))
        ),
    ):
        pass


def test_key_with_passphrase_is_refused_without_prompt(authority: Authority, tmp_path: Path) -> None:
    """A service has no terminal."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    files = authority.issue("host")
    key = load_pem_private_key(Path(files["key_file"]).read_bytes(), None)
    locked = serialization.BestAvailableEncryption(b"word")
    Path(files["key_file"]).write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, locked)
    )
    with pytest.raises(SettingsError, match="cannot use"):
        Guard(settings(tmp_path, **files)).tls()
    assert os.path.exists(files["cert_file"])
