"""Checks across the keys of the `leafnodes` block.

Owns: which settings exclude or require each other.
May not touch: the configuration file.
Spec: NATS server configuration, leafnodes."""

from __future__ import annotations

from broker.config.options import GLOBAL_ACCOUNT, LeafNodeOptions, Options


class BadLeafNodes(Exception):
    """str() is the message for the operator."""


def check_leafnodes(options: Options, leafnodes: LeafNodeOptions) -> None:
    """Raises BadLeafNodes."""
    known = {GLOBAL_ACCOUNT, options.system_account, *(one.name for one in options.accounts)}
    auth = leafnodes.authorization
    if auth is not None and auth.users and options.authorization.tokens is not None:
        raise BadLeafNodes("operator mode does not allow specifying users in leafnode config")
    names: set[str] = set()
    for user in auth.users if auth is not None else ():
        if user.name in names:
            raise BadLeafNodes(f'duplicate user "{user.name}" detected in leafnode authorization')
        names.add(user.name)
        if user.account not in known:
            raise BadLeafNodes(
                f'leafnode authorization: account "{user.account}" of user "{user.name}" '
                "does not exist"
            )
    for remote in leafnodes.remotes:
        if options.authorization.tokens is None and remote.account not in known:
            raise BadLeafNodes(
                f'cannot find local account "{remote.account}" specified in leafnode remote'
            )
