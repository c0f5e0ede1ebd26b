"""Log flushes that fail in a real process: it acks nothing, serves reads, and then recovers.

The failing disk is a library loaded before the C library: while a flag file exists, every fsync of
a segment of the log fails with EIO. The server must assume that the data was lost."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from pathlib import Path

import nats.errors
import pytest
from nats.js.api import ConsumerConfig, StorageType, StreamConfig

from broker.local import LocalCluster, LocalNode
from tests.support.clusters import WITHIN_S, connect, eventually, run

FAILING_FLUSHES = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
    const char *flag = getenv("FLUSHES_FAIL_WHILE");
    char link[64], path[4096];
    if (!flag || access(flag, F_OK)) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 4) return 0;
    path[size] = 0;
    if (!strstr(path, "/segments/") && strcmp(path + size - 5, "probe")) return 0;
    errno = EIO;
    return 1;
}

int fsync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
    return fails(fd) ? -1 : real(fd);
}

int fdatasync(int fd) {
    int (*real)(int) = dlsym(RTLD_NEXT, "fdatasync");
    return fails(fd) ? -1 : real(fd);
}
"""


@pytest.fixture
def disk(tmp_path: Path) -> Path:
    """The path of the library; tmp_path/broken is the flag file."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source, library = tmp_path / "disk.c", tmp_path / "disk.so"
    source.write_text(FAILING_FLUSHES)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    return library


def health(node: LocalNode) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{node.http_port}/healthz") as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@pytest.mark.parametrize("size", [1, 3])
def test_a_node_whose_flushes_failed_recovers_when_they_succeed_again(
    tmp_path: Path, disk: Path, size: int
) -> None:
    broken = tmp_path / "broken"

    async def body() -> None:
        client = await connect(*cluster.nodes)
        stream = client.jetstream(timeout=WITHIN_S)
        await stream.add_stream(
            StreamConfig(name="F", subjects=["F"], num_replicas=size, allow_direct=True)
        )
        await stream.add_stream(
            StreamConfig(name="M", subjects=["M"], storage=StorageType.MEMORY, num_replicas=size)
        )
        await stream.add_consumer("F", ConsumerConfig(durable_name="c"))
        acked = [(await stream.publish("F", b"%d" % i)).seq for i in range(50)]
        await stream.publish("M", b"in memory")

        broken.touch()
        while "Input/output error" not in health(victim)[1]:
            try:
                await stream.publish("F", b"tried", timeout=2)
            except (nats.errors.Error, nats.js.errors.Error):
                continue
            assert size > 1, "acknowledged without a flush"
        assert health(victim)[0] == 503
        if size == 1:
            read = await stream.get_msg("F", acked[-1], direct=True)  # needs no leader
            assert read.data == b"49"

        broken.unlink()
        for node in cluster.nodes:
            await eventually(lambda node=node: _ok(node), f"{node.name} is healthy again")
        await eventually(
            lambda: stream.publish("F", b"after", timeout=2), "an ack after the failure"
        )
        for seq in acked:
            assert (await stream.get_msg("F", seq)).data == b"%d" % (seq - acked[0])
        assert (await stream.get_msg("M", 1)).data == b"in memory"
        pulled = await stream.pull_subscribe_bind("c", "F")
        assert [m.data for m in await pulled.fetch(50, timeout=20)] == [
            b"%d" % i for i in range(50)
        ]
        await client.close()

    with LocalCluster(tmp_path / "cluster", size=size, name="failing") as cluster:
        victim = cluster.nodes[0]
        victim.stop()
        victim.environment |= {"LD_PRELOAD": str(disk), "FLUSHES_FAIL_WHILE": str(broken)}
        victim.start()
        victim.wait_healthy()
        run(body)
        assert "Traceback" not in victim.log_path.read_text().split("the disk works again")[-1]


async def _ok(node: LocalNode) -> bool:
    return health(node)[0] == 200
