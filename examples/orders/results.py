"""What the pipeline has delivered, compared with what it had to deliver.

Owns: reading the results as tables (no Spark), the verdict, the picture.
May not touch: the processes of the run."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from broker.client import scan
from examples.orders.orders import SHOPS, Expected


@dataclass(slots=True)
class Delivered:
    sums: Counter[tuple[str, str]]
    rows: int  # of SUMS: more than there are sums if a row was stored twice
    bad: Counter[bytes]

    @classmethod
    def read(cls, servers: str) -> Delivered:
        found = cls(Counter(), 0, Counter())
        for data in scan("SUMS", servers=servers, columns=["data"]).column("data").to_pylist():
            row = json.loads(data)
            found.sums[row["minute"], row["shop"]] += row["cents"]
            found.rows += 1
        found.bad.update(scan("DEAD", servers=servers, columns=["data"]).column("data").to_pylist())
        return found

    def is_complete(self, expected: Expected) -> bool:
        """Whether there is as much as there has to be, right or wrong."""
        enough = self.rows >= len(expected.sums)
        return enough and self.bad.total() >= expected.bad.total()

    def problems(self, expected: Expected) -> list[str]:
        """Empty if every sum is right, and every row there once."""
        found = [
            f"{minute} {shop}: {self.sums[minute, shop]} cents, expected {cents}"
            for (minute, shop), cents in sorted(expected.sums.items())
            if self.sums[minute, shop] != cents
        ]
        found += [f"{key} is no sum of these orders" for key in self.sums.keys() - expected.sums]
        if self.rows != len(self.sums):
            found.append(f"{self.rows} rows for {len(self.sums)} sums")
        if self.bad != expected.bad:
            found.append(f"{self.bad.total()} dead letters, expected {expected.bad.total()}")
        return found


def parquet_sums(folder: Path) -> Counter[tuple[str, str]]:
    from pyarrow import dataset

    table = dataset.dataset(folder / "sums", format="parquet").to_table()
    found: Counter[tuple[str, str]] = Counter()
    for row in table.to_pylist():
        found[row["minute"], row["shop"]] += row["cents"]
    return found


def picture(
    sums: Counter[tuple[str, str]], acked: Counter[int], faults: list[tuple[float, str]]
) -> str:
    """SVG: orders per second with the faults above, sums per minute below."""
    width, height, left = 800, 200, 60
    seconds = max([*acked, 1])
    top = max([*acked.values(), 1])
    points = " ".join(
        f"{left + (width - left) * at / seconds:.0f},{height - 20 - 150 * acked[at] / top:.0f}"
        for at in range(seconds)
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {2 * height}" '
        'font-family="sans-serif" font-size="11">',
        f'<rect width="{width}" height="{2 * height}" fill="white"/>',
        f'<text x="4" y="14">orders acknowledged per second (most: {top})</text>',
        f'<polyline points="{points}" fill="none" stroke="#2563eb" stroke-width="1.5"/>',
    ]
    for line, (at, what) in enumerate(faults):
        x = left + (width - left) * min(at / seconds, 1)
        parts.append(
            f'<line x1="{x:.0f}" x2="{x:.0f}" y1="24" y2="{height - 20}" stroke="#dc2626"/>'
        )
        side = 'text-anchor="end" dx="-4"' if x > width / 2 else 'dx="4"'
        y = 100 + 16 * line
        parts.append(f'<text x="{x:.0f}" y="{y}" {side} fill="#dc2626">{what}</text>')
    minutes = sorted({minute for minute, _ in sums})
    by_minute = [sum(sums[minute, shop] for shop in SHOPS) for minute in minutes]
    most = max([*by_minute, 1])
    parts.append(f'<text x="4" y="{height + 14}">sums per minute (most: {most / 100:,.2f})</text>')
    bar = (width - left) / max(len(minutes), 1)
    for number, (minute, cents) in enumerate(zip(minutes, by_minute, strict=True)):
        tall = 150 * cents / most
        x = left + bar * number
        parts.append(
            f'<rect x="{x:.1f}" y="{2 * height - 20 - tall:.1f}" width="{bar * 0.8:.1f}" '
            f'height="{tall:.1f}" fill="#16a34a"><title>{minute}: {cents / 100:,.2f}</title></rect>'
        )
        if number % max(1, len(minutes) // 10) == 0:
            parts.append(f'<text x="{x:.0f}" y="{2 * height - 6}">{minute}</text>')
    return "".join([*parts, "</svg>"])
