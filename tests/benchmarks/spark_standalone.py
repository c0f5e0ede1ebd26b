"""A standalone Spark from the pip package: a master, two workers, and their executors.

Owns: the processes of the cluster and its logs. Executors are started by the workers."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from broker.local import free_ports
from tests.benchmarks.spark_vs_parquet import descendants

ROOT = Path(__file__).resolve().parents[2]
READY_WITHIN_S = 600.0
MOVED = re.compile(r"scan of (\S+): \S+ at sequence (\d+): (.*); trying the next replica")
NOT_BEGUN = ("refused", "said nothing")  # a task that found the replica dead when it began


class StandaloneSpark:
    """As a context manager it ends everything that it started."""

    def __init__(self, folder: Path, workers: int = 2) -> None:
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        (self._port,) = free_ports(1)
        self._seen: dict[Path, int] = {}

    def __enter__(self) -> StandaloneSpark:
        self._folder.mkdir(parents=True)
        os.environ["PYSPARK_PYTHON"] = sys.executable
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        try:
            self._launch(
                "master.Master", "--host", "127.0.0.1", "--port", str(self._port),
                "--webui-port", "0",
            )  # fmt: skip
            self._wait("master.Master-0.log", "I have been elected leader", 1)
            for number in range(self._workers):
                self._launch(
                    "worker.Worker", "--host", "127.0.0.1", "--webui-port", "0", "-c", "1",
                    "-m", "2g", "-d", str(self._folder / f"work-{number}"), self.url,
                )  # fmt: skip
            self._wait("master.Master-0.log", "Registering worker", self._workers)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @property
    def url(self) -> str:
        return f"spark://127.0.0.1:{self._port}"

    def session(self) -> Any:
        from pyspark.sql import SparkSession

        return (
            SparkSession.builder.master(self.url)
            .appName("jetraft proof")
            .config("spark.ui.enabled", "false")
            .config("spark.ui.showConsoleProgress", "false")
            .config("spark.executor.memory", "1g")
            .config("spark.driver.memory", "2g")
            .config("spark.scheduler.minRegisteredResourcesRatio", "1.0")
            .config("spark.driver.bindAddress", "127.0.0.1")
            .config("spark.driver.host", "127.0.0.1")
            .config("spark.sql.shuffle.partitions", "2")
            .config("spark.sql.parquet.compression.codec", "uncompressed")
            .config("spark.local.dir", str(self._folder / "scratch"))
            .config("spark.sql.warehouse.dir", str(self._folder / "warehouse"))
            .config("spark.log.level", "OFF")
            .config("spark.executor.maxNumFailures", "100")
            .getOrCreate()
        )

    def executors(self) -> list[int]:
        """The processes that run tasks, which the workers started."""
        found = []
        for process in self._processes:
            for pid in descendants(process.pid):
                try:
                    command = Path(f"/proc/{pid}/cmdline").read_bytes()
                except OSError:
                    continue  # it has ended
                if b"CoarseGrainedExecutorBackend" in command and pid != process.pid:
                    found.append(pid)
        return sorted(found)

    def kill_executor(self) -> int:
        """The oldest one, with SIGKILL; its worker starts another."""
        victim = self.executors()[0]
        os.kill(victim, signal.SIGKILL)
        return victim

    def moves(self) -> list[int]:
        """What tasks logged since the last call when a replica failed in the middle of a scan: the
        sequence from which another one goes on."""
        found: list[int] = []
        for path in sorted(self._folder.glob("work-*/app-*/*/stderr")):
            text = path.read_bytes()[self._seen.get(path, 0) :]
            self._seen[path] = self._seen.get(path, 0) + len(text)
            for match in MOVED.finditer(text.decode(errors="replace")):
                if not any(text in match[3] for text in NOT_BEGUN):
                    found.append(int(match[2]))
        return found

    def _launch(self, role: str, *arguments: str) -> None:
        import pyspark

        home = Path(pyspark.__file__).parent
        log = self._folder / f"{role}-{len(self._processes)}.log"
        with log.open("wb") as file:
            self._processes.append(
                subprocess.Popen(
                    [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{role}",
                     *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=file,
                    env={**os.environ, "SPARK_HOME": str(home)},
                )
            )  # fmt: skip

    def _wait(self, log: str, text: str, times: int) -> None:
        deadline = time.monotonic() + READY_WITHIN_S
        while (self._folder / log).read_text(errors="replace").count(text) < times:
            for process in self._processes:
                if process.poll() is not None:
                    raise RuntimeError(f"a process of Spark ended: see {self._folder}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"Spark is not ready: see {self._folder / log}")
            time.sleep(0.1)
