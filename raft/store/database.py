"""Opening the database of a node: its options, and which server it belongs to.

Owns: RocksDB's settings and the identity record.
May not touch: the log (raft/store/node_log.py), what is in column family "state".
Spec: docs/ARCHITECTURE.md, "Storage". A directory belongs to one server of one cluster in
one format; any other server is refused with an error. The incarnation, drawn when the directory is
created, lets others notice a server that was restarted with other data."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec
from rocksdict import DBCompressionType, DBRecoveryMode, Options, Rdict

from raft.store.blob_garbage import keep_values_apart
from raft.store.cipher import StoreCipher
from raft.store.records import (
    FORMAT,
    FORMAT_OLDEST,
    DamagedDatabase,
    StoreError,
    StoreHeld,
    WrongDirectory,
)
from raft.store.segments.sizes import SegmentSizes
from raft.types import NodeId, node_id

_IDENTITY_KEY: Final = b"identity"
_LOG_KEY: Final = b"log"  # present if there is a log next to the database
_CONDEMNED: Final = "DAMAGED"  # a file that says why the database must not be used again
_OLD_LOG: Final = "raft"  # the column of the log up to format 1
_HELD: Final = "lock hold by current process"
_LOCKED: Final = "While lock file"
_DAMAGED: Final = ("Corruption", "No such file", "Invalid argument", "Not implemented")
MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class StoreTuning:
    """Sizes of the database. The defaults are for a busy node; tests may use smaller ones."""

    segment_bytes_first: int = MB  # of the log; each further one is larger, up to the limit
    segment_bytes_max: int = 16 * MB
    # Upper limits: an idle log next to a small store is smaller (raft/store/segments/sizes.py).
    log_bytes_goal: int = 96 * MB  # above this, logs keep fewer entries and live ones are moved
    spare_bytes_max: int = 128 * MB  # of freed segments that are kept for reuse
    state_buffer_bytes: int = 32 * MB
    value_file_bytes: int = 32 * MB  # size of a file of large values
    buffers_max: int = 4  # memtables before writes are refused
    background_jobs: int = 2
    # None: no promise before its flush. Otherwise groups that were added as `relaxed` promise
    # entries once they are written, and a flush follows within this time: a power failure may lose
    # what was promised.
    flush_interval_s: float | None = None
    cipher: StoreCipher | None = None  # for the data of entries; broker.store encrypts the state
    # With less of the disk free, no messages are accepted; 0: no bound (raft/store/disk_space.py).
    reserve_percent: int = 5

    def segment_sizes(self) -> SegmentSizes:
        return SegmentSizes(
            first=self.segment_bytes_first,
            largest=self.segment_bytes_max,
            log_goal=self.log_bytes_goal,
            spare_max=self.spare_bytes_max,
        )

    def for_disk(self, total_bytes: int) -> StoreTuning:
        """Reduce everything that is preallocated, kept or buffered on a small disk, so that the
        space is left for messages."""
        return replace(
            self,
            segment_bytes_max=_at_most(self.segment_bytes_max, total_bytes // 96),
            log_bytes_goal=_at_most(self.log_bytes_goal, total_bytes // 16),
            spare_bytes_max=_at_most(self.spare_bytes_max, total_bytes // 32),
            state_buffer_bytes=_at_most(self.state_buffer_bytes, total_bytes // 48),
            value_file_bytes=_at_most(self.value_file_bytes, total_bytes // 48),
        )


def _at_most(size: int, limit: int) -> int:
    return size if size <= limit else max(MB, limit // MB * MB)


class StoreIdentity(msgspec.Struct, frozen=True):
    """The server that a directory belongs to. The incarnation is drawn when it is created."""

    format: int
    node_name: str
    cluster_name: str
    incarnation: int
    node: int = 0  # 0: written by an earlier version, when the name alone determined the id

    @property
    def member(self) -> NodeId:
        """The id under which this directory takes part in Raft groups. No other directory, now or
        later, has it."""
        return NodeId(self.node) if self.node else node_id(self.node_name)


def open_database(
    path: Path, *, node_name: str, cluster_name: str, tuning: StoreTuning
) -> tuple[Rdict, StoreIdentity]:
    """A directory of format 1 keeps its identity and its log column until raft/store/migration.py
    has migrated it. Raises WrongDirectory, DamagedDatabase or StoreError, with a text for the
    operator."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    condemned = path / _CONDEMNED
    if condemned.exists():
        raise DamagedDatabase(f"{path}: {condemned.read_text(errors='replace')}")
    used = _is_used(path)
    if used and not (path / "CURRENT").exists():  # RocksDB would create an empty database
        raise DamagedDatabase(f"{path}: the file CURRENT is missing")
    try:
        names = ["state"]
        if _OLD_LOG in _columns(str(path)):
            names.append(_OLD_LOG)
        db = Rdict(str(path), _database_options(tuning), _column_options(tuning, names))
    except Exception as error:
        raise _open_error(str(path), str(error)) from error
    try:
        with _corruption_as_damage(path):
            if used and db.get(_IDENTITY_KEY) is None:
                raise DamagedDatabase(f"{path}: the identity record is missing")
            return db, claim(db, str(path), node_name=node_name, cluster_name=cluster_name)
    except BaseException:
        db.close()
        raise


def _is_used(path: Path) -> bool:
    """Whether a server has stored data here, which it does only once its identity is on disk."""
    segments = path / "segments"
    return any(path.glob("*.sst")) or (segments.is_dir() and any(segments.iterdir()))


def _columns(path: str) -> list[str]:
    return Rdict.list_cf(path) if (Path(path) / "CURRENT").exists() else []


def old_log(db: Rdict) -> Rdict | None:
    """The column of the log up to format 1, if there is one."""
    return db.get_column_family(_OLD_LOG) if _OLD_LOG in _columns(db.path()) else None


def drop_old_log(db: Rdict) -> None:
    db.drop_column_family(_OLD_LOG)


def write_identity(db: Rdict, identity: StoreIdentity) -> None:
    """Blocking. The identity is on disk when this returns."""
    db.put(_IDENTITY_KEY, msgspec.json.encode(identity))
    db.flush_wal(sync=True)
    db.flush(wait=True)  # from then on nothing depends on the write-ahead log


def has_log(db: Rdict) -> bool:
    """Whether a log was ever created in this directory: if it is missing now, promises were lost.
    Raises DamagedDatabase."""
    with _corruption_as_damage(Path(db.path())):
        return db.get(_LOG_KEY) is not None


def note_log(db: Rdict) -> None:
    """Blocking. Records that a log exists; on disk when this returns, before the first promise."""
    db.put(_LOG_KEY, b"")
    db.flush_wal(sync=True)
    db.flush(wait=True)


def condemn(path: Path, reason: str) -> None:
    """Blocking. Marks the database as damaged: it is never opened again, here or after a restart.
    Raises OSError."""
    with (path / _CONDEMNED).open("w") as file:
        file.write(reason)
        file.flush()
        os.fsync(file.fileno())


def corruption(error: BaseException | None) -> str | None:
    """RocksDB's description of the corruption, if that is why it failed."""
    while error is not None:
        if str(error).startswith("Corruption"):
            return str(error)
        error = error.__cause__
    return None


@contextmanager
def _corruption_as_damage(path: Path) -> Iterator[None]:
    """Raises DamagedDatabase for corruption: RocksDB checks a block when it is read, not when the
    database is opened."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        found = corruption(error)
        if found is None:
            raise
        raise DamagedDatabase(f"{path}: {found}") from error


def _database_options(tuning: StoreTuning) -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(create_if_missing=True)
    options.create_missing_column_families(create_missing_cfs=True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_bytes_per_sync(MB)  # write background files evenly, not in bursts
    options.set_max_background_jobs(tuning.background_jobs)
    options.set_keep_log_file_num(4)
    options.set_max_log_file_size(4 * MB)
    options.set_stats_dump_period_sec(0)
    return options


def _column_options(tuning: StoreTuning, names: list[str]) -> dict[str, Options]:
    """No compression: scans read the stored blocks as they are."""
    columns: dict[str, Options] = {}
    for name in names:
        options = Options(raw_mode=True)
        options.set_write_buffer_size(tuning.state_buffer_bytes)
        options.set_max_write_buffer_number(tuning.buffers_max)
        options.set_compression_type(DBCompressionType.none())
        keep_values_apart(options, tuning.buffers_max * tuning.state_buffer_bytes)
        columns[name] = options
    return columns


def claim(db: Rdict, path: str, *, node_name: str, cluster_name: str) -> StoreIdentity:
    """The identity of the directory, drawn and stored at the first call. Raises WrongDirectory."""
    raw = db.get(_IDENTITY_KEY)
    if raw is None:
        incarnation = secrets.randbits(63) or 1
        identity = StoreIdentity(
            FORMAT, node_name, cluster_name, incarnation, node_id(node_name, incarnation)
        )
        write_identity(db, identity)
        return identity
    try:
        identity = msgspec.json.decode(raw, type=StoreIdentity)
    except msgspec.DecodeError as error:
        raise DamagedDatabase(f"{path}: the identity record cannot be read") from error
    if not FORMAT_OLDEST <= identity.format <= FORMAT:
        raise WrongDirectory(
            f"{path} has format {identity.format}, this program reads formats up to {FORMAT}"
        )
    if identity.cluster_name != cluster_name:
        raise WrongDirectory(
            f'{path} belongs to cluster "{identity.cluster_name}", not to "{cluster_name}"'
        )
    if identity.node_name != node_name:
        raise WrongDirectory(
            f'{path} belongs to server "{identity.node_name}", not to "{node_name}"'
        )
    return identity


def _open_error(path: str, problem: str) -> StoreError:
    if _HELD in problem:
        return StoreHeld(f"{path} is still open in this process: {problem}")
    if _LOCKED in problem:
        return StoreError(f"{path} is in use by another process: {problem}")
    if any(sign in problem for sign in _DAMAGED):
        return DamagedDatabase(f"{path}: {problem}")
    return StoreError(f"{path} cannot be opened: {problem}")
