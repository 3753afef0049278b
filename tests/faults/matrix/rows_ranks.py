"""Rows of ranks: killed, stopped, out of memory."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from matrix.observe import cancel_and_compare, event_after, journal_after, progress, rank, submit_without_end
from matrix.row import Measured, NotRun, row, spread

import processes
from cluster import wait_until
from jobs import committed_steps, metric_lines, tiny, wait_step

TORCHRUN_STEPS = Path(__file__).resolve().parent / "torchrun_steps.py"


@row(1, "a rank is killed",
     how="SIGKILL of rank 1 of 2, repeated after progress",
     anchor="torchrun polls every 0.1 s, NVRx every 0.3 s; both restart only if asked to. The same kill is measured under torchrun",
     invariant="each attempt resumes from the newest commit, its cause is RANK_KILLED, and the losses equal the undisturbed run's bit for "
               "bit",
     ci="faults_kills")
def rank_killed(case: Measured):
    kills = 3 if case.short else 4
    case.start()
    job = submit_without_end(case)
    detected, recovered, commits = [], [], []
    for _ in range(kills):
        progress(case)
        killed = time.time()
        commits.append(max(committed_steps(case.dump)))
        recovered.append(case.first_new_step_after(lambda: rank(case, 1).kill(signal.SIGKILL)))
        detected.append(event_after(case, job, "RankExited", killed) - killed)
    cancel_and_compare(case, job)
    attempts = case.attempts(job)
    case.assertEqual(["RANK_KILLED"] * kills + ["CANCELLED"], [a["end_cause"] for a in attempts])
    for commit, attempt in zip(commits, attempts[1:]):
        case.assertGreaterEqual(attempt["resumed_step"], commit)
    spread(case, "failure detected after", detected, "s", at_most=0.2)
    spread(case, "first new step after", recovered, "s", at_most=1)
    for phase in ("detect", "stop", "place", "start", "load", "replay"):
        case.figure(f"of which {phase}, most", max(a["phase_seconds"].get(phase, 0) for a in attempts[1:]), "s")
    if not case.short:
        compare_with_torchrun(case, kills)


def compare_with_torchrun(case, kills):
    """Makes the same kill under torchrun, with ranks that only sum a value: no model, no checkpoint, no data."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return case.note("torchrun: not run, this Python has no torch")
    path = case.folder / "torchrun"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--max-restarts", str(kills),
               TORCHRUN_STEPS, path]

    def lines():
        file = Path(f"{path}.1")
        return [line.split() for line in file.read_text().split("\n")[:-1]] if file.exists() else []

    def new_rank(old):
        return wait_until("steps under torchrun", lambda: next((line for line in lines() if int(line[1]) not in old and line[2] == "3"), None), 120)
    # In a shared store, restarted ranks would find the first ones' addresses and wait for them.
    environment = {**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    times, old = [], set()
    with open(case.folder / "torchrun.log", "w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=environment)
    try:
        victim = new_rank(old)
        for _ in range(kills):
            old.add(int(victim[1]))
            killed = time.time()
            subprocess.run(["kill", "-9", victim[1]], check=True)
            victim = new_rank(old)
            first = next(line for line in lines() if line[1] == victim[1])
            times.append(float(first[0]) - killed)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()
    spread(case, "torchrun: first step of the new ranks after", times, "s")
    case.note("torchrun's ranks only sum one number over both ranks: they load no model and no checkpoint.")


STEP_SECONDS = "time_metrics/end_to_end(s)"


@row(2, "a rank hangs",
     how="SIGSTOP of rank 1 of 2, then of both; comm.train_timeout_seconds = 3",
     anchor="torchtitan gives up after 100 s, NVRx restarts inside the process after 61 to 96 s",
     invariant="the attempt ends with HANG and names the stopped rank and its phase, every rank's last collectives are kept, and the "
               "losses equal the undisturbed run's bit for bit",
     ci="faults_kills")
def rank_stopped(case: Measured):
    runs = 1 if case.short else 3
    case.start()
    job = submit_without_end(case, extra=["--comm.train_timeout_seconds", 3])
    detected, recovered = [], []
    for attempt in range(1, runs + 1):
        progress(case)
        stopped = time.time()
        recovered.append(case.first_new_step_after(lambda: rank(case, 1).kill(signal.SIGSTOP)))
        detected.append(journal_after(case, "AttemptEnded", stopped, f"attempt={attempt} ") - stopped)
    progress(case)
    stopped = time.time()
    for process in case.cluster.ranks():
        process.kill(signal.SIGSTOP)
    all_detected = journal_after(case, "AttemptEnded", stopped, f"attempt={runs + 1} ", limit=120) - stopped
    progress(case)
    cancel_and_compare(case, job)
    ended = case.attempts(job)
    named = [re.search(r"rank 1 on n1 in \w+ made no progress for \d+ s", one["end_message"]) for one in ended[:runs]]
    for one, name in zip(ended, named):
        case.assertEqual("HANG", one["end_cause"], one["end_message"])
        case.assertTrue(name, one["end_message"])
    case.assertEqual(("HANG", "CANCELLED"), (ended[runs]["end_cause"], ended[runs + 1]["end_cause"]))
    case.assertRegex(ended[runs]["end_message"], r"rank 0 on n1 in \w+, rank 1 on n1 in \w+")
    case.assertTrue(list(case.dump.glob("comm_traces/**/*")), "no record of the ranks' last collectives")
    paces = sorted(line[STEP_SECONDS] for line in metric_lines(case.dump) if STEP_SECONDS in line)
    target = round(max(5.0, 3 * paces[int(0.99 * (len(paces) - 1))]), 1)
    spread(case, "attempt ended after", detected, "s", at_most=target)
    spread(case, "first new step after", recovered, "s")
    case.figure("runs that name rank and phase", 100 * sum(map(bool, named)) / runs, "%", at_least=100)
    case.figure("with all ranks stopped, attempt ended after", all_detected, "s")
    case.note("comm.train_timeout_seconds is 100 s by default, as in torchtitan, and Titan derives no shorter one from the steps: by default a hung "
              "rank costs 100 s. If all ranks hang, the controller ends them after three times the timeout.")


MEMORY_GROUPS = Path("/sys/fs/cgroup/memory")


@row(20, "the kernel kills a rank for memory",
     how="a memory cgroup (version 1) around the worker, too small for its rank: 20 times with different limits",
     anchor="Slurm has the state OUT_OF_MEMORY; others show exit code 137",
     invariant="each attempt's cause is OUT_OF_MEMORY, read from the cgroup, and the job continues once there is memory",
     ci="faults_matrix")
def rank_out_of_memory(case: Measured):
    kills = 2 if case.short else 20
    group = MEMORY_GROUPS / f"titan-fault-{os.getpid()}"
    try:
        group.mkdir()
    except OSError as error:
        raise NotRun(f"no memory cgroup can be made here ({error.strerror})", "tests/faults/measure.sh 20, as root, with cgroup version 1") from error
    case.addCleanup(lambda: wait_until("the end of what is in the cgroup", lambda: try_remove(group), 30))
    case.start(devices=1)
    worker = case.cluster.worker("n1")
    worker.kill(restart=False)
    # The shell joins the group and becomes the worker, so its shims and ranks are in the group from their start.
    worker.command = ["/bin/sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *worker.command]
    worker.revive()
    (group / "memory.limit_in_bytes").write_text("120M")
    limits = random.Random(20)
    begun = time.time()
    patient = ["--restart.no_progress_limit", 100, "--restart.backoff_initial_seconds", 0.1, "--restart.backoff_max_seconds", 0.5]
    job = case.cluster.submit(*tiny(case.dump, steps=20, ranks=1, extra=patient))
    ended = journal_after(case, "AttemptEnded", begun, "attempt=1 ", limit=60)
    for number in range(2, kills + 1):
        with contextlib.suppress(OSError):  # The next rank already uses more: it is killed by the previous limit.
            (group / "memory.limit_in_bytes").write_text(f"{limits.randint(90, 120)}M")
        journal_after(case, "AttemptEnded", begun, f"attempt={number} ", limit=60)
    (group / "memory.limit_in_bytes").write_text("-1")
    case.finish(job)
    attempts = case.attempts(job)
    case.assertGreaterEqual(len(attempts) - 1, kills)
    case.assertEqual({"OUT_OF_MEMORY"}, {a["end_cause"] for a in attempts[:-1]}, [a["end_message"] for a in attempts])
    case.assertRegex(attempts[0]["end_message"], "memory")
    case.assert_same_curve(20, ranks=1)
    exited = event_after(case, job, "RankExited", begun)
    case.figure("attempts killed by the kernel", len(attempts) - 1, "")
    named = sum(a["end_cause"] == "OUT_OF_MEMORY" for a in attempts[:-1])
    case.figure("attempts named OUT_OF_MEMORY", 100 * named / (len(attempts) - 1), "%", at_least=100)
    case.figure("from rank exit to the attempt's named end", max(0.0, ended - exited), "s", at_most=0.2)
    case.note(f"The user reads: {attempts[0]['end_message']}")


def try_remove(group):
    try:
        group.rmdir()
        return True
    except OSError:
        return False


CPU_GROUPS = Path("/sys/fs/cgroup/cpu")


def processor_seconds(group):
    """Returns the CPU seconds of a cgroup's processes so far."""
    return sum(processes.cpu_seconds(pid) for pid in (group / "cgroup.procs").read_text().split())


WINDOW = 10.0  # Seconds; job::Stragglers::kWindow.
MAX_WINDOWS_TO_FLAG = 3  # Windows that are entirely within the fault.


@row(19, "a node is slow",
     how="one of two nodes, with one rank each, gets 30 % of the CPU time that it used before (cpu.cfs_quota_us)",
     anchor="NVRx flags a rank below 0.75 of the best rank's pace",
     invariant="only the rank on that node is flagged, its recovery is reported too, and nothing is restarted or moved",
     ci="reconcile_test")
def slow_node(case: Measured):
    runs, undisturbed = (1, 30) if case.short else (3, 240)
    group = CPU_GROUPS / f"titan-fault-{os.getpid()}"
    try:
        group.mkdir()
        (group / "cpu.cfs_quota_us").write_text("-1")
    except OSError as error:
        raise NotRun(f"no cpu cgroup can be made here ({error.strerror})", "tests/faults/measure.sh 19, as root, with cgroup version 1") from error
    case.addCleanup(lambda: wait_until("the end of what is in the cgroup", lambda: try_remove(group), 30))
    case.start(workers=2, devices=1)
    worker = case.cluster.worker("n2")
    worker.kill(restart=False)
    worker.command = ["/bin/sh", "-c", f'echo $$ > "{group}/cgroup.procs" && exec "$@"', "sh", *worker.command]
    worker.revive()
    job = submit_without_end(case, interval=1000, ranks_per_node=1)
    wait_step(case.dump, 20)
    placed = {p["node"]: int(p["first_rank"]) for p in case.attempts(job)[0]["placements"]}
    before, begun = processor_seconds(group), time.monotonic()
    time.sleep(undisturbed)
    took = (processor_seconds(group) - before) / (time.monotonic() - begun)  # On a busy machine much less than one CPU.
    flags = [event["message"] for event in case.cluster.events(job) if event["reason"] == "RankSlow"]
    case.assertEqual([], flags, "flagged although nothing slows it down")
    period = int((group / "cpu.cfs_period_us").read_text())
    flag_delays, recovered, right = [], [], 0
    for _ in range(runs):
        begun = time.time()
        (group / "cpu.cfs_quota_us").write_text(str(max(1000, int(0.3 * took * period))))
        flag_delays.append(event_after(case, job, "RankSlow", begun, limit=20 * WINDOW) - begun)
        event = [e for e in case.cluster.events(job) if e["reason"] == "RankSlow"][-1]
        right += (event["rank"], event["node"]) == (placed["n2"], "n2")
        case.assertIn(f"rank {placed['n2']} on n2", case.cluster.titanctl("describe", job).stdout)
        case.assertTrue(case.cluster.ask("node", "describe", "n2")["slow"])
        case.assertFalse(case.cluster.ask("node", "describe", "n1")["slow"])
        page = urllib.request.urlopen(f"http://127.0.0.1:{case.cluster.metrics_port}/metrics", timeout=10).read().decode()
        case.assertRegex(page, f'titan_rank_straggler_score{{[^}}]*node="n2",rank="{placed["n2"]}"[^}}]*}} 0')
        lifted = time.time()
        (group / "cpu.cfs_quota_us").write_text("-1")
        recovered.append(event_after(case, job, "RankPaceRecovered", lifted, limit=20 * WINDOW) - lifted)
    slow = [event for event in case.cluster.events(job) if event["reason"] == "RankSlow"]
    others = sum(event["node"] != "n2" for event in slow)
    case.assertEqual((runs, 0), (right, others), [event["message"] for event in slow])
    case.assertEqual(1, len(case.attempts(job)), "a slow rank must not restart the job")
    case.cluster.titanctl("cancel", job, "--wait")
    spread(case, "flagged after", flag_delays, "s")
    spread(case, "whole windows until flagged", [seconds // WINDOW for seconds in flag_delays], "", at_most=MAX_WINDOWS_TO_FLAG)
    case.figure("runs that name the right rank", 100 * right / runs, "%", at_least=100)
    spread(case, "recovery reported after", recovered, "s")
    case.figure("false flags", len(flags) + others, "", at_most=0)
    case.figure("undisturbed time before the fault", undisturbed, "s")
    case.figure("CPUs that the node used in that time", took, "")
    case.note("This row is too short to measure the rate of false flags. In tests of the rule, ranks that differ randomly (30 %, and one step in a "
              f"hundred ten times as long) are never flagged in 60 simulated hours. The last event: {slow[-1]['message']}")
