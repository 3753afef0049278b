"""Tests what a process of this machine can reach, as another user or as a rank of a hostile job. Uses only the standard library.

    probe.py TARGETS.json RESULT.json

Tries every file, socket, process, port and variable that TARGETS names, changes nothing, and writes what it could reach.
"""

import ctypes
import json
import os
import re
import socket
import stat
import subprocess
import sys

NEXT = ".new"  # Suffix of a temporary file that is renamed to the name without it.
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17
libc = ctypes.CDLL(None, use_errno=True)


def can_open(path, flags):
    try:
        os.close(os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC))
        return True
    except OSError:
        return False


def can_connect(path):
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            folder = os.open(os.path.dirname(path), os.O_PATH)
            peer.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")  # Socket addresses hold at most 107 bytes.
            return True
        except OSError:
            return False


def generic(path, uids):
    """Returns the name of a file without the parts that differ from run to run."""
    for uid in uids:
        path = path.replace(uid, "UID")
    path = re.sub(r"\.\d+$", ".N", path.removesuffix(NEXT))
    return re.sub(r"(attempt|rank|step)-\d+", lambda found: found.group(1) + "-N", path)


def got_of(path):
    try:
        mode = os.lstat(path).st_mode
    except OSError:
        return set()
    if stat.S_ISSOCK(mode):
        return {"connect"} if can_connect(path) else set()
    if stat.S_ISDIR(mode):
        return {"list" if os.access(path, os.R_OK | os.X_OK) else "", "create" if os.access(path, os.W_OK | os.X_OK) else ""} - {""}
    return {"read" if can_open(path, os.O_RDONLY) else "", "write" if can_open(path, os.O_WRONLY) else ""} - {""}


def files(folder, known, uids):
    """Returns the access by generic name. `known`: paths in the folder, found by the test's own user; they may be open to us though
    the folder cannot be listed.

    A file that was seen during its write is tried under both names: by now it may have the other one.
    """
    got = {}
    for path in sorted({os.path.join(folder, name) for seen in known for name in (seen, seen.removesuffix(NEXT))}):
        got.setdefault(generic(os.path.relpath(path, folder), uids), set()).update(got_of(path))
    return {name: sorted(what) for name, what in got.items()}


def signals(pid):
    try:
        os.kill(pid, 0)
        return True
    except OSError:
        return False


def traces(pid):
    if libc.ptrace(PTRACE_SEIZE, pid, 0, 0) != 0:
        return False
    libc.ptrace(PTRACE_DETACH, pid, 0, 0)
    return True


def process(pid):
    folder = f"/proc/{pid}"
    what = {"environment": can_read(f"{folder}/environ"), "memory": can_open(f"{folder}/mem", os.O_RDONLY), "open files": can_list(f"{folder}/fd"),
            "signals": signals(pid), "ptrace": traces(pid)}
    return sorted(name for name, is_got in what.items() if is_got)


def can_read(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
        return True
    except OSError:
        return False


def can_list(path):
    try:
        os.listdir(path)
        return True
    except OSError:
        return False


def port(number):
    try:
        with socket.create_connection(("127.0.0.1", number), 5):
            return ["connect"]
    except OSError:
        return []


def call(titanctl, address, words, token):
    """Returns the result of titanctl without credentials, or with a token that was found."""
    flags = ["--token-file", token] if token else []
    environment = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    done = subprocess.run([titanctl, "--controller", address, "--timeout", "5", *flags, "-o", "json", *words], env=environment, cwd="/",
                          capture_output=True, text=True, timeout=60)
    if done.returncode == 0:
        return "done"
    try:
        return json.loads(done.stderr.splitlines()[-1])["error"]["reason"] or "refused"
    except (ValueError, KeyError, IndexError):
        return "refused"


def probe(targets):
    mine = set(os.environ)
    return {
        "files": {what: files(folder, targets["known"][what], targets["uids"]) for what, folder in targets["folders"].items()},
        "processes": {what: process(pid) for what, pid in targets["pids"].items()},
        "ports": {what: port(number) for what, number in targets["ports"].items()},
        "calls": {what: call(targets["titanctl"], targets["controller"], words, token) for what, words, token in targets["calls"]},
        "variables": {what: sorted(set(names) & mine) for what, names in targets["variables"].items()},
    }


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        wanted = json.load(file)
    result = probe(wanted)
    with open(sys.argv[2] + ".new", "w") as file:
        json.dump(result, file)
    os.rename(sys.argv[2] + ".new", sys.argv[2])
