"""The section ``[security]`` of ``forebay.toml``: its keys, with bounds, defaults and descriptions."""

from typing import Annotated

from msgspec import Meta

from forebay.model.units import Duration, Size
from forebay.settings.schema.constraints import DnsName, PemFile, PositiveDuration, SecretFile, least
from forebay.settings.schema.section import Section, doc


class SecuritySettings(Section, frozen=True, kw_only=True):
    """Tokens, certificates, and the limits of each service.

    ``forebay.security.roles`` defines which role may make which request.
    """

    token_file: Annotated[
        SecretFile | None,
        doc(
            'path of the file with tokens (lines as `forebay token new ROLE` prints), or "credential:NAME" from systemd; '
            "if unset, services listen on loopback alone",
            example="/etc/forebay/tokens",
        ),
    ] = None
    ca_file: Annotated[
        PemFile | None,
        doc(
            "path of the certificate authorities, in PEM form; a service that has it asks each client for a certificate",
            example="/etc/forebay/ca.pem",
        ),
    ] = None
    cert_file: Annotated[
        PemFile | None,
        doc(
            "path of this process's certificate, in PEM form; if set, URLs begin with https://",
            example="/etc/forebay/host.pem",
        ),
    ] = None
    key_file: Annotated[
        PemFile | None,
        doc("path of the certificate's private key, in PEM form", example="/etc/forebay/host.key"),
    ] = None
    request_size: Annotated[Size, least(65_536), doc("maximum size of a request's body")] = Size(8_000_000)
    request_timeout: Annotated[
        PositiveDuration, doc("maximum time for a TLS handshake, and for a request to arrive")
    ] = Duration(30.0)
    connections_max: Annotated[
        int,
        Meta(ge=8),
        doc(
            "maximum number of authenticated connections of one service; the same number of unauthenticated ones is allowed"
        ),
    ] = 1_000
    hosts: Annotated[
        tuple[DnsName, ...], doc("further host names of the services: aliases, and proxies in front of them")
    ] = ()
