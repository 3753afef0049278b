"""A job of the flavor flux-tiny-debug: the configurations of small encoders, whose weights are random, and pictures in a tar archive."""

import io
import json
import tarfile

from PIL import Image

T5 = {"architectures": ["T5EncoderModel"], "model_type": "t5", "d_model": 32, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2,
      "vocab_size": 2100, "feed_forward_proj": "gated-gelu", "relative_attention_num_buckets": 32,
      "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6}  # fmt: skip
CLIP = {"architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": 32, "intermediate_size": 64,
        "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 2100, "max_position_embeddings": 77,
        "hidden_act": "quick_gelu", "eos_token_id": 2, "layer_norm_eps": 1e-5}  # fmt: skip
AUTOENCODER = {"_class_name": "AutoencoderKL", "block_out_channels": [32, 32, 32, 32], "layers_per_block": 1, "latent_channels": 16,
               "norm_num_groups": 32, "in_channels": 3, "out_channels": 3, "scaling_factor": 0.3611, "shift_factor": 0.1159, "act_fn": "silu",
               "down_block_types": ["DownEncoderBlock2D"] * 4, "up_block_types": ["UpDecoderBlock2D"] * 4, "use_quant_conv": False,
               "use_post_quant_conv": False, "mid_block_add_attention": True}  # fmt: skip


def add(archive, name, data):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def write_archive(path, samples=24, size_of=lambda i: (16, 40) if i == 3 else (40 + i, 36), damaged=(9,), masks=False):
    """Writes pictures of random noise. By default one of them is too small for 32 pixels, and one is damaged. `masks`: each sample
    also has a second picture, in 000000.mask.png, and a second text, in 000000.title."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i in range(samples):
            file = io.BytesIO()
            Image.effect_noise(size_of(i), 64 + i).convert("RGB").save(file, "PNG")
            data = file.getvalue()
            add(archive, f"{i:06d}.png", data[:100] if i in damaged else data)
            add(archive, f"{i:06d}.txt", f"picture number {i}".encode())
            if masks:
                file = io.BytesIO()
                Image.new("L", (40, 40), i).save(file, "PNG")
                add(archive, f"{i:06d}.mask.png", file.getvalue())
                add(archive, f"{i:06d}.title", f"a title of {i}".encode())


def write_encoders(folder, **more):
    """Writes the encoders' configurations and returns the keys that name them."""
    for name, config in {"t5": T5, "clip": CLIP, "autoencoder": AUTOENCODER, **more}.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return encoder_keys(folder)


def encoder_keys(folder):
    return {"encoder.t5_encoder": folder / "t5", "encoder.clip_encoder": folder / "clip", "encoder.autoencoder_path": folder / "autoencoder",
            "encoder.max_t5_encoding_len": 12}  # fmt: skip


def job_keys(folder, pictures, held_out):
    """Returns the keys of a job of four steps in fp64 with the encoders in `folder`."""
    return {"model.name": "flux", "model.flavor": "flux-tiny-debug", "training.dtype": "float64", "training.steps": 4,
            "training.dataset": "cc12m-test", "training.dataset_path": pictures, "training.img_size": 32, "training.local_batch_size": 2,
            "training.global_batch_size": 4, "training.classifier_free_guidance_prob": 0.447, **encoder_keys(folder), "debug.seed": 5,
            "optimizer.lr": 1e-2, "lr_scheduler.warmup_steps": 1, "validation.dataset": "cc12m-test", "validation.dataset_path": held_out,
            "validation.local_batch_size": 2, "validation.save_img_count": 0}  # fmt: skip


def flags_of(keys):
    """Returns a command line's words. The encoders draw their weights."""
    return ["--training.test_mode", *[word for key, value in keys.items() for word in (f"--{key}", str(value))]]
