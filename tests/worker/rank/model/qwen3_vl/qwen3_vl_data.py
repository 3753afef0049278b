"""Makes small data for Qwen3-VL's debugmodel: a tokenizer that begins with Qwen's special tokens, and an image processor's file."""

import json

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PAD, EOS, START, END, IMAGE, VIDEO = 0, 2, 3, 4, 5, 6


def write_tokenizer(folder, words, special=SPECIAL):
    folder.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=list(special), initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
                                  show_progress=False)
    tokenizer.train_from_iterator([" ".join(words)] * 3, trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>", "add_bos_token": False}))


def write_processor(folder, smallest, largest):
    """Writes the file of an image processor with limits in pixels."""
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
         "size": {"shortest_edge": smallest, "longest_edge": largest}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
