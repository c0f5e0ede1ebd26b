"""The two streaming queries: sums per minute and shop, and orders that cannot be read.

Owns: what Spark does. May not touch: processes, the data's making.
Sums leave a shuffle, whose order may differ when a batch is repeated: each batch is sorted and
written under a name of its own, so that a repeat adds what is missing. Dead letters need no shuffle
and use the streaming sink directly."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

ORDER: Final = "order bigint, shop string, at timestamp, cents bigint"
WATERMARK: Final = "10 minutes"
EVERY_SECOND: Final = {"processingTime": "1 second"}


def start_sums(spark: Any, servers: str, folder: Path, **trigger: Any) -> Any:
    """ORDERS -> sums per minute -> the stream SUMS and parquet files. `trigger` as in Spark."""
    from pyspark.sql import functions

    good = _orders(spark, servers).where("parsed is not null").select("parsed.*")
    sums = (
        good.withWatermark("at", WATERMARK)
        .groupBy(functions.window("at", "1 minute"), "shop")
        .agg(functions.sum("cents").alias("cents"), functions.count("*").alias("orders"))
        .selectExpr("date_format(window.start, 'HH:mm') as minute", "shop", "cents", "orders")
    )
    return (
        sums.writeStream.outputMode("append")
        .foreachBatch(lambda frame, batch: _store(frame, batch, servers, folder))
        .option("checkpointLocation", str(folder / "checkpoint-sums"))
        .trigger(**(trigger or EVERY_SECOND))
        .start()
    )


def _store(frame: Any, batch: int, servers: str, folder: Path) -> None:
    """Safe to repeat: Spark does so when it fails between a batch and its checkpoint."""
    ordered = frame.repartition(1).sortWithinPartitions("minute", "shop").persist()
    ordered.write.mode("overwrite").parquet(str(folder / "sums" / f"batch={batch}"))
    (
        ordered.selectExpr("concat('sums.', shop) as subject", "to_json(struct(*)) as data")
        .write.format("jetraft")
        .mode("append")
        .option("servers", servers)
        .option("writerId", f"sums batch {batch}")
        .save("SUMS")
    )
    ordered.unpersist()


def start_dead_letters(spark: Any, servers: str, folder: Path, **trigger: Any) -> Any:
    """ORDERS -> rows that are not orders -> the stream DEAD."""
    bad = _orders(spark, servers).where("parsed is null")
    return (
        bad.selectExpr("concat('dead.', subject) as subject", "data")
        .writeStream.format("jetraft")
        .option("servers", servers)
        .option("stream", "DEAD")
        .option("checkpointLocation", str(folder / "checkpoint-dead"))
        .trigger(**(trigger or EVERY_SECOND))
        .start()
    )


def _orders(spark: Any, servers: str) -> Any:
    """Orders with the column `parsed`, null where the data is not an order."""
    raw = (
        spark.readStream.format("jetraft")
        .option("servers", servers)
        .option("startingOffsets", "earliest")
        .option("columns", "subject,data")
        .load("ORDERS")
    )
    parsed = f"from_json(cast(data as string), '{ORDER}', map('mode', 'PERMISSIVE'))"
    # A row that cannot be parsed becomes a struct of nulls.
    return raw.selectExpr("subject", "data", f"{parsed} as tried").selectExpr(
        "subject", "data", "if(tried.order is null, null, tried) as parsed"
    )
