"""Measures how fast a job's state is saved and loaded by Titan, torch.distributed.checkpoint and fio, alternating, with the same
bytes on the same file system.

    .deps/venv/bin/python tests/bench/checkpoint_bandwidth.py FOLDER --mebibytes 1024 --ranks 1 2 4 --rounds 3

It needs the program checkpoint_speed (a build's tests/) and fio (apt-get install fio). FOLDER's file system must have free space
for three times the state. The page cache of the files is dropped before each read. Prints medians with the lowest and the highest
round, in MB/s (10^6).
"""

import argparse
import dataclasses
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclasses.dataclass
class Round:
    """Seconds. `stall`: until training continues after a save; `save`: until everything is durable."""

    bytes: int
    stall: float = None
    save: float = None
    load: float = None


def drop_cache(folder):
    for path in Path(folder).rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def emptied(folder):
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def titan(program, folder, ranks, mebibytes):
    """Measures the second of two saves, because the first one also allocates memory, once in a job's life."""
    dump = emptied(folder / "titan")
    command = [program, str(dump), "save", "--ranks", str(ranks), "--mebibytes", str(mebibytes), "--saves", "2"]
    saved = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shutil.rmtree(dump / "checkpoint/step-1")
    command[2:3] = ["load"]
    loaded = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    shutil.rmtree(dump)
    second = saved["saves"][-1]
    return Round(saved["bytes"], second["stall"], second["safe"], loaded["load"])


def torch_rank(rank, ranks, folder, mebibytes, port, results):
    """Runs one process of torch's job, with the tensors of checkpoint_speed cut by rows."""
    import torch
    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE=str(ranks))
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (ranks,))

    def state():
        tensors = {}
        for kind in ("model", "exp_avg", "exp_avg_sq"):
            for i in range(mebibytes // 16 // 3):
                for name, shape in (("weight", (4096, 1024)), ("norm", (1024,))):
                    local = torch.full((shape[0] // ranks, *shape[1:]), rank + 0.5)
                    tensors[f"{kind}.layers.{i}.{name}"] = DTensor.from_local(local, mesh, [Shard(0)])
        return tensors

    tensors = state()
    for step in (1, 2):
        dist.barrier()
        begin = time.monotonic()
        saving = dcp.async_save(tensors, checkpoint_id=str(folder / f"step-{step}"))
        stall = time.monotonic() - begin
        saving.result()
        dist.barrier()
        save = time.monotonic() - begin
    if rank == 0:
        shutil.rmtree(folder / "step-1")
        drop_cache(folder)
    dist.barrier()
    begin = time.monotonic()
    dcp.load(tensors, checkpoint_id=str(folder / "step-2"))
    dist.barrier()
    if rank == 0:
        size = sum(one.numel() * one.element_size() for one in tensors.values())
        results.put(Round(size, stall, save, time.monotonic() - begin))
    dist.destroy_process_group()


def torch_job(folder, ranks, mebibytes):
    import multiprocessing
    import socket

    where = emptied(folder / "torch")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=torch_rank, args=(rank, ranks, where, mebibytes, port, results)) for rank in range(ranks)]
    for one in processes:
        one.start()
    for one in processes:
        one.join()
    if any(one.exitcode for one in processes):
        sys.exit(f"torch.distributed.checkpoint with {ranks} ranks ended with {[one.exitcode for one in processes]}")
    found = results.get()
    shutil.rmtree(where)
    return found


def fio(folder, jobs, mebibytes, direct):
    """Writes one file per job in order, syncs at the end, drops the page cache, then reads."""
    where = emptied(folder / "fio")
    size = mebibytes // jobs
    common = ["fio", "--output-format=json", "--name=file", f"--directory={where}", f"--numjobs={jobs}", f"--size={size}m", "--group_reporting",
              f"--direct={int(direct)}", "--bs=4m" if direct else "--bs=1m", "--end_fsync=1", "--fallocate=native"]
    if direct:
        common += ["--ioengine=libaio", "--iodepth=4"]

    def seconds(what):
        begin = time.monotonic()
        fio_output = json.loads(subprocess.run([*common, f"--rw={what}"], check=True, capture_output=True, text=True).stdout)
        # fio's own clock starts after its files are laid out. A write counts until its sync has ended.
        runtime = fio_output["jobs"][0][what]["runtime"] / 1000
        return runtime or time.monotonic() - begin

    save = seconds("write")
    drop_cache(where)
    load = seconds("read")
    shutil.rmtree(where)
    return Round(size * jobs << 20, None, save, load)


def spread(values, digits=0):
    found = sorted(value for value in values if value is not None)
    if not found:
        return ""
    texts = [f"{value:,.{digits}f}" for value in (statistics.median(found), found[0], found[-1])]
    return texts[0] if len(found) == 1 else f"{texts[0]} ({texts[1]} to {texts[2]})"


def row(name, ranks, rounds):
    def rate(member):
        return spread([one.bytes / getattr(one, member) / 1e6 for one in rounds])

    stalls = spread([1000 * one.stall for one in rounds if one.stall is not None])
    return f"| {name} | {ranks} | {rate('save')} | {rate('load')} | {stalls} |"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--build", type=Path, default=ROOT / "build/release")
    parser.add_argument("--mebibytes", type=int, default=1008)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    program = options.build / "tests/checkpoint_speed"
    folder = options.folder / "checkpoint_bandwidth"
    print("| | ranks or jobs | saved, MB/s | loaded, MB/s | training stands, ms |\n|---|---|---|---|---|")
    for ranks in options.ranks:
        size = options.mebibytes
        cases = {
            "Titan": lambda: titan(program, folder, ranks, size),
            "torch.distributed.checkpoint": lambda: torch_job(folder, ranks, size),
            "fio, direct": lambda: fio(folder, ranks, size, True),
            "fio, page cache": lambda: fio(folder, ranks, size, False),
        }
        found = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name, case in cases.items():
                found[name].append(case())
        for name, rounds in found.items():
            print(row(name, ranks, rounds), flush=True)
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
