"""Makes small data for Qwen3-VL's debugmodel: a tokenizer that begins with Qwen's special tokens, and an image processor's file."""

import json

from vlm_data import write_byte_pairs

SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>"]
PAD, EOS, START, END, IMAGE, VIDEO = 0, 2, 3, 4, 5, 6


def write_tokenizer(folder, words, special=SPECIAL):
    write_byte_pairs(folder, words, special, {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|im_end|>",
                                              "pad_token": "<|endoftext|>", "add_bos_token": False})


def write_processor(folder, smallest, largest):
    """Writes the file of an image processor with limits in pixels."""
    (folder / "preprocessor_config.json").write_text(json.dumps(
        {"image_processor_type": "Qwen2VLImageProcessorFast", "patch_size": 16, "temporal_patch_size": 2, "merge_size": 2,
         "size": {"shortest_edge": smallest, "longest_edge": largest}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}))
