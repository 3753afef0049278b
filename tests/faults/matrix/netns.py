"""A cluster in which every daemon has a separate network namespace, like daemons on separate hosts: one bridge, one
address each.

Needs root and iproute2. All share one file system, like a shared dump folder.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "testing"))
from cluster import BIN, Cluster, wait_until  # noqa: E402

CONTROLLER = "controller"
PORT = 7700


def available():
    """Returns "" if namespaces can be created here, otherwise the reason."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "needs root and iproute2"
    name = f"titan-probe-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True)
    if made.returncode != 0:
        return made.stderr.strip()
    subprocess.run(["ip", "netns", "del", name], check=False)
    return ""


class Network:
    """Hosts on one switch. Namespace names contain this process's id, so that several networks can exist at once."""

    def __init__(self, hosts):
        self.prefix = f"titan-{os.getpid()}"
        self.hosts = list(hosts)
        self.made = []
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self):
        self._add("switch")
        self.run("switch", "ip", "link", "add", "bridge", "type", "bridge")
        self.run("switch", "ip", "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts, start=1):
            self._add(host)
            self.run("switch", "ip", "link", "add", f"to-{number}", "type", "veth", "peer", "name", "eth0", "netns", self.space(host))
            self.run("switch", "ip", "link", "set", f"to-{number}", "master", "bridge", "up")
            self.run(host, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
            self.run(host, "ip", "link", "set", "lo", "up")
            self.run(host, "ip", "link", "set", "eth0", "up")

    def _add(self, name):
        subprocess.run(["ip", "netns", "add", self.space(name)], check=True)
        self.made.append(self.space(name))

    def space(self, name):
        return f"{self.prefix}-{name}"

    def address(self, host):
        return f"10.77.0.{self.hosts.index(host) + 1}"

    def prefix_of(self, host):
        """Returns the prefix that runs a command on the host; `ip` execs it, so that its process id is the command's.
        """
        return ["ip", "netns", "exec", self.space(host)]

    def run(self, host, *command):
        subprocess.run([*self.prefix_of(host), *command], check=True, capture_output=True, text=True)

    # --- Faults ---

    def link(self, host, up):
        """Connects or disconnects the host's cable. Without it packets are lost in both directions, silently."""
        self.run("switch", "ip", "link", "set", f"to-{self.hosts.index(host) + 1}", "up" if up else "down")

    def blackhole(self, sender, receiver, on):
        """Drops packets from `sender` to `receiver`; the other direction works."""
        verb = "add" if on else "del"
        self.run(sender, "ip", "route", verb, "blackhole", f"{self.address(receiver)}/32")

    def cut(self, one, other, on):
        self.blackhole(one, other, on)
        self.blackhole(other, one, on)

    def close(self):
        for space in self.made:
            subprocess.run(["ip", "netns", "del", space], check=False)


class NetworkCluster(Cluster):
    """A cluster with hosts n1, n2, ... of `devices` each, and the controller on another host."""

    def __init__(self, workers=4, devices=1, **options):
        self.network = Network([CONTROLLER, *(f"n{i + 1}" for i in range(workers))])
        try:
            super().__init__(workers=workers, devices=devices, **options)
        except BaseException:
            self.network.close()
            raise

    def _start_controller(self, lease_ms):
        port_file = self.folder / "controller-ports.json"
        self.address = f"{self.network.address(CONTROLLER)}:{PORT}"
        command = [BIN / "titan-controller", "--state", self.folder / "controller", "--listen", self.address, "--insecure", "--metrics-port", "7701",
                   "--port-file", port_file]
        if lease_ms:
            command += ["--lease-ms", lease_ms]
        daemon = self._add(CONTROLLER, command)
        wait_until("controller port file", lambda: self._ports(port_file, daemon))
        self.metrics_port = 7701

    def add_worker(self, name, devices=None):
        return self._add(name, [BIN / "titan-worker", "--insecure", "--controller", self.address, "--node", name, "--state", self.folder / name,
                                "--devices", f"cpu:{devices or self.devices}", "--address", self.network.address(name),
                                "--metrics-port", "-1", *(("--rank-user", "root") if os.geteuid() == 0 else ())])

    def _add(self, name, command):
        return super()._add(name, [*self.network.prefix_of(name), *command])

    def titanctl(self, *arguments, check=True, timeout=60, **_):
        done = subprocess.run([*self.network.prefix_of(CONTROLLER), BIN / "titanctl", *map(str, arguments)],
                              env={**self.environment, "TITAN_CONTROLLER": self.address, "TITAN_INSECURE": "1"}, capture_output=True, text=True,
                              timeout=timeout, cwd=self.folder, check=False)
        if check and done.returncode != 0:
            raise AssertionError(f"titanctl {' '.join(map(str, arguments))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done

    def close(self):
        super().close()
        self.network.close()
