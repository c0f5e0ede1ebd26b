"""Operator mode: which preloaded accounts are signed by a trusted operator.

Owns: the signature rule for accounts, and the options that an account JWT carries.
May not touch: the configuration file (file/operator_block.py reads it).
Spec: NATS server configuration, operator mode; NATS JWT, operator and account claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from broker.config.claims import BadClaims, account_claims, account_options
from broker.config.options import AccountClaims, AccountOptions, AccountStore
from broker.credentials import nkeys
from broker.credentials.jwt import Token
from broker.credentials.nkeys import KeyKind

KEPT_MAX: Final = 1 << 16
_Converted = tuple[AccountClaims, AccountOptions, AccountStore | None]
_kept: dict[str, tuple[Token, _Converted]] = {}


@dataclass(slots=True)
class TrustedAccounts:
    """What the operators vouch for."""

    claims: dict[str, AccountClaims] = field(default_factory=dict)
    accounts: list[AccountOptions] = field(default_factory=list)
    stores: dict[str, AccountStore] = field(default_factory=dict)
    system_account: str = ""  # empty when no operator names one
    warnings: list[str] = field(default_factory=list)


def trusted_accounts(operators: Sequence[Token], preloaded: Mapping[str, Token]) -> TrustedAccounts:
    """The preloaded accounts that an operator or one of its signing keys has signed; others
    become warnings. Raises BadClaims."""
    found = TrustedAccounts()
    trusted = signers(operators)
    for operator in operators:
        found.system_account = found.system_account or operator.claims.get("system_account") or ""
    for public, token in preloaded.items():
        if token.issuer not in trusted:
            found.warnings.append(f"Account [{public}] is not signed by a trusted operator")
            continue
        try:
            claims, options, store = _converted(public, token)
        except BadClaims as bad:
            raise BadClaims(f"account {public}: {bad}") from bad
        found.claims[public] = claims
        found.accounts.append(options)
        if store is not None:
            found.stores[public] = store
    return found


def _converted(public: str, token: Token) -> _Converted:
    """Of an account that has not changed since the last reload, what it was then. Raises
    BadClaims."""
    kept = _kept.get(public)
    if kept is None or kept[0] is not token:
        if len(_kept) >= KEPT_MAX:
            _kept.clear()
        kept = _kept[public] = (token, (account_claims(token), *account_options(token)))
    return kept[1]


def signers(operators: Sequence[Token]) -> set[str]:
    """With strict_signing_key_usage, the operator's own key signs nothing."""
    found = set()
    for operator in operators:
        strict = operator.claims.get("strict_signing_key_usage", False)
        keys = operator.claims.get("signing_keys") or []
        for signer in [*keys, *([] if strict else [operator.subject])]:
            if nkeys.is_public(signer, KeyKind.OPERATOR):
                found.add(signer)
    return found
