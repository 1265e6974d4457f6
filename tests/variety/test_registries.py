"""Another schema registry: the tests of the registry's client and of decoding run with an earlier major release of Apicurio."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from forebay.model.errors import UsageError
from tests.conftest import missing, running_in_ci
from tests.support.run.wheel import ROOT
from tests.support.servers import apicurio

pytestmark = [pytest.mark.long, pytest.mark.variety, pytest.mark.timeout(1800)]


def test_earlier_registry_serves_schemas_as_the_newest_does() -> None:
    release = apicurio.EARLIER
    if not release.present and not running_in_ci():
        command = f"FOREBAY_TEST_REGISTRY={release.version} python -m tests.support.servers.apicurio"
        missing(f"there is no Apicurio {release.version}: run {command}")
    try:
        apicurio.fetch(release)
    except UsageError as error:
        missing(str(error))
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-n",
            "0",
            "-q",
            "-m",
            "not long and not spark",
            "tests/forebay/kafka/registry",
            "tests/forebay/schemas",
        ],
        cwd=ROOT,
        env={**os.environ, "FOREBAY_TEST_REGISTRY": release.version},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-1000:]
    assert "NOT TESTED" not in done.stdout
    print(f"Apicurio {release.version}: {done.stdout.strip().splitlines()[-1]}")
