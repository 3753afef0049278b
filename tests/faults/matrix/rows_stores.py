"""Rows of the store of an attempt's rendezvous and of the logs of its ranks."""

import os
import random
import signal
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path

from matrix.observe import cancel_and_compare, progress, rank, resident_mib, submit_without_end
from matrix.row import Measured, row

from cluster import BIN, wait_until
from jobs import last_step, wait_step

RESTARTS = int(os.environ.get("TITAN_RESTARTS", "20"))


@row(21, "other processes take the ports of old stores",
     how="a rank is killed at a random moment, 20 times (TITAN_RESTARTS=500 for the long form); a listener that never answers takes each "
         "old store's port that the kernel gives it, and a client sends noise to every new store",
     anchor="restarted torchrun ranks may find the old ranks' addresses in a shared store",
     invariant="every process group has the ranks and the store of one attempt, every attempt ends by the kill, and the losses equal the "
               "undisturbed run's",
     ci="faults_matrix", limit=3600)
def stale_stores(case: Measured):
    restarts, dice = (6 if case.short else RESTARTS), random.Random(21)
    case.start()
    job = submit_without_end(case, interval=2, extra=["--restart.no_progress_limit", 10_000, "--restart.backoff_initial_seconds", 0.01,
                                                      "--restart.backoff_max_seconds", 0.02])
    sockets, seen, taken, mixed = [], set(), set(), 0
    case.addCleanup(lambda: [one.close() for one in sockets])

    def both():
        ranks = case.cluster.ranks()
        return ranks if len(ranks) == 2 and len({p.attempt for p in ranks}) == 1 and ranks[0].attempt not in seen else None

    for _ in range(restarts):
        ranks = wait_until("ranks of a new attempt", both, 60)
        addresses = {process.store for process in ranks}
        mixed += len(addresses) != 1 or bool(addresses & taken)
        host, port = ranks[0].store.rsplit(":", 1)
        seen.add(ranks[0].attempt)
        noise = socket.create_connection((host, int(port)))
        noise.sendall(bytes(dice.randrange(256) for _ in range(200)))
        moment, begun = dice.uniform(0, 1.5), time.monotonic()
        wait_until("the moment of the kill", lambda: time.monotonic() - begun >= moment or None)
        dice.choice(ranks).kill(signal.SIGKILL)
        wait_until("end of the attempt", lambda: not any(process.alive() for process in ranks) or None)
        # Closes with a reset, which leaves the port free.
        noise.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        noise.close()
        squatter = socket.socket()
        squatter.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            squatter.bind((host, int(port)))
            squatter.listen()
            taken.add(ranks[0].store)
        except OSError:
            pass  # The kernel may keep the port for a minute after its connections ended, or the next store has it.
        sockets.append(squatter)
    progress(case)
    cancel_and_compare(case, job)
    causes = [a["end_cause"] for a in case.attempts(job)]
    case.assertEqual({"RANK_KILLED"}, set(causes[:-1]), causes)
    case.assertEqual(restarts + 1, len(causes))
    case.assertEqual(0, mixed)
    case.figure("restarts", restarts, "")
    case.figure("process groups that mix two attempts", mixed, "", at_most=0)
    case.figure("old store ports taken by another process", len(taken), "")


LOG_CAP_MIB = 4
FLOOD_SECONDS = 10
LINES_A_SECOND = 100_000


class Flood(threading.Thread):
    """Writes whole lines to a process's standard output at a given rate, as if the process printed them."""

    def __init__(self, process, seconds):
        super().__init__(daemon=True)
        self.process, self.seconds, self.lines = process, seconds, 0

    def run(self):
        # Smaller than PIPE_BUF, so that the rank's own lines stay whole.
        block = "".join(f"flood {i:02} {'x' * 60}\n" for i in range(56)).encode()
        begun = time.monotonic()
        with open(f"/proc/{self.process.pid}/fd/1", "wb", buffering=0) as output:
            while (passed := time.monotonic() - begun) < self.seconds:
                if self.lines < LINES_A_SECOND * passed:
                    output.write(block)
                    self.lines += block.count(b"\n")
                else:
                    time.sleep(0.0005)
        self.took = time.monotonic() - begun


def size_of(path):
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0  # Rotated away after it was listed.


@row(23, "a rank prints 100,000 lines per second",
     how="lines are written to the standard output of rank 1 for 10 s while a client follows its log",
     anchor="Kubernetes drops lines, Ray keeps five files of 100 MiB",
     invariant="the logs stay below their limit, the other rank's log has every line, and training continues with the undisturbed run's "
               "losses",
     ci="faults_matrix")
def log_flood(case: Measured):
    seconds = 3 if case.short else FLOOD_SECONDS
    case.start()
    worker = case.cluster.worker("n1")
    worker.kill(restart=False)
    worker.command += ["--log-max-mib", str(LOG_CAP_MIB)]
    worker.revive()
    job = submit_without_end(case)
    wait_step(case.dump, 3)
    controller, daemon = case.cluster.controller.pid, worker.pid
    shim = case.cluster.shims()[0].pid
    before = {"controller": resident_mib(controller), "worker": resident_mib(daemon), "shim": resident_mib(shim)}
    peak = dict(before)
    follower = subprocess.Popen([BIN / "titanctl", "--controller", case.cluster.address, "logs", "-f", job, "--rank", "1"],
                                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=case.cluster.environment)
    case.addCleanup(follower.wait)
    case.addCleanup(follower.kill)
    step = last_step(case.dump)
    flood = Flood(rank(case, 1), seconds)
    flood.start()
    (folder,) = {path.parent for path in case.cluster.folder.glob("n1/**/rank-1.log")}
    log_bytes = 0
    while flood.is_alive():
        for name, pid in (("controller", controller), ("worker", daemon), ("shim", shim)):
            peak[name] = max(peak[name], resident_mib(pid))
        log_bytes = max(log_bytes, sum(map(size_of, folder.glob("rank-1.log*"))))
        flood.join(0.05)
    trained = last_step(case.dump) - step
    wait_step(case.dump, last_step(case.dump) + 1)
    cancel_and_compare(case, job)
    case.assertEqual(1, len(case.attempts(job)))
    (log,) = folder.glob("rank-0.log")
    logged_steps = [int(line.split("step:")[1].split("loss:")[0]) for line in Path(log).read_text().splitlines() if "loss:" in line]
    case.assertEqual(list(range(1, last_step(case.dump) + 1)), logged_steps)
    case.assertLessEqual(log_bytes, LOG_CAP_MIB << 20)
    case.figure("lines per second", flood.lines / flood.took, "", at_least=LINES_A_SECOND * 0.9)
    case.figure("log size, most", log_bytes / (1 << 20), "MiB", at_most=LOG_CAP_MIB)
    for name in peak:
        case.figure(f"{name}: resident memory growth", max(0.0, peak[name] - before[name]), "MiB", at_most=64)
    case.figure("steps trained during the fault", trained, "")
