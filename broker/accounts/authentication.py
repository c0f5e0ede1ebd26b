"""Authentication of a CONNECT: token, user and password, signed nonce, or the no-auth user.

Owns: checking credentials against the configuration.
May not touch: sockets, timers. bcrypt is slow: the caller runs `identify` in a thread if `slow`.
An unknown user is checked against some hash as well, if there are any: the time that a refusal
takes must not reveal which users exist.
Spec: NATS server configuration, authorization; NATS client protocol, CONNECT."""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Mapping

from broker.accounts import tokens
from broker.accounts.identity import Credentials, Identity
from broker.config.options import AccountClaims, Authorization, CalloutOptions, User
from broker.credentials import jwt, nkeys
from broker.credentials.nkeys import KeyKind

logger = logging.getLogger("broker")
BCRYPT_PREFIXES = ("$2a$", "$2b$", "$2x$", "$2y$")


def is_bcrypt(secret: str) -> bool:
    return secret.startswith(BCRYPT_PREFIXES)


class Authenticator:
    """Built once per configuration; `identify` checks one set of credentials."""

    __slots__ = ("_accounts_judge", "_auth", "_decoy", "_nkeys", "_users")

    def __init__(self, auth: Authorization) -> None:
        self._auth = auth
        self._users = {user.name: user for user in auth.users if not user.nkey}
        self._nkeys = {user.name: user for user in auth.users if user.nkey}
        hashes = (user.password for user in self._users.values() if is_bcrypt(user.password))
        self._decoy = next(hashes, "")  # empty: no user has a hash
        self._accounts_judge = any(one.callout for one in (auth.tokens or {}).values())

    @property
    def required(self) -> bool:
        return self._auth.required

    @property
    def announced(self) -> bool:
        """auth_required in INFO: false when anonymous clients are admitted."""
        return self._auth.required and (not self._auth.no_auth_user or self.callout is not None)

    @property
    def callout(self) -> CalloutOptions | None:
        return self._auth.callout

    @property
    def tokens(self) -> Mapping[str, AccountClaims] | None:
        """Operator mode: the accounts."""
        return self._auth.tokens

    def account_of(self, given: Credentials) -> str:
        """Operator mode: the account of the user that the client claims to be; empty if it claims
        none. It is a valid account key: it becomes part of a URL and of a subject."""
        if self._auth.tokens is None or not given.jwt:
            return ""
        try:
            token = jwt.decode(given.jwt)
        except jwt.BadToken:
            return ""
        account = str(token.claims.get("issuer_account") or token.issuer)
        return account if nkeys.is_public(account, KeyKind.ACCOUNT) else ""

    def delegates(self, given: Credentials) -> bool:
        """Whether an authorization service decides about this client, not `identify`."""
        return self.judge_of(given) is not None

    def judge_of(self, given: Credentials) -> CalloutOptions | None:
        """The authorization service for this client. In operator mode, that of the account of the
        user that the client claims, and proves, to be."""
        if self._auth.tokens is not None:
            if not self._accounts_judge:
                return None
            found = self._signed_in(given)
            callout = None if found is None else self._auth.tokens[found.account].callout
            name = "" if found is None else found.user
        else:
            callout, name = self._auth.callout, given.nkey or given.user
        return callout if callout is not None and name not in callout.users else None

    def claimed(self, given: Credentials) -> Identity | None:
        """Operator mode: the user that a client proves to be, before a service is asked."""
        return None if self._auth.tokens is None else self._signed_in(given)

    def _signed_in(self, given: Credentials) -> Identity | None:
        assert self._auth.tokens is not None, "operator mode"
        try:
            return tokens.identify(self._auth.tokens, given, now=time.time())
        except tokens.TokenRefused as refused:
            logger.debug("User JWT refused: %s", refused)
            return None

    @property
    def asks_for_signatures(self) -> bool:
        """Whether INFO carries a nonce."""
        return bool(self._nkeys) or self._auth.tokens is not None

    def slow(self, given: Credentials) -> bool:
        """Whether `identify` would spend milliseconds on a hash."""
        mapped = given.certified is not None
        return self._auth.tokens is None and not mapped and is_bcrypt(self._secret_for(given))

    def anonymous(self) -> Identity | None:
        """The identity of a client without credentials, if such clients are admitted."""
        if not self._auth.required:
            return Identity()
        if self._auth.callout is not None:
            return None
        if self._auth.open_to_all:
            return Identity()
        name = self._auth.no_auth_user
        user = (self._users.get(name) or self._nkeys.get(name)) if name else None
        return None if user is None else self._identity(user)

    def proof(self, given: Credentials) -> str:
        """The hash that these credentials are checked against; empty: checking them is quick."""
        return self._secret_for(given) if self.slow(given) else ""

    def identify(self, given: Credentials, *, proven: str = "") -> Identity | None:
        """None: Authorization Violation. `proven`: the hash that the password already matched."""
        auth = self._auth
        if not auth.required:
            return Identity()
        if self.delegates(given):
            return None
        if auth.tokens is not None:
            return self._signed_in(given)
        if given.certified is not None:
            return self._certified(given, given.certified)
        if auth.users:
            if given.empty and (auth.no_auth_user or auth.open_to_all):
                return self.anonymous()
            return self._proven_user(given, proven)
        if auth.token:
            return Identity() if _same(auth.token, given.token, proven) else None
        if _same_text(auth.user, given.user) and _same(auth.password, given.password, proven):
            return Identity(auth.user)
        return None

    def _proven_user(self, given: Credentials, proven: str) -> Identity | None:
        user = self._nkeys.get(given.nkey) if given.nkey else self._users.get(given.user)
        if user is None:
            if self._secret_for(given):
                _same(self._decoy, given.password, proven)
            return None
        if not _allows(user, given) or not _proves(user, given, proven):
            return None
        return self._identity(user)

    def _certified(self, given: Credentials, names: tuple[str, ...]) -> Identity | None:
        """The user named by the client's certificate; passwords are not checked then."""
        for name in names:
            user = self._users.get(name)
            if user is not None and _allows(user, given):
                return self._identity(user)
        logger.debug("Certificate names no user: %s", ", ".join(names))
        return None

    def _identity(self, user: User) -> Identity:
        permissions = user.permissions or self._auth.default_permissions
        return Identity(user.name, user.account, permissions)

    def _secret_for(self, given: Credentials) -> str:
        if given.nkey:
            return ""
        if self._auth.users:
            user = self._users.get(given.user)
            if user is None:
                return self._decoy if given.user else ""
            return user.password
        return self._auth.token or self._auth.password


def _allows(user: User, given: Credentials) -> bool:
    return user.connection_types is None or given.connection_type in user.connection_types


def _proves(user: User, given: Credentials, proven: str) -> bool:
    if not user.nkey:
        return _same(user.password, given.password, proven)
    signed = nkeys.signature(given.signature)
    return bool(given.nonce) and nkeys.verify(user.name, given.nonce.encode(), signed)


def _same_text(expected: str, given: str) -> bool:
    return hmac.compare_digest(expected.encode(), given.encode())


def _same(expected: str, given: str, proven: str) -> bool:
    if not is_bcrypt(expected):
        return _same_text(expected, given)
    if expected == proven:
        return True
    import bcrypt

    try:
        # bcrypt uses 72 bytes; the Python binding refuses longer input, nats-server truncates it
        return bcrypt.checkpw(given.encode()[:72], expected.encode())
    except ValueError:  # a malformed hash in the configuration matches no password
        return False
