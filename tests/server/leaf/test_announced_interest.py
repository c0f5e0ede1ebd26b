"""Which lines tell the other side of a leaf node connection of our subscriptions."""

from broker.server.leaf.announced_interest import AnnouncedInterest


def test_a_subject_is_told_once_and_a_group_with_each_weight() -> None:
    interest = AnnouncedInterest()
    assert interest.change(b"a", b"", 1) == b"LS+ a\r\n"
    assert interest.change(b"a", b"", 1) == b""
    assert interest.change(b"a", b"q", 2) == b"LS+ a q 2\r\n"
    assert interest.change(b"a", b"q", 1) == b"LS+ a q 3\r\n"
    assert interest.change(b"a", b"", -1) == b""
    assert interest.change(b"a", b"", -1) == b"LS- a\r\n"
    assert interest.change(b"a", b"q", -2) == b"LS+ a q 1\r\n"
    assert interest.change(b"a", b"q", -1) == b"LS- a q\r\n"
    assert interest.change(b"b", b"", -1) == b"", "it was not told of"
    assert len(interest) == 0
