"""Processes from /proc, identified by pid and start time, so that a reused pid is never mistaken for the old process."""

import os
import re
import signal
import socket
from pathlib import Path


class Process:
    def __init__(self, pid, start_ticks, command, environment):
        self.pid, self.start_ticks, self.command, self.environment = pid, start_ticks, command, environment

    @property
    def identity(self):
        return self.pid, self.start_ticks

    @property
    def program(self):
        return os.path.basename(self.command[0]) if self.command else ""

    @property
    def rank(self):
        return int(self._flag("rank") or 0)

    def _flag(self, name):
        for i, word in enumerate(self.command):
            if word == f"--{name}" and i + 1 < len(self.command):
                return self.command[i + 1]
            if word.startswith(f"--{name}="):
                return word.split("=", 1)[1]
        return None

    @property
    def attempt(self):
        """Returns the attempt from the run folder in its command line: .../attempt-N."""
        found = re.search(r"attempt-(\d+)", " ".join(self.command))
        return int(found.group(1)) if found else None

    @property
    def store(self):
        """Returns HOST:PORT of a rank's store."""
        return self._flag("store")

    def alive(self):
        found = read(self.pid)
        return found is not None and found.identity == self.identity

    def kill(self, number=signal.SIGKILL):
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def __repr__(self):
        return f"{self.program}({self.pid}@{self.start_ticks})"


def read(pid):
    """Returns the process, or None if it is gone (or a zombie)."""
    folder = Path("/proc") / str(pid)
    try:
        stat = (folder / "stat").read_text()
        state, *fields = stat[stat.rindex(")") + 2:].split()
        if state in "ZX":
            return None
        command = (folder / "cmdline").read_bytes().split(b"\0")[:-1]
        pairs = [entry.split(b"=", 1) for entry in (folder / "environ").read_bytes().split(b"\0") if b"=" in entry]
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    environment = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in pairs}
    return Process(pid, int(fields[18]), [word.decode(errors="replace") for word in command], environment)


def all_with(variable, value):
    """Returns every live process with variable=value in its environment."""
    found = (read(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [p for p in found if p is not None and p.environment.get(variable) == value]


def cpu_seconds(pid):
    """Returns the CPU seconds that the process has used so far."""
    stat = (Path("/proc") / str(pid) / "stat").read_text()
    fields = stat[stat.rindex(")") + 2:].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def free_port():
    """Returns a free port, for foreign programs that cannot listen on port 0 and report the chosen one."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]
