"""Writes everything that a tiny Flux needs to train, with random values, in the formats of the released model: encoders with their
tokenizers, the autoencoder, the transformer's weights under diffusers' names, and a tar archive of pictures with captions.

A fresh transformer hides its blocks, because its gates and its last layer are zero: here all parameters have a visible effect.
"""

import io
import json
import random
import re
import tarfile

import torch
from safetensors.torch import save_file

TEXT_WIDTH, VECTOR_WIDTH, CHANNELS = 32, 32, 32
FLAVOR = "flux-tiny-debug"
WORDS = "a an the cat dog house river of on near two old red small blue painting photo sunset boat tree and with under light".split()
START, END = "<|startoftext|>", "<|endoftext|>"


def flavor():
    """Returns torchtitan's arguments for Titan's flavor flux-tiny-debug."""
    from torchtitan.models.flux.model.args import FluxModelArgs
    from torchtitan.models.flux.model.autoencoder import AutoEncoderParams

    images = AutoEncoderParams(resolution=32, ch=CHANNELS, ch_mult=(1, 1, 2, 2), num_res_blocks=1)
    return FluxModelArgs(in_channels=64, out_channels=64, vec_in_dim=VECTOR_WIDTH, context_in_dim=TEXT_WIDTH, hidden_size=64, num_heads=2,
                         depth=2, depth_single_blocks=2, axes_dim=(8, 12, 12), autoencoder_params=images)


def disturb(module, gain=1.2):
    """Draws all parameters: matrices that keep about the size of their input, norms around 1, biases of order 0.3."""
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            value = torch.randn(parameter.shape)
            if parameter.dim() > 1:
                value *= gain / parameter[0].numel() ** 0.5
            elif re.search(r"norm[^.]*\.weight$", name):
                value = 1 + 0.3 * value
            else:
                value *= 0.3
            parameter.copy_(value)


def captions(numbers, count):
    return [" ".join(numbers.choice(WORDS) for _ in range(numbers.randint(1, 14))) for _ in range(count)]


def write_t5(folder, texts):
    import sentencepiece
    from transformers import T5Config, T5EncoderModel

    model = T5EncoderModel(T5Config(vocab_size=128, d_model=TEXT_WIDTH, d_kv=8, d_ff=48, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu"))
    model.save_pretrained(folder)
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(texts), model_prefix=str(folder / "spiece"), vocab_size=80, minloglevel=2,
                                             num_threads=1, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, hard_vocab_limit=False)


def write_clip(folder):
    from transformers import CLIPTextConfig, CLIPTextModel

    letters = [chr(letter) for letter in range(ord("a"), ord("z") + 1)]
    merges = [("a", "t</w>"), ("c", "at</w>"), ("o", "u"), ("t", "h"), ("th", "e</w>"), ("e", "e</w>")]
    tokens = letters + [letter + "</w>" for letter in letters] + ["".join(merge) for merge in merges] + [START, END]
    model = CLIPTextModel(CLIPTextConfig(vocab_size=len(tokens), hidden_size=VECTOR_WIDTH, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=4, eos_token_id=2))
    model.save_pretrained(folder)
    (folder / "vocab.json").write_text(json.dumps({token: i for i, token in enumerate(tokens)}))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))


def write_autoencoder(path, arguments):
    from torchtitan.models.flux.model.autoencoder import AutoEncoder

    model = AutoEncoder(arguments.autoencoder_params)
    disturb(model, gain=1)
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, path)


def write_transformer(folder, arguments):
    """Writes weights and config.json of diffusers. torchtitan's adapter reads and Titan writes the same names."""
    from torchtitan.models.flux.model.model import FluxModel
    from torchtitan.models.flux.model.state_dict_adapter import FluxStateDictAdapter

    model = FluxModel(arguments)
    disturb(model)
    tensors = FluxStateDictAdapter(arguments, None).to_hf(model.state_dict())
    folder.mkdir()
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "diffusion_pytorch_model.safetensors",
              {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(
        {"_class_name": "FluxTransformer2DModel", "patch_size": 1, "in_channels": arguments.in_channels, "num_layers": arguments.depth,
         "num_single_layers": arguments.depth_single_blocks, "attention_head_dim": arguments.hidden_size // arguments.num_heads,
         "num_attention_heads": arguments.num_heads, "joint_attention_dim": arguments.context_in_dim,
         "pooled_projection_dim": arguments.vec_in_dim, "guidance_embeds": False, "axes_dims_rope": list(arguments.axes_dim)}))


def write_pictures(folder, numbers, texts):
    """Writes pictures in several formats, shapes and modes, all large enough for 32 pixels."""
    from PIL import Image

    folder.mkdir()
    with tarfile.open(folder / "shard-000.tar", "w") as archive:
        for i, text in enumerate(texts):
            file = io.BytesIO()
            size = numbers.randint(33, 80), numbers.randint(33, 80)
            image = Image.effect_noise((9, 9), 200).resize(size) if i % 5 == 0 else Image.merge("RGB", [Image.effect_noise(size, 64 + i)] * 3)
            image.save(file, "JPEG" if i % 3 else "PNG")
            for name, data in ((f"{i:06d}.jpg", file.getvalue()), (f"{i:06d}.txt", text.encode())):
                member = tarfile.TarInfo(name)
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def write_folders(root, seed, samples):
    """Writes t5, clip, ae.safetensors, transformer and pictures below `root`."""
    torch.manual_seed(seed)
    numbers = random.Random(seed)
    texts = captions(numbers, samples)
    write_t5(root / "t5", texts + captions(numbers, 200))
    write_clip(root / "clip")
    write_autoencoder(root / "ae.safetensors", flavor())
    write_transformer(root / "transformer", flavor())
    write_pictures(root / "pictures", numbers, texts)
