"""A thread that waits for the interpreter gets it within a turn of the event loop."""

from __future__ import annotations

import sys

from broker.server.process import interpreter_lock
from broker.server.routing.fair_queue import TURN_S


def test_the_switch_interval_is_shorter_than_a_turn() -> None:
    before = sys.getswitchinterval()
    try:
        interpreter_lock.share_interpreter()
        assert sys.getswitchinterval() < TURN_S / 2
    finally:
        sys.setswitchinterval(before)
