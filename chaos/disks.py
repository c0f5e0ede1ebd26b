"""Disks that can lose power: one ext4 file system on a loop device per node.

Owns: the loop files, mounts and their removal.
May not touch: any other mount. Needs root and loop devices; `missing()` says what is not available.
Method: FS_IOC_SHUTDOWN without a flush of the journal drops everything that was not fsynced, like
a power cut; unmounting and mounting again recovers the rest."""

from __future__ import annotations

import fcntl
import os
import shutil
import struct
import subprocess
from dataclasses import dataclass
from pathlib import Path

FS_IOC_SHUTDOWN = 0x8004587D
NO_LOG_FLUSH = 2
SIZE_MB = 4096  # sparse; an hour of all workloads stores almost a gigabyte on every node
CAP_SYS_ADMIN = 1 << 21  # capabilities(7)


def missing() -> str | None:
    """Why power cuts cannot be simulated here, or None."""
    if os.geteuid() != 0:
        return "needs root to mount loop file systems"
    for tool in ("mkfs.ext4", "mount", "umount"):
        if shutil.which(tool) is None:
            return f"needs {tool}"
    if not Path("/dev/loop-control").exists():
        return "needs loop devices"
    if not _may_mount():
        return "needs the right to mount (CAP_SYS_ADMIN), which this container lacks"
    return None


def _may_mount() -> bool:
    """Root inside of a container often may not."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("CapEff:"):
            return bool(int(line.split()[1], 16) & CAP_SYS_ADMIN)
    return True


@dataclass(slots=True)
class LoopDisk:
    image: Path
    mountpoint: Path

    @classmethod
    def create(cls, directory: Path, name: str) -> LoopDisk:
        disk = cls(directory / f"{name}.img", directory / name)
        disk.mountpoint.mkdir(parents=True, exist_ok=True)
        with disk.image.open("wb") as file:
            file.truncate(SIZE_MB << 20)
        _run("mkfs.ext4", "-q", "-F", str(disk.image))
        disk.mount()
        return disk

    def mount(self) -> None:
        _run("mount", "-o", "loop", str(self.image), str(self.mountpoint))

    def unmount(self) -> None:
        _run("umount", str(self.mountpoint))

    def cut_power(self) -> None:
        """Drop everything that was not fsynced. Writers get EIO from now on."""
        descriptor = os.open(self.mountpoint, os.O_RDONLY)
        try:
            fcntl.ioctl(descriptor, FS_IOC_SHUTDOWN, struct.pack("I", NO_LOG_FLUSH))
        finally:
            os.close(descriptor)

    def fill(self, leave_bytes: int) -> None:
        """Take all space but this much, until `free`."""
        disk = os.statvfs(self.mountpoint)
        with self._filler.open("ab") as file:
            took = os.fstat(file.fileno()).st_size
            more = max(disk.f_bavail * disk.f_frsize - leave_bytes, 0)
            os.posix_fallocate(file.fileno(), 0, max(took + more, 1))

    def free(self) -> None:
        self._filler.unlink(missing_ok=True)

    @property
    def _filler(self) -> Path:
        return self.mountpoint / "filler"

    def remove(self) -> None:
        """May be called at any time."""
        if self.mountpoint.is_mount():
            self.unmount()
        self.image.unlink(missing_ok=True)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
