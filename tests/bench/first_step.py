"""Measures seconds from launch to the first finished step: `titanctl run configs/llama3_tiny.toml --nproc 2` compared with
torchtitan under torchrun.

  .deps/venv/bin/python tests/bench/first_step.py [--repeat 5] [--no-peer]

Both print a line for step 1; the clock stops when that line arrives. Titan's phases come from rank 0's own events.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from alternating import run_alternating
from programs import Ended, titan_command, titan_environment, torchtitan_command, torchtitan_environment

COMMON = ["--training.steps", "10", "--training.local_batch_size", "1", "--training.seq_len", "256", "--metrics.log_freq", "1",
          "--lr_scheduler.warmup_steps", "1"]


def until_first_step(command, environment, folder, at_step=lambda: None):
    """Starts `command`, calls at_step() at its line for step 1, and waits for its end.

    Returns (seconds until that line, wall clock at the start).
    """
    began, start = time.time(), time.monotonic()
    process = subprocess.Popen([str(word) for word in command], env={**os.environ, **environment}, cwd=folder, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    seconds, output = None, []
    for line in process.stdout:
        output.append(line)
        if seconds is None and "step:" in line and "loss:" in line:
            seconds = time.monotonic() - start
            at_step()
    if process.wait() != 0 or seconds is None:
        raise Ended(f"{command[0]} ended with {process.returncode}:\n{''.join(output[-30:])}")
    return seconds, began


def keep_spool(folder):
    """Links rank 0's event file to a second name: the worker removes the file when the job ends."""
    (spool,) = folder.glob("cache/titan/run-*/worker/**/rank-0.events.jsonl")
    os.link(spool, folder / "spool.jsonl")


def phases(spool, began):
    """Returns from rank 0's events the seconds from the launch until the rank started, and of each phase up to the first finished step."""
    events = [json.loads(line) for line in spool.read_text().splitlines()]
    started = next(e for e in events if e["kind"] == "started")["time"] / 1e9
    times = {"until the rank starts": started - began}
    for event in events:
        if event["kind"] == "phase" and event["previous"] not in times:
            times[event["previous"]] = event["seconds"]
        if event["kind"] == "step":
            times["launch to step 1, in the rank"] = event["time"] / 1e9 - began
            break
    return times


def titan():
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        command = titan_command(folder, COMMON)
        seconds, began = until_first_step(command, titan_environment(folder), folder, lambda: keep_spool(folder))
        return seconds, phases(folder / "spool.jsonl", began)


def torchtitan():
    with tempfile.TemporaryDirectory() as folder:
        return until_first_step(torchtitan_command(Path(folder), COMMON), torchtitan_environment(), folder)[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    found, failed = run_alternating({"Titan": titan} if options.no_peer else {"Titan": titan, "torchtitan": torchtitan}, options.repeat)
    if failed:
        sys.exit("\n".join(failed.values()))
    ours, theirs = found["Titan"], found.get("torchtitan", [])
    median = statistics.median(seconds for seconds, _ in ours)
    print(f"titan       {median:.2f} s   (of {', '.join(f'{s:.2f}' for s, _ in sorted(ours))})")
    for phase in ours[0][1]:
        print(f"  {phase:<32}{statistics.median(p.get(phase, 0) for _, p in ours):.3f} s")
    if theirs:
        peer = statistics.median(theirs)
        print(f"torchtitan  {peer:.2f} s   (of {', '.join(f'{s:.2f}' for s in sorted(theirs))})")
        print(f"ratio       {peer / median:.1f}")


if __name__ == "__main__":
    main()
