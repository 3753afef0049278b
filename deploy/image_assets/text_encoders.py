"""Small text encoders in the form of T5 v1.1's and CLIP's, with random weights: enough to distinguish the words of captions.

Each folder has the tokenizer, the configuration and the weights, in the files of Hugging Face's classes.
"""

import collections
import json
import math
import random
import re
import string
import struct

from tokenizers import pre_tokenizers

import shapes
import tensors

WIDTH, HIDDEN, LAYERS, HEADS = 64, 128, 2, 4
CLIP_POSITIONS = 77


def words():
    """Returns the words of all captions, in order."""
    names = [*shapes.COLOURS, *shapes.BACKGROUNDS, *shapes.SHAPES, *shapes.SIZES, *shapes.PLACES, "an"]
    texts = [re.sub(r"{\w+}", "", phrasing) for phrasing in shapes.PHRASINGS + shapes.HELD_OUT_PHRASINGS]
    return sorted({word for text in texts + names for word in re.findall(r"[a-z]+", text)})


def save_json(path, content):
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


# --- T5 ---


def piece(text, score, kind=1):
    """Returns a piece of a SentencePiece model as a field of its message: text, score, and type (1 normal, 2 unknown, 3 control)."""
    encoded = text.encode()
    body = b"\x0a" + bytes([len(encoded)]) + encoded + b"\x15" + struct.pack("<f", score) + b"\x18" + bytes([kind])
    return b"\x0a" + bytes([len(body)]) + body


def write_pieces(path):
    """Writes a unigram model that has the words of captions and single characters. Returns the number of its pieces."""
    pieces = [piece("<pad>", 0, 3), piece("</s>", 0, 3), piece("<unk>", 0, 2)]
    pieces += [piece("\u2581" + word, -4.0) for word in words()]
    pieces += [piece(character, -9.0) for character in ["\u2581", *sorted(set(string.printable) - set(string.whitespace))]]
    # Of the trainer: model_type 1 (unigram), ids of <unk> 2, <s> none, </s> 1, <pad> 0. Of the normalizer: its name.
    none = b"\xff" * 9 + b"\x01"
    trainer = b"\x18\x01" + b"\xc0\x02\x02" + b"\xc8\x02" + none + b"\xd0\x02\x01" + b"\xd8\x02\x00"
    normalizer = b"\x0a\x08identity"
    path.write_bytes(b"".join(pieces) + b"\x12" + bytes([len(trainer)]) + trainer + b"\x1a" + bytes([len(normalizer)]) + normalizer)
    return len(pieces)


class Drawn(dict):
    """Weights by name, drawn one after another from a normal distribution."""

    def __init__(self, seed):
        super().__init__()
        self.random_numbers = random.Random(seed)

    def draw(self, name, shape, deviation):
        self[name] = shape, tensors.floats([self.random_numbers.gauss(0, deviation) for _ in range(tensors.count(shape))])

    def fill(self, name, size, value):
        self[name] = [size], tensors.floats([value]) * size


def t5_weights(vocabulary):
    weights = Drawn(1)
    weights.draw("shared.weight", [vocabulary, WIDTH], 1)
    for i in range(LAYERS):
        attention, feed_forward = (f"encoder.block.{i}.layer.{part}" for part in (0, 1))
        for part, deviation in (("q", (WIDTH * WIDTH // HEADS) ** -0.5), ("k", WIDTH**-0.5), ("v", WIDTH**-0.5), ("o", WIDTH**-0.5)):
            weights.draw(f"{attention}.SelfAttention.{part}.weight", [WIDTH, WIDTH], deviation)
        if i == 0:
            weights.draw(f"{attention}.SelfAttention.relative_attention_bias.weight", [32, HEADS], 0.5)
        for part in ("wi_0", "wi_1"):
            weights.draw(f"{feed_forward}.DenseReluDense.{part}.weight", [HIDDEN, WIDTH], WIDTH**-0.5)
        weights.draw(f"{feed_forward}.DenseReluDense.wo.weight", [WIDTH, HIDDEN], HIDDEN**-0.5)
        for layer in (attention, feed_forward):
            weights.fill(f"{layer}.layer_norm.weight", WIDTH, 1.0)
    weights.fill("encoder.final_layer_norm.weight", WIDTH, 1.0)
    return weights


def write_t5(folder):
    folder.mkdir(parents=True)
    vocabulary = write_pieces(folder / "spiece.model")
    save_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "T5Tokenizer", "eos_token": "</s>", "unk_token": "<unk>", "pad_token": "<pad>", "extra_ids": 0,
        "model_max_length": 512})  # fmt: skip
    save_json(folder / "config.json", {
        "architectures": ["T5EncoderModel"], "model_type": "t5", "d_model": WIDTH, "d_kv": WIDTH // HEADS, "d_ff": HIDDEN,
        "num_layers": LAYERS, "num_heads": HEADS, "vocab_size": vocabulary, "feed_forward_proj": "gated-gelu",
        "relative_attention_num_buckets": 32, "relative_attention_max_distance": 128, "layer_norm_epsilon": 1e-6,
        "pad_token_id": 0, "eos_token_id": 1, "tie_word_embeddings": False})  # fmt: skip
    tensors.write(folder / "model.safetensors", t5_weights(vocabulary))


# --- CLIP ---


def merges():
    """Returns the pairs of CLIP's byte-pair encoding of the words of captions."""
    return most_frequent_pairs([[*word[:-1], word[-1] + "</w>"] for word in words()])


def most_frequent_pairs(parts):
    """Returns the pairs of a byte-pair encoding (arXiv 1508.07909) of words in parts, each a token in the end. Of pairs that are equally
    frequent the first in the alphabet is taken; the trainer of `tokenizers` takes any."""
    pairs = []
    while True:
        counts = collections.Counter(pair for tokens in parts for pair in zip(tokens, tokens[1:]))
        if not counts:
            return pairs
        pairs.append(min(counts, key=lambda pair: (-counts[pair], pair)))
        parts = [merged(tokens, pairs[-1]) for tokens in parts]


def merged(tokens, pair):
    """Returns the tokens with each occurrence of the pair as one."""
    joined = []
    for token in tokens:
        if joined and (joined[-1], token) == pair:
            joined[-1] += token
        else:
            joined.append(token)
    return joined


def write_clip_tokenizer(folder):
    """Returns the number of tokens. The last two are the marks of start and end."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    pairs = merges()
    tokens = alphabet + [character + "</w>" for character in alphabet] + ["".join(pair) for pair in pairs]
    tokens += ["<|startoftext|>", "<|endoftext|>"]
    save_json(folder / "vocab.json", {token: i for i, token in enumerate(tokens)})
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in pairs), encoding="utf-8")
    save_json(folder / "tokenizer_config.json", {
        "tokenizer_class": "CLIPTokenizer", "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>",
        "pad_token": "<|endoftext|>", "model_max_length": CLIP_POSITIONS})  # fmt: skip
    if len(set(tokens)) != len(tokens):
        raise SystemExit("make_image_assets: CLIP's vocabulary has a token twice")
    return len(tokens)


def clip_weights(vocabulary):
    weights = Drawn(2)
    weights.draw("text_model.embeddings.token_embedding.weight", [vocabulary, WIDTH], 1)
    # The output at the mark of the end represents the text, so the mark itself is small compared with what it attends to.
    marks = weights["text_model.embeddings.token_embedding.weight"][1]
    for i in range((vocabulary - 2) * WIDTH, vocabulary * WIDTH):
        marks[i] *= 0.1
    weights.draw("text_model.embeddings.position_embedding.weight", [CLIP_POSITIONS, WIDTH], 0.1)
    for i in range(LAYERS):
        layer = f"text_model.encoder.layers.{i}"
        shapes_of = {"self_attn.q_proj": (WIDTH, WIDTH), "self_attn.k_proj": (WIDTH, WIDTH), "self_attn.v_proj": (WIDTH, WIDTH),
                     "self_attn.out_proj": (WIDTH, WIDTH), "mlp.fc1": (HIDDEN, WIDTH), "mlp.fc2": (WIDTH, HIDDEN)}  # fmt: skip
        for name, (out, width) in shapes_of.items():
            weights.draw(f"{layer}.{name}.weight", [out, width], 1 / math.sqrt(width))
            weights.fill(f"{layer}.{name}.bias", out, 0.0)
        for norm in ("layer_norm1", "layer_norm2"):
            weights.fill(f"{layer}.{norm}.weight", WIDTH, 1.0)
            weights.fill(f"{layer}.{norm}.bias", WIDTH, 0.0)
    weights.fill("text_model.final_layer_norm.weight", WIDTH, 1.0)
    weights.fill("text_model.final_layer_norm.bias", WIDTH, 0.0)
    return weights


def write_clip(folder):
    folder.mkdir(parents=True)
    vocabulary = write_clip_tokenizer(folder)
    save_json(folder / "config.json", {
        "architectures": ["CLIPTextModel"], "model_type": "clip_text_model", "hidden_size": WIDTH, "intermediate_size": HIDDEN,
        "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "vocab_size": vocabulary, "max_position_embeddings": CLIP_POSITIONS,
        "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "bos_token_id": vocabulary - 2, "eos_token_id": vocabulary - 1,
        "pad_token_id": vocabulary - 1})  # fmt: skip
    tensors.write(folder / "model.safetensors", clip_weights(vocabulary))
