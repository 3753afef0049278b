"""Bounds on the memory of a process."""

import os

# A sanitizer keeps several bytes for each of the program's: ThreadSanitizer 5 to 10, by its documentation.
SANITIZED = {"address": 4, "thread": 8}.get(os.environ.get("TITAN_SANITIZER"), 1)
