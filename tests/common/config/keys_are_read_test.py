"""A key that is neither refused as unsupported nor known to have no effect is read somewhere: no setting is silently ignored."""
import os
import pathlib
import re
import subprocess
import sys

SOURCE = pathlib.Path(os.environ["TITAN_SOURCE"])
DUMP = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests" / "titan_config_dump"

# Read as plain text by people only.
FOR_PEOPLE = {"job.description"}


def main():
    text = ""
    files = [path for folder in ("worker", "controller") for path in sorted((SOURCE / folder).rglob("*.cc"))]
    files += [path for folder in ("worker", "controller") for path in sorted((SOURCE / folder).rglob("*.h"))]
    files += [SOURCE / "common/config" / name for name in ("assets.cc", "chosen_model.cc", "degrees.cc", "report.cc")]
    for path in files:
        text += re.sub(r"//.*", "", path.read_text())
    keys = [line.split(" ", 1) for line in subprocess.check_output([DUMP, "--keys"], text=True).splitlines()]
    unread = [
        key
        for key, state in keys
        if state == "used" and key not in FOR_PEOPLE and not re.search(rf"(\.|->|\b){key.rsplit('.', 1)[1]}\b", text)
    ]
    assert len(keys) > 150 and sum(state == "used" for _, state in keys) > 80
    if unread:
        print("no code reads these keys; refuse them in common/config/support.cc until some does:", *unread, sep="\n  ")
        return 1
    print(f"{len(keys)} keys, {sum(state == 'used' for _, state in keys)} of them read by workers or the controller")
    return 0


if __name__ == "__main__":
    sys.exit(main())
