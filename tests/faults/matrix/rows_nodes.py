"""Rows of nodes: their daemons killed and stopped, and whole nodes lost."""

import signal
import time

from matrix.observe import (FOREVER, assert_one_truth, cancel_and_compare, journal, journal_after, progress, seconds_of,
                            submit_without_end)
from matrix.row import Measured, row, spread

from cluster import wait_until
from jobs import committed_steps, last_step, metric_lines, tiny, wait_step


def identities(case):
    return [process.identity for process in case.cluster.ranks()]


@row(3, "a worker daemon is killed during training",
     how="SIGKILL; a supervisor restarts it at once",
     anchor="Slurm's steps continue (slurmstepd), Ray kills the node's work",
     invariant="the same rank processes continue in one attempt, every commit is reported once, and the losses equal the undisturbed run's",
     ci="faults_kills")
def daemon_killed(case: Measured):
    kills = 3 if case.short else 5
    case.start()
    job = submit_without_end(case)
    wait_step(case.dump, 1)
    before = identities(case)
    adopted = []
    for _ in range(kills):
        killed = time.time()
        case.cluster.worker("n1").kill()
        adopted.append(journal_after(case, "NodeRegistered", killed, "node=n1") - killed)
        case.assertEqual(before, identities(case))
        wait_step(case.dump, last_step(case.dump) + 2)
    cancel_and_compare(case, job)
    attempts = len(case.attempts(job))
    case.assertEqual(1, attempts)
    messages = [event["message"].split(" (")[0] for event in case.commits(job)]
    expected = sorted({*range(5, last_step(case.dump) + 1, 5), last_step(case.dump)})  # Each fifth step, and that of the cancellation.
    case.assertEqual([f"step {step}" for step in expected], messages)
    spread(case, "node and ranks registered again after", adopted, "s", at_most=1)
    case.figure("restarts", attempts - 1, "", at_most=0)


@row(4, "a worker daemon hangs for 3 s and for 30 s",
     how="SIGSTOP and SIGCONT of the daemon alone; one job spans two nodes, another runs only on a stopped node "
         "(restart.unreachable_grace_seconds = 5) while a spare node is free",
     anchor="Nomad marks the node down after 20 to 30 s",
     invariant="after 3 s nothing happens; after 30 s the spanning job continues in the same processes, the other job moves, no attempt "
               "writes after its successor, and steps trained twice have one loss",
     ci="faults_matrix")
def daemon_stopped(case: Measured):
    away = 15 if case.short else 30
    case.start(workers=4, devices=1)
    spanning, alone = case.folder / "spanning", case.folder / "alone"
    wide = case.cluster.submit(*tiny(spanning, steps=FOREVER, ranks_per_node=1))
    narrow = case.cluster.submit(*tiny(alone, steps=FOREVER, ranks=1, extra=["--restart.unreachable_grace_seconds", 5]))
    wait_step(spanning, 2)
    wait_step(alone, 2)
    wide_node = case.attempts(wide)[0]["placements"][1]["node"]
    narrow_node = case.attempts(narrow)[0]["placements"][0]["node"]
    before = identities(case)
    daemons = [case.cluster.worker(name).process for name in (wide_node, narrow_node)]

    def pause_daemons(seconds):
        """Stops both daemons for `seconds`; returns when the pause began."""
        stopped = time.time()
        for daemon in daemons:
            daemon.send_signal(signal.SIGSTOP)
        wait_until("the end of the pause", lambda: time.time() - stopped >= seconds or None, seconds + 30)
        for daemon in daemons:
            daemon.send_signal(signal.SIGCONT)
        return stopped

    stopped = pause_daemons(3)
    for dump in (spanning, alone):
        progress(case, dump)
    case.assertEqual((1, 1), (len(case.attempts(wide)), len(case.attempts(narrow))))
    case.assertEqual(before, identities(case))
    case.assertEqual([], journal(case, "NodeLost", stopped) + journal(case, "NodeUnreachable", stopped))
    reached = last_step(spanning)
    stopped = pause_daemons(away)
    progress(case, spanning)
    restarts = len(case.attempts(wide)) - 1
    case.assertEqual(0, restarts, "the spanning job was restarted")
    case.assertGreater(last_step(spanning), reached)
    placed = wait_until("the next attempt of the job on the silent node", lambda: journal(case, "AttemptPlaced", stopped) or None)[0]
    wait_until("a step of the next attempt", lambda: any(line["attempt"] == 2 for line in metric_lines(alone)) or None, 60)
    trained = next(seconds_of(line["time"]) for line in metric_lines(alone) if line["attempt"] == 2)
    progress(case, alone)
    wait_until("the old attempt's rank to leave", lambda: len(case.cluster.ranks()) == 3 or None, 60)
    case.assertEqual(2, len(case.attempts(narrow)))
    case.assertNotEqual(narrow_node, case.attempts(narrow)[1]["placements"][0]["node"])
    for job in (wide, narrow):
        case.cluster.titanctl("cancel", job, "--wait")
    for dump in (spanning, alone):
        assert_one_truth(case, dump)
    silent = journal_after(case, "NodeUnreachable", stopped, f"node={wide_node}")
    case.figure("spanning job: node unreachable after", silent - stopped, "s")
    case.figure("spanning job: restarts", restarts, "", at_most=0)
    case.figure("other job: placed elsewhere after", placed - stopped, "s", at_most=12)
    case.figure("other job: trains there after", trained - stopped, "s")
    case.note(f"The long pause was {away} s. A job whose nodes are all silent waits for restart.unreachable_grace_seconds (60 by default) beyond the "
              "lease of 5 s, because it may still train.")


@row(5, "a node is lost",
     how="SIGKILL of its daemon, shim and rank together, never restarted; the job runs on two nodes and a third is spare",
     anchor="Kubernetes ~340 s, Slurm 300 s, Ray 15 to 65 s, torchft 5 s",
     invariant="the next attempt runs on the spare node and resumes from the newest commit, and the losses equal the undisturbed run's bit "
               "for bit",
     ci="faults_kills")
def node_lost(case: Measured):
    case.start(workers=3, devices=1)
    job = case.cluster.submit(*tiny(case.dump, steps=40, ranks_per_node=1))
    progress(case)
    placed = [p["node"] for p in case.attempts(job)[0]["placements"]]
    spare = ({"n1", "n2", "n3"} - set(placed)).pop()
    committed = max(committed_steps(case.dump))
    killed = time.time()
    case.cluster.kill_node(placed[0])  # The leader's node: rank 0, the store and the metrics are lost with it.
    moved = journal_after(case, "AttemptPlaced", killed, "attempt=2 ", limit=60)
    wait_until("a step of the next attempt", lambda: 2 in case.attempts_that_wrote() or None, 60)
    trained = next(seconds_of(line["time"]) for line in metric_lines(case.dump) if line["attempt"] == 2)
    case.finish(job)
    first, second = case.attempts(job)
    case.assertEqual({placed[1], spare}, {p["node"] for p in second["placements"]})
    case.assertGreaterEqual(second["resumed_step"], committed)
    case.assert_same_curve(40)
    lost = journal_after(case, "NodeLost", killed, f"node={placed[0]}")
    case.figure("node lost after", lost - killed, "s", at_most=5)
    case.figure("next attempt placed after", moved - killed, "s")
    case.figure("training on the spare after", trained - killed, "s", at_most=10)
    case.note(f"The lease is 5 s. The attempt's cause: {first['end_cause']}. A job without another node also waits for "
              "restart.unreachable_grace_seconds (60 by default).")
