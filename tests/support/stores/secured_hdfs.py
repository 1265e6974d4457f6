"""An HDFS with two NameNodes that asks for Kerberos, and encrypts requests and data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tests.support.servers.kerberos import REALM, Kdc
from tests.support.stores.hdfs_pair import HdfsPair
from wal.storage import hdfs_connection

_NAMES = ("nn/localhost", "dn/localhost", "HTTP/localhost")
#: what servers and clients agree on
_SECURITY = {"hadoop.security.authentication": "kerberos", "dfs.data.transfer.protection": "privacy"}
_REQUEST_SECONDS = 60.0


class SecuredHdfs(HdfsPair):
    """As :class:`HdfsPair`; ``login`` gives a client's options."""

    def __init__(self, directory: Path, kdc: Kdc) -> None:
        keytab = kdc.keytab(*_NAMES)
        name, data, web = (f"{name}@{REALM}" for name in _NAMES)
        super().__init__(
            directory,
            {
                **_SECURITY,
                "hadoop.rpc.protection": "privacy",
                "dfs.block.access.token.enable": "true",
                "dfs.namenode.kerberos.principal": name,
                "dfs.namenode.keytab.file": str(keytab),
                "dfs.datanode.kerberos.principal": data,
                "dfs.datanode.keytab.file": str(keytab),
                "dfs.web.authentication.kerberos.principal": web,
                "dfs.web.authentication.kerberos.keytab": str(keytab),
                "ignore.secure.ports.for.testing": "true",  # otherwise the DataNode wants ports below 1024, or HTTPS
            },
            java_options=[f"-Djava.security.krb5.conf={kdc.configuration}"],
        )
        self._administrator = kdc.log_in(_NAMES[0], keytab)

    def login(self, principal: str, keytab: Path | None = None, cache: Path | None = None) -> dict[str, str]:
        """``[storage.hdfs]`` of a client that is ``principal`` by its keytab, or by a ticket that was got before."""
        files = {"kerberos_keytab": keytab, "kerberos_cache": cache}
        given = {key: str(path) for key, path in files.items() if path is not None}
        return {**self.options, **_SECURITY, "kerberos_principal": f"{principal}@{REALM}", **given}

    def make_home(self, user: str) -> None:
        """Make a folder for ``user``, as an administrator does. The process has the environment of the KDC's clients."""
        administrator = hdfs_connection.connection(self.url, self.login(_NAMES[0], cache=self._administrator))
        folder = f"/user/{user}"
        administrator.run(lambda client: client.mkdirs(folder, 0o755, True), _REQUEST_SECONDS)
        administrator.run(lambda client: client.set_owner(folder, user, user), _REQUEST_SECONDS)

    def _environment_of_tools(self) -> Mapping[str, str]:
        return {**os.environ, "KRB5CCNAME": str(self._administrator)}
