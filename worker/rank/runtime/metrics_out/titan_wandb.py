"""Sends a job's metrics.jsonl to Weights & Biases (metrics.enable_wandb). titan-rank starts it as

    python3 titan_wandb.py --dump-folder FOLDER --job UID --attempt N

with a socket as standard input: "finish" on it means that no line follows, and end of file that the rank is gone. Messages are sent
back on it, one line each: "run WHERE" and "warning TEXT". See docs/howto/weights-and-biases.md.
"""

import argparse
import hashlib
import json
import os
import signal
import socket
import sys
import threading
from datetime import datetime

PAUSE = 0.5  # Seconds between two reads of the file.
LAST_WORDS = 5.0  # Seconds to send the remaining data after the rank is gone.


class Rank:
    """The other end of the socket."""

    def __init__(self):
        self.socket = socket.socket(fileno=os.dup(0))  # Not inherited, unlike 0: wandb's own process must not keep it open.
        with open(os.devnull) as nothing:
            os.dup2(nothing.fileno(), 0)
        self.ended = threading.Event()
        self.finished = False
        threading.Thread(target=self.listen, daemon=True).start()

    def listen(self):
        heard = b""
        try:
            while more := self.socket.recv(64):
                heard += more
                if b"finish\n" in heard:
                    self.finished = True
                    self.ended.set()
        except OSError:
            pass
        self.ended.set()
        threading.Event().wait(LAST_WORDS)
        os._exit(1)

    def say(self, kind, text):
        secret = os.environ.get("WANDB_API_KEY")
        if secret:
            text = text.replace(secret, "(left out)")
        try:
            self.socket.sendall(f"{kind} {' '.join(text.split())}\n".encode())
        except OSError:
            pass  # The rank is gone: listen() ends this process.


class Lines:
    """Iterates over the new complete lines of a growing file, numbered from 0. An incomplete line is left for the next iteration."""

    def __init__(self, path):
        self.path, self.offset, self.number = path, 0, 0

    def __iter__(self):
        try:
            file = open(self.path, "rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self.offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self.offset += len(line)
                self.number += 1
                yield self.number - 1, line


def entry_of(line, job):
    """Returns a line's members, or None if it belongs to another job or is not a line of metrics."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) and entry.get("job") == job and "step" in entry else None


def figures(entry):
    """Returns a line's scalars with its step and attempt."""
    # JSON has no number for values that are not finite.
    scalars = {name: float("nan") if value is None else value for name, value in entry.items()
               if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))}
    try:
        scalars["_timestamp"] = datetime.fromisoformat(str(entry.get("time")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    return scalars


def pictures(entry, wandb, folder):
    """Returns a line's pictures for wandb; those without a readable file are left out."""
    found, named = [], entry.get("pictures")
    for one in named if isinstance(named, list) else []:
        try:
            found.append(wandb.Image(os.path.join(folder, one["file"]), caption=one["caption"] or None))
        except (OSError, ValueError, KeyError, TypeError):
            pass
    return {"validation_pictures": found} if found else {}


def run_id(job, folder):
    """Returns the same id for every attempt of a job. Jobs started by hand share one name, so their folder distinguishes them."""
    name = job if job != "by-hand" else os.path.realpath(folder)
    return "titan-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def begin(wandb, options):
    """Begins or continues the job's run. Reads torchtitan's variables; wandb reads others (WANDB_MODE, WANDB_API_KEY, ...) itself."""
    setting = os.environ.get
    own_id = setting("WANDB_RUN_ID") or run_id(options.job, options.dump_folder)
    resume_from, fork_from = setting("WANDB_RESUME_FROM"), setting("WANDB_FORK_FROM")
    if resume_from:
        own_id = resume_from.split("?")[0]
    begins_elsewhere = options.attempt <= 1 and (resume_from or fork_from)
    try:
        with open(os.path.join(options.dump_folder, "config.json")) as file:
            config = json.load(file)
    except (OSError, ValueError):
        config = {}
    tags = setting("WANDB_RUN_TAGS")
    run = wandb.init(
        entity=setting("WANDB_TEAM"), project=setting("WANDB_PROJECT", "torchtitan"), name=setting("WANDB_RUN_NAME"), id=own_id,
        notes=setting("WANDB_RUN_NOTES"), tags=tags.split(",") if tags else None, group=setting("WANDB_RUN_GROUP"),
        job_type=setting("WANDB_RUN_JOB_TYPE"), dir=options.dump_folder, config=config,
        **({"resume_from": resume_from, "fork_from": fork_from} if begins_elsewhere else {"resume": "allow"}))
    # Rolled-back steps are trained again. wandb's own step cannot decrease, but a metric can.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def follow(run, wandb, options, rank):
    """Logs all lines until the rank has ended. A line's number is wandb's step, so a continued run knows how many lines it has."""
    numbered = not (os.environ.get("WANDB_RESUME_FROM") or os.environ.get("WANDB_FORK_FROM"))  # If not, the steps are the other run's.
    first = run.step if numbered else 0
    lines = Lines(os.path.join(options.dump_folder, "metrics.jsonl"))
    while True:
        last = rank.ended.wait(PAUSE)
        for number, line in lines:
            entry = entry_of(line, options.job)
            if entry is None or number < first or not (numbered or entry.get("attempt") == options.attempt):
                continue
            run.log(figures(entry) | pictures(entry, wandb, options.dump_folder), **({"step": number, "commit": True} if numbered else {}))
        if last:
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump-folder", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Meant for the rank, which signals its end.
    os.nice(5)  # The ranks have priority.
    rank = Rank()
    try:
        import wandb
    except Exception as error:  # Importing a package can raise anything.
        rank.say("warning", f"{sys.executable} cannot import wandb ({error}): pip install wandb there, or set another Python with TITAN_RANK_PYTHON")
        return 1
    try:
        run = begin(wandb, options)
        rank.say("run", run.url or os.path.dirname(run.dir))
        follow(run, wandb, options, rank)
        run.finish(exit_code=0 if rank.finished else 1)
    except Exception as error:  # wandb raises many types.
        rank.say("warning", f"wandb: {type(error).__name__}: {error}; set WANDB_API_KEY, or WANDB_MODE=offline, which keeps the run in "
                            f"{options.dump_folder}/wandb for wandb sync")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Without waiting for wandb's other threads and exit handlers.
