"""Measures the control plane at the size of a large cluster: a real titan-controller on loopback under the load of scale_load.

    scale.py [--short] [--table] [PART ...]

Parts: submit workers busy watch watch_fast own failure recovery start slurm. Without --short the figures are those of 10,000
nodes, and every part takes less than five minutes. With --short a few hundred nodes show that nothing is lost. Prints one line of
JSON per part together with the machine's load, or with --table the rows for docs/benchmarks/controller.md.
"""

import argparse
import json
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
from paths import BIN
from processes import cpu_seconds, free_port
from processor import machine

TESTS = BIN.parent / "tests"
PARTS = ["submit", "workers", "busy", "watch", "watch_fast", "own", "failure", "recovery", "start", "slurm"]


class Controller:
    """One controller on its own port, and the resources that it has used."""

    def __init__(self, folder):
        self.folder = Path(folder)
        self.ports = self.folder / "ports.json"
        self.log = self.folder / "controller.log"
        self.address = "127.0.0.1:0"
        self.start()

    def start(self):
        """Starts the controller. Returns the seconds until it accepts calls."""
        self.ports.unlink(missing_ok=True)
        begun = time.monotonic()
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [BIN / "titan-controller", "--listen", self.address, "--state", self.folder / "state", "--metrics-port", "-1",
                 "--port-file", self.ports], stderr=log)
        while not self.ports.exists():
            if self.process.poll() is not None or time.monotonic() - begun > 120:
                sys.exit(f"the controller did not start:\n{self.log.read_text()[-2000:]}")
            time.sleep(0.002)
        took = time.monotonic() - begun
        self.address = f"127.0.0.1:{json.loads(self.ports.read_text())['port']}"
        return took

    def cpu(self):
        return cpu_seconds(self.process.pid)

    def end(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        self.process.wait()

    def count_events(self, *events):
        """Returns the number of journal lines with one of the events."""
        return sum(1 for line in self.log.read_text(errors="replace").splitlines() if any(f"event={event} " in line for event in events))


class Slurmctld:
    """Slurm's controller with a private munged, both in a folder. Its one node does not exist."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("munge", "state", "spool"):
            (folder / name).mkdir(parents=True)
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        host = socket.gethostname().split(".")[0]
        (folder / "slurm.conf").write_text("\n".join([
            "ClusterName=scale", f"SlurmctldHost={host}(127.0.0.1)", f"SlurmUser={pwd.getpwuid(os.getuid()).pw_name}",
            "AuthType=auth/munge", f"AuthInfo=socket={folder}/munge/socket", "CredType=cred/munge", f"SlurmctldPort={free_port()}",
            f"SlurmdPort={free_port()}", f"StateSaveLocation={folder}/state", f"SlurmdSpoolDir={folder}/spool",
            f"SlurmctldPidFile={folder}/slurmctld.pid", f"SlurmdPidFile={folder}/slurmd.pid", f"SlurmctldLogFile={folder}/slurmctld.log",
            "ProctrackType=proctrack/linuxproc", "TaskPlugin=task/none", "MpiDefault=none", "MaxJobCount=1000000",
            f"NodeName={host} NodeAddr=127.0.0.1 CPUs={os.cpu_count()} State=UNKNOWN",
            f"PartitionName=all Nodes={host} Default=YES MaxTime=INFINITE State=UP", ""]))

    def __enter__(self):
        munge = self.folder / "munge"
        munge.chmod(0o700)
        (munge / "key").write_bytes(os.urandom(1024))
        (munge / "key").chmod(0o400)
        with open(self.folder / "out", "wb") as out:
            self.munged = subprocess.Popen(
                ["munged", "--foreground", "--force", "--key-file", munge / "key", "--socket", munge / "socket", "--pid-file",
                 munge / "pid", "--log-file", munge / "log", "--seed-file", munge / "seed"], stdout=out, stderr=out)
            self.wait(lambda: (munge / "socket").exists())
            self.process = subprocess.Popen(["slurmctld", "-D", "-f", self.folder / "slurm.conf"], stdout=out, stderr=out,
                                            env={**os.environ, **self.environment})
        self.wait(lambda: subprocess.run(["scontrol", "ping"], capture_output=True, env={**os.environ, **self.environment}).returncode == 0)
        return self

    def wait(self, ready):
        begun = time.monotonic()
        while not ready():
            if time.monotonic() - begun > 30:
                sys.exit(f"Slurm did not start:\n{(self.folder / 'out').read_text()[-2000:]}")
            time.sleep(0.05)

    def __exit__(self, *_):
        for process in (self.process, self.munged):
            process.terminate()
            process.wait()


class Scale:
    def __init__(self, folder, short):
        self.folder, self.short = Path(folder), short
        self.nodes = 200 if short else 10_000

    def controller(self, name):
        folder = self.folder / name
        folder.mkdir()
        return Controller(folder)

    def command(self, controller, *arguments):
        return [TESTS / "scale_load", "--controller", controller.address, "--controller-pid", str(controller.process.pid),
                *map(str, arguments)]

    def load(self, controller, *arguments):
        """Returns the merged figures of all phases of a load."""
        run = subprocess.run(self.command(controller, *arguments), capture_output=True, text=True, timeout=900)
        figures = {}
        for line in run.stdout.splitlines():
            figures.update(json.loads(line))
        if run.returncode != 0:
            sys.exit(f"scale_load {' '.join(map(str, arguments))}: {run.stderr}\n{run.stdout}")
        return figures

    def submit(self):
        controller = self.controller("submit")
        before = controller.cpu()
        run = subprocess.run([TESTS / "submit_load", "--controller", controller.address, "--in-flight", "64", "--seconds",
                              "1" if self.short else "10", "--acknowledged", self.folder / "acknowledged"],
                             capture_output=True, text=True, check=True)
        figures = json.loads(run.stdout)
        figures["controller_cpu_ms_each"] = 1e3 * (controller.cpu() - before) / figures["acknowledged"]
        controller.end()
        return figures

    def workers(self, jobs=0):
        controller = self.controller(f"workers-{jobs}")
        figures = self.load(controller, "workers", "--workers", self.nodes, "--seconds", 2 if self.short else 60, "--jobs", jobs)
        figures["lost"] = controller.count_events("NodeLost", "NodeUnreachable")
        controller.end()
        return figures

    def busy(self):
        """Measures workers with a rank on every device, whose beats each show a new step of eight ranks."""
        return self.workers(jobs=4 if self.short else 40)

    def watch(self, own=False, rate=20):
        """Measures watchers that each get every change: watchers times rate deliveries per second. One watcher in twenty decodes
        the changes and records when it saw them; the others only receive bytes."""
        controller = self.controller(f"own-{rate}" if own else f"watch-{rate}")
        arguments = ["watch", "--watchers", 40 if self.short else 1000, "--seconds", 1 if self.short else 10, "--rate",
                     100 if self.short else rate]
        if self.short:
            arguments += ["--stuck", 4, "--read-one-in", 4, "--jobs", 20]
        figures = self.load(controller, *arguments, *(["--own"] if own else []))
        controller.end()
        return figures

    def watch_fast(self):
        return self.watch(rate=50)

    def own(self):
        return self.watch(own=True, rate=100)

    def failure(self):
        controller = self.controller("failure")
        figures = self.load(controller, "failure", "--workers", 50 if self.short else 1250, "--seconds", 0.2 if self.short else 0.8)
        figures["rss_growth_mib"] = figures["rss_peak_mib"] - figures["rss_before_mib"]
        controller.end()
        return figures

    def recovery(self):
        controller = self.controller("recovery")
        # Some nodes stay free for the jobs that are submitted afterwards.
        load = subprocess.Popen(self.command(controller, "recovery", "--workers", self.nodes, "--jobs", 4 if self.short else 9,
                                             "--ranks", 8 * (self.nodes // 10), "--seconds", 0.5 if self.short else 12),
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        figures = json.loads(load.stdout.readline() or "{}")
        if figures:
            controller.end(signal.SIGKILL)
            figures["serving_after_s"] = controller.start()
        out, error = load.communicate(timeout=600)
        for line in out.splitlines():
            figures.update(json.loads(line))
        figures["lost"] = controller.count_events("NodeLost", "NodeUnreachable")
        controller.end()
        if load.returncode != 0 or figures["lost"] > 0:
            sys.exit(f"scale_load recovery: {error}\n{figures}")
        return figures

    def start(self):
        controller = self.controller("start")
        figures = {}
        made = 0
        for finished in [200] if self.short else [10_000, 100_000]:
            # Names continue where the last load ended.
            self.load(controller, "fill", "--finished", finished - made, "--first", made)
            made = finished
            controller.end(signal.SIGKILL)
            figures[f"serving_after_kill_s_{finished}"] = controller.start()
            controller.end()
            figures[f"serving_s_{finished}"] = controller.start()
        controller.end()
        return figures

    def slurm(self):
        """Submits with one process per job, 64 at a time, to slurmctld with sbatch and to this controller with titanctl, alternating.
        The jobs stay queued, because execution is not compared. Slurm answers before its state is on the disk."""
        if any(shutil.which(program) is None for program in ("sbatch", "slurmctld", "munged")):
            return {"missing": "apt-get install slurmctld slurm-client munge"}
        controller = self.controller("slurm-titan")
        job = self.folder / "job.toml"
        job.write_text('[job]\ndescription = "scale"\n[training]\nsteps = 1\n')
        before = controller.cpu()
        titan = self.submitted_by_processes(
            [BIN / "titanctl", "--controller", controller.address, "submit", "--quiet", job, "--scheduling.job_id=j{}",
             "--job.dump_folder=/nonexistent/{}"], {})
        figures = {f"titan_{key}": value for key, value in titan.items()}
        figures["titan_cpu_ms_each"] = 1e3 * (controller.cpu() - before) / titan["accepted"]
        controller.end()
        with Slurmctld(self.folder / "slurm") as slurm:
            before = cpu_seconds(slurm.process.pid)
            by_processes = self.submitted_by_processes(["sbatch", "--parsable", "--hold", "--output=/dev/null", "--wrap=true", "--job-name=j{}"],
                                                 slurm.environment)
            figures["slurm_cpu_ms_each"] = 1e3 * (cpu_seconds(slurm.process.pid) - before) / by_processes["accepted"]
        return {**figures, **{f"slurm_{key}": value for key, value in by_processes.items()}}

    def submitted_by_processes(self, command, environment):
        """Submits for ten seconds. Each submission prints one line."""
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
            begun = time.monotonic()
            numbers = subprocess.Popen(["seq", "1000000"], stdout=subprocess.PIPE)
            crowd = subprocess.Popen(["xargs", "-P", "64", "-I{}", *map(str, command)], stdin=numbers.stdout, stdout=out, stderr=errors,
                                     env={**os.environ, **environment}, start_new_session=True)
            time.sleep(1 if self.short else 10)
            os.killpg(crowd.pid, signal.SIGKILL)
            crowd.wait()
            numbers.kill()
            numbers.wait()
            took = time.monotonic() - begun
            out.seek(0)
            errors.seek(0)
            accepted = len(out.read().splitlines())
            if accepted == 0:
                sys.exit(f"{command[0]} submitted nothing: {errors.read().decode(errors='replace')[:2000]}")
            return {"accepted": accepted, "per_second": accepted / took, "refused": len(errors.read().splitlines())}


def seconds(value):
    return f"{value:.2f} s"


# Keyed by part: rows of the table, each with what its figure includes.
def watch_row(f):
    return [(f"{f['watchers']} watchers of all jobs, {f['changes_per_second']:.0f} changes a second: "
             f"{f['messages_per_second']:.0f} deliveries a second",
             f"seen after p50 {f['change_to_seen']['p50_ms']:.1f} ms, p99 {f['change_to_seen']['p99_ms']:.1f} ms, the durable write "
             f"included; {f['controller_cores']:.2f} cores")]


ROWS = {
    "submit": lambda f: [("durable submissions, 64 at a time", f"{f['per_second']:.0f}/s, p50 {f['p50_ms']:.0f} ms, "
                          f"p99 {f['p99_ms']:.0f} ms; {f['controller_cpu_ms_each']:.2f} ms of CPU each")],
    "workers": lambda f: [
        (f"{f['workers']} idle workers register", f"{seconds(f['registered_s'])}, {seconds(f['registration_cpu_s'])} of CPU"),
        ("their beats, once a second", f"{f['controller_cores']:.2f} cores; answer p50 {f['ack']['p50_ms']:.1f} ms, "
         f"p99 {f['ack']['p99_ms']:.1f} ms; {f['lost']} lost")],
    "busy": lambda f: [
        (f"the same with {f['jobs']} jobs of {f['ranks_each']} ranks", f"{f['controller_cores']:.2f} cores; answer p50 "
         f"{f['ack']['p50_ms']:.1f} ms, p99 {f['ack']['p99_ms']:.1f} ms; {f['lost']} lost")],
    "watch": watch_row,
    "watch_fast": watch_row,
    "own": lambda f: [
        (f"{f['watchers']} watchers of one job each", f"seen after p50 {f['change_to_seen']['p50_ms']:.1f} ms, "
         f"p99 {f['change_to_seen']['p99_ms']:.1f} ms; {f['controller_cores']:.2f} cores")],
    "failure": lambda f: [
        (f"one job of {f['ranks']} ranks fails, all exits within {seconds(f['exits_within_s'])}",
         f"the next attempt's first Prepare {seconds(f['last_exit_to_first_prepare_s'])} after the last exit, the last one "
         f"{seconds(f['last_exit_to_last_prepare_s'])}; {f['controller_cpu_s']:.2f} s of CPU"),
        ("memory that this takes", f"{f['rss_growth_mib']:.0f} MiB above {f['rss_before_mib']:.0f}")],
    "recovery": lambda f: [
        (f"{f['workers']} workers come back to a controller that was killed",
         f"serving after {seconds(f['serving_after_s'])}, all back {seconds(f['all_back_s'])} after the first lost its stream; a new "
         f"job is placed within {seconds(f['probe_scheduled_s'])}; {f['lost']} lost, {f['jobs_restarted']} jobs touched")],
    "start": lambda f: [
        (f"from exec to serving, {key.rsplit('_', 1)[1]} finished jobs" + (", after SIGKILL" if "kill" in key else ""), seconds(value))
        for key, value in f.items() if key.startswith("serving")],
    "slurm": lambda f: [("Slurm on the same machine", f"not installed: {f['missing']}")] if "missing" in f else [
        ("a process a submission, 64 at a time: titanctl, durable", f"{f['titan_per_second']:.0f}/s, {f['titan_cpu_ms_each']:.2f} ms of the "
         "controller's CPU each"),
        ("sbatch and slurmctld", f"{f['slurm_per_second']:.0f}/s, {f['slurm_cpu_ms_each']:.2f} ms of CPU each")],
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", default=PARTS)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--table", action="store_true")
    flags = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="titan-scale-") as folder:
        scale = Scale(folder, flags.short)
        title = f"{machine()}, {time.strftime('%d %B %Y')}"
        print(f"{title}\n\n| | | load before, after |\n|---|---|---|" if flags.table else f"# {title}", flush=True)
        for part in flags.parts:
            before = os.getloadavg()[0]
            figures = getattr(scale, part)()
            figures["load_average"] = [round(before, 1), round(os.getloadavg()[0], 1)]
            if flags.table:
                for what, figure in ROWS[part](figures):
                    print(f"| {what} | {figure} | {figures['load_average'][0]}, {figures['load_average'][1]} |", flush=True)
            else:
                print(json.dumps({"part": part, **figures}), flush=True)


if __name__ == "__main__":
    main()
