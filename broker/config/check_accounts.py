"""Checks across accounts: every import must match an export.

Owns: the rules between exports and imports, and the mapping of an imported subject.
May not touch: files, messages.
Spec: NATS accounts, exports and imports. An import needs an export that covers its subject and
admits the account; cycles of imports are refused."""

from __future__ import annotations

from collections.abc import Mapping as MappingOf
from collections.abc import Sequence

from msgspec.structs import replace

from broker.config.options import AccountOptions, Export, Import
from broker.subjects import collides, is_subset
from broker.subjects.mapping import BadMapping, Mapping

Accounts = MappingOf[str, AccountOptions]


class BadAccounts(Exception):
    """str() is the message for the operator."""


def check_accounts(accounts: Sequence[AccountOptions], system_account: str) -> None:
    """Raises BadAccounts."""
    by_name: dict[str, AccountOptions] = {one.name: one for one in accounts}
    known = {*by_name, "$G", "$SYS", system_account}
    for account in accounts:
        for export in account.exports:
            kind = "service" if export.service else "stream"
            for name in export.accounts or ():
                if name not in known:
                    raise BadAccounts(f'"{name}" account not defined for {kind} export')
    for account in accounts:
        for wanted in account.imports:
            _check_import(by_name, account, wanted)


def usable_imports(accounts: list[AccountOptions]) -> list[tuple[str, str]]:
    """Drop imports without a matching export: the JWTs of two accounts may be updated at different
    times. Returns the affected accounts with the reason."""
    by_name = {one.name: one for one in accounts}
    problems: list[tuple[str, str]] = []
    for position, account in enumerate(accounts):
        kept: list[Import] = []
        for wanted in account.imports:
            try:
                _check_import(by_name, account, wanted)
                kept.append(wanted)
            except BadAccounts as bad:
                problems.append((account.name, str(bad)))
        accounts[position] = by_name[account.name] = replace(account, imports=tuple(kept))
    return problems


def export_of(exporter: AccountOptions, importer: str, wanted: Import) -> Export | None:
    """The export that covers the import and admits the importer."""
    for export in exporter.exports:
        covers = export.service is wanted.service and is_subset(wanted.subject, export.subject)
        if covers and _admits(exporter, export, importer, wanted):
            return export
    return None


def _admits(exporter: AccountOptions, export: Export, importer: str, wanted: Import) -> bool:
    if export.accounts is not None:
        return importer in export.accounts
    position = export.account_token_position
    if position:
        return wanted.subject.split(b".")[position - 1 : position] == [importer.encode()]
    return not export.token_required or _activates(exporter, export, importer, wanted)


def _activates(exporter: AccountOptions, export: Export, importer: str, wanted: Import) -> bool:
    """Whether the token of the import is for it. When it expires, messages stop
    (server/routing/imports.py)."""
    token = wanted.activation
    if token is None or token.exporter != exporter.name or token.importer != importer:
        return False
    if token.issuer not in exporter.signing_keys or token.service is not wanted.service:
        return False
    revoked = any(
        key in (importer, "*") and token.issued_at <= until for key, until in export.revocations
    )
    return not revoked and is_subset(wanted.subject, token.subject)


def import_mapping(wanted: Import) -> Mapping:
    """The subject mapping of an import: for a stream from the exporter's subject to ours, for a
    service the other way round. Wildcards keep their order. Raises BadMapping."""
    source, target = wanted.subject.decode(), wanted.local.decode()
    if wanted.service:
        source, target = target, source
    number = 0
    made: list[str] = []
    for part in target.split("."):
        if part == "*":
            number += 1
            made.append(f"${number}")
        else:
            made.append(part)
    if source.split(".").count("*") > number and "$" not in target and "{{" not in target:
        raise BadMapping(f"not using all of the token wildcard(s) in {target}")
    return Mapping(source, ".".join(made), wildcards=True)


def _check_import(accounts: Accounts, importer: AccountOptions, wanted: Import) -> None:
    kind = "service" if wanted.service else "stream"
    exporter = accounts.get(wanted.account)
    subject = wanted.subject.decode()
    if exporter is None:
        raise BadAccounts(f'"{wanted.account}" account not defined for {kind} import')
    problem = None
    if export_of(exporter, importer.name, wanted) is None:
        problem = f"{kind} import not authorized"
    elif _leads_back(accounts, importer.name, wanted, [importer.name]):
        problem = "import forms a cycle"
    else:
        try:
            import_mapping(wanted)
        except BadMapping as bad:
            problem = f"failed to create mapping transform for {kind} import subject: {bad}"
    if problem is not None:
        raise BadAccounts(f'Error adding {kind} import "{subject}": {problem}')


def _leads_back(accounts: Accounts, start: str, wanted: Import, path: list[str]) -> bool:
    """Whether the exporter imports the subject from us, directly or through other accounts."""
    if wanted.account == start:
        return True
    exporter = accounts.get(wanted.account)
    if exporter is None or wanted.account in path:
        return False
    return any(
        _leads_back(accounts, start, further, [*path, wanted.account])
        for further in exporter.imports
        if further.service is wanted.service and collides(further.local, wanted.subject)
    )
