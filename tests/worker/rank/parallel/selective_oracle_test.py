"""Compares what selective checkpointing per operation saves with torchtitan 0.2.2, which runs its own models on two ranks, split
by its own code, with its own policy and lists. list_saved_operations lists the same for Titan. Products are compared one by one,
with their shapes.
"""

import dataclasses
import functools
import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.environ["TITAN_SOURCE"], "tests", "peer"))
import torchtitan_cpu  # noqa: E402

import torch  # noqa: E402

ROWS, TOKENS = 2, 32
GROUPED = dict(dim=64, n_heads=4, n_kv_heads=2)
LATENT = dict(dim=64, n_heads=4, kv_lora_rank=24, qk_nope_head_dim=16, qk_rope_head_dim=8, v_head_dim=24)
EXPERTS = dict(num_experts=8, top_k=2)
SPEC_EXPERTS = {"moe.num_experts": 8, "moe.top_k": 2, "moe.hidden": 48}
GATE, QUERIES = ["moe.router.gate"], ["moe.router.gate", "attention.wq"]
FSDP, EP, TP = dict(dp_shard=2), dict(dp_shard=2, ep=2), dict(dp_shard=1, tp=2)


@dataclasses.dataclass
class Case:
    family: str
    flavor: str
    arguments: dict  # For torchtitan's model.
    spec: dict  # The same numbers by Titan's names.
    meshes: list
    experts: dict = None
    listed: list = dataclasses.field(default_factory=lambda: [GATE])


CASES = [
    Case("llama3", "debugmodel", {**GROUPED, "n_layers": 2, "multiple_of": 32},
         {**GROUPED, "n_layers": 2, "head_dim": 16, "v_head_dim": 16}, [FSDP, TP], listed=[GATE, ["feed_forward.w1"], QUERIES]),
    Case("llama4", "debugmodel", {**GROUPED, "n_layers": 2, "multiple_of": 32},
         {**GROUPED, "n_layers": 2, "head_dim": 16, "v_head_dim": 16}, [FSDP, EP, TP], {}, [GATE, []]),
    Case("qwen3", "debugmodel", {**GROUPED, "n_layers": 2, "head_dim": 16, "hidden_dim": 96},
         {**GROUPED, "n_layers": 2, "head_dim": 16, "v_head_dim": 16, "ffn_hidden": 96}, [FSDP, TP]),
    Case("qwen3", "debugmodel_moe", {**GROUPED, "n_layers": 2, "head_dim": 16, "moe_inter_dim": 48},
         {**GROUPED, "n_layers": 2, "head_dim": 16, "v_head_dim": 16, **SPEC_EXPERTS}, [EP, TP], EXPERTS),
    # One layer is dense and one has experts, without and with q-LoRA.
    Case("deepseek_v3", "debugmodel", {**LATENT, "n_layers": 2, "inter_dim": 96, "moe_inter_dim": 48},
         {**LATENT, "n_layers": 2, "n_kv_heads": 4, "head_dim": 24, "ffn_hidden": 96, **SPEC_EXPERTS}, [EP, TP], EXPERTS),
    Case("deepseek_v3", "671B", {**LATENT, "n_layers": 2, "inter_dim": 96, "moe_inter_dim": 48, "q_lora_rank": 20,
                                 "n_dense_layers": 1, "attn_type": "sdpa", "attn_mask_type": "causal"},
         {**LATENT, "n_layers": 2, "n_kv_heads": 4, "head_dim": 24, "ffn_hidden": 96, "q_lora_rank": 20, "moe.first_layer": 1,
          "moe.num_expert_groups": 4, "moe.num_limited_groups": 2, **SPEC_EXPERTS}, [FSDP, EP, TP],
         {**EXPERTS, "num_expert_groups": 4, "num_limited_groups": 2}, [GATE, [], ["attention.wkv_b"]]),
    Case("gpt_oss", "debugmodel", {**GROUPED, "n_layers": 2, "head_dim": 16, "moe_inter_dim": 48, "sliding_window_size": 16},
         {**GROUPED, "n_layers": 2, "head_dim": 16, "v_head_dim": 16, "sliding_window": 16, **SPEC_EXPERTS},
         [FSDP, EP, TP], EXPERTS),
]

# Titan's names of torchtitan's operators. CPUs have a separate attention kernel, which stands for those of torchtitan's
# list.
KINDS = {"aten.mm.default": "product", "aten.addmm.default": "product", "aten._grouped_mm.default": "grouped",
         "aten._scaled_dot_product_flash_attention_for_cpu.default": "attention",
         "_c10d_functional.reduce_scatter_tensor.default": "scatter", "_c10d_functional.all_to_all_single.default": "exchange"}


class Recorder:
    """Wraps the policies that torchtitan makes: one for every layer and forward pass."""

    def __init__(self):
        import torch.utils.checkpoint as checkpoint

        self.layers = []
        make = checkpoint.create_selective_checkpoint_contexts

        def record(policy):
            calls = []
            self.layers.append(calls)

            def decide(context, operator, *args, **named):
                decision = policy(context, operator, *args, **named)
                kind = KINDS.get(str(operator))
                if kind is not None and not context.is_recompute:
                    matrix = list(args[2 if "addmm" in str(operator) else 1].shape) if kind == "product" else []
                    calls.append([kind, matrix, decision == checkpoint.CheckpointPolicy.MUST_SAVE])
                return decision

            return make(decide)

        checkpoint.create_selective_checkpoint_contexts = record


def use_cpu_kernels():
    """Replaces FlexAttention, which has no backward pass on CPUs, and CUDA's kernels, the only ones that DTensor supports."""
    import torchtitan.models.attention as attention
    from torch.distributed.tensor import DTensor

    attend = torch.nn.functional.scaled_dot_product_attention

    def attend_to_own_heads(q, k, v, **named):
        if not isinstance(q, DTensor):
            return attend(q, k, v, **named)
        return DTensor.from_local(attend(q.to_local(), k.to_local(), v.to_local(), **named), q.device_mesh, q.placements)

    def attend_without_mask(q, k, v, *, block_mask, scale, return_lse, enable_gqa):
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, is_causal=True, scale=scale)

    torch.nn.functional.scaled_dot_product_attention = attend_to_own_heads
    attention.FlexAttentionWrapper._compiled_flex_attn = attend_without_mask
    attention._compiled_create_block_mask = functools.partial(torch.nn.attention.flex_attention.create_block_mask, device="cpu")


def forward(case, mesh, listed):
    from torchtitan.config.job_config import JobConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.protocols.train_spec import get_train_spec

    train = get_train_spec(case.family)
    arguments = dataclasses.replace(train.model_args[case.flavor], max_seq_len=TOKENS, vocab_size=64, **case.arguments)
    arguments.moe_impl = "standard"
    if case.experts is not None:
        arguments.moe_args = dataclasses.replace(arguments.moe_args, **case.experts, use_grouped_mm=True)
    model = train.model_cls(arguments).float()
    for name, parameter in model.named_parameters():  # Widths that follow from other numbers.
        if name.endswith("feed_forward.w1.weight"):
            case.spec["ffn_hidden"] = parameter.shape[0]
        if name.endswith("moe.experts.w1"):
            case.spec["moe.hidden"] = parameter.shape[1]
    config = JobConfig()
    config.training.seq_len = TOKENS
    config.training.mixed_precision_param = "float32"
    config.compile.enable = False
    config.activation_checkpoint.mode = "selective"
    config.activation_checkpoint.selective_ac_option = "op"
    config.activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns = listed
    config.parallelism.tensor_parallel_degree = mesh.get("tp", 1)
    config.parallelism.expert_parallel_degree = mesh.get("ep", 1)
    dims = ParallelDims(dp_replicate=1, dp_shard=mesh["dp_shard"], cp=1, tp=mesh.get("tp", 1), pp=1, ep=mesh.get("ep", 1),
                        etp=mesh.get("tp", 1), world_size=2)
    dims.build_mesh()
    train.parallelize_fn(model, dims, config)
    with torch.no_grad():
        model.init_weights()
    tokens = torch.randint(2, 64, (ROWS, TOKENS))
    masks = {}
    if getattr(arguments, "attn_type", "sdpa") == "flex":
        class Tokenizer:
            eos_id = 1
        masks = {"attention_masks": model.get_attention_masks(tokens, Tokenizer)}
    model(tokens, **masks)


def rank_main(out):
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    torchtitan_cpu.install_models()
    use_cpu_kernels()
    recorder = Recorder()
    results = []
    for case in CASES:
        lists = importlib.import_module(f"torchtitan.models.{case.family}.infra.parallelize")
        lists._op_sac_save_list.add(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default)
        for mesh in case.meshes:
            for listed in case.listed:
                recorder.layers.clear()
                forward(case, mesh, listed)
                results.append({"family": case.family, "flavor": case.flavor, "spec": case.spec, "mesh": mesh, "listed": listed,
                                "rows": ROWS, "tokens": TOKENS, "layers": [list(calls) for calls in recorder.layers]})
    if torch.distributed.get_rank() == 0:
        pathlib.Path(out).write_text(json.dumps(results))
    torch.distributed.destroy_process_group()


def record(out):
    """Runs both ranks; the rendezvous store is in this process, on a port that the system chooses."""
    store = torch.distributed.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ranks = [subprocess.Popen([sys.executable, os.path.abspath(__file__), out],
                              env=dict(os.environ, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                                       MASTER_PORT=str(store.port), TORCHELASTIC_USE_AGENT_STORE="True"),
                              stderr=subprocess.PIPE, text=True) for rank in range(2)]
    errors = [rank.communicate()[1] for rank in ranks]
    if any(rank.returncode for rank in ranks):
        sys.exit("\n".join(errors))


def of_kind(calls, kind):
    return [[matrix, saved] for one, matrix, saved in calls if one == kind]


def compare(theirs, ours):
    name = f"{theirs['family']} {theirs['flavor']}, {theirs['mesh']}, listed {theirs['listed']}"
    assert len(ours) == len(theirs["layers"]) > 0, (name, len(ours))
    count = 0
    for layer, (their_calls, our_calls) in enumerate(zip(theirs["layers"], ours)):
        for kind in ("product", "grouped", "attention", "scatter", "exchange"):
            want, got = of_kind(their_calls, kind), of_kind(our_calls, kind)
            if kind == "exchange" and theirs["family"] == "qwen3":
                assert not any(saved for _, saved in want), "torchtitan's list of Qwen3 has all-to-alls: activation_checkpoint.h says otherwise"
                want = [[matrix, True] for matrix, _ in want]
            assert got == want, f"{name}, layer {layer}, {kind}: torchtitan {want}, here {got}"
            count += len(got)
        assert of_kind(their_calls, "attention"), f"{name}: no attention was seen"
    count_saved = sum(saved for calls in ours for _, _, saved in calls)
    print(f"{name}: {count} operations, {count_saved} saved, alike")


def main():
    with tempfile.TemporaryDirectory(prefix="titan-saved-") as folder:
        out = os.path.join(folder, "cases.json")
        record(out)
        program = pathlib.Path(os.environ["TITAN_BIN"]).parent / "tests/list_saved_operations"
        ours = json.loads(subprocess.run([program, out], check=True, stdout=subprocess.PIPE).stdout)
        cases = json.loads(pathlib.Path(out).read_text())
    assert len(cases) == sum(len(case.meshes) * len(case.listed) for case in CASES) == len(ours)
    for theirs, calls in zip(cases, ours):
        compare(theirs, calls)


if __name__ == "__main__":
    rank_main(sys.argv[1]) if "RANK" in os.environ else main()
