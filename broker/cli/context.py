"""`jetraft context`: servers and logins by name, shared with the official `nats` tool.

Owns: the options and output of these commands.
May not touch: connections."""

from __future__ import annotations

from typing import Any

import click

from broker.cli.connect import contexts
from broker.cli.connect.failures import CommandFailed
from broker.cli.lazy import CommandGroup
from broker.cli.output.questions import confirm, yes_option
from broker.cli.output.tables import facts, json_option, show, show_json, table

_FIELDS = (  # option, field, help
    ("--server", "url", "Server URLs, separated by commas."),
    ("--user", "user", "User name."),
    ("--password", "password", "Password."),
    ("--token", "token", "Token."),
    ("--creds", "creds", "Credentials file (JWT and seed)."),
    ("--nkey", "nkey", "File with the seed of an nkey."),
    ("--tlsca", "ca", "CA certificate of the server."),
    ("--tlscert", "cert", "Certificate of this client."),
    ("--tlskey", "key", "Its private key."),
    ("--inbox-prefix", "inbox_prefix", "First words of inboxes."),
    ("--js-domain", "jetstream_domain", "JetStream domain."),
    ("--js-api-prefix", "jetstream_api_prefix", "Prefix of the JetStream API."),
    ("--description", "description", "A text for people."),
)


def _fields(command: Any) -> Any:
    for flag, name, text in reversed(_FIELDS):
        command = click.option(flag, name, help=text)(command)
    return command


@click.group(cls=CommandGroup)
def context() -> None:
    """Saved servers and logins, in the files of the official tool (~/.config/nats)."""


@context.command("save")
@click.argument("name")
@_fields
@click.option(
    "--tls-first", is_flag=True, help="Start TLS before the server's INFO line (handshake_first)."
)
@click.option("--select", "selected", is_flag=True, help="Select this context.")
def context_save(*, name: str, tls_first: bool, selected: bool, **given: str | None) -> None:
    """Save a context. What is not given keeps its value if the context exists."""
    before: contexts.Context = contexts.load(name) if name in contexts.names() else {}
    changes: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    if tls_first:
        changes["tls_first"] = True
    path = contexts.save(name, before | changes)
    if selected:
        contexts.select(name)
    show(f"saved {path}" + (", selected" if selected else ""))


@context.command("ls")
@json_option
def context_ls(*, as_json: bool) -> None:
    """List the contexts; the selected one has a star."""
    chosen = contexts.selected()
    found = {name: contexts.load(name) for name in contexts.names()}
    if as_json:
        show_json([
            {"name": name, "selected": name == chosen, "url": one.get("url", ""),
             "description": one.get("description", "")}
            for name, one in found.items()
        ])  # fmt: skip
        return
    rows = [
        (name + ("*" if name == chosen else ""), one.get("url", ""), one.get("description", ""))
        for name, one in found.items()
    ]
    table(("name", "servers", "description"), rows, empty="no contexts; `context save` makes one")


@context.command("show")
@click.argument("name", required=False)
@json_option
def context_show(*, name: str | None, as_json: bool) -> None:
    """Show a context without its secrets; without NAME the selected one."""
    wanted = name or contexts.selected()
    if not wanted:
        raise CommandFailed("no context is selected")
    found = contexts.load(wanted)
    hidden = {key: "***" if key in contexts.SECRETS and value else value
              for key, value in found.items()}  # fmt: skip
    if as_json:
        show_json(hidden)
        return
    facts(f"context {wanted}", [(key, value) for key, value in hidden.items() if value])


@context.command("select")
@click.argument("name", required=False)
def context_select(*, name: str | None) -> None:
    """Use a context from now on; without NAME none."""
    contexts.select(name or "")
    show(f"selected {name}" if name else "no context is selected")


@context.command("rm")
@click.argument("name")
@yes_option
def context_rm(*, name: str, yes: bool) -> None:
    """Delete a context."""
    contexts.load(name)
    confirm(f"Delete the context {name}?", yes=yes)
    contexts.remove(name)
    show(f"deleted {name}")
