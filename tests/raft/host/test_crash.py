"""A host whose process is killed: what it had applied is in its log afterwards."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from raft.store.log_store import LogStore
from raft.types import GroupId

CHILD = """
import asyncio, sys
from raft.host import Host
from raft.store import LogStore
from raft.transport import Transport
from raft.types import GroupId, Index, Role, node_id

class Printer:
    def apply(self, entries):
        print(entries[-1].index, flush=True)  # the promise
    def leader_changed(self, *, leader, term, ours): ...
    def snapshot(self): return Index(0), []
    def restore(self, meta, chunks): ...
    def durable_index(self): return Index(0)

async def main():
    node = node_id("n")
    store = LogStore.open(sys.argv[1], node_name="n", cluster_name="c")
    transport = Transport(node=node, name="n", cluster="c", listen_host="127.0.0.1", listen_port=0)
    await transport.start()
    host = Host(node=node, store=store, transport=transport, tick_ms=10)
    host.add_group(GroupId(1), voters=[node], machine=Printer(), applied=Index(0))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(host.run())
        while True:
            if host.role(GroupId(1)) is Role.LEADER and not host.status(GroupId(1)).waiting_bytes:
                for _ in range(10):
                    host.propose(GroupId(1), bytes(5000))
            await asyncio.sleep(0)

asyncio.run(main())
"""


def test_what_was_applied_before_a_kill_is_in_the_log_after_it(tmp_path: Path) -> None:
    promised = 0
    for _ in range(2):  # the second run starts from the log of the first
        with subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True
        ) as child:
            assert child.stdout is not None
            goal = promised + 200
            for line in child.stdout:
                promised = int(line)
                if promised > goal:
                    break
            child.kill()
            for line in child.stdout:  # what it printed before it was killed
                if line.endswith("\n"):
                    promised = int(line)
        store = LogStore.open(tmp_path, node_name="n", cluster_name="c")
        assert store.reader(GroupId(1)).last_index() >= promised > goal
        store.close()
