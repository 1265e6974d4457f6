"""The lines of a token file, their rights, and which client sends which token."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from forebay.model.errors import AccessError, SettingsError
from forebay.process.secret_file import read_secret, secret_path
from forebay.security.access import TOKENS_VARIABLE, Access, Guard, TokenFile
from forebay.security.roles import ANY_ROLE, EVERYBODY, Role, authorize, parse_tokens
from tests.support.state.guarded import settings

LINES = """
# of this stream
receiver:r1 token-of-receiver-r1
receiver    token-of-any-receiver
agent:h1    token-of-agent-h1
reader      token-of-a-reader
task        token-of-the-task
operator    token-of-an-operator
operator    token-of-an-operator-to-come
"""
RECEIVER: frozenset[Role] = frozenset({"receiver"})
OPERATOR: frozenset[Role] = frozenset({"operator"})


def bearer(token: str) -> str:
    return f"Bearer {token}"


def test_a_token_allows_what_its_line_says_and_no_more() -> None:
    tokens = parse_tokens(LINES, "t")
    r1 = authorize(tokens, bearer("token-of-receiver-r1"), RECEIVER)
    r1.require("receiver", "r1")
    with pytest.raises(AccessError, match="it can't act for receiver 'r2'") as refused:
        r1.require("receiver", "r2")
    assert refused.value.code == "forbidden"
    authorize(tokens, bearer("token-of-any-receiver"), RECEIVER).require("receiver", "r2")
    with pytest.raises(AccessError, match="not of role operator") as refused:
        authorize(tokens, bearer("token-of-receiver-r1"), OPERATOR)
    assert refused.value.code == "forbidden"


def test_one_token_may_be_of_several_roles_by_a_line_for_each() -> None:
    """So newer agents accept a reader's token that tasks of an older release send."""
    caller = parse_tokens("reader token-of-a-reader\ntask token-of-a-reader\n", "t").caller("token-of-a-reader")
    assert caller is not None and caller.has({"task"}) and caller.has({"reader"}) and not caller.has({"query"})
    with pytest.raises(AccessError, match="is not of role query or operator but of role task and reader: add the line"):
        authorize(
            parse_tokens("reader token-of-a-reader\ntask token-of-a-reader\n", "t"),
            bearer("token-of-a-reader"),
            frozenset({"query", "operator"}),
        )


@pytest.mark.parametrize("role", ["task", "query"])
def test_tasks_and_queries_do_not_send_readers_token(role: Role, tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    file.write_text("reader token-of-a-reader\noperator token-of-an-operator\n")
    with pytest.raises(
        SettingsError, match=f"forebay token new {role}` prints.*a reader's token only reads status and lag"
    ):
        Access.of(settings(tmp_path, token_file=str(file)), role)


def test_agents_token_is_valid_only_for_its_host() -> None:
    agent = authorize(parse_tokens(LINES, "t"), bearer("token-of-agent-h1"), frozenset({"agent"}))
    agent.require("agent", "h1")
    for role, name in (("agent", "h2"), ("receiver", "r1"), ("receiver", "h1")):
        with pytest.raises(AccessError):
            agent.require(role, name)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "header", [None, "", "Bearer", "Bearer ", "Bearer token-of-a-rea", "Basic token-of-a-reader", "token-of-a-reader"]
)
def test_sender_of_unknown_token_is_anonymous(header: str | None) -> None:
    with pytest.raises(AccessError) as refused:
        authorize(parse_tokens(LINES, "t"), header, ANY_ROLE)
    assert refused.value.code == "unauthenticated" and "token-of" not in str(refused.value)
    assert not authorize(parse_tokens(LINES, "t"), header, frozenset()).known


def test_bare_token_and_missing_token_file_allow_all_roles() -> None:
    tokens = parse_tokens("just-this-one-token\n", "t")
    caller = authorize(tokens, bearer("just-this-one-token"), OPERATOR)
    caller.require("receiver", "any")
    caller.require("agent", "any")
    assert authorize(None, None, OPERATOR) is EVERYBODY


def test_every_line_is_accepted_and_the_first_one_that_fits_is_sent() -> None:
    """A token is replaced by adding the new line after the old one, moving it before, and removing the old one."""
    tokens = parse_tokens(LINES, "t")
    assert tokens.first("operator") == "token-of-an-operator"
    authorize(tokens, bearer("token-of-an-operator-to-come"), OPERATOR)
    assert tokens.first("receiver", "r1") == "token-of-receiver-r1"
    assert tokens.first("receiver", "r2") == "token-of-any-receiver"
    assert tokens.first("agent", "h2") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "it has no token"),
        ("# none\n", "it has no token"),
        ("short\n", "the token has 5 characters"),
        ("reader " + "x" * 513, "allowed are 16 to 512"),
        ("reader:\tx23456789012345678", "a name has 1 to 64"),
        ("receiver:../r1 x23456789012345678", "a name has 1 to 64"),
        ("x23456789012345678 reader", "begins with no role"),
        ("reader x23456789012345678 more", "nothing after it"),
        ("receiver:a-long-name-but-no-token", "the token is missing"),
        ("reader x2345678901234567\x7f", "may only have ASCII letters"),
    ],
)
def test_invalid_line_is_refused_without_showing_token(text: str, message: str) -> None:
    with pytest.raises(SettingsError, match=message) as refused:
        parse_tokens(text, "t")
    assert "x2345" not in str(refused.value)


def test_no_repr_shows_a_token() -> None:
    tokens = parse_tokens(LINES, "t")
    access = Access(role="reader", token="token-of-a-reader")
    assert "token-of" not in repr(tokens) + repr(access) + str(tokens.grants[0]) + repr(
        tokens.caller("token-of-a-reader")
    )


# ---- files -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def file(tmp_path: Path) -> Path:
    file = tmp_path / "tokens"
    file.write_text(LINES)
    file.chmod(0o600)
    return file


def test_removed_token_is_refused_and_new_one_accepted_without_restart(file: Path, tmp_path: Path) -> None:
    guard = Guard(settings(tmp_path, token_file=str(file)))
    access = Access.of(settings(tmp_path, token_file=str(file)), "operator")
    guard.authorize(bearer("token-of-an-operator"), OPERATOR)
    assert access.headers() == {"authorization": "Bearer token-of-an-operator"}
    file.write_text("operator token-of-an-operator-to-come\n")
    with pytest.raises(AccessError):
        guard.authorize(bearer("token-of-an-operator"), OPERATOR)
    guard.authorize(access.headers()["authorization"], OPERATOR)


def test_damaged_or_deleted_file_keeps_previous_tokens(file: Path, caplog: pytest.LogCaptureFixture) -> None:
    tokens = TokenFile(str(file), {})
    before = tokens.tokens
    file.write_text("oops\n")
    assert tokens.tokens is before and "the previous tokens stay valid" in caplog.text
    file.unlink()
    assert tokens.tokens is before


def test_file_readable_by_all_users_is_refused(file: Path) -> None:
    file.chmod(0o604)
    with pytest.raises(SettingsError, match=r"all users can read or write .*: run `chmod o= "):
        _ = TokenFile(str(file), {}).tokens


def test_environment_has_precedence_over_file_and_error_shows_no_token(file: Path) -> None:
    tokens = TokenFile(str(file), {TOKENS_VARIABLE: "only-in-the-environment"}).tokens
    assert tokens is not None and tokens.first("reader") == "only-in-the-environment"
    with pytest.raises(SettingsError, match="FOREBAY_TOKENS, line 1: begins with no role"):
        _ = TokenFile(None, {TOKENS_VARIABLE: "redaer token-of-a-reader"}).tokens


def test_variable_that_changes_is_read_again(file: Path) -> None:
    environment = {TOKENS_VARIABLE: "redaer token-of-a-reader"}
    tokens = TokenFile(str(file), environment)
    with pytest.raises(SettingsError, match="begins with no role"):
        _ = tokens.tokens
    for now in ("first-in-the-environment", "second-in-the-environment"):
        environment[TOKENS_VARIABLE] = f"reader {now}"
        assert tokens.tokens is not None and tokens.tokens.first("reader") == now
    del environment[TOKENS_VARIABLE]
    assert tokens.tokens is not None and tokens.tokens.first("reader") == "token-of-a-reader"


def test_credential_is_read_from_systemds_directory(file: Path) -> None:
    environment = {"CREDENTIALS_DIRECTORY": str(file.parent)}
    tokens = TokenFile("credential:tokens", environment).tokens
    assert tokens is not None and tokens.first("reader") == "token-of-a-reader"
    with pytest.raises(SettingsError, match="LoadCredential=tokens:FILE"):
        secret_path("security.token_file", "credential:tokens", {})


def test_device_or_folder_is_refused_as_secret_file(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"  # without a writer: opening it would wait forever
    os.mkfifo(pipe, 0o600)
    for path in (tmp_path, Path("/dev/zero"), pipe):
        with pytest.raises(SettingsError, match="is not a file"):
            read_secret("k", path)


def test_client_without_token_error_names_command(file: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is for agent 'h2': add a line that `forebay token new agent` prints"):
        Access.of(settings(tmp_path, token_file=str(file)), "agent", "h2")


def test_task_prefers_token_of_its_host(file: Path, tmp_path: Path) -> None:
    given = Access.of_tasks(settings(tmp_path, token_file=str(file)))
    file.write_text("task token-of-this-very-host\n")
    assert given.headers() == {"authorization": "Bearer token-of-this-very-host"}
    file.unlink()
    elsewhere = Access(role="task", token=given.token, token_file=str(tmp_path / "not-here"))
    assert elsewhere.headers() == {"authorization": "Bearer token-of-the-task"}


def test_without_tokens_only_loopback_is_allowed(tmp_path: Path) -> None:
    guard = Guard(settings(tmp_path))
    guard.check_address("127.0.0.1", "u")
    guard.check_address("::1", "u")
    for address in ("0.0.0.0", "10.0.0.1", "::", "fe80::1%eth0"):
        with pytest.raises(SettingsError, match="without tokens a service only listens on this machine"):
            guard.check_address(address, "driver.url")
