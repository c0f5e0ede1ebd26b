"""Spark where only the bearer of a client certificate and of a creds file gets in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.local import LocalCluster
from broker.scan.client import Planner, endpoints_of
from broker.scan.login import Login
from tests.spark.conftest import finished
from tests.support.operator_cluster import OperatorFiles

ROWS = 3000


def created(server: str, files: OperatorFiles) -> None:
    tls = files.certificates
    login = Login(
        tls_ca=tls["tlsCa"], tls_cert=tls["tlsCert"], tls_key=tls["tlsKey"], **files.credentials
    )
    planner = Planner(endpoints_of(server), login)
    for name in ("ROWS", "COPY"):
        body = b'{"name":"%b","subjects":["%b.>"]}' % (name.encode(), name.encode())
        assert b'"did_create":true' in planner.request(f"$JS.API.STREAM.CREATE.{name}", body)
    planner.close()


def test_batch_and_streaming_with_a_client_certificate_and_a_creds_file(
    spark: Any, tmp_path: Path
) -> None:
    files = OperatorFiles.write(tmp_path / "keys")
    with LocalCluster(tmp_path / "node", size=1, name="strict", more=files.config) as cluster:
        server = f"127.0.0.1:{cluster.nodes[0].client_port}"
        created(server, files)
        ours = {"servers": server, **files.certificates, **files.credentials}
        made = spark.range(ROWS).selectExpr("cast(id as string) as data")
        made.write.format("jetraft").mode("append").options(subject="ROWS.a", **ours).save("ROWS")

        source = spark.readStream.format("jetraft").options(startingOffsets="earliest", **ours)
        writer = (
            source.load("ROWS")
            .select("data")
            .writeStream.format("jetraft")
            .options(stream="COPY", subject="COPY.a", **ours)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
        )
        finished(writer.start)
        rows = spark.read.format("jetraft").options(**ours).load("COPY")
        total = rows.selectExpr("count(*)", "sum(cast(cast(data as string) as bigint))")
        assert tuple(total.first()) == (ROWS, ROWS * (ROWS - 1) // 2)

        for left, says in (
            (files.certificates, "refuses the login with no credentials; it asks for an nkey"),
            (files.credentials, "certificate is not trusted"),
            (
                files.credentials | {"tlsCa": files.certificates["tlsCa"]},
                "requires a client certificate: set the options tlsCert and tlsKey",
            ),
        ):
            table = spark.read.format("jetraft").options(servers=server, **left)
            with pytest.raises(Exception, match=says):
                table.load("COPY").count()
