"""Makes small data for a vision-language model: a tokenizer with the special tokens of images, pictures with captions in a tar
archive, and rows of several texts and pictures in Parquet."""

import io
import json
import tarfile

import pyarrow
import pyarrow.parquet
from PIL import Image
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"
IMAGE = ["<|image|>", "<|begin_of_image|>", "<|end_of_image|>", "<|pad|>"]
WORDS = "picture number of a small red green blue noisy square near the round tree house cat dog river and".split()


def write_byte_pairs(folder, words, special, config):
    """Writes a small tokenizer of byte pairs that begins with the tokens `special`, and its tokenizer_config.json."""
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([" ".join(words)] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_tokenizer(folder, special=(BOS, EOS, *IMAGE)):
    write_byte_pairs(folder, WORDS, special,
                     {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": BOS, "eos_token": EOS, "add_bos_token": True})


def png(width, height, seed):
    file = io.BytesIO()
    Image.effect_noise((width, height), 40 + seed % 60).convert("RGB").save(file, "PNG")
    return file.getvalue()


def text(number):
    """A text of some length from 4 to 12 words."""
    return " ".join(WORDS[(number * 7 + i * i) % len(WORDS)] for i in range(4 + number * 5 % 9))


def write_archive(path, samples, bad=(), size_of=lambda i: (12 + i * 5 % 17, 12 + i * 3 % 11)):
    """Writes pictures of different shapes with captions. Those in `bad` are damaged."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as archive:
        for i in range(samples):
            data = png(*size_of(i), i)
            for name, content in ((f"{i:06d}.png", data[:60] if i in bad else data), (f"{i:06d}.txt", text(i).encode())):
                member = tarfile.TarInfo(name)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))


def write_interleaved(path, rows, with_images=lambda row: row % 3 != 2):
    """Writes rows of texts and pictures; those for which `with_images` is false have only texts."""
    path.parent.mkdir(exist_ok=True)
    images, texts = [], []
    for row in range(rows):
        places = [png(8 + row % 9, 8 + row % 7, row + place) if with_images(row) and place % 2 == row % 2 else None
                  for place in range(2 + row % 3)]
        images.append(places)
        texts.append([text(row + place) if image is None else None for place, image in enumerate(places)])
    table = pyarrow.table({"images": pyarrow.array(images, pyarrow.list_(pyarrow.binary())), "texts": pyarrow.array(texts)})
    pyarrow.parquet.write_table(table, path)
