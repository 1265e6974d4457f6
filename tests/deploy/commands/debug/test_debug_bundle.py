"""``forebay debug bundle``: everything that helps is in it, and no secret, wherever a secret was."""

from __future__ import annotations

import base64
import json
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from deploy.commands.debug import parts
from deploy.commands.debug.bundle import Bundle
from deploy.commands.debug.group import raw_values
from deploy.commands.debug.secrets import known_secrets
from deploy.commands.setup import validation
from deploy.main import main
from forebay import messages as m
from forebay.http.threads import stacks
from forebay.settings.redaction import HIDDEN

KEY = base64.b64encode(b"canary-of-the-encryption-key-32b").decode()
_numbers = iter(range(1, 1000))


def canary() -> str:
    """A secret that no rule for names of secrets can recognise by itself; some have signs that JSON and URLs write otherwise."""
    number = next(_numbers)
    return f"cAnArY-{number:03}" + ('"q' if number % 3 == 0 else "+/x" if number % 3 == 1 else "")


def plain() -> str:
    return f"cAnArY-{next(_numbers):03}"


#: places of secrets in forebay.toml: a line → its section
SETTINGS: dict[str, tuple[str, str]] = {
    "sasl.password": ("kafka", canary()),
    "ssl.key.password": ("kafka", canary()),
    "ssl.keystore.password": ("kafka", canary()),
    "ssl.key.pem": ("kafka", f"-----BEGIN PRIVATE KEY-----\n{plain()}\n-----END PRIVATE KEY-----\n"),
    "sasl.oauthbearer.client.secret": ("kafka", canary()),
    "sasl.oauthbearer.config": ("kafka", f"principal=me scope={plain()}"),
    "spark.hadoop.fs.s3a.secret.key": ("spark", canary()),
    "spark.hadoop.fs.azure.account.key.store": ("spark", canary()),
    "spark.authenticate.secret": ("spark", canary()),
    "spark.executorEnv.DB_PASSWORD": ("spark", canary()),
    "spark.driver.extraJavaOptions": ("spark", f"-Xmx1g -Djavax.net.ssl.keyStorePassword={plain()}"),
    "web_hook": ("driver", f"https://pager.example/services/{plain()}"),
    "source_options": ("receiver", plain()),
    "urls": ("driver", plain()),
    "endpoint_url": ("storage.s3", plain()),
    "proxies": ("storage.s3", plain()),
}
ENVIRONMENT = {
    "AWS_SECRET_ACCESS_KEY": canary(), "AWS_SESSION_TOKEN": canary(), "DB_PASSWORD": canary(), "FOREBAY_OTHER_TOKEN": canary(),
    "HTTPS_PROXY": f"http://me:{plain()}@proxy:3128", "FOREBAY__KAFKA__SSL_TRUSTSTORE_PASSWORD": canary(),
    "SPARK_CONF": f"-Dspark.my.password={plain()}",
}  # fmt: skip
TOKENS = {role: f"cAnArY-of-the-{role}-token" for role in ("operator", "reader", "receiver:r1")}
OLD_TOKEN = "cAnArY-of-a-token-in-a-comment"
CANARY = "cAnArY"


def toml(value: str) -> str:
    return json.dumps(value)


def write_secrets(project: Any) -> None:
    """Write a configuration with a secret in each place that can hold one."""
    tokens, keys = project.folder / "tokens", project.folder / "keys"
    for file, text in (
        (tokens, "".join(f"{role} {token}\n" for role, token in TOKENS.items()) + f"# operator {OLD_TOKEN}\n"),
        (keys, f"one {KEY}\n"),
    ):
        file.touch(mode=0o600)
        file.write_text(text)
    special = {
        "source_options": lambda v: f'source = "sources:Tail"\nsource_options = {{api_token = "{v}", page = 1}}',
        "urls": lambda v: f'urls = ["http://me:{v}@127.0.0.1:1"]',
        "endpoint_url": lambda v: f'endpoint_url = "https://me:{v}@store.example"',
        "proxies": lambda v: f'config_kwargs = {{proxies = {{https = "http://me:{v}@proxy:3128"}}}}',
    }
    project.replace('topics = ["t"]\n', "")  # a custom source has none
    text = project.config.read_text()
    sections: dict[str, list[str]] = {}
    for name, (section, value) in SETTINGS.items():
        line = special[name](value) if name in special else f"{toml(name)} = {toml(value)}"
        sections.setdefault(section, []).append(line)
    sections["wal"] = [f'key_file = "{keys}"']
    sections["security"] = [f'token_file = "{tokens}"']
    for section, lines in sections.items():
        more = "\n".join([f"[{section}]", *lines])
        text = text.replace(f"[{section}]", more) if f"[{section}]\n" in text else f"{text}\n{more}\n"
    project.config.write_text(text)


def every_secret() -> list[str]:
    planted = [value for _, value in SETTINGS.values()]
    return [*planted, *ENVIRONMENT.values(), *TOKENS.values(), OLD_TOKEN, KEY]


@pytest.fixture
def leaking(project: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A project with secrets in its files, its environment, its logs, and the command line of a process."""
    write_secrets(project)
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (project.folder / "logs").mkdir()
    lines = [f"2026-11-22 12:00:00 INFO something failed with {secret}" for secret in every_secret()]
    lines += [f"GET /?x={quote(secret, safe='')} {json.dumps({'error': secret})}" for secret in every_secret()]
    lines += [f"Authorization: Basic {base64.b64encode(f'me:{plain()}'.encode()).decode()}", "the line that helps"]
    (project.folder / "logs" / "driver.log").write_text("\n".join(lines) + "\n")
    process = subprocess.Popen(
        ["forebay", "-c", "import sys; sys.stdin.read()", "--password", plain(), f"--conf=spark.my.secret={plain()}",
         SETTINGS["sasl.password"][1]],
        executable=sys.executable, stdin=subprocess.PIPE,
    )  # fmt: skip
    try:
        yield project
    finally:
        process.communicate()


def contents(path: Path) -> dict[str, bytes]:
    with tarfile.open(path) as archive:
        found = {member.name.partition("/")[2]: archive.extractfile(member) for member in archive.getmembers()}
        return {name: file.read() for name, file in found.items() if file is not None}


def test_no_secret_is_in_a_bundle_wherever_it_was_planted(
    leaking: Any, made_up_driver: Any, make_status: Callable[..., m.StatusAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", 0.2)
    leaking.replace('urls = ["', 'urls = ["' + str(made_up_driver_url(leaking)) + '", "')
    made_up_driver.status = make_status(
        batches=(
            m.BatchEntry(
                batch_id=1, number=1, time_ms=1, state="failing", blocks=1, records=1, attempts=1,
                detail="; ".join(every_secret()),
            ),
        )
    )  # fmt: skip
    target = leaking.folder / "bundle.tar.gz"
    logs = str(leaking.folder / "logs")
    assert main(["--config", str(leaking.config), "debug", "bundle", "--output", str(target), "--logs", logs]) == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    files = contents(target)
    wanted = {
        "README.txt", "contents.json", "settings.json", "environment.json", "versions.json", "processes.json", "status.json",
        "doctor.json", "journal.json", "logs/driver.log",
    }  # fmt: skip
    assert wanted <= set(files), files.get("configuration.json")
    for name, data in files.items():
        text = data.decode()
        assert CANARY not in text, f"{name}: {text[max(0, text.index(CANARY) - 200) : text.index(CANARY) + 60]}"
        assert base64.b64encode(b"cAnArY").decode()[:8] not in text, name
        assert KEY not in text and quote(KEY, safe="") not in text, name
        if name.endswith(".json"):
            valid(name, text)
    assert b"the line that helps" in files["logs/driver.log"]
    (batch,) = json.loads(files["status.json"])["batches"]
    assert HIDDEN in batch["detail"]
    assert any("forebay" in one["command"][0] for one in json.loads(files["processes.json"]))
    settings = {one["key"]: one["value"] for one in json.loads(files["settings.json"])}
    assert settings["kafka.sasl.password"] == HIDDEN and settings["driver.engine"] == "local"
    assert json.loads(files["environment.json"])["AWS_SESSION_TOKEN"] == HIDDEN


def valid(name: str, text: str) -> None:
    """A file is still a JSON document when its secrets were replaced."""
    try:
        json.loads(text)
    except json.JSONDecodeError as error:
        raise AssertionError(f"{name}: {error}: {text[max(0, error.pos - 200) : error.pos + 50]}") from None


def made_up_driver_url(project: Any) -> str:
    for line in project.config.read_text().splitlines():
        if line.startswith('url = "http://127.0.0.1'):
            return str(json.loads(line.partition(" = ")[2]))
    raise AssertionError("no driver in the configuration")


def test_every_canary_is_a_known_secret_and_a_short_text_is_none(leaking: Any) -> None:
    """The second line of defence works alone: it finds secrets that no name of an option announces."""
    raw = raw_values(leaking.config)
    known = known_secrets(raw, ENVIRONMENT)
    for secret in every_secret():
        assert any(found in secret for found in known), secret
    assert known_secrets({"kafka": {"sasl.password": "abc"}}, {}) == frozenset()


def test_roles_beside_tokens_are_no_secrets(tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"# operator {OLD_TOKEN}\n")
    lines = "".join(f"{role} {token}\n" for role, token in TOKENS.items())
    odd = "reader:cAnArY-of-a-token-like-a-role"
    environment = {"FOREBAY_TOKENS": f"{lines}reader {odd}\n"}
    known = known_secrets({"security": {"token_file": str(tokens)}}, environment)
    assert known.isdisjoint(TOKENS)
    assert {*TOKENS.values(), OLD_TOKEN, odd} <= known


def test_a_bundle_of_a_wrong_configuration_has_its_mistakes_and_no_secret(
    leaking: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    leaking.replace('engine = "local"', f'engine = "{SETTINGS["spark.authenticate.secret"][1].replace(chr(34), "")}"')
    target = leaking.folder / "bundle.tar.gz"
    command = ["--config", str(leaking.config), "--json", "debug", "bundle", "--output", str(target), "--no-doctor"]
    assert main(command) == 0
    files = contents(target)
    assert "driver.engine" in files["configuration.json"].decode()
    assert {part["name"] for part in json.loads(capsys.readouterr().out)["parts"]} == set(files) - {
        "README.txt",
        "contents.json",
    }


def test_what_can_not_be_collected_is_listed_with_its_reason(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    target = project.folder / "bundle.tar.gz"
    command = ["--config", str(project.config), "debug", "bundle", "--output", str(target), "--no-doctor"]
    assert main(command) == 0
    shown = capsys.readouterr()
    assert shown.out == f"{target}\n"
    files = contents(target)
    errors = {part["name"]: part["error"] for part in json.loads(files["contents.json"]) if part["error"]}
    assert "no driver of stream flights" in errors["status.json"]
    assert len([name for name in errors if name in parts.DRIVER_ANSWERS]) == 1
    assert "forebay: without status.json: " in shown.err
    assert main(command) == 2
    assert "exists: choose another name with --output" in capsys.readouterr().err


def test_a_token_file_without_an_operators_token_is_no_obstacle(project: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("reader a-token-of-a-reader\n")
    project.config.write_text(project.config.read_text() + f'[security]\ntoken_file = "{tokens}"\n')
    target = project.folder / "bundle.tar.gz"
    assert main(["--config", str(project.config), "debug", "bundle", "--output", str(target), "--no-doctor"]) == 0
    files = contents(target)
    errors = {part["name"]: part["error"] for part in json.loads(files["contents.json"]) if part["error"]}
    assert "forebay token new operator" in errors["status.json"]
    assert "journal.json" in files or "journal.json" in errors


def test_the_end_of_a_long_log_begins_with_a_whole_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "LOG_BYTES_MAX", 20)
    log = tmp_path / "driver.log"
    log.write_text("first line\nsecond line\nthird line\n")
    assert parts._end(log) == "(the last 20 of 34 bytes)\nthird line\n"


def test_the_end_of_a_long_journal_of_systemd_begins_with_a_whole_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "token cAnArY-of-a-token\nsecond line\nthird line\n"
    done = subprocess.CompletedProcess([], 0, stdout=text, stderr="")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    assert parts._systemd() == text
    monkeypatch.setattr(parts, "LOG_BYTES_MAX", len(text) - len("token cAnA"))
    assert parts._systemd() == "second line\nthird line\n"


def test_no_logs_leaves_the_logs_out(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "logs", lambda *_: [("logs/driver.log", lambda: "a record that the job printed")])
    for more, are_in in ((["--no-logs"], False), ([], True)):
        target = project.folder / f"bundle-{are_in}.tar.gz"
        command = ["--config", str(project.config), "debug", "bundle", "--output", str(target), "--no-doctor", *more]
        assert main(command) == 0
        files = contents(target)
        assert ("logs/driver.log" in files) is are_in
        assert b"may be records" in files["README.txt"]
    capsys.readouterr()
    assert main([*command, "--no-logs", "--logs", str(project.folder)]) == 2
    assert "exclude each other" in capsys.readouterr().err


def test_a_part_that_fails_leaves_the_others(tmp_path: Path) -> None:
    bundle = Bundle({"s3cr3t"})

    def fail() -> object:
        raise ValueError("it has s3cr3t in it")

    assert isinstance(bundle.add("a.json", fail), ValueError)
    assert bundle.add("b.txt", lambda: "s3cr3t") is None
    bundle.write(tmp_path / "b.tar.gz", "f", 1.0)
    files = contents(tmp_path / "b.tar.gz")
    assert files["b.txt"] == HIDDEN.encode()
    assert json.loads(files["contents.json"])[0]["error"] == f"ValueError: it has {HIDDEN} in it"


def test_stacks_name_the_functions_of_each_thread() -> None:
    answer = stacks()
    (this,) = [one for one in answer.threads if one.name == "MainThread"]
    assert any("test_stacks_name_the_functions_of_each_thread" in frame for frame in this.frames)
