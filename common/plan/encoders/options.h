#pragma once

// The numbers that define Flux's frozen encoders. Uses no LibTorch.

#include <cstdint>
#include <vector>

namespace titan::encoders {

enum class Activation {
  kRelu,
  kGelu,      // With the error function.
  kGeluTanh,  // GELU's approximation by tanh; transformers' "gelu_new".
  kSilu,
  kQuickGelu,  // x * sigmoid(1.702 x)
};

// The encoder of a T5 (arXiv 1910.10683). T5 v1.1 has gated feed-forwards (arXiv 2002.05202).
struct T5Options {
  int64_t vocab_size = 0;
  int64_t dim = 0;  // d_model
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t head_dim = 0;        // d_kv
  int64_t ffn_hidden = 0;      // d_ff
  int64_t num_buckets = 32;    // Relative positions share this many biases, half of them for later keys.
  int64_t max_distance = 128;  // Keys at least this far away share a bias.
  double norm_eps = 1e-6;
  Activation activation = Activation::kGeluTanh;
  bool gated = true;
  double init_factor = 1;  // Multiplies the standard deviations of random weights.
};

// The text encoder of a CLIP (arXiv 2103.00020).
struct ClipTextOptions {
  int64_t vocab_size = 49408;
  int64_t dim = 512;
  int64_t num_layers = 12;
  int64_t num_heads = 8;
  int64_t ffn_hidden = 2048;
  int64_t max_tokens = 77;
  double norm_eps = 1e-5;
  Activation activation = Activation::kQuickGelu;
  // The token whose output represents the text: its first occurrence. 2 is what configurations say that predate a
  // correction in transformers; then it is the first occurrence of the largest id.
  int64_t eos_token = 49407;
  double init_factor = 1;
};

// The autoencoder of pictures. The defaults are Flux's.
struct AutoencoderOptions {
  int64_t image_channels = 3;
  std::vector<int64_t> channels = {128, 256, 512, 512};  // By level; each level has half the resolution of the last.
  int64_t blocks_per_level = 2;                          // The decoder has one more.
  int64_t latent_channels = 16;
  int64_t norm_groups = 32;
  double scale = 0.3611;  // Latents are scale * (z - shift).
  double shift = 0.1159;

  // Pixels along a side of the picture for one of the latents.
  int64_t downsampling() const { return int64_t{1} << (channels.size() - 1); }
};

// The numbers of the three encoders of a job.
struct EncoderOptions {
  T5Options t5;
  ClipTextOptions clip;
  AutoencoderOptions images;
};

}  // namespace titan::encoders
