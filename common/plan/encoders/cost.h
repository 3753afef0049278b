#pragma once

// States the cost of the encoders in closed form. Uses no LibTorch. FLOPs are those of matrix products, convolutions
// and attention, a multiplication and an addition counting as two; causal attention counts in full.

#include <cstdint>

#include "common/plan/encoders/options.h"

namespace titan::encoders {

// Numbers of tensors and of their elements.
struct ParameterCount {
  int64_t tensors = 0;
  int64_t elements = 0;
  int64_t of_linear = 0;  // Elements of the matrices of linear layers, which may be held in int8.
};
ParameterCount parameter_count(const T5Options& options);
ParameterCount parameter_count(const ClipTextOptions& options);
ParameterCount encoder_parameter_count(const AutoencoderOptions& options);
ParameterCount decoder_parameter_count(const AutoencoderOptions& options);

// Return the FLOPs of one text of `tokens` tokens.
double text_flops(const T5Options& options, int64_t tokens);
double text_flops(const ClipTextOptions& options, int64_t tokens);

// Return the bytes of a T5's weights with numbers of `number_bytes`, where the matrices of linear layers may be held in
// int8 with a float32 scale for each row, and those of its largest layer.
struct WeightBytes {
  int64_t all = 0, largest_layer = 0;
};
WeightBytes weight_bytes(const T5Options& options, int64_t number_bytes, bool int8);

// Return the most bytes of activations that are alive at once for `texts` texts of `tokens` tokens, with the bias for
// every pair of positions, without the ids. Attention that stores its scores takes texts heads tokens^2 numbers more.
int64_t text_activation_bytes(const T5Options& options, int64_t texts, int64_t tokens, int64_t number_bytes);
int64_t text_activation_bytes(const ClipTextOptions& options, int64_t texts, int64_t tokens, int64_t number_bytes);

// Return the FLOPs of one picture of height x width pixels.
double encoder_flops(const AutoencoderOptions& options, int64_t height, int64_t width);
double decoder_flops(const AutoencoderOptions& options, int64_t height, int64_t width);

// Return the most bytes of activations that are alive at once for one picture of height x width pixels, without the
// caller's picture or latents, and without workspaces of convolutions, which on a CPU are up to a copy of their input.
// A batch takes as many times more. Of Flux's autoencoder the highest resolution decides: 384 numbers a pixel to encode
// and 640 to decode, so a picture of 1024 x 1024 pixels takes 0.75 GiB and 1.25 GiB in bf16. Attention adds nothing
// that grows with the square of the pixels unless LibTorch has no fused kernel for it (fp64 on a GPU): then it adds
// (height width / 64)^2 numbers.
int64_t encoder_activation_bytes(const AutoencoderOptions& options, int64_t height, int64_t width,
                                 int64_t number_bytes);
int64_t decoder_activation_bytes(const AutoencoderOptions& options, int64_t height, int64_t width,
                                 int64_t number_bytes);

}  // namespace titan::encoders
