"""Random valid meshes of 1 to 8 ranks for the small models (small_models), with all other options of a split."""

from meshes import SCHEDULES, Mesh

ROWS = 8  # Rows of a global batch.
RANKS = 8  # At most.

# Four axes at once, for seed checkpoints.
DENSE_4D = [{"pp": 2, "fsdp": 2, "tp": 2}, {"fsdp": 2, "cp": 2, "tp": 2}, {"pp": 2, "rep": 2, "cp": 2},
            {"pp": 2, "cp": 2, "tp": 2}]
EXPERTS_4D = [{"pp": 2, "fsdp": 2, "tp": 2, "ep": 2, "etp": 2}, {"fsdp": 2, "cp": 2, "tp": 2, "ep": 4, "etp": 2},
              {"pp": 2, "fsdp": 2, "cp": 2, "ep": 4}, {"pp": 2, "cp": 2, "tp": 2, "ep": 4, "etp": 1}]


def _random_degrees(dice, experts):
    while True:
        degrees = {name: dice.choice([1, 1, 2]) for name in ("pp", "rep", "fsdp", "cp", "tp")}
        if dice.random() < 0.25:
            degrees[dice.choice(["fsdp", "cp", "tp", "pp"])] = 4
        if Mesh(**degrees).world() <= RANKS:
            break
    if experts:
        degrees["etp"] = dice.choice([1, degrees["tp"]])
        lent = degrees["fsdp"] * degrees["cp"] * degrees["tp"] // degrees["etp"]
        degrees["ep"] = dice.choice([ep for ep in (1, 2, 4, 8) if lent % ep == 0])
        if degrees["ep"] == 1:
            degrees["etp"] = degrees["tp"]
    return degrees


def _fits(rows, size, schedule, ranks):
    """Returns whether a pipeline accepts a local batch of `rows` in microbatches of `size`."""
    return rows % size == 0 and (schedule != "DualPipeV" or rows // size >= 2 * ranks)


def _batch_flags(dice, degrees, schedule, resumed, note):
    """Returns a local batch and microbatch size that make ROWS rows per step. A resumed job may request another batch, but uses the
    checkpoint's global batch, in pieces that this mesh accepts."""
    rows = ROWS // (degrees["rep"] * degrees["fsdp"])
    divisors = [d for d in range(1, rows + 1) if rows % d == 0]
    if degrees["pp"] == 1:
        fitting, size = divisors, 1
    else:
        sizes = [m for m in (1, 2) if any(_fits(d, m, schedule, degrees["pp"]) for d in divisors)]
        size = dice.choice(sizes)
        fitting = [d for d in divisors if _fits(d, size, schedule, degrees["pp"])]
    flags = {"training.local_batch_size": dice.choice(fitting), "training.global_batch_size": ROWS}
    if degrees["pp"] > 1:
        flags["parallelism.pipeline_parallel_microbatch_size"] = size
        if size > 1:
            note.append(f"{size} rows a microbatch")
    if resumed and dice.random() < 0.4:
        requested = dice.choice([n for n in range(1, 13) if degrees["pp"] == 1 or _fits(n, size, schedule, degrees["pp"])])
        flags.update({"training.local_batch_size": requested, "training.global_batch_size": -1})
        note.append(f"requests {requested} rows")
    elif flags["training.local_batch_size"] < rows:
        note.append(f"{rows // flags['training.local_batch_size']} runs a step")
    return flags


def random_mesh(dice, experts, resumed, degrees=None):
    """Returns a mesh with its flags, batch included. `resumed`: the job resumes from a checkpoint that holds its global batch."""
    degrees = {name: 1 for name in ("pp", "rep", "fsdp", "cp", "tp")} | (degrees or _random_degrees(dice, experts))
    flags, note, schedule = {}, [], None
    if degrees["pp"] > 1:
        rows = ROWS // (degrees["rep"] * degrees["fsdp"])
        schedule = dice.choice([name for name in SCHEDULES if _fits(rows, 1, name, degrees["pp"])])
        flags["parallelism.pipeline_parallel_schedule"] = schedule
        note.append(schedule)
    flags.update(_batch_flags(dice, degrees, schedule, resumed, note))
    balancer = dice.choice(["None", "ptrr"])
    for axis, key, value, what in (("cp", "parallelism.context_parallel_rotate_method", "alltoall", "alltoall"),
                                   ("cp", "parallelism.context_parallel_load_balancer", balancer, f"balancer {balancer}"),
                                   ("tp", "parallelism.enable_sequence_parallel", False, "no sequence parallelism"),
                                   ("fsdp", "parallelism.fsdp_reshard_after_forward", "always", "always reshards")):
        if degrees[axis] > 1 and dice.random() < 0.4:
            flags[key] = value
            note.append(what)
    if dice.random() < 0.4:
        flags["activation_checkpoint.mode"] = dice.choice(["full", "selective"])
        flags["activation_checkpoint.selective_ac_option"] = dice.choice(["op", "2"])
        note.append(f"{flags['activation_checkpoint.mode']} AC")
    if dice.random() < 0.3:
        flags["checkpoint.async_mode"] = "async"
        note.append("async save")
    return Mesh(", ".join(note), flags, **degrees)
