"""Sends what a job writes to metrics.jsonl to Weights & Biases (metrics.enable_wandb). titan-rank starts it as

    python3 titan_wandb.py --dump-folder FOLDER --job UID --attempt N

with a socket as standard input: "finish" on it means that no line follows, its end that the rank is gone. What there is to say goes
back the same way, one line each: "run WHERE" and "warning TEXT". See docs/howto/weights-and-biases.md.
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

PAUSE = 0.5  # Seconds between two looks at the file.
LAST_WORDS = 5.0  # Seconds for what is not sent yet when the rank is gone.


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
            pass  # It is gone: listen() sees to the rest.


class Lines:
    """The whole lines of a file that grows, with their numbers from 0; one that is half written is left for the next look."""

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


def figures(line, job):
    """A line's scalars with its step and attempt; None: it is another job's, or no line of metrics."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, dict) or entry.get("job") != job or "step" not in entry:
        return None
    # JSON has no number for what is not finite.
    scalars = {name: float("nan") if value is None else value for name, value in entry.items()
               if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))}
    try:
        scalars["_timestamp"] = datetime.fromisoformat(str(entry.get("time")).replace("Z", "+00:00")).timestamp()
    except ValueError:
        pass
    return scalars


def run_id(job, folder):
    """The same for every attempt of a job. Jobs that are started by hand have one name for all: their folder tells them apart."""
    name = job if job != "by-hand" else os.path.realpath(folder)
    return "titan-" + hashlib.sha256(name.encode()).hexdigest()[:16]


def begin(wandb, options):
    """The job's run, begun or continued. torchtitan's variables; wandb reads others (WANDB_MODE, WANDB_API_KEY, ...) itself."""
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
    # Steps that were rolled back are trained again: wandb's own counter cannot go back, a figure can.
    run.define_metric("step")
    run.define_metric("*", step_metric="step")
    return run


def follow(run, options, rank):
    """Logs all lines until the rank has ended. A line's number is wandb's own step: a run that is continued says how many it has."""
    numbered = not (os.environ.get("WANDB_RESUME_FROM") or os.environ.get("WANDB_FORK_FROM"))  # There the steps are the other run's.
    first = run.step if numbered else 0
    lines = Lines(os.path.join(options.dump_folder, "metrics.jsonl"))
    while True:
        last = rank.ended.wait(PAUSE)
        for number, line in lines:
            scalars = figures(line, options.job)
            if scalars is None or number < first or not (numbered or scalars.get("attempt") == options.attempt):
                continue
            run.log(scalars, **({"step": number, "commit": True} if numbered else {}))
        if last:
            return


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--dump-folder", required=True)
    parser.add_argument("--job", required=True)
    parser.add_argument("--attempt", type=int, required=True)
    options = parser.parse_args()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # Meant for the rank, which says when it ends.
    os.nice(5)  # The ranks first.
    rank = Rank()
    try:
        import wandb
    except Exception as error:  # Whatever a package does when it is imported.
        rank.say("warning", f"{sys.executable} cannot import wandb ({error}): pip install wandb there, or name another Python with TITAN_RANK_PYTHON")
        return 1
    try:
        run = begin(wandb, options)
        rank.say("run", run.url or os.path.dirname(run.dir))
        follow(run, options, rank)
        run.finish(exit_code=0 if rank.finished else 1)
    except Exception as error:  # wandb has many kinds.
        rank.say("warning", f"wandb: {type(error).__name__}: {error}; set WANDB_API_KEY, or WANDB_MODE=offline, which keeps the run in "
                            f"{options.dump_folder}/wandb for wandb sync")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # Without what else wandb would wait for.
