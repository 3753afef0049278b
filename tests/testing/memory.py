"""Bounds on what a process takes."""

import os

# A sanitizer keeps several bytes for each of the program's own.
SANITIZED = 4 if os.environ.get("TITAN_SANITIZER") else 1
