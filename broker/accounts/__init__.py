"""Accounts: tenants, who may enter them, and what they may do there."""

from broker.accounts.account import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, Account

__all__ = ["GLOBAL_ACCOUNT", "SYSTEM_ACCOUNT", "Account"]
