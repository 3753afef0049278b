"""Meshes of all axes as flags of titan-rank."""

KEYS = {"pp": "pipeline_parallel_degree", "rep": "data_parallel_replicate_degree", "fsdp": "data_parallel_shard_degree",
        "cp": "context_parallel_degree", "tp": "tensor_parallel_degree", "ep": "expert_parallel_degree",
        "etp": "expert_tensor_parallel_degree"}
SCHEDULES = ["GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"]

# Families with debug flavors that are small enough for processes on a small machine.
DENSE = [("llama3", "debugmodel"), ("qwen3", "debugmodel")]
EXPERTS = [("deepseek_v3", "debugmodel"), ("llama4", "debugmodel")]


class Mesh:
    """Degrees by short name (KEYS), and further flags that the split needs."""

    def __init__(self, note="", flags=None, **degrees):
        self.degrees = {name: degrees.get(name, 1) for name in KEYS}
        self.note, self.flags = note, flags or {}

    def world(self):
        size = 1
        for name in ("pp", "rep", "fsdp", "cp", "tp"):
            size *= self.degrees[name]
        return size

    def job_flags(self, rows):
        """Flags for a global batch of `rows`."""
        flags = {"parallelism." + key: self.degrees[name] for name, key in KEYS.items()}
        flags["training.local_batch_size"] = rows // (self.degrees["rep"] * self.degrees["fsdp"])
        flags["training.global_batch_size"] = rows
        return {**flags, **self.flags}

    def __str__(self):
        names = [f"{name}{degree}" for name, degree in self.degrees.items() if degree > 1]
        if self.degrees["ep"] > 1 and self.degrees["tp"] > 1 and self.degrees["etp"] == 1:
            names.append("etp1")
        return " ".join(names or ["1 rank"]) + (f" ({self.note})" if self.note else "")


def pipeline(schedule, **degrees):
    return Mesh(schedule, {"parallelism.pipeline_parallel_schedule": schedule}, **degrees)
