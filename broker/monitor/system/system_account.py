"""The system account of one server: its services and its events.

Owns: their start and stop; accounts that are created later are served too.
May not touch: the content of answers and events.
Spec: NATS system account."""

from __future__ import annotations

from collections.abc import Callable

from broker.accounts import Account
from broker.monitor.documents.documents import Documents
from broker.monitor.observed import Observed
from broker.monitor.system.account_requests import AccountServices
from broker.monitor.system.claims import ClaimsRequests
from broker.monitor.system.events import Events
from broker.monitor.system.responder import Responder
from broker.monitor.system.services import Services
from broker.monitor.system.subscribers import Subscribers


class SystemAccount:
    """Start it once subscriptions of this node are announced to peers."""

    def __init__(
        self, observed: Observed, documents: Documents, reload: Callable[[], None]
    ) -> None:
        self._observed = observed
        responder = Responder(observed)
        self._services = Services(responder, documents, reload)
        self._accounts = AccountServices(responder, documents)
        self._claims = ClaimsRequests(responder, reload)
        self._subscribers = Subscribers(responder)
        self.events = Events(responder, documents)
        self._started = False

    def start(self) -> None:
        self._services.start()
        self._accounts.start()
        self._claims.start()
        self._subscribers.start()
        self.events.start()
        self._started = True
        for account in list(self._observed.server.accounts.values()):
            self.serve(account)

    def serve(self, account: Account) -> None:
        """Serve a new account. Before start() nothing happens: start() serves all accounts."""
        if self._started and account.name != self._observed.server.options.system_account:
            self._accounts.serve(account)
