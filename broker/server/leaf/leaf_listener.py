"""The leaf node port and the remotes of this server: start and stop.

Owns: the listening socket, and the tasks that dial.
May not touch: connections once they are made.
Spec: nats-server, `leafnodes`."""

from __future__ import annotations

import asyncio
import random

from broker.config.options import LeafNodeOptions, LeafRemote, Options
from broker.server.client.close_reason import Reason
from broker.server.client.listener_profile import ClientContext
from broker.server.leaf.accepted_leaf import AcceptedLeaf
from broker.server.leaf.leaf_nodes import LeafNodes
from broker.server.leaf.leaf_profile import LeafProfile
from broker.server.leaf.leaf_remotes import RemoteHub
from broker.server.process.identity import ServerIdentity
from broker.server.process.listening import ListeningPort
from broker.server.process.log import logger


class LeafListener:
    """`bind` first, `listen` when the server is ready."""

    def __init__(
        self,
        context: ClientContext,
        identity: ServerIdentity,
        options: LeafNodeOptions,
        table: LeafNodes,
    ) -> None:
        self.profile = LeafProfile(context, identity, options)
        self.profile.reconfigure(context.settings.options)
        self._options = options
        self._table = table
        self._context = context
        self._port = ListeningPort("leafnode port")
        self.remotes = [self._hub(one) for one in options.remotes if not one.disabled]
        self._dialing = False

    def _hub(self, remote: LeafRemote) -> RemoteHub:
        return RemoteHub(
            remote, self.profile, self._table, shuffle=random.shuffle, draw=random.random
        )

    @property
    def port(self) -> int:
        return self.profile.port

    def bind(self) -> None:
        """Raises StartFailed."""
        self.profile.load_certificates()
        if self._options.port:
            self.profile.port = self._port.bind(self._options.host, self._options.port)

    async def listen(self) -> None:
        """Accept leaf nodes and dial hubs. Raises StartFailed."""
        if self._port.bound:
            loop = asyncio.get_running_loop()
            await self._port.listen(lambda: AcceptedLeaf(self.profile, self._table, loop))
            logger.info("Listening for leafnode connections on %s", self._port.address)
        self.dial()

    def dial(self) -> None:
        """Dial the hubs."""
        self._dialing = True
        for hub in self.remotes:
            self._dial(hub)

    def _dial(self, hub: RemoteHub) -> None:
        self._context.spawn(hub.run(), name=f"leafnode remote {hub.remote.urls[0]}")

    def framed(self, loop: asyncio.AbstractEventLoop, compressed: bool) -> AcceptedLeaf:  # noqa: FBT001
        """A leaf node that comes over WebSocket."""
        connection = AcceptedLeaf(self.profile, self._table, loop)
        connection.framed, connection.ws_compressed = True, compressed
        return connection

    def reconfigure(self, options: Options) -> None:
        """Disconnect from hubs that are no longer configured, and dial new ones. Raises
        StartFailed."""
        self.profile.reconfigure(options)
        new = options.leafnodes or LeafNodeOptions()
        wanted = [one for one in new.remotes if not one.disabled]
        kept = []
        for hub in self.remotes:
            if hub.remote in wanted:
                wanted.remove(hub.remote)
                kept.append(hub)
            else:
                hub.stop()
        added = [self._hub(one) for one in wanted]
        self.remotes = [*kept, *added]
        for hub in added if self._dialing else ():
            self._dial(hub)

    def own_urls(self) -> list[str]:
        """Our URLs, which peers send to their leaf nodes."""
        return [] if self.profile.options.no_advertise else self.profile.own_urls()

    def set_peer_urls(self, urls: list[str]) -> None:
        """The leaf node URLs of the other nodes of our cluster; sent to our leaf nodes."""
        if urls != self.profile.peer_urls:
            self.profile.peer_urls = urls
            self._table.update_info()

    def stop_accepting(self) -> None:
        self._port.close()

    def close(self) -> None:
        for hub in self.remotes:
            hub.stop()
        self._table.close_all(Reason.SERVER_SHUTDOWN)
