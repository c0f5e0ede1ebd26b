"""The seeds of test_crashes, as many as you like: `... .many_seeds [COUNT [FIRST]]`.

Ends with the first assertion that fails; the line before it names the test and the seed."""

from __future__ import annotations

import sys

from tests.raft.store.segments import test_crashes as each

TESTS = (
    each.test_a_power_failure_loses_nothing_that_was_flushed,
    each.test_a_killed_process_loses_nothing,
    each.test_a_failing_call_at_any_point_loses_nothing_that_was_flushed,
    each.test_a_full_disk_refuses_and_loses_nothing,
    each.test_damage_is_found_by_the_groups_that_it_hits,
)


def run(count: int = 200, first: int = 0) -> None:
    for seed in range(first, first + count):
        for test in TESTS:
            try:
                test(seed)
            except BaseException:
                sys.stderr.write(f"{test.__name__}({seed})\n")
                raise
    sys.stdout.write(f"{count} seeds from {first}: clean\n")


if __name__ == "__main__":
    run(*map(int, sys.argv[1:]))
