"""Which compression a leaf node connection uses, in our direction.

Owns: the choice, from what both sides are configured with and the round trip time.
May not touch: sockets; how a stream is written (broker/compression).
Spec: nats-server. Each side chooses for what it sends. The hub states its mode in INFO; a leaf node
that wants compression answers with an INFO of its own. From then on both sides send S2 streams, and
the hub repeats its INFO, compressed. `s2_auto` chooses by round trip time, again after each PONG.
`s2_better` and `s2_best` compress like `s2_fast`: there is one encoder."""

from __future__ import annotations

from broker.config.options import LinkCompression

NOT_SUPPORTED, OFF, ACCEPT, AUTO = "not supported", "off", "accept", "s2_auto"
LEVELS = ("s2_uncompressed", "s2_fast", "s2_better", "s2_best")
UNCOMPRESSED, FAST = LEVELS[:2]


class UnknownCompression(Exception):
    """str() is the error for the other side."""


def wanted(mode: str) -> bool:
    """Whether a side with this mode wants an S2 stream (`s2_uncompressed` does)."""
    return mode not in ("", OFF, NOT_SUPPORTED)


def chosen(ours: LinkCompression, theirs: str, rtt_s: float) -> str:
    """The mode for what we send. `theirs` is the mode of the other side; "": it is too old to have
    one. Raises UnknownCompression."""
    if not wanted(ours.mode):
        return ours.mode if theirs else NOT_SUPPORTED
    if theirs in ("", NOT_SUPPORTED):
        return NOT_SUPPORTED
    if theirs == OFF or theirs == ours.mode == ACCEPT:
        return OFF
    if theirs not in (ACCEPT, AUTO, *LEVELS):
        raise UnknownCompression(f'unsupported leafnode compression mode "{theirs}"')
    if ours.mode == ACCEPT:
        return FAST if theirs == AUTO else theirs
    return level(ours, rtt_s) if ours.mode == AUTO else ours.mode


def level(ours: LinkCompression, rtt_s: float) -> str:
    """The mode that `s2_auto` means at this round trip time."""
    thresholds = ours.thresholds_ns
    for place, threshold_ns in enumerate(thresholds):
        if rtt_s * 1e9 <= threshold_ns:
            return LEVELS[min(place, len(LEVELS) - 1)]
    return LEVELS[3] if len(thresholds) >= 3 else LEVELS[len(thresholds) - 1]


def offered(mode: str) -> str:
    """The mode in a hub's first INFO; "": the field is left out, as by an old server."""
    return "" if mode == NOT_SUPPORTED else mode


def named(ours: LinkCompression, mode: str) -> str:
    """The mode as it is written in INFO."""
    return AUTO if ours.mode == AUTO else mode
