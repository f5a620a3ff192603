"""The array job on a Slurm of one node, started for the test on loopback: its workers serve a search."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evaluators.queue.queue_folder import QueueFolder
from search.records.events import RunFinished, VariantEvaluated
from search.records.journal import replay
from tests.evaluators.conftest import Marked, gone, marked  # noqa: F401  (a fixture)
from tests.search.run.test_run import SMALL

ROOT = Path(__file__).parents[2]
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scancel", "squeue", "sinfo")
PATH = f"{os.environ.get('PATH', '')}:/usr/sbin"
MISSING = [each for each in PROGRAMS if shutil.which(each, path=PATH) is None]
PATIENCE_S = 180.0

CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={here}/munge.socket
CredType=cred/munge
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
StateSaveLocation={here}/state
SlurmdSpoolDir={here}/spool
SlurmctldPidFile={here}/slurmctld.pid
SlurmdPidFile={here}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
GresTypes=gpu
NodeName=localhost NodeAddr=127.0.0.1 CPUs={cores} RealMemory=100 Gres=gpu:2
PartitionName=gpu Nodes=localhost Default=YES
"""

Call = Callable[..., str]


@pytest.fixture
def slurm(marked: Marked) -> Iterator[Call]:  # noqa: F811
    """Calls a command of a Slurm whose node has two GPUs, which are files."""
    here = Path(tempfile.mkdtemp(prefix="slurm-"))  # a socket's path must be short
    with contextlib.ExitStack() as ports:
        taken = [ports.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        numbers = [each.getsockname()[1] for each in taken]
    for name in ("state", "spool"):
        (here / name).mkdir()
    for name in ("gpu0", "gpu1"):
        (here / name).touch()
    (here / "slurm.conf").write_text(CONF.format(here=here, ports=numbers, cores=os.cpu_count()))
    (here / "gres.conf").write_text(f"NodeName=localhost Name=gpu File={here}/gpu[0-1]\n")
    (here / "munge.key").write_bytes(secrets.token_bytes(1024))
    (here / "munge.key").chmod(0o400)
    environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(here / "slurm.conf")}
    files = {"socket": "socket", "key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed"}
    daemons = [
        ["munged", "--foreground", "--force", *(f"--{k}={here}/munge.{v}" for k, v in files.items())],
        ["slurmctld", "-D"],
        ["slurmd", "-D", "-N", "localhost"],
    ]

    def call(*command: str) -> str:
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout.strip()

    running: list[subprocess.Popen[bytes]] = []
    try:
        for each in daemons:
            with (here / f"{each[0]}.out").open("wb") as said:
                running.append(subprocess.Popen(each, env=environment, stdout=said, stderr=said))
            if each[0] == "munged":
                until((here / "munge.socket").exists)
        until(lambda: call("sinfo", "--noheader", "--format=%T") == "idle")
        yield call
        call("scancel", "--user=root")
        until(lambda: not call("squeue", "--noheader"))
    finally:
        for process in reversed(running):
            process.terminate()
            process.wait()
        shutil.rmtree(here, ignore_errors=True)
    assert gone(marked), marked()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, "it takes too long"
        time.sleep(0.2)


@pytest.mark.slow
@pytest.mark.exhaustive
@pytest.mark.skipif(bool(MISSING), reason=f"needs slurm-wlm and munge; there is no {', '.join(MISSING)}")
@pytest.mark.skipif(os.getuid() != 0, reason="only root can start slurmd")
def test_an_array_job_serves_a_search_on_the_login_node(slurm: Call, tmp_path: Path) -> None:
    """Slurm ends one of two workers in the middle, as at its time limit; the other one takes over."""
    queue, said = tmp_path / "queue", tmp_path / "search.txt"
    chosen = ["rounds=2", "ideas=1", "branch=3", "report=false", f"out={tmp_path}/outputs"]
    command = [sys.executable, "-m", "search.run", *SMALL, *chosen, "pool=folder", f"pool.path={queue}"]
    with said.open("w") as file:
        search = subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file)
    try:
        where = [f"--output={tmp_path}/worker-%a.txt", f"--export=ALL,IDEATREE_PYTHON={sys.executable}"]
        size = ["--array=0-1", "--cpus-per-task=1", "--mem=0", "--time=10"]
        script = str(ROOT / "deploy" / "slurm_workers.sh")
        job = slurm("sbatch", "--parsable", *where, *size, script, str(queue), "device=cpu")
        until(lambda: any(queue.glob("verdicts/*/*.json")))
        slurm("scancel", "--signal=TERM", "--batch", f"{job}_0")
        assert search.wait(PATIENCE_S) == 0, said.read_text()
    finally:
        search.kill()
        search.wait()
    slurm("scancel", "--signal=TERM", "--batch", f"{job}_1")
    until(lambda: not slurm("squeue", "--noheader"))
    logs = [(tmp_path / f"worker-{n}.txt").read_text() for n in range(2)]
    assert all("verdict" in each.splitlines()[-1] for each in logs), logs
    (journal,) = (tmp_path / "outputs").rglob("journal.jsonl")
    events = list(replay(journal))
    judged = [each.variant.id for each in events if isinstance(each, VariantEvaluated)]
    assert len(judged) == len(set(judged)) > 2
    last = events[-1]
    assert isinstance(last, RunFinished) and last.reason == "rounds"
    assert not QueueFolder(queue).pending()
