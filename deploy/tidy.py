"""Runs clang-tidy over the tree, with cmake/torch_headers.h precompiled by clang.

  deploy/tidy.sh [--changed REVISION] [--jobs N] [PATH...]

PATH: files, checked one by one, or folders; --changed: checks the files that differ from REVISION one by one, and headers through the
files that include them. Folders, and by default everything, are checked in the units that the build compiles together, which takes a
quarter of the time. clang-tidy cannot use GCC's precompiled header, so separate build folders (build/tidy, build/tidy-units) have the
commands.
"""

import argparse
import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1]
ALONE, UNITS = SOURCE / "build/tidy", SOURCE / "build/tidy-units"
# GCC flags that clang-tidy does not need; with OpenMP, LibTorch's headers include omp.h.
DROPPED = ("-fopenmp", "-g1", "-Werror")


def configure(build):
    command = ["cmake", "--preset", "release", "-B", str(build), "-DCMAKE_DISABLE_PRECOMPILE_HEADERS=ON"]
    subprocess.run(command + ["-DTITAN_UNITY=0"] * (build == ALONE), cwd=SOURCE, check=True, stdout=subprocess.DEVNULL)
    # Generates the headers that sources include.
    made = subprocess.run(["ninja", "-C", str(build), "titan_generated_headers"], stdout=subprocess.PIPE, text=True, check=False)
    if made.returncode != 0:
        sys.exit(made.stdout)


# Code with GCC's vector types and with processor flags that clang 14 does not know; only the kernels' tests check it.
GCC_ONLY = ("worker/rank/kernels/cpu/attention_", "worker/rank/kernels/level.cc", "tests/worker/rank/kernels/attention_emulated")


def is_unit(path):
    """Returns whether the file is a unit of files that are compiled together, named by cmake/TitanUnity.cmake."""
    return re.fullmatch(r"unit_\d+\.cc", path.name) is not None


def is_ours(path, build):
    """Returns whether the file belongs to the tree or is a unit of such files; generated files do not count."""
    if str(path).startswith(tuple(str(SOURCE / name) for name in GCC_ONLY)):
        return False
    if build in path.parents:
        # Mutated copies (tests/simulation) are generated; the originals are in other units.
        return is_unit(path) and path.relative_to(build).parts[0] != "proto" and not path.parent.name.endswith("_mutated.dir")
    return SOURCE in path.parents and path.suffix == ".cc"


def commands(build):
    """Returns {file: arguments without compiler, output and input}."""
    result = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = Path(entry["file"]).resolve()
        if not is_ours(path, build):
            continue
        words = shlex.split(entry["command"])
        words = words[next(i for i, word in enumerate(words) if re.search(r"(c|clang|g)\+\+(-\d+)?$", word)) + 1:]
        kept, skip = [], False
        for word in words:
            if skip or word in ("-c", str(path), *DROPPED):
                skip = False
            elif word in ("-o", "-MF", "-MT"):
                skip = True
            elif word != "-MD":
                kept.append(word)
        result[path] = kept
    return result


def is_torch(arguments):
    return any("torch/include" in word for word in arguments)


def precompiled(build, arguments):
    """Returns clang's precompiled torch_headers.h, which is rebuilt when it or the flags change."""
    header, stamp = build / "torch.pch", build / "torch.pch.flags"
    source = SOURCE / "cmake/torch_headers.h"
    text = " ".join(arguments) + source.read_text()
    if header.exists() and stamp.exists() and stamp.read_text() == text:
        return header
    print("precompiling LibTorch's headers for clang", flush=True)
    subprocess.run(["clang++", *arguments, "-w", "-x", "c++-header", str(source), "-o", str(header)], check=True)
    stamp.write_text(text)
    return header


def common_arguments(lists):
    """Returns the flags and folders that all LibTorch files share, because a precompiled header requires equal flags."""
    first, *others = lists
    sets = [set(one) for one in others]
    return [word for i, word in enumerate(first) if word == "-isystem" or all(word in one for one in sets)]


def selected(all_files, paths, changed):
    if changed:
        names = subprocess.run(["git", "diff", "--name-only", changed, "--", "*.cc", "*.h"], cwd=SOURCE, check=True,
                               stdout=subprocess.PIPE, text=True).stdout.split()
        headers = [name for name in names if name.endswith(".h")]
        chosen = {SOURCE / name for name in names}
        for path in all_files:
            text = path.read_text()
            if any(f'"{header}"' in text for header in headers):
                chosen.add(path)
        return [path for path in all_files if path in chosen]
    if not paths:
        return list(all_files)
    wanted = [Path(path).resolve() for path in paths]
    wanted += [UNITS / one.relative_to(SOURCE) for one in wanted]
    return [path for path in all_files if any(path == one or one in path.parents for one in wanted)]


def tidy(path, arguments, pch):
    # clang rejects a header that was precompiled with other floating-point rules (worker/rank/nn/random.cc).
    fits = is_torch(arguments) and "-fno-math-errno" not in arguments
    extra = ["-include-pch", str(pch)] if pch and fits else []
    # A unit includes .cc files.
    checks = ["--checks=-bugprone-suspicious-include"] if is_unit(path) else []
    done = subprocess.run(["clang-tidy", "--quiet", *checks, str(path), "--", *arguments, *extra], cwd=SOURCE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, check=False)
    return path, done.returncode, done.stdout or (done.stderr if done.returncode else "")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--changed", metavar="REVISION")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("paths", nargs="*")
    options = parser.parse_args()
    build = ALONE if options.changed or any(not Path(path).is_dir() for path in options.paths) else UNITS
    configure(build)
    files = commands(build)
    chosen = selected(files, options.paths, options.changed)
    torch = [arguments for arguments in files.values() if is_torch(arguments)]
    pch = precompiled(build, common_arguments(torch)) if any(is_torch(files[path]) for path in chosen) else None
    began, bad = time.monotonic(), 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        runs = [pool.submit(tidy, path, files[path], pch) for path in chosen]
        for number, run in enumerate(concurrent.futures.as_completed(runs), 1):
            path, code, text = run.result()
            if code != 0:
                bad += 1
                print(text, flush=True)
            left = (time.monotonic() - began) / number * (len(runs) - number)
            print(f"[{number}/{len(runs)}] {path.relative_to(SOURCE)}: {'bad' if code else 'clean'}, {left:.0f} s left", flush=True)
    print(f"{len(runs) - bad} of {len(runs)} {'files' if build == ALONE else 'units'} are clean")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
