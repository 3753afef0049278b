"""Compares titan-checkpoint with PyTorch itself: imports and exports folders of torch.distributed.checkpoint and files of
torch.save."""

import collections
import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import warnings
import zipfile

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import FileSystemWriter
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from safetensors import safe_open
from safetensors.torch import save_file

TOOL = os.path.join(os.environ["TITAN_BIN"], "titan-checkpoint")
warnings.filterwarnings("ignore")  # One process is intended.


def run(*arguments, expect=0):
    done = subprocess.run([TOOL, *arguments], capture_output=True, text=True)
    assert done.returncode == expect, (arguments, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def import_step(source, step, expect=0):
    return run("import", source, step, "--model", "llama3", "--flavor", "debugmodel", expect=expect)


def weights():
    """Returns the llama3 debugmodel's weights, all different; some matrices of the first layer are stored transposed, some
    are bfloat16."""
    torch.manual_seed(3)
    state = {"tok_embeddings.weight": torch.randn(2048, 256), "norm.weight": torch.randn(256), "output.weight": torch.randn(2048, 256)}
    for layer in range(6):
        for name, shape in (("attention.wq", (256, 256)), ("attention.wk", (256, 256)), ("attention.wv", (256, 256)),
                            ("attention.wo", (256, 256)), ("feed_forward.w1", (768, 256)), ("feed_forward.w2", (256, 768)),
                            ("feed_forward.w3", (768, 256)), ("attention_norm", (256,)), ("ffn_norm", (256,))):
            value = torch.randn(*shape)
            if layer == 0 and value.dim() == 2:
                value = torch.randn(*shape[::-1]).t()
            state[f"layers.{layer}.{name}.weight"] = value.bfloat16() if layer == 5 else value
    return state


def check_step(step, state):
    found = {}
    for name in os.listdir(step):
        if name.endswith(".safetensors"):
            with safe_open(os.path.join(step, name), framework="pt") as file:
                found |= {key.removeprefix("model."): file.get_tensor(key) for key in file.keys() if key != "titan.index"}
    assert found.keys() == state.keys(), found.keys() ^ state.keys()
    for key, value in state.items():
        assert torch.equal(found[key], value.float()), key


def identity(process):
    """Returns the identity of a process in the format of common/io/storage/process_identity.h."""
    boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    start = pathlib.Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    return f"{boot} {os.readlink('/proc/self/ns/pid')} {process} {start}"


def check_leftovers(step, target):
    """The next export removes what a killed one left, and keeps the files of a living one."""
    def small_files():
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20))  # The kernel kills a writer beyond it.
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    killed = subprocess.Popen([TOOL, "export", step, target], preexec_fn=small_files, stdout=subprocess.DEVNULL)
    assert killed.wait() == -signal.SIGXFSZ, killed.returncode
    left, alive, unknown = (pathlib.Path(f"{target}.partial-{name}") for name in (killed.pid, os.getpid(), "of-nobody"))
    assert left.is_dir() and not os.path.exists(target)
    for folder in (alive, unknown):
        folder.mkdir()
    (alive / ".writer").write_text(identity(os.getpid()))
    run("export", step, target)
    assert not left.exists() and alive.exists() and unknown.exists()
    # Process ids repeat between containers: a folder with this process's id but another's marker stays as it is.
    same = subprocess.Popen(["sh", "-c", f'mkdir {target}2.partial-$$ && echo foreign > {target}2.partial-$$/.writer && exec "$@"', "sh",
                             TOOL, "export", step, f"{target}2"], stdout=subprocess.DEVNULL)
    assert same.wait() == 0
    assert pathlib.Path(f"{target}2.partial-{same.pid}/.writer").read_text() == "foreign\n"
    assert sorted(os.listdir(f"{target}2")) == sorted(os.listdir(target))
    assert not any(name.startswith(".") for name in os.listdir(target)), os.listdir(target)


def check_links(step, root):
    """A link to an empty folder counts as that folder; a dangling one is refused before anything is written."""
    os.makedirs(f"{root}/disk/empty")
    os.symlink(f"{root}/disk/empty", f"{root}/link")
    os.symlink(f"{root}/disk/nowhere", f"{root}/broken")
    printed = run("export", step, f"{root}/broken", expect=1)
    assert "dangling symbolic link" in printed and "writing" not in printed, printed
    run("export", step, f"{root}/link")
    assert os.path.islink(f"{root}/link") and "config.json" in os.listdir(f"{root}/disk/empty")
    assert os.listdir(f"{root}/disk") == ["empty"]
    assert "exists already" in run("export", step, f"{root}/link", expect=1)


def renamed(state):
    """Returns the state under torchtune's names, which torchtune_interop.py compares with torchtune itself."""
    names = {"attention.wq": "attn.q_proj", "attention.wk": "attn.k_proj", "attention.wv": "attn.v_proj", "attention.wo": "attn.output_proj",
             "feed_forward": "mlp", "attention_norm.weight": "sa_norm.scale", "ffn_norm.weight": "mlp_norm.scale"}
    out = {}
    for key, value in state.items():
        for ours, theirs in names.items():
            key = key.replace(f".{ours}", f".{theirs}")
        out["norm.scale" if key == "norm.weight" else key] = value
    return out


def check_torch_files(root, state):
    """Exports and imports torch.save's files, under both kinds of names."""
    for form, expected in (("torch", state), ("torchtune", renamed(state))):
        run("export", f"{root}/a/step-0", f"{root}/{form}", "--format", form)
        assert os.listdir(f"{root}/{form}") == ["model.pt"]
        for mmap in (False, True):
            loaded = torch.load(f"{root}/{form}/model.pt", weights_only=True, mmap=mmap)
            assert loaded.keys() == expected.keys(), loaded.keys() ^ expected.keys()
            assert all(torch.equal(loaded[key], value.float()) and loaded[key].data_ptr() % 64 == 0 for key, value in expected.items())
        assert zipfile.ZipFile(f"{root}/{form}/model.pt").testzip() is None  # Names the first entry with a wrong checksum.
        import_step(f"{root}/{form}/model.pt", f"{root}/from-{form}/step-0")
        check_step(f"{root}/from-{form}/step-0", state)
    run("export", f"{root}/a/step-0", f"{root}/tune16", "--format", "torchtune", "--dtype", "bfloat16")
    loaded = torch.load(f"{root}/tune16/model.pt", weights_only=True)
    assert all(torch.equal(loaded[key], value.bfloat16()) for key, value in renamed(state).items())
    # The layout in which torchtune's DistributedCheckpointer saves a model and more.
    dcp.save({"model": renamed(state), "steps_run": 3}, checkpoint_id=f"{root}/tuned", no_dist=True)
    import_step(f"{root}/tuned", f"{root}/from-tuned/step-0")
    check_step(f"{root}/from-tuned/step-0", state)
    printed = run("import", f"{root}/torchtune/model.pt", f"{root}/e/step-0", "--model", "qwen3", "--flavor", "debugmodel", expect=1)
    assert "torchtune has no qwen3" in printed, printed
    assert "--model-only" in run("export", f"{root}/a/step-0", f"{root}/e", "--format", "torch", "--model-only", expect=2)


def check_tied(root):
    """If a model's head is its embedding and another program saved a head too, the head must equal the embedding: otherwise
    diff reports it, and import refuses it."""
    model = ("--model", "qwen3", "--flavor", "debugmodel")
    embedding = torch.randn(2048, 256)
    other = embedding.clone()
    other[2047, 255] += 1
    for name, head in (("own", other), ("once", embedding.clone())):
        os.mkdir(f"{root}/tied-{name}")
        save_file({"model.embed_tokens.weight": embedding, "lm_head.weight": head}, f"{root}/tied-{name}/model.safetensors")
        dcp.save({"tok_embeddings.weight": embedding, "output.weight": head}, checkpoint_id=f"{root}/tied-{name}-dcp", no_dist=True)
    run("diff", f"{root}/tied-once", f"{root}/tied-once-dcp", *model)
    printed = run("diff", f"{root}/tied-own", f"{root}/tied-once-dcp", *model, expect=1)
    assert printed.splitlines()[1:] == ["lm_head.weight  only in A: F32 [2048, 256]"] and printed.startswith("1 of "), printed
    printed = run("diff", f"{root}/tied-once", f"{root}/tied-own-dcp", *model, expect=1)
    assert printed.splitlines()[1:] == ["model.output.weight  only in B: F32 [2048, 256]"] and printed.startswith("1 of "), printed
    refusal = "lm_head.weight differs from model.embed_tokens.weight"
    assert refusal in run("import", f"{root}/tied-own", f"{root}/e/step-0", *model, expect=1)
    assert refusal not in run("import", f"{root}/tied-once", f"{root}/e/step-0", *model, expect=1)


class Evil:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (self.path,)


def check_diff(root, state):
    """Compares steps and other programs' folders by their numbers: `root`/a/step-0 holds `state`, and so does `root`/out."""
    step, out, hf = f"{root}/a/step-0", f"{root}/out", f"{root}/hf"
    run("export", step, hf, "--max-file-bytes", "5000000")
    run("export", step, f"{root}/hf16", "--dtype", "bfloat16")
    model = ("--model", "llama3", "--flavor", "debugmodel")
    for pair in ((out, out), (hf, hf), (step, out), (hf, step)):
        assert run("diff", *pair) == f"the same: {counted(len(state))}\n", pair
    assert run("diff", out, hf, *model) == f"the same: {counted(len(state))}\n"
    assert "give --model and --flavor" in run("diff", hf, out, expect=2)

    # Differences are reported by the names that both have.
    other = {key: value.float().clone() for key, value in state.items()}
    other["layers.2.attention.wk.weight"][255, 255] += 1
    other["layers.3.ffn_norm.weight"] = torch.ones(255)
    other["new.weight"] = other.pop("norm.weight")
    dcp.save({**other, "optimizer": {"state.norm.weight.step": torch.tensor(4.0), "state.norm.weight.exp_avg": torch.ones(256)}},
             checkpoint_id=f"{root}/other", no_dist=True)
    changed = {"layers.2.attention.wk.weight", "layers.3.ffn_norm.weight", "norm.weight", "new.weight"}
    for source, prefix, args, optimizer in (
            (out, "", [], {"optimizer.state.norm.weight.exp_avg", "optimizer.state.norm.weight.step"}),
            (step, "model.", [], {"optim.exp_avg.norm.weight", "optim.step"}),
            (step, "model.", ["--model-only"], set())):
        rows = {row.pop("key"): row for row in map(json.loads, run("diff", source, f"{root}/other", "-o", "json", *args, expect=1).splitlines())}
        assert rows.keys() == optimizer | {prefix + key for key in changed}, rows.keys()
        number = rows[f"{prefix}layers.2.attention.wk.weight"]
        assert (number["differing"], number["elements"]) == (1, 65536) and abs(number["absolute"] - 1) < 1e-6, number
        assert (rows[f"{prefix}norm.weight"]["only_in"], rows[f"{prefix}new.weight"]["only_in"]) == ("A", "B"), rows
        assert rows[f"{prefix}layers.3.ffn_norm.weight"] == {"a": "F32 [256]", "b": "F32 [255]"}, rows
    assert "model.layers.3.ffn_norm.weight" in run("diff", hf, f"{root}/other", *model, expect=1)
    printed = run("diff", hf, f"{root}/hf16", expect=1)  # Under Hugging Face's names.
    assert "model.layers.0.self_attn.q_proj.weight  F32 [256, 256] and BF16 [256, 256]" in printed, printed

    # Damage is an error that names the file, not a difference.
    def damaged(kind, pattern, damage):
        shutil.copytree(f"{root}/{kind}", f"{root}/damaged")
        path = sorted(pathlib.Path(f"{root}/damaged").glob(pattern))[0]
        damage(path)
        printed = run("diff", step, f"{root}/damaged", expect=2)
        shutil.rmtree(f"{root}/damaged")
        assert "differ" not in printed.splitlines()[-1], printed
        return printed, path

    def cut(path):
        os.truncate(path, path.stat().st_size // 2)

    for kind, pattern, damage in (("out", "*.distcp", cut), ("out", ".metadata", cut), ("hf", "*-of-*.safetensors", cut),
                                  ("out", "*.distcp", pathlib.Path.unlink), ("hf", "*-of-*.safetensors", pathlib.Path.unlink),
                                  ("hf", "*-of-*.safetensors", lambda file: (file.unlink(), os.mkfifo(file)))):
        printed, path = damaged(kind, pattern, damage)
        assert str(path) in printed, printed
    printed, path = damaged("hf", "*.index.json", lambda index: (index.unlink(), next(index.parent.glob("*-00002-of-*")).unlink()))
    assert "files *-of-" in printed and "no model.safetensors.index.json" in printed, printed
    os.mkdir(f"{root}/empty")
    assert "neither a step, nor a folder of" in run("diff", step, f"{root}/empty", expect=2)
    run("diff", step, f"{root}/nowhere", expect=2)


def counted(number):
    return f"{number} tensors"


def main():
    with tempfile.TemporaryDirectory() as root:
        state = weights()
        dcp.save({**state, "optimizer": {"state.norm.weight.step": torch.tensor(4.0)}, "train_state": {"step": 4}},
                 storage_writer=FileSystemWriter(f"{root}/dcp", thread_count=2), no_dist=True)
        import_step(f"{root}/dcp", f"{root}/a/step-0")
        check_step(f"{root}/a/step-0", state)
        dcp.save({"model": state}, checkpoint_id=f"{root}/nested", no_dist=True)
        import_step(f"{root}/nested", f"{root}/b/step-0")
        check_step(f"{root}/b/step-0", state)

        # Exports for PyTorch's loader and its own converter.
        run("export", f"{root}/a/step-0", f"{root}/out", "--format", "dcp", "--max-file-bytes", "5000000")
        assert sorted(os.listdir(f"{root}/out"))[0] == ".metadata" and len(os.listdir(f"{root}/out")) > 3
        loaded = {key: torch.zeros(value.shape) for key, value in state.items()}
        dcp.load(loaded, checkpoint_id=f"{root}/out", no_dist=True)
        assert all(torch.equal(loaded[key], value.float()) for key, value in state.items())
        check_diff(root, state)
        dcp_to_torch_save(f"{root}/out", f"{root}/converted.pt")
        converted = torch.load(f"{root}/converted.pt", weights_only=True)
        assert all(torch.equal(converted[key], value.float()) for key, value in state.items())
        run("export", f"{root}/a/step-0", f"{root}/half", "--format", "dcp", "--dtype", "bfloat16")
        loaded = {"norm.weight": torch.zeros(256, dtype=torch.bfloat16)}
        dcp.load(loaded, checkpoint_id=f"{root}/half", no_dist=True)
        assert torch.equal(loaded["norm.weight"], state["norm.weight"].bfloat16())

        check_leftovers(f"{root}/a/step-0", f"{root}/again")
        check_links(f"{root}/a/step-0", root)
        check_torch_files(root, state)
        check_tied(root)
        for named in (f"{root}/e/step-5", f"{root}/e/step-5/"):
            assert "name the folder step-0" in import_step(f"{root}/dcp", named, expect=2)
        assert not os.path.exists(f"{root}/e/step-5")

        # torch.save's single file is imported as converted, as a module's state_dict(), and nested.
        import_step(f"{root}/converted.pt", f"{root}/c/step-0")
        check_step(f"{root}/c/step-0", state)
        module = collections.OrderedDict(state)
        module._metadata = collections.OrderedDict({"": {"version": 1}})
        torch.save({"model": module, "step": 3}, f"{root}/module.pt")
        import_step(f"{root}/module.pt", f"{root}/d/step-0")
        check_step(f"{root}/d/step-0", state)

        # Pickled code never runs, and errors name what does not match.
        torch.save({"tok_embeddings.weight": Evil(f"{root}/made")}, f"{root}/evil.pt")
        printed = import_step(f"{root}/evil.pt", f"{root}/e/step-0", expect=1)
        assert "posix.mkdir" in printed and not os.path.exists(f"{root}/made"), printed
        torch.save({**state, "layers.6.attention.wq.weight": torch.zeros(2)}, f"{root}/more.pt")
        assert "does not use layers.6.attention.wq.weight" in import_step(f"{root}/more.pt", f"{root}/e/step-0", expect=1)
        del state["norm.weight"]
        dcp.save(state, checkpoint_id=f"{root}/less", no_dist=True)
        assert "it has no norm.weight" in import_step(f"{root}/less", f"{root}/e/step-0", expect=1)
        assert not os.path.exists(f"{root}/e/step-0")


if __name__ == "__main__":
    main()
    sys.exit(0)
