"""Sockets from /proc: which process listens where."""

import ipaddress
import os
import socket
from pathlib import Path

TABLES = ("tcp", "tcp6", "udp", "udp6")
LISTEN, UNCONNECTED = "0A", "07"  # States of TCP and UDP sockets that accept data from any peer.


def _address(text):
    """Parses the kernel's form: words of four bytes in this machine's order, each written as a number."""
    host, port = text.split(":")
    words = [int(host[i:i + 8], 16).to_bytes(4, "little") for i in range(0, len(host), 8)]
    return ipaddress.ip_address(b"".join(words)), int(port, 16)


def _inodes(pid):
    found = set()
    try:
        for entry in os.scandir(f"/proc/{pid}/fd"):
            target = os.readlink(entry.path)
            if target.startswith("socket:["):
                found.add(target[len("socket:["):-1])
    except (FileNotFoundError, ProcessLookupError):
        pass
    return found


def listening(pid):
    """Returns (table, address, port) of each listening TCP socket of the process and each UDP socket without a peer."""
    inodes, found = _inodes(pid), set()
    for table in TABLES:
        try:
            rows = Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]
        except (FileNotFoundError, ProcessLookupError, OSError):
            continue
        for row in rows:
            columns = row.split()
            if columns[9] in inodes and columns[3] == (LISTEN if table.startswith("tcp") else UNCONNECTED):
                found.add((table, *_address(columns[1])))
    return found


def is_loopback(address):
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback


def can_connect(address, port, timeout=5):
    try:
        with socket.create_connection((str(address), port), timeout):
            return True
    except OSError:
        return False
