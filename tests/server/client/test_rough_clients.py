"""Clients that vanish, reset or send garbage must not affect other clients."""

from __future__ import annotations

import random
import socket
import struct
import threading

from tests.support.server import PATIENCE, Process

SEED = 20260624
ROUNDS = 120


def rude(port: int, seed: int) -> None:
    """Connects, misbehaves, and disconnects without notice."""
    dice = random.Random(seed)
    sock = socket.create_connection(("127.0.0.1", port), PATIENCE)
    if dice.random() < 0.5:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
    hello = b'CONNECT {"verbose":false,"headers":true,"no_responders":true}\r\nSUB t.> 1\r\n'
    words = [
        b"SUB t.* q %d\r\n" % dice.randrange(9),
        b"PUB t.a r 5000\r\n" + b"y" * 5000 + b"\r\n",
        b"PUB nobody t.r 2\r\nhi\r\n",
        b"HPUB t.h 12 13\r\nNATS/1.0\r\n\r\nz\r\n",
        b"UNSUB 1 %d\r\n" % dice.randrange(4),
        b"PING\r\n",
        bytes(dice.randrange(256) for _ in range(40)),
        b"PUB t.a 99\r\nshort",
        b"CONNECT {}\r\n",
        b"SCAN {}\r\n",
    ]
    try:
        sock.sendall(hello if dice.random() < 0.9 else b"")
        for _ in range(dice.randrange(12)):
            sock.sendall(dice.choice(words))
        if dice.random() < 0.5:  # reset instead of a regular close
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    except OSError:
        pass  # the server was quicker
    sock.close()


def test_order_is_kept_while_other_clients_misbehave() -> None:
    with Process("-p", "-1", "-a", "127.0.0.1") as process:
        sock = socket.create_connection(("127.0.0.1", process.port), PATIENCE)
        stream = sock.makefile("rb")
        stream.readline()
        sock.sendall(b'CONNECT {"verbose":false}\r\nSUB witness 1\r\nPING\r\n')
        assert stream.readline() == b"PONG\r\n"
        for number in range(ROUNDS):
            crowd = [
                threading.Thread(target=rude, args=(process.port, SEED + number * 10 + one))
                for one in range(4)
            ]
            for one in crowd:
                one.start()
            sock.sendall(b"PUB witness 6\r\n%06d\r\nPING\r\n" % number)
            assert stream.readline() == b"MSG witness 1 6\r\n"
            assert stream.readline() == b"%06d\r\n" % number
            assert stream.readline() == b"PONG\r\n"
            for one in crowd:
                one.join()
        sock.close()
        assert process.end() == 0
        for line in process.log.splitlines():
            assert "Traceback" not in line
            assert "Error:" not in line
            assert "failed" not in line
            assert "[FTL]" not in line
