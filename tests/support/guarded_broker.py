"""A real Kafka that listens in plain text, with SASL and with TLS; and wrong ways to address it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.certificates import Authority
from tests.support.ports import free_port

USER, PASSWORD = "reader", "the-right-one"
_LOGIN = "org.apache.kafka.common.security.plain.PlainLoginModule"


class GuardedBroker(KafkaBroker):
    """``sasl`` and ``tls`` are addresses beside ``address``, which is in plain text."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sasl, self.tls = (f"127.0.0.1:{free_port()}" for _ in range(2))
        self._authority = Authority(directory)
        files = self._authority.issue("broker")
        self._certificate = directory / "both.pem"
        self._certificate.write_text("".join(Path(files[kind]).read_text() for kind in ("key_file", "cert_file")))

    @property
    def sasl_options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.sasl, "security.protocol": "sasl_plaintext", "sasl.mechanism": "PLAIN",
            "sasl.username": USER, "sasl.password": PASSWORD,
        }  # fmt: skip

    @property
    def tls_options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.tls, "security.protocol": "ssl", "ssl.ca.location": str(self._authority.ca_file)
        }  # fmt: skip

    def _server_properties(self) -> dict[str, str]:
        made = super()._server_properties()
        more = f",SASL://{self.sasl},TLS://{self.tls}"
        return {
            **made,
            "listeners": made["listeners"] + more,
            "advertised.listeners": made["advertised.listeners"] + more,
            "listener.security.protocol.map": made["listener.security.protocol.map"] + ",SASL:SASL_PLAINTEXT,TLS:SSL",
            "listener.name.sasl.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.sasl.plain.sasl.jaas.config": f'{_LOGIN} required user_{USER}="{PASSWORD}";',
            "listener.name.tls.ssl.keystore.type": "PEM",
            "listener.name.tls.ssl.keystore.location": str(self._certificate),
        }


@dataclass(frozen=True, slots=True)
class Mistake:
    """``reason``: librdkafka's words for it."""

    options: Mapping[str, str]
    reason: str

    @property
    def address(self) -> str:
        return self.options["bootstrap.servers"]
