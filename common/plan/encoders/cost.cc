#include "common/plan/encoders/cost.h"

#include <algorithm>

namespace titan::encoders {
namespace {

// A layer's tensors with their elements, its FLOPs for each place of its output, and what it needs at most.
class Sum {
 public:
  // `pixels` is the size of the picture; side lengths of levels are divided by `factor`.
  Sum(int64_t pixels, int64_t factor) : pixels_(pixels), area_(pixels / (factor * factor)) {}

  void set_factor(int64_t factor) { area_ = pixels_ / (factor * factor); }

  void conv(int64_t in, int64_t out, int64_t kernel) {
    const int64_t weights = in * out * kernel * kernel;
    add(2, weights + out);
    flops_ += 2.0 * static_cast<double>(weights) * static_cast<double>(area_);
  }
  void norm(int64_t channels) { add(2, 2 * channels); }
  // At most the input, the output and another copy of the wider one are alive.
  void resnet(int64_t in, int64_t out) {
    norm(in);
    conv(in, out, 3);
    norm(out);
    conv(out, out, 3);
    if (in != out) conv(in, out, 1);
    alive(in + out + std::max(in, out));
  }
  // Alive are the input, its norm, queries, keys and values, the last one in two layouts.
  void attention(int64_t channels) {
    norm(channels);
    for (int i = 0; i < 4; ++i) conv(channels, channels, 1);
    const auto places = static_cast<double>(area_);
    flops_ += 4 * places * places * static_cast<double>(channels);
    alive(6 * channels);
  }
  void middle(int64_t channels) {
    resnet(channels, channels);
    attention(channels);
    resnet(channels, channels);
  }
  void out(int64_t in, int64_t channels) {
    norm(in);
    conv(in, channels, 3);
    alive(2 * in + channels);
  }
  // The bytes of `numbers` for each place of the current level.
  void alive(int64_t numbers) { peak_ = std::max(peak_, numbers * area_); }

  ParameterCount count() const { return count_; }
  double flops() const { return flops_; }
  int64_t peak() const { return peak_; }

 private:
  void add(int64_t tensors, int64_t elements) {
    count_.tensors += tensors;
    count_.elements += elements;
  }

  int64_t pixels_, area_;
  ParameterCount count_;
  double flops_ = 0;
  int64_t peak_ = 0;
};

Sum encoder(const AutoencoderOptions& options, int64_t pixels) {
  const std::vector<int64_t>& channels = options.channels;
  Sum sum(pixels, 1);
  sum.conv(options.image_channels, channels[0], 3);
  for (size_t level = 0; level < channels.size(); ++level) {
    for (int64_t block = 0; block < options.blocks_per_level; ++block) {
      sum.resnet(block == 0 && level > 0 ? channels[level - 1] : channels[level], channels[level]);
    }
    if (level + 1 == channels.size()) continue;
    sum.alive(2 * channels[level] + channels[level] / 4);  // The padded copy, and a quarter as many places of output.
    sum.set_factor(int64_t{2} << level);
    sum.conv(channels[level], channels[level], 3);
  }
  sum.middle(channels.back());
  sum.out(channels.back(), 2 * options.latent_channels);
  return sum;
}

Sum decoder(const AutoencoderOptions& options, int64_t pixels) {
  const std::vector<int64_t>& channels = options.channels;
  Sum sum(pixels, options.downsampling());
  sum.conv(options.latent_channels, channels.back(), 3);
  sum.middle(channels.back());
  for (size_t level = channels.size(); level-- > 0;) {
    for (int64_t block = 0; block <= options.blocks_per_level; ++block) {
      sum.resnet(block == 0 && level + 1 < channels.size() ? channels[level + 1] : channels[level], channels[level]);
    }
    if (level == 0) continue;
    sum.set_factor(int64_t{1} << (level - 1));
    sum.conv(channels[level], channels[level], 3);
    sum.alive(2 * channels[level] + channels[level] / 4);
  }
  sum.out(channels[0], options.image_channels);
  return sum;
}

// FLOPs of a chain of layers of attention with `width` = heads * head size, and of their linear layers.
double chain_flops(int64_t linear_elements, int64_t layers, int64_t width, int64_t tokens) {
  const auto length = static_cast<double>(tokens);
  return 2 * length * static_cast<double>(linear_elements) + 4 * length * length * static_cast<double>(layers * width);
}

// The most numbers that a layer of attention of width `width` and a feed-forward with `hidden` channels has for a
// token: its input, the sum or norm of it, and queries, keys, values and their mixture in two layouts; or the
// activation with the feed-forward's other half or what it was computed from, and the result.
int64_t layer_numbers(int64_t dim, int64_t width, int64_t hidden) {
  return std::max(2 * dim + 5 * width, 3 * dim + 2 * hidden);
}

}  // namespace

ParameterCount parameter_count(const T5Options& options) {
  const int64_t width = options.num_heads * options.head_dim, matrices = options.gated ? 3 : 2;
  const int64_t linear = options.num_layers * options.dim * (4 * width + matrices * options.ffn_hidden);
  const int64_t others = options.dim * (options.vocab_size + 2 * options.num_layers + 1);
  return {.tensors = 3 + options.num_layers * (6 + matrices),
          .elements = linear + others + options.num_buckets * options.num_heads,
          .of_linear = linear};
}

ParameterCount parameter_count(const ClipTextOptions& options) {
  const int64_t linear = options.num_layers * options.dim * (4 * options.dim + 2 * options.ffn_hidden);
  const int64_t vectors = options.num_layers * (9 * options.dim + options.ffn_hidden) + 2 * options.dim;
  return {.tensors = 4 + options.num_layers * 16,
          .elements = linear + vectors + options.dim * (options.vocab_size + options.max_tokens),
          .of_linear = linear};
}

ParameterCount encoder_parameter_count(const AutoencoderOptions& options) { return encoder(options, 0).count(); }

ParameterCount decoder_parameter_count(const AutoencoderOptions& options) { return decoder(options, 0).count(); }

double text_flops(const T5Options& options, int64_t tokens) {
  return chain_flops(parameter_count(options).of_linear, options.num_layers, options.num_heads * options.head_dim,
                     tokens);
}

double text_flops(const ClipTextOptions& options, int64_t tokens) {
  return chain_flops(parameter_count(options).of_linear, options.num_layers, options.dim, tokens);
}

WeightBytes weight_bytes(const T5Options& options, int64_t number_bytes, bool int8) {
  constexpr int64_t kScaleBytes = 4;
  const int64_t width = options.num_heads * options.head_dim, wide = options.gated ? 2 : 1;
  const ParameterCount count = parameter_count(options);
  const int64_t matrices = count.of_linear / options.num_layers;
  const int64_t rows = 3 * width + 2 * options.dim + wide * options.ffn_hidden;
  const int64_t of_matrices = int8 ? matrices + rows * kScaleBytes : matrices * number_bytes;
  return {.all = options.num_layers * of_matrices + (count.elements - count.of_linear) * number_bytes,
          .largest_layer =
              std::max(of_matrices + 2 * options.dim * number_bytes, options.vocab_size * options.dim * number_bytes)};
}

int64_t text_activation_bytes(const T5Options& options, int64_t texts, int64_t tokens, int64_t number_bytes) {
  const int64_t of_token = layer_numbers(options.dim, options.num_heads * options.head_dim, options.ffn_hidden);
  return (texts * tokens * of_token + options.num_heads * tokens * tokens) * number_bytes;
}

int64_t text_activation_bytes(const ClipTextOptions& options, int64_t texts, int64_t tokens, int64_t number_bytes) {
  return texts * tokens * layer_numbers(options.dim, options.dim, options.ffn_hidden) * number_bytes;
}

double encoder_flops(const AutoencoderOptions& options, int64_t height, int64_t width) {
  return encoder(options, height * width).flops();
}

double decoder_flops(const AutoencoderOptions& options, int64_t height, int64_t width) {
  return decoder(options, height * width).flops();
}

int64_t encoder_activation_bytes(const AutoencoderOptions& options, int64_t height, int64_t width,
                                 int64_t number_bytes) {
  return encoder(options, height * width).peak() * number_bytes;
}

int64_t decoder_activation_bytes(const AutoencoderOptions& options, int64_t height, int64_t width,
                                 int64_t number_bytes) {
  return decoder(options, height * width).peak() * number_bytes;
}

}  // namespace titan::encoders
