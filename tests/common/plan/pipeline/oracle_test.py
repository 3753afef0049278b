"""Compares schedules with torch's own classes and splits with torchtitan's own function, over a grid and random cases.
"""

import os
import random
import subprocess

from torch.distributed.pipelining import schedules as torch_schedules
from torchtitan.distributed.pipeline_parallel import generate_llm_fqn_per_model_part

DUMP = os.path.join(os.path.dirname(os.environ["TITAN_BIN"]), "tests", "dump_pipeline")


class Ours:
    def __init__(self):
        self.process = subprocess.Popen([DUMP], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, *words):
        self.process.stdin.write(" ".join(map(str, words)) + "\n")
        self.process.stdin.flush()
        lines = []
        while (line := self.process.stdout.readline().rstrip("\n")) != ".":
            lines.append(line)
        return lines


def torch_rows(name, ranks, stages_per_rank, microbatches):
    """Returns torch's order per rank, as its CSV writes it, without pauses and reductions, or None if torch rejects it.
    """
    cls = torch_schedules.get_schedule_class(name)
    schedule = cls.__new__(cls)
    schedule._n_microbatches = microbatches
    schedule.pp_group_size = ranks
    schedule.n_local_stages = stages_per_rank
    schedule._stages = [None] * stages_per_rank
    schedule.num_stages = schedule._num_stages = ranks * stages_per_rank
    schedule.number_of_rounds = max(1, microbatches // ranks)
    if "Interleaved" in name and microbatches % schedule.number_of_rounds:
        return None
    schedule.microbatches_per_round = microbatches // schedule.number_of_rounds
    if name in ("GPipe", "1F1B"):
        if microbatches < ranks:
            return None  # torch's drawing (not its runtime) of 1F1B assumes that the pipeline fills.
        orders = schedule._get_pipeline_order()
        orders = [orders[rank] for rank in range(ranks)]
        if name == "1F1B":  # The drawing numbers the last rank's forward passes from 1; the runtime does not.
            orders[-1] = [
                a._replace(microbatch_index=a.microbatch_index - 1) if a and a.computation_type.value == "F" else a
                for a in orders[-1]
            ]
    else:
        if name == "DualPipeV" and microbatches < 2 * ranks:
            return None
        orders = [schedule._calculate_single_rank_operations(rank) for rank in range(ranks)]
    return [
        ",".join(str(a) for a in order if a is not None and a.computation_type != torch_schedules.REDUCE_GRAD)
        for order in orders
    ]


def check_schedules(ours):
    compared = more = 0
    for name in ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"):
        for ranks in range(1, 9):
            for stages in (1,) if name in ("GPipe", "1F1B") else (2,) if "V" in name else (2, 3, 4):
                for microbatches in range(1, 26):
                    rows = ours.ask("schedule", name, ranks, stages, microbatches)
                    expected = torch_rows(name, ranks, stages, microbatches)
                    if expected is None:
                        more += not rows[0].startswith("error")
                        continue
                    assert rows == expected, (name, ranks, stages, microbatches, rows, expected)
                    compared += 1
    print(f"{compared} schedules are torch's; {more} more have no counterpart there")
    assert compared > 1500


def check_splits(ours):
    rng = random.Random(20261121)
    refused = 0
    for _ in range(4000):
        stages, layers = rng.randint(1, 20), rng.randint(1, 40)
        first, last = rng.randint(0, 4), rng.randint(0, 4)
        lines = ours.ask("split", stages, layers, first, last)
        try:
            expected = generate_llm_fqn_per_model_part(stages, layers, first, last)
        except ValueError:
            expected = None
        if expected is None:
            assert lines[0].startswith("error parallelism."), (stages, layers, first, last, lines)
            refused += 1
            continue
        expected = [" ".join(n for n in part if n != "norm") for part in expected]
        assert lines == expected, (stages, layers, first, last, lines, expected)
    print(f"4000 splits, {refused} refused by both")
    assert 100 < refused < 3900


if __name__ == "__main__":
    ours = Ours()
    check_schedules(ours)
    check_splits(ours)
