"""Access tokens, their roles, and the decision about a request. No I/O.

A token file has one line for each token: ``role[:name] token``, or only the token, which then has all roles. Empty lines and
lines that begin with ``#`` are ignored. A service accepts the token of every line, so that two lines of a role allow a
replacement without an interruption. A client sends the token of the first line that fits.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

from forebay.model.errors import AccessError, SettingsError
from forebay.model.identifiers import check_name

Role = Literal["receiver", "agent", "task", "query", "reader", "operator"]
#: receiver: takes records in. agent: a host's block store. task: a Spark task of the batch job. query: a query over the intake.
#: reader: dashboards, which only read status and lag. operator: people and their tools (docs/SECURITY.md)
ROLES: tuple[Role, ...] = get_args(Role)
ANY_ROLE = frozenset(ROLES)

TOKEN_LENGTH_MIN, TOKEN_LENGTH_MAX = 16, 512
#: maximum lines of a file
TOKENS_MAX = 10_000
_TOKEN = re.compile(r"[!-~]+")
_MAKE_ONE = "make a line with `forebay token new ROLE`"


@dataclass(frozen=True, slots=True)
class Grant:
    """The rights of one line. ``name``: the only receiver or agent that may use it; None: any."""

    roles: frozenset[Role]
    name: str | None
    token: str = field(repr=False)
    digest: bytes = field(repr=False)

    def fits(self, role: Role, name: str | None) -> bool:
        """Return whether a client of ``role`` and ``name`` may send this token."""
        return role in self.roles and (name is None or self.name is None or self.name == name)


@dataclass(frozen=True, slots=True)
class Tokens:
    """The lines of a token file, in order. ``repr`` shows no token."""

    grants: tuple[Grant, ...]

    def caller(self, token: str) -> Caller | None:
        """Return the caller that sends ``token``; None if no line has it. Takes the same time for a wrong token."""
        digest = _digest(token)
        found = tuple(grant for grant in self.grants if hmac.compare_digest(grant.digest, digest))
        return Caller(tuple((grant.roles, grant.name) for grant in found)) if found else None

    def first(self, role: Role, name: str | None = None) -> str | None:
        """Return the token that a client of ``role`` and ``name`` sends; None if no line fits."""
        return next((grant.token for grant in self.grants if grant.fits(role, name)), None)

    @property
    def summary(self) -> str:
        """The number of lines for each role, as text."""
        return ", ".join(f"{role} {sum(role in grant.roles for grant in self.grants)}" for role in ROLES)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: roles and name of each line with its token. Without lines, it is unknown."""

    grants: tuple[tuple[frozenset[Role], str | None], ...] = ()

    @property
    def known(self) -> bool:
        return bool(self.grants)

    def has(self, roles: Iterable[Role]) -> bool:
        """Return whether the caller has one of ``roles``."""
        wanted = frozenset(roles)
        return any(wanted & granted for granted, _ in self.grants)

    def require(self, role: Role, name: str) -> None:
        """Raise AccessError unless the caller may act as ``role`` with ``name``, a receiver's id or an agent's host."""
        names = [bound for roles, bound in self.grants if role in roles]
        if not any(bound is None or bound == name for bound in names):
            bound_to = ", ".join(repr(bound) for bound in names) or "no name"
            raise AccessError(f"this token is of {role} {bound_to}: it can't act for {role} {name!r}", "forbidden")


ANONYMOUS = Caller()
#: every client of a service without tokens
EVERYBODY = Caller(((ANY_ROLE, None),))


def authorize(tokens: Tokens | None, authorization: str | None, roles: frozenset[Role]) -> Caller:
    """Return the sender of a request with this ``Authorization`` header (None: without) to a route for ``roles``.

    ``tokens``: None if the service has none. Raises AccessError: ``unauthenticated`` for a missing or unknown token,
    ``forbidden`` for a token of another role. A route without roles accepts every request.
    """
    if tokens is None:
        return EVERYBODY
    scheme, _, token = (authorization or "").partition(" ")
    caller = tokens.caller(token.strip()) if scheme.lower() == "bearer" else None
    if not roles:
        return caller or ANONYMOUS
    if caller is None:
        reason = "the token sent is unknown to this service" if authorization else "no token was sent"
        raise AccessError(f"{reason}: name a file with a valid token in security.token_file", "unauthenticated")
    if not caller.has(roles):
        raise AccessError(_wrong_role(caller, roles), "forbidden")
    return caller


def _wrong_role(caller: Caller, roles: frozenset[Role]) -> str:
    """Return the message, with the command that makes a token of the role with the fewest rights."""
    own = frozenset().union(*(granted for granted, _ in caller.grants))
    wanted = [role for role in ROLES if role in roles]
    return (
        f"the token sent is not of role {' or '.join(wanted)} but of role {' and '.join(r for r in ROLES if r in own)}: add the "
        f"line that `forebay token new {wanted[0]}` prints to the token files of this service and of its client"
    )


def parse_tokens(text: str, source: str) -> Tokens:
    """Parse the lines of ``text``. ``source``: its origin, for errors. Raises SettingsError, which never shows a token."""
    grants: list[Grant] = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or parts[0].startswith("#"):
            continue
        where = f"{source}, line {number}"
        if len(parts) > 2:
            raise SettingsError(f"{where}: write role[:name] token, nothing after it")
        roles, name = (ANY_ROLE, None) if len(parts) == 1 else _who(parts[0], where)
        token = parts[-1]
        if len(parts) == 1 and token.partition(":")[0] in ROLES:
            raise SettingsError(f"{where}: the token is missing: {_MAKE_ONE}")
        if not _TOKEN.fullmatch(token):
            raise SettingsError(f"{where}: a token may only have ASCII letters, digits and signs: {_MAKE_ONE}")
        if not TOKEN_LENGTH_MIN <= len(token) <= TOKEN_LENGTH_MAX:
            raise SettingsError(
                f"{where}: the token has {len(token)} characters, allowed are {TOKEN_LENGTH_MIN} to {TOKEN_LENGTH_MAX}: "
                f"{_MAKE_ONE}"
            )
        grants.append(Grant(roles, name, token, _digest(token)))
        if len(grants) > TOKENS_MAX:
            raise SettingsError(f"{source}: more than {TOKENS_MAX} tokens: remove those that are not used any more")
    if not grants:
        raise SettingsError(f"{source}: it has no token: {_MAKE_ONE}")
    return Tokens(tuple(grants))


def _who(written: str, where: str) -> tuple[frozenset[Role], str | None]:
    role, colon, name = written.partition(":")
    if role not in ROLES:
        # not shown: in a line with swapped words, this is the token
        raise SettingsError(f"{where}: begins with no role; roles are {', '.join(ROLES)}, as in `reader TOKEN`")
    if colon:
        try:
            check_name("name", name)
        except ValueError as error:
            raise SettingsError(f"{where}: {error}") from None
    return frozenset({role}), name if colon else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
