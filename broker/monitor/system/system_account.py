"""The system account of one server: its services and its events, as the server knows them.

Owns: their beginning and end, and that accounts which come later are served too.
May not touch: what they answer and tell.
Spec: core contract 9."""

from __future__ import annotations

from typing import TYPE_CHECKING

from broker.monitor.system.account_requests import AccountServices
from broker.monitor.system.events import Events
from broker.monitor.system.responder import Responder
from broker.monitor.system.services import Services

if TYPE_CHECKING:
    from broker.accounts import Account
    from broker.monitor.documents.documents import Documents
    from broker.server.server import Server


class SystemAccount:
    """Start it once peers hear of what is subscribed here."""

    def __init__(self, server: Server, documents: Documents) -> None:
        self._server = server
        desk = Responder(server)
        self._services = Services(desk, documents)
        self._accounts = AccountServices(desk, documents)
        self.events = Events(desk, documents)
        self._started = False

    def start(self) -> None:
        self._services.start()
        self._accounts.start()
        self.events.start()
        self._started = True
        for account in list(self._server.accounts.values()):
            self.serve(account)

    def serve(self, account: Account) -> None:
        """An account that is there now; before the start it is served at the start."""
        if self._started and account.name != self._server.options.system_account:
            self._accounts.serve(account)
