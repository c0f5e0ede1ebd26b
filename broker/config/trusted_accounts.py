"""Operator mode: which preloaded accounts are signed by a trusted operator.

Owns: the signature rule for accounts, and the options that an account JWT carries.
May not touch: the configuration file (file/operator_block.py reads it).
Spec: NATS server configuration, operator mode; NATS JWT, operator and account claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from broker.config.claims import BadClaims, account_claims, account_options
from broker.config.options import AccountClaims, AccountOptions, AccountStore
from broker.credentials import nkeys
from broker.credentials.jwt import Token
from broker.credentials.nkeys import KeyKind


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
            found.claims[public] = account_claims(token)
            options, store = account_options(token)
        except BadClaims as bad:
            raise BadClaims(f"account {public}: {bad}") from bad
        found.accounts.append(options)
        if store is not None:
            found.stores[public] = store
    return found


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
