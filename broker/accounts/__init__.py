"""Accounts (tenants): authentication of users and their permissions."""

from broker.accounts.account import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, Account

__all__ = ["GLOBAL_ACCOUNT", "SYSTEM_ACCOUNT", "Account"]
