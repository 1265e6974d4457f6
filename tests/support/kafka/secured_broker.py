"""A real Kafka with an authorizer, which listens in plain text, with every login and with TLS. One for a whole run.

Principals are users of the PLAIN login, each with exactly the rights that a test gives it. A connection without a login is the
administrator's.
"""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.rights import Right
from tests.support.run.ports import free_port
from tests.support.servers.certificates import Authority
from tests.support.servers.token_endpoint import TokenEndpoint

USER, PASSWORD = "reader", "the-right-one"
_SECURITY = "org.apache.kafka.common.security"
_KINDS = {
    "topic": ResourceType.TOPIC, "group": ResourceType.GROUP, "cluster": ResourceType.BROKER,
    "transactional-id": ResourceType.TRANSACTIONAL_ID,
}  # fmt: skip
#: how many users :meth:`SecuredBroker.principal` can give rights to
_PRINCIPALS_MAX = 60
_SECONDS = 30.0


class SecuredBroker(KafkaBroker):
    """Beside ``address``, which is in plain text, it listens at:

    ``sasl``: in plain text, with PLAIN, SCRAM and OAUTHBEARER. ``sasl_tls``: the same over TLS. ``tls``: TLS. ``mutual``: TLS
    that requires a certificate, whose common name is the principal. ``expired``: TLS with an expired certificate. ``away``: in
    plain text, advertising an address where no process listens.
    """

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.sasl, self.sasl_tls, self.tls, self.mutual, self.expired, self.away = (
            f"127.0.0.1:{free_port()}" for _ in range(6)
        )
        self.authority = Authority(directory)
        self._keystores = {
            name: _keystore(directory, self.authority.issue(name, valid_days=days))
            for name, days in (("broker", 1), ("expired", -1))
        }
        self.tokens = SigningEndpoint("forebay", "the-secret-of-forebay")
        self._used = 0

    def launch(self) -> None:
        self.tokens.__enter__()
        super().launch()

    def stop(self) -> None:
        super().stop()
        self.tokens.__exit__(None, None, None)

    # ---- options of clients ------------------------------------------------------------------------------------------

    @property
    def sasl_options(self) -> dict[str, str]:
        """The options of USER."""
        return self.login(USER)

    def login(self, user: str, mechanism: str = "PLAIN", password: str = PASSWORD) -> dict[str, str]:
        return {
            "bootstrap.servers": self.sasl, "security.protocol": "sasl_plaintext", "sasl.mechanism": mechanism,
            "sasl.username": user, "sasl.password": password,
        }  # fmt: skip

    @property
    def tls_options(self) -> dict[str, str]:
        return {
            "bootstrap.servers": self.tls,
            "security.protocol": "ssl",
            "ssl.ca.location": str(self.authority.ca_file),
        }

    def certificate_options(self, files: Mapping[str, str]) -> dict[str, str]:
        """``files``: of :meth:`Authority.issue`."""
        return {
            **self.tls_options, "bootstrap.servers": self.mutual,
            "ssl.certificate.location": files["cert_file"], "ssl.key.location": files["key_file"],
        }  # fmt: skip

    @property
    def token_options(self) -> dict[str, str]:
        """The options of the principal ``forebay``, which gets tokens from :attr:`tokens`."""
        return {
            "bootstrap.servers": self.sasl, "security.protocol": "sasl_plaintext", "sasl.mechanism": "OAUTHBEARER",
            "sasl.oauthbearer.method": "oidc", "sasl.oauthbearer.token.endpoint.url": self.tokens.url,
            "sasl.oauthbearer.client.id": "forebay", "sasl.oauthbearer.client.secret": "the-secret-of-forebay",
        }  # fmt: skip

    # ---- principals --------------------------------------------------------------------------------------------------

    def principal(self, rights: Iterable[Right]) -> dict[str, str]:
        """Return the options of a new principal, which has these rights and no others."""
        user = f"user{self._used}"
        self._used += 1
        self.allow(user, rights)
        return self.login(user)

    def allow(self, user: str, rights: Iterable[Right]) -> None:
        """Give rights to a user beside those that it has."""
        bindings = [
            AclBinding(
                _KINDS[right.kind], "kafka-cluster" if right.kind == "cluster" else right.name,
                ResourcePatternType.PREFIXED if right.prefixed else ResourcePatternType.LITERAL,
                f"User:{user}", "*", AclOperation[_acl_name(operation)], AclPermissionType.ALLOW,
            )
            for right in rights
            for operation in right.operations
        ]  # fmt: skip
        admin = AdminClient({**self.options})  # kept until the answers: futures of a collected client fail
        for future in (admin.create_acls(bindings) if bindings else {}).values():
            future.result(_SECONDS)

    def add_scram(self, user: str) -> None:
        """Let ``user`` log in by SCRAM with PASSWORD."""
        admin = AdminClient({**self.options})
        for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512):  # Kafka takes one in a request
            change = UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), PASSWORD.encode())
            for future in admin.alter_user_scram_credentials([change]).values():
                future.result(_SECONDS)

    # ---- the broker's own --------------------------------------------------------------------------------------------

    def _server_properties(self) -> dict[str, str]:
        made = super()._server_properties()
        more = "".join(
            f",{name}://{address}"
            for name, address in (
                ("SASL", self.sasl), ("SASLTLS", self.sasl_tls), ("TLS", self.tls), ("MUTUAL", self.mutual),
                ("EXPIRED", self.expired),
            )
        )  # fmt: skip
        users = " ".join(f'user_{name}="{PASSWORD}"' for name in (USER, *(f"user{n}" for n in range(_PRINCIPALS_MAX))))
        logins: dict[str, str] = {}
        for listener in ("sasl", "sasltls"):
            prefix = f"listener.name.{listener}"
            logins |= {
                f"{prefix}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512,OAUTHBEARER",
                f"{prefix}.plain.sasl.jaas.config": f"{_SECURITY}.plain.PlainLoginModule required {users};",
                f"{prefix}.scram-sha-256.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
                f"{prefix}.scram-sha-512.sasl.jaas.config": f"{_SECURITY}.scram.ScramLoginModule required;",
                f"{prefix}.oauthbearer.sasl.jaas.config": f"{_SECURITY}.oauthbearer.OAuthBearerLoginModule required;",
                f"{prefix}.oauthbearer.sasl.server.callback.handler.class":
                    f"{_SECURITY}.oauthbearer.OAuthBearerValidatorCallbackHandler",

            }  # fmt: skip
        stores = {
            f"listener.name.{listener}.ssl.keystore.{key}": value
            for listener in ("tls", "sasltls", "mutual", "expired")
            for key, value in (
                ("type", "PEM"),
                ("location", str(self._keystores["expired" if listener == "expired" else "broker"])),
            )
        }
        return {
            **made,
            "listeners": f"{made['listeners']}{more},AWAY://{self.away}",
            "advertised.listeners": f"{made['advertised.listeners']}{more},AWAY://127.0.0.1:1",
            "listener.security.protocol.map": f"{made['listener.security.protocol.map']},SASL:SASL_PLAINTEXT,"
            "SASLTLS:SASL_SSL,TLS:SSL,MUTUAL:SSL,EXPIRED:SSL,AWAY:PLAINTEXT",
            **logins,
            # the default validator of Kafka 4.1 checks no signature, as it takes these listeners for clients
            "sasl.oauthbearer.jwt.validator.class": f"{_SECURITY}.oauthbearer.BrokerJwtValidator",
            "sasl.oauthbearer.jwks.endpoint.url": self.tokens.keys_url,
            "sasl.oauthbearer.expected.audience": "kafka",
            **stores,
            "listener.name.mutual.ssl.client.auth": "required",
            "listener.name.mutual.ssl.truststore.type": "PEM",
            "listener.name.mutual.ssl.truststore.location": str(self.authority.ca_file),
            "ssl.principal.mapping.rules": "RULE:^CN=(.*?)$/$1/",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
        }

    def _java(self, java: str, classpath: str) -> list[str]:
        made = super()._java(java, classpath)
        return [made[0], f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={self.tokens.keys_url}", *made[1:]]


class SigningEndpoint(TokenEndpoint):
    """A token endpoint whose tokens are JSON web tokens, signed by the key at ``keys_url``.

    ``claims``: override those of the next tokens. ``forges``: the next tokens are signed by another key.
    """

    def __init__(self, client: str, secret: str) -> None:
        super().__init__(client, secret)
        self._client = client
        self._key = rsa.generate_private_key(65537, 2048)
        self.keys_url = self.url.removesuffix("/token") + "/keys"
        self.claims: dict[str, object] = {}
        self.forges = False
        public = self._key.public_key().public_numbers()
        numbers = {
            name: _base64(value.to_bytes((value.bit_length() + 7) // 8, "big"))
            for name, value in (("n", public.n), ("e", public.e))
        }
        self.pages["/keys"] = json.dumps(
            {"keys": [{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": "1", **numbers}]}
        )

    def _issued(self, lives_seconds: float | None) -> dict[str, object]:
        now = int(time.time())
        claims = {"sub": self._client, "aud": "kafka", "iat": now - 5, "exp": now + 3600, **self.claims}
        head = {"alg": "RS256", "typ": "JWT", "kid": "1"}
        signed = ".".join(_base64(json.dumps(part).encode()) for part in (head, claims))
        key = rsa.generate_private_key(65537, 2048) if self.forges else self._key
        signature = key.sign(signed.encode(), padding.PKCS1v15(), hashes.SHA256())
        return {"access_token": f"{signed}.{_base64(signature)}", "token_type": "Bearer", "expires_in": 3600}


def _base64(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


def _acl_name(operation: str) -> str:
    """Return confluent-kafka's name of an operation: IDEMPOTENT_WRITE for IdempotentWrite."""
    return "".join(
        f"_{letter}" if letter.isupper() and place else letter for place, letter in enumerate(operation)
    ).upper()


def _keystore(directory: Path, files: Mapping[str, str]) -> Path:
    path = Path(files["cert_file"]).with_suffix(".keystore.pem")
    path.write_text("".join(Path(files[kind]).read_text() for kind in ("key_file", "cert_file")))
    return path


@dataclass(frozen=True, slots=True)
class Mistake:
    """``reason``: librdkafka's message about it, as a pattern."""

    options: Mapping[str, Any]
    reason: str

    @property
    def address(self) -> str:
        return str(self.options["bootstrap.servers"])
