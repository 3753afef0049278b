"""Measures one run of Titan or torchtitan, both in the same way: by the timestamped line that they print for each step, the files
of their checkpoints, and the memory of all their processes.
"""

import dataclasses
import datetime
import os
import re
import signal
import statistics
import tempfile
import time
from pathlib import Path

from programs import Ended, measured, pid_of_rank, titan_command, titan_environment, torchtitan_command, torchtitan_environment

WARM = 2  # Warm-up steps, which do not count.
LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .*step:\s*(\d+)\s+loss:\s*([\d.]+).*tps:\s*([\d,]+)")
START = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) .*Training starts at step")
RESTARTS = 1
COMMITTED = ("manifest.json", ".metadata")  # The file that each program publishes last in a checkpoint.


@dataclasses.dataclass
class Step:
    number: int
    loss: float
    speed: float  # Tokens per second and rank.
    at: float  # Wall clock when it was printed.


@dataclasses.dataclass
class Run:
    """Figures of one run, in seconds and bytes. None: not measured in this run."""

    speed: float  # Tokens per second and rank, the median of steps.
    loss: float  # Loss of the last step.
    peak: int  # Bytes of all processes.
    first_step: float  # Seconds from the launch.
    stall: float = None  # Delay of the step after a save.
    save: float = None  # From the line of the saved step until the checkpoint is published.
    bandwidth: float = None  # Bytes per second of that save.
    recovery: float = None  # From a rank's SIGKILL to the next trained step.


def stamp(text):
    return datetime.datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f").timestamp()


def plain(output):
    return re.sub(r"\x1b\[[\d;]*m", "", output)


def steps_of(output, after=0.0):
    """Returns the steps that were printed after this time, in order. Each of torchtitan's ranks prints every step: the first
    line counts."""
    found = {}
    for when, number, loss, speed in LINE.findall(plain(output)):
        if stamp(when) > after:
            found.setdefault(int(number), Step(int(number), float(loss), float(speed.replace(",", "")), stamp(when)))
    return [found[number] for number in sorted(found)]


def stall_of(steps, saved):
    """Returns the seconds by which the step after `saved` came later than usual."""
    at = {step.number: step.at for step in steps}
    gaps = {number: at[number + 1] - at[number] for number in at if number + 1 in at and number > WARM}
    usual = [gap for number, gap in gaps.items() if number != saved]
    return gaps[saved] - statistics.median(usual) if saved in gaps and usual else None


def recovery_of(output, killed):
    """Returns the seconds from `killed` to the first step of the ranks that were started after it; None without such a step."""
    starts = [stamp(when) for when in START.findall(plain(output)) if stamp(when) > killed]
    steps = [stamp(found[0]) for found in LINE.findall(plain(output)) if starts and stamp(found[0]) >= min(starts)]
    return min(steps) - killed if steps else None


def published(dump, step):
    """Returns the file of this step's checkpoint that is published last; None while it does not exist."""
    return next((file for name in COMMITTED if (file := dump / f"checkpoint/step-{step}" / name).exists()), None)


class Save:
    """The checkpoint of one step, read before its folder is removed."""

    def __init__(self, dump, step):
        self.dump, self.step = dump, step

    def figures(self, steps):
        """Returns (seconds until it was published, bytes per second); (None, None) if it never was."""
        last = published(self.dump, self.step)
        saved = next((one for one in steps if one.number == self.step), None)
        if last is None or saved is None:
            return None, None
        seconds = max(last.stat().st_mtime - saved.at, 1e-3)
        return seconds, sum(file.stat().st_size for file in last.parent.rglob("*") if file.is_file()) / seconds


class Killer:
    """Kills rank 1 once a step is committed."""

    def __init__(self, dump, step):
        self.dump, self.step = dump, step
        self.killed = None  # Wall clock of the kill.

    def __call__(self, memory, over):
        while not over.wait(0.01):
            if published(self.dump, self.step) is not None and (pid := pid_of_rank(memory, 1)) is not None:
                self.killed = time.time()
                os.kill(pid, signal.SIGKILL)
                return


def from_weights(folder):
    """Returns words for both programs that start training from this Hugging Face folder."""
    return ["--checkpoint.enable", "--checkpoint.initial_load_in_hf", "--checkpoint.initial_load_path", folder, "--checkpoint.interval", 10**6]


def run(program, flags, save_at=None, kill=False, weights=None):
    """Runs "Titan", "torchtitan" or "transformers" once with words for it. Errors: Ended.

    Step `save_at` is saved asynchronously. With `kill`, rank 1 is killed once that save is committed. Training begins from
    `weights`, a Hugging Face folder, if it is given.
    """
    with tempfile.TemporaryDirectory() as folder:
        folder = Path(folder)
        dump = folder / "dump"
        saving = [] if save_at is None else ["--checkpoint.enable", "--checkpoint.async_mode", "async", "--checkpoint.interval", save_at,
                                             "--checkpoint.keep_latest_k", 0]
        if weights is not None:
            saving = [*saving, *from_weights(weights)]
        if program == "Titan":
            command, environment = titan_command(folder, [*flags, *saving], saving=bool(saving)), titan_environment(folder)
        else:
            words = [*flags, *saving]
            command, environment = torchtitan_command(folder, words, RESTARTS if kill else 0, f"{program}_main.py"), torchtitan_environment()
        killer = Killer(dump, save_at) if kill else None
        began = time.time()
        code, output, peak = measured(command, environment, folder, killer)
        steps = steps_of(output)
        speeds = [step.speed for step in steps if step.number > WARM]
        if code != 0 or not speeds:
            raise Ended(f"{command[0]} ended with {code}:\n{output[-3000:]}")
        result = Run(statistics.median(speeds), steps[-1].loss, peak, steps[0].at - began)
        if kill:
            if killer.killed is None:
                raise Ended(f"{program}: the last step came before step {save_at} was committed")
            result.recovery = recovery_of(output, killer.killed)
        elif save_at is not None:
            result.stall = stall_of(steps, save_at)
            result.save, result.bandwidth = Save(dump, save_at).figures(steps)
        return result


def flags_of(model, steps, seq_len, batch, words=()):
    """Returns words for both programs."""
    family, _, flavor = model.partition("/")
    return ["--model.name", family, "--model.flavor", flavor, "--training.steps", steps, "--training.seq_len", seq_len,
            "--training.local_batch_size", batch, "--metrics.log_freq", 1, "--optimizer.lr", 8e-4, "--lr_scheduler.warmup_steps", 1,
            "--lr_scheduler.decay_ratio", 0.8, "--lr_scheduler.min_lr_factor", 0.0, *words]
