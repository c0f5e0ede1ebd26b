"""Options under construction: the file fills them in, flags override, then they are checked.

Owns: the merge, the checks across keys, and building frozen Options.
May not touch: where a value came from.
Spec: NATS server configuration. Precedence: flags, then the file, then defaults."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from broker.config.account_directory import stored_accounts
from broker.config.check_accounts import BadAccounts, check_accounts, usable_imports
from broker.config.check_leafnodes import BadLeafNodes, check_leafnodes
from broker.config.check_websocket import BadWebSocket, check_websocket
from broker.config.claims import BadClaims
from broker.config.options import (
    DEFAULT_HOST,
    GLOBAL_ACCOUNT,
    MIB,
    SECOND,
    SYSTEM_ACCOUNT,
    AccountOptions,
    AccountStore,
    Authorization,
    ClusterOptions,
    ConsoleOptions,
    Http,
    JetStreamOptions,
    LameDuck,
    LeafNodeOptions,
    Limits,
    Logging,
    MappingDestination,
    Options,
    Ping,
    ResolverOptions,
    SubjectMapping,
    TlsOptions,
    User,
    WebSocketOptions,
)
from broker.config.trusted_accounts import trusted_accounts
from broker.credentials.jwt import Token

LAME_DUCK_MIN_NS = 30 * SECOND
PAYLOAD_WARN = 8 * MIB


def _to_domain(domain: str) -> SubjectMapping:
    return SubjectMapping("$JS.API.>", (MappingDestination(f"$JS.{domain}.API.>"),))


class BadOptions(Exception):
    """The settings contradict each other; str() is the message for the operator."""


@dataclass(slots=True)
class Draft:
    """Settings by their field names in options.py; a missing one means the default."""

    top: dict[str, Any] = field(default_factory=dict)
    limits: dict[str, Any] = field(default_factory=dict)
    ping: dict[str, Any] = field(default_factory=dict)
    logging: dict[str, Any] = field(default_factory=dict)
    lame_duck: dict[str, Any] = field(default_factory=dict)
    authorization: dict[str, Any] = field(default_factory=dict)
    http: dict[str, Any] = field(default_factory=dict)
    console: dict[str, Any] = field(default_factory=dict)
    tls: dict[str, Any] | None = None
    jetstream: dict[str, Any] | None = None
    cluster: dict[str, Any] | None = None
    websocket: dict[str, Any] | None = None
    leafnodes: dict[str, Any] | None = None
    accounts: list[AccountOptions] = field(default_factory=list)
    account_users: list[User] = field(default_factory=list)
    account_stores: dict[str, AccountStore] = field(default_factory=dict)
    operators: list[Token] = field(default_factory=list)
    trusted_keys: list[Token] = field(default_factory=list)  # operators without a JWT
    resolver: dict[str, Any] | None = None  # an account resolver; empty = MEMORY
    resolver_tls: TlsOptions | None = None
    preloaded: dict[str, Token] = field(default_factory=dict)
    preload: dict[str, str] = field(default_factory=dict)  # the same, as text
    default_domains: dict[str, str] = field(default_factory=dict)  # of accounts
    store_dir: str = ""  # given outside the jetstream block; does not enable JetStream by itself
    warnings: list[str] = field(default_factory=list)

    def build(self) -> Options:
        """Raises BadOptions."""
        host = self.top.get("host") or DEFAULT_HOST
        if self.operators and self.trusted_keys:
            raise BadOptions("conflicting options for 'TrustedKeys' and 'TrustedOperators'")
        self.operators += self.trusted_keys
        if self.operators:
            self._operator_mode()
        if self.default_domains:
            self._map_to_domains()
        options = Options(
            **{**self.top, "host": host},
            limits=Limits(**self.limits),
            ping=Ping(**self.ping),
            logging=Logging(**self.logging),
            lame_duck=LameDuck(**self.lame_duck),
            authorization=self._authorization(),
            accounts=tuple(self.accounts),
            http=self._http(host),
            console=ConsoleOptions(**self.console),
            tls=None if self.tls is None else TlsOptions(**self.tls),
            jetstream=self._jetstream(),
            cluster=None if self.cluster is None else self._cluster(host),
            websocket=self._websocket(),
            leafnodes=self._leafnodes(),
        )
        self._check(options)
        return options

    def _map_to_domains(self) -> None:
        """Clients of these accounts use the JetStream of a domain elsewhere without naming it."""
        for position, account in enumerate(self.accounts):
            domain = self.default_domains.get(account.name)
            if domain is not None:
                self.accounts[position] = replace(
                    account, mappings=(*account.mappings, _to_domain(domain))
                )
        domain = self.default_domains.get(GLOBAL_ACCOUNT)
        if domain is not None:
            self.top["mappings"] = (*self.top.get("mappings", ()), _to_domain(domain))
        known = {GLOBAL_ACCOUNT, *(account.name for account in self.accounts)}
        for name in self.default_domains:
            if name not in known:
                raise BadOptions(f'default_js_domain: account "{name}" does not exist')
            if name in self.account_stores and self.jetstream is not None:
                raise BadOptions(f'default_js_domain: account "{name}" has JetStream here')

    def _operator_mode(self) -> None:
        if self.accounts:
            raise BadOptions("operators do not allow Accounts to be configured directly")
        if self.authorization.get("users") or self.authorization.get("user"):
            raise BadOptions("operators do not allow users to be configured directly")
        if self.authorization.get("no_auth_user"):
            raise BadOptions("no_auth_user not compatible with Trusted Operator")
        if self.resolver is None:
            raise BadOptions("operators require an account resolver to be configured")
        if self.resolver:
            self._full_resolver(self.resolver)
        try:
            trusted = trusted_accounts(self.operators, self.preloaded)
        except BadClaims as bad:
            raise BadOptions(str(bad)) from bad
        self.authorization["tokens"] = trusted.claims
        self.accounts.extend(trusted.accounts)
        self.account_stores.update(trusted.stores)
        self.warnings.extend(trusted.warnings)
        if trusted.system_account:
            self.top.setdefault("system_account", trusted.system_account)
        for account, problem in usable_imports(self.accounts):
            self.warnings.append(f"Account [{account}]: {problem}")

    def _full_resolver(self, settings: dict[str, Any]) -> None:
        """Stored accounts count like preloaded ones, and more if they are newer."""
        self.top["resolver"] = ResolverOptions(
            **settings,
            operators=tuple(self.operators),
            preload=dict(self.preload),
            tls=self.resolver_tls,
        )
        try:
            stored, problems = stored_accounts(settings["directory"])
        except OSError as error:
            raise BadOptions(f"resolver: {error}") from error
        self.warnings += problems
        for public, token in stored.items():
            given = self.preloaded.get(public)
            if given is not None and given.issued_at >= token.issued_at:
                continue
            try:
                trusted_accounts(self.operators, {public: token})
            except BadClaims as bad:
                self.warnings.append(str(bad))
            else:
                self.preloaded[public] = token

    def _http(self, host: str) -> Http | None:
        if "port" not in self.http or not self.http["port"]:
            return None
        return Http(**{**self.http, "host": self.http.get("host") or host})

    @property
    def _system_account(self) -> str:
        return self.top.get("system_account") or SYSTEM_ACCOUNT

    def _authorization(self) -> Authorization:
        settings = dict(self.authorization)
        settings["users"] = (*settings.get("users", ()), *self.account_users)
        own = {user.account for user in settings["users"]}
        if own and own <= {self._system_account}:
            settings["open_to_all"] = not settings.get("no_auth_user")
        return Authorization(**settings)

    def _jetstream(self) -> JetStreamOptions | None:
        if self.jetstream is None:
            return None
        settings = dict(self.jetstream)
        settings["store_dir"] = settings.get("store_dir") or self.store_dir
        stores = dict(self.account_stores)
        if all(account.name == self._system_account for account in self.accounts):
            stores.setdefault(GLOBAL_ACCOUNT, AccountStore())
        settings["accounts"] = stores
        return JetStreamOptions(**settings)

    def _cluster(self, host: str) -> ClusterOptions:
        assert self.cluster is not None
        settings = dict(self.cluster)
        settings["host"] = settings.get("host") or host
        if isinstance(settings.get("tls"), dict):
            settings["tls"] = TlsOptions(**settings["tls"])
        return ClusterOptions(**settings)

    def _websocket(self) -> WebSocketOptions | None:
        settings = dict(self.websocket or {})
        if not settings.get("port"):  # no port, no listener, whatever the other keys say
            return None
        settings["host"] = settings.get("host") or DEFAULT_HOST
        if isinstance(settings.get("tls"), dict):
            settings["tls"] = TlsOptions(**settings["tls"])
        return WebSocketOptions(**settings)

    def _leafnodes(self) -> LeafNodeOptions | None:
        settings = dict(self.leafnodes or {})
        if not settings.get("port") and not settings.get("remotes"):
            return None
        settings["host"] = settings.get("host") or DEFAULT_HOST
        if isinstance(settings.get("tls"), dict):
            settings["tls"] = TlsOptions(**settings["tls"])
        return LeafNodeOptions(**settings)

    def _check(self, options: Options) -> None:
        limits = options.limits
        if limits.max_payload > limits.max_pending:
            raise BadOptions(
                f"max_payload ({limits.max_payload}) cannot be higher than "
                f"max_pending ({limits.max_pending})"
            )
        if limits.max_payload > PAYLOAD_WARN:
            self.warnings.append("Maximum payloads over 8.00 MB are generally discouraged")
        if " " in options.server_name:
            raise BadOptions("server name cannot contain spaces")
        self._check_lame_duck(options.lame_duck)
        self._check_accounts(options)
        self._check_authorization(options.authorization)
        self._check_callout(options)
        self._check_tls(options)
        self._check_cluster(options)
        if options.websocket is not None:
            try:
                check_websocket(options.websocket, options.authorization)
            except BadWebSocket as problem:
                raise BadOptions(str(problem)) from problem

        if options.leafnodes is not None:
            try:
                check_leafnodes(options, options.leafnodes)
            except BadLeafNodes as problem:
                raise BadOptions(str(problem)) from problem

    def _check_lame_duck(self, lame_duck: LameDuck) -> None:
        if lame_duck.duration_ns < LAME_DUCK_MIN_NS:
            seconds = lame_duck.duration_ns / SECOND
            raise BadOptions(f"invalid lame_duck_duration of {seconds:g}s, minimum is 30 seconds")
        if lame_duck.grace_ns >= lame_duck.duration_ns:
            raise BadOptions(
                f"lame duck grace period ({lame_duck.grace_ns / SECOND:g}s) should be strictly "
                f"lower than lame duck duration ({lame_duck.duration_ns / SECOND:g}s)"
            )

    def _check_accounts(self, options: Options) -> None:
        auth = options.authorization
        if options.accounts and auth.user:
            raise BadOptions("Can not have a single user/pass and accounts")
        if options.accounts and auth.token:
            raise BadOptions("Can not have a token and accounts")
        if self._system_account in self.account_stores:
            raise BadOptions("JetStream cannot be enabled on the system account")
        try:
            check_accounts(options.accounts, options.system_account)
        except BadAccounts as problem:
            raise BadOptions(str(problem)) from problem

    def _check_authorization(self, auth: Authorization) -> None:
        if auth.password and not auth.user:
            raise BadOptions("authorization has a password, but no user: nobody would be asked")
        if auth.token and auth.user:
            raise BadOptions("Cannot have a user/pass and token")
        if auth.users and auth.user:
            raise BadOptions("Can not have a single user/pass and a users array")
        if auth.users and auth.token:
            raise BadOptions("Can not have a token and a users array")
        names: dict[str, User] = {}
        for user in auth.users:
            if user.name in names:
                kind = "nkey" if user.nkey else "user"
                raise BadOptions(f'Duplicate {kind} "{user.name}" detected')
            names[user.name] = user
        if auth.no_auth_user and not auth.users:
            raise BadOptions(
                f'no_auth_user: "{auth.no_auth_user}" present, but users/nkeys are not defined'
            )
        if auth.no_auth_user and auth.no_auth_user not in names:
            raise BadOptions(
                f'no_auth_user: "{auth.no_auth_user}" not present as user or nkey in '
                "authorization block or account configuration"
            )

    def _check_callout(self, options: Options) -> None:
        """nats-server starts without its account or users, and then nobody can log in."""
        callout = options.authorization.callout
        if callout is None:
            return
        if callout.account not in {GLOBAL_ACCOUNT, *(one.name for one in options.accounts)}:
            raise BadOptions(f'auth_callout: account "{callout.account}" does not exist')
        # Also of other accounts, such as the system account: these log in without a callout.
        known = {user.name for user in options.authorization.users}
        known.add(options.authorization.user)
        for name in callout.users:
            if name not in known:
                raise BadOptions(f'auth_callout: there is no user "{name}"')

    def _check_tls(self, options: Options) -> None:
        blocks = (options, options.cluster, options.websocket, options.leafnodes)
        for tls in (block.tls for block in blocks if block is not None):
            if tls is None:
                continue
            if not tls.cert_file:
                raise BadOptions("TLS Server certificate must be present and valid")
            if not tls.key_file:
                raise BadOptions("TLS Server private key must be present and valid")
        for name in ("cluster", "websocket", "leafnodes"):
            block = getattr(options, name)
            if block is None or block.tls is None:
                continue
            if block.tls.pinned_certs and name != "leafnodes":
                raise BadOptions(f"not supported yet: pinned_certs in the tls block of {name}")
            if block.tls.verify_and_map and name != "websocket":
                raise BadOptions(f"not supported yet: verify_and_map in the tls block of {name}")
        if options.http is not None and options.http.tls and options.tls is None:
            raise BadOptions("https monitoring requires the tls block of the client listener")

    def _check_cluster(self, options: Options) -> None:
        cluster = options.cluster
        if cluster is None:
            return
        if " " in cluster.name:
            raise BadOptions("cluster name cannot contain spaces")
        if cluster.routes and cluster.port == 0:
            raise BadOptions("solicited routes require cluster capabilities, e.g. --cluster")
