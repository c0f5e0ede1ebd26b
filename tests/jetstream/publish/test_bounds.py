"""Storage limits of the account and of the server, as bounds in a publish entry."""

from __future__ import annotations

from broker.jetstream.commands.publish_entry import Bounds
from broker.jetstream.config import Retention, Storage
from broker.jetstream.publish.sessions import Duplicate, Staged
from tests.support.stream_rig import Driver, Row

ACCOUNT = (10002, "resource limits exceeded for account")
SERVER = (10023, "insufficient resources")
MEMORY = 16 + 3  # size of a message on "s.a" without its data


def rows(*sizes: int, **headers: str) -> list[Row]:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return [(b"s.a", named, b"x" * size) for size in sizes]


def memory(**config: object) -> Driver:
    return Driver(storage=Storage.MEMORY, **config)


def test_messages_are_stored_up_to_the_account_limit() -> None:
    driver = memory()
    bounds = Bounds(account=1000)
    assert driver.noted(rows(400, 400, 400, 100, 10), bounds=bounds) == [(2, ACCOUNT)]
    assert driver.stream.store.bytes == 910 + 4 * MEMORY
    assert driver.noted(rows(0), bounds=Bounds(account=986 + MEMORY)) == []
    assert driver.noted(rows(0), bounds=Bounds(account=986 + MEMORY)) == [(0, ACCOUNT)]


def test_everything_is_refused_above_the_server_limit() -> None:
    driver = memory()
    bounds = Bounds(server=2 * (100 + MEMORY))
    assert driver.noted(rows(100, 100, 100, 0, 0), bounds=bounds) == [(3, SERVER), (4, SERVER)]
    driver.purge()
    assert driver.noted(rows(100), bounds=bounds) == []


def test_other_streams_may_have_used_the_whole_account() -> None:
    assert memory().noted(rows(0), bounds=Bounds(account=-5)) == [(0, ACCOUNT)]
    assert memory().noted(rows(0), bounds=Bounds(server=-5)) == [(0, SERVER)]


def test_removed_messages_free_room_in_the_account() -> None:
    driver = memory()
    bounds = Bounds(account=250)
    assert driver.noted(rows(100, 100, 100), bounds=bounds) == [(2, ACCOUNT)]
    driver.delete(1)
    assert driver.noted(rows(100), bounds=bounds) == []


def test_the_order_of_refusals() -> None:
    driver = memory()
    full = Bounds(account=0, server=-1)
    wrong = rows(1, Nats_Expected_Last_Sequence="9")
    assert driver.noted(wrong, bounds=full) == [(0, (10071, "wrong last sequence: 0"))]
    driver.publish(Nats_Msg_Id="1")
    assert driver.noted(rows(1, Nats_Msg_Id="1"), bounds=full) == [(0, Duplicate(1))]
    driver.configure(allow_msg_ttl=True)
    assert driver.noted(rows(1, Nats_TTL="bad"), bounds=Bounds(account=0)) == [(0, ACCOUNT)]
    assert driver.noted(rows(1), bounds=full) == [(0, SERVER)]


def test_messages_without_interest_need_no_room_in_the_account() -> None:
    driver = memory(retention=Retention.INTEREST)
    assert driver.noted(rows(5), bounds=Bounds(account=0)) == []
    assert driver.noted(rows(5), bounds=Bounds(server=-1)) == [(0, SERVER)]


def test_members_of_a_batch_are_refused_before_the_commit() -> None:
    driver = memory(allow_atomic=True)

    def member(seq: int, **more: str) -> list[Row]:
        return rows(9, Nats_Batch_Id="b", Nats_Batch_Sequence=str(seq), **more)

    assert driver.noted(member(1), bounds=Bounds(account=500)) == [(0, Staged())]
    assert driver.noted(member(2), bounds=Bounds(account=9)) == [(0, ACCOUNT)]
    assert driver.noted(member(2), bounds=Bounds(server=-1)) == [(0, SERVER)]
    [(_, stored)] = driver.noted(member(2, Nats_Batch_Commit="1"), bounds=Bounds(account=500))
    assert stored.count == 2


def test_replicas_agree_and_repeated_batches_get_the_first_result() -> None:
    driver = memory()
    driver.noted(rows(100, 100, 100), bounds=Bounds(account=300))
    driver.noted(rows(1, 100), bounds=Bounds(account=300, server=200))
    other = memory()
    for entry in driver.log:
        other.entry(entry)
    assert other.results == driver.results
    assert other.stream.digest() == driver.stream.digest()
