"""Mounts that only a test sees."""

import subprocess

PRIVATE_MOUNTS = ["unshare", "-m", "--propagation", "private"]  # Prefix of a command whose mounts end with it.


def may_mount_privately():
    """Returns whether private mounts work: root may make them, unless its root folder is not a mount (a chroot) or the
    container forbids it."""
    return subprocess.run([*PRIVATE_MOUNTS, "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True, check=False).returncode == 0
