"""The `compression` of connections between servers.

Owns: reading that key: a word, a boolean, or a block with a mode and thresholds.
May not touch: what is done with it (broker/server/leaf/leaf_compression.py).
Spec: nats-server: `off`, `accept`, `s2_fast`, `s2_better`, `s2_best`, or `s2_auto`, which chooses
by the round trip time: up to four thresholds in ascending order, 0 leaves a level out."""

from __future__ import annotations

from itertools import pairwise

from broker.config.file import values
from broker.config.file.parser import Item
from broker.config.file.values import BadValue
from broker.config.options import Compression

MODES = {
    "not_supported": "not supported",
    "disabled": "off",
    "off": "off",
    "false": "off",
    "accept": "accept",
    "auto": "s2_auto",
    "s2_auto": "s2_auto",
    "on": "s2_auto",
    "enabled": "s2_auto",
    "true": "s2_auto",
    "fast": "s2_fast",
    "s2_fast": "s2_fast",
    "better": "s2_better",
    "s2_better": "s2_better",
    "best": "s2_best",
    "s2_best": "s2_best",
}
THRESHOLDS_MAX = 4
_THRESHOLDS = ("rtt_thresholds", "thresholds", "rtts", "rtt")


def compression(key: str, item: Item) -> Compression:
    """Raises BadValue."""
    value = item.value
    if isinstance(value, bool | str):
        return Compression(mode=_mode(str(value)))
    if not isinstance(value, dict):
        kind = type(value).__name__
        raise BadValue(f'field "{key}" should be a boolean or a structure, got {kind}')
    mode, thresholds = "s2_auto", Compression().thresholds_ns
    for raw, inner in value.items():
        if raw.lower() == "mode":
            mode = _mode(values.text(raw, inner))
        elif raw.lower() in _THRESHOLDS:
            thresholds = _thresholds(raw, inner)
        else:
            raise BadValue(f'unknown field "{raw}"')
    return Compression(mode, thresholds)


def _mode(word: str) -> str:
    mode = MODES.get(word.lower().replace(" ", "_"))
    if mode is None:
        raise BadValue(f'unsupported compression mode "{word}"')
    return mode


def _thresholds(key: str, item: Item) -> tuple[int, ...]:
    if not isinstance(item.value, list):
        raise BadValue(f'Expected "{key}" to be an array')
    found = [max(0, values.duration(key, one)) for one in item.value]
    used = [one for one in found if one]
    if any(later < earlier for earlier, later in pairwise(used)):
        raise BadValue("RTT threshold values should be in ascending order")
    while found and not found[-1]:
        found.pop()
    if len(found) > THRESHOLDS_MAX:
        raise BadValue(f"there should be no more than {THRESHOLDS_MAX} RTT thresholds")
    if not found:
        raise BadValue('compression mode "s2_auto" requires at least one RTT threshold')
    return tuple(found)
