"""By which address Spark is reached: loopback where nobody elsewhere is to reach it, else that of the host's name."""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager

from forebay.model.errors import SettingsError, UnreachableError
from forebay.settings.similar import did_you_mean

#: in the environment of Spark's driver: its address
ADDRESS = "SPARK_LOCAL_IP"
#: or its name
NAME = "SPARK_LOCAL_HOSTNAME"
_LOOPBACK = "127.0.0.1"


#: as Spark 4 reads them
_MASTER = re.compile(
    r"local(\[([0-9]+|\*)(\s*,\s*[0-9]+)?\])?"
    r"|local-cluster\[\s*[0-9]+\s*,\s*[0-9]+\s*,\s*[0-9]+\s*\]"
    r"|[a-z][a-z0-9+.-]*://.+|yarn|yarn-client|yarn-cluster"
)
_MASTERS = ("local", "local[*]", "local[2]", "spark://host:7077", "yarn", "k8s://https://host:443")


def check_master(master: str) -> None:
    """Raises SettingsError for a master that Spark can't read. "": Spark's own defaults name it."""
    if master and not _MASTER.fullmatch(master):
        raise SettingsError(
            f"spark.'spark.master' = \"{master}\": {did_you_mean(master, _MASTERS)}write local[N], local[*], "
            "spark://host:port, yarn or k8s://url"
        )


@contextmanager
def addressed(master: str) -> Iterator[None]:
    """While Spark starts within, with ``master`` as the configuration names it (empty: it does not).

    A local Spark listens on loopback, whatever the host is called; what the environment or the configuration says otherwise
    counts. Raises as :func:`check_address`.
    """
    check_master(master)
    if not _is_local(master) or given():
        check_address(master)
        yield
        return
    os.environ[ADDRESS] = _LOOPBACK
    try:
        yield
    finally:
        del os.environ[ADDRESS]  # a session that the program makes later may be of a cluster


def check_address(master: str) -> None:
    """Raises SettingsError where Spark would look for its own host in vain, UnreachableError where nobody can tell now."""
    if _is_local(master) or given():
        return
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except socket.gaierror as error:
        kind = UnreachableError if error.errno == socket.EAI_AGAIN else SettingsError
        raise kind(
            f"this host's own name {name!r} has no address ({error.strerror}), and Spark's executors are to reach it: name it in "
            f"/etc/hosts, or set {ADDRESS} in the driver's environment"
        ) from None


def given() -> bool:
    """Whether the environment says it."""
    return bool(os.environ.get(ADDRESS) or os.environ.get(NAME))


def _is_local(master: str) -> bool:
    return master.startswith("local")
