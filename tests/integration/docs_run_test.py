"""Runs every command of README.md and of the pages with commands for the reader: each page's ```sh blocks in one shell, pasted in
order, daemons included, with a tenth of the training steps. Commands that need other machines are in ```text blocks.

    docs_run_test.py [--pages NAME...]      runs the commands of these pages only
"""

import ctypes
import fcntl
import os
import re
import socket
import struct
import subprocess
import sys
import tempfile
import time
import unittest
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "testing"))
import processes
from cluster import MARK, wait_until
from paths import BIN, SOURCE

PAGES = [SOURCE / "README.md", *sorted(page for folder in ("howto", "operate", "contributing") for page in (SOURCE / "docs" / folder).glob("*.md"))]
ONLY = set(sys.argv[2:]) if sys.argv[1:2] == ["--pages"] else set()
# The first page needs four machines, which tls_cluster_test.py simulates; the second needs a hub, which
# tests/common/io/hub imitates.
ELSEWHERE = {"cluster-with-tls.md", "get-assets.md"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
BY_HAND = re.compile(r"^deploy/(quickstart|install|test)\.sh\b.*\n", re.MULTILINE)  # These install packages, build, and run this test.
DEFAULT_STEPS = 60  # The steps of configs/llama3_tiny.toml.
STRICT = """set -E -e -u -o pipefail
trap 'echo "failed with exit code $?: $BASH_COMMAND" >&2' ERR
"""


def own_network():
    """Enters a new network with only loopback, if that is allowed: pages name the default port, which may be in use on this
    machine."""
    new_network = 0x40000000
    if ctypes.CDLL(None).unshare(new_network) != 0:
        return
    with socket.socket() as anything:
        get_flags, set_flags, up = 0x8913, 0x8914, 1
        name, flags = struct.unpack("16sh14x", fcntl.ioctl(anything, get_flags, struct.pack("16sh14x", b"lo", 0)))
        fcntl.ioctl(anything, set_flags, struct.pack("16sh14x", name, flags | up))


def shorter(steps):
    return max(2, int(steps) // 10)


def commands(page):
    """Returns the page's commands as one script."""
    text = "\n".join(block for kind, block in FENCE.findall(page.read_text()) if kind == "sh")
    text = BY_HAND.sub("", text)
    text = re.sub(r"--training\.steps (\d+)", lambda found: f"--training.steps {shorter(found[1])}", text)
    text = re.sub(r"(titanctl bench \S+\.toml)", r"\1 --steps 2 --warmup 1 --repeat 1", text)
    # The flag goes right after the configuration: the page's own flags come later and win.
    return re.sub(r"(titanctl (?:run|submit) \S+\.toml)", rf"\1 --training.steps {shorter(DEFAULT_STEPS)}", text)


class DocsRun(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        own_network()

    def clone(self):
        """Returns a folder like a fresh clone that was built, without its outputs."""
        folder = Path(self.enterContext(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        sources = [path for path in SOURCE.iterdir() if path.name not in ("build", "outputs") and not path.name.startswith(".")]
        subprocess.run(["cp", "-rs", *sources, folder], check=True)  # Makes real folders with links to the files.
        (folder / "build").mkdir()
        (folder / "build/release").symlink_to(BIN.parent)
        (folder / ".home").mkdir()
        return folder

    def end_all(self, mark):
        for _ in range(2):  # Twice: a process may have started another one in between.
            for process in processes.all_with(MARK, mark):
                process.kill()
        wait_until("end of the page's processes", lambda: not processes.all_with(MARK, mark))

    def run_page(self, page, script):
        mark = uuid.uuid4().hex
        folder = self.clone()
        self.addCleanup(self.end_all, mark)  # Runs before the folder is removed.
        environment = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(folder / ".home"), "LANG": "C.UTF-8", MARK: mark}
        (folder / ".script").write_text(STRICT + script)
        with open(folder / ".output", "w+") as output:  # A file: daemons in the background would keep a pipe open.
            done = subprocess.run(["bash", ".script"], cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                                  stderr=output, timeout=400)
            output.seek(0)
            printed = output.read()
        self.assertEqual(0, done.returncode, f"{page.name}: {printed[-3000:]}")
        return printed

    def test_commands_run(self):
        ran = 0
        for page in PAGES:
            script = commands(page)
            if not script.strip() or page.name in ELSEWHERE or (ONLY and page.name not in ONLY):
                continue
            with self.subTest(page.name):
                start = time.monotonic()
                printed = self.run_page(page, script)
                print(f"{page.name}: {time.monotonic() - start:.1f} s", flush=True)
                # Otherwise a job that had nothing to do would look like one that trained.
                self.assertGreaterEqual(printed.count(" loss:"), len(re.findall(r"titanctl (?:run|logs)", script)), printed[-3000:])
                ran += 1
            self.doCleanups()
        self.assertGreater(ran, 7 if not ONLY else 0)

    # The author of a block states whether it is for pasting.
    def test_every_block_has_a_language(self):
        for page in PAGES:
            fences = re.findall(r"^```(\w*)$", page.read_text(), re.MULTILINE)
            self.assertEqual([], [kind for kind in fences[::2] if kind not in ("sh", "text", "cpp")],
                             f"{page.name}: write ```sh for commands that run here as they stand, ```text for others")

    # Pages name files that exist.
    def test_links_lead_somewhere(self):
        for page in [SOURCE / "README.md", *(SOURCE / "docs").rglob("*.md")]:
            for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
                self.assertTrue((page.parent / target).exists(), f"{page.relative_to(SOURCE)}: {target}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
