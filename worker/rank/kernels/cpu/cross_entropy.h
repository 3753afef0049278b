#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Cross-entropy over chunks of the vocabulary, so that the logits never exist as a whole: a first walk over the chunks
// gathers each token's maximum and sum (Milakov and Gimelshein, arXiv 1805.02867) and its label's logit; a second one,
// over the same logits computed again, turns each chunk into its gradient. Ranks that hold parts of the vocabulary
// merge the three figures between the walks: the largest maximum, the sums each times exp(maximum - largest), the
// labels' logits added.
namespace titan::kernels {

// The logits of ids [first_id, first_id + vocabulary): [tokens, vocabulary], strides in elements from token to token.
struct SoftmaxChunk {
  int64_t tokens = 0, vocabulary = 0, first_id = 0;
  Dtype type = Dtype::kBf16;
  const void* logits = nullptr;
  int64_t stride = 0;
  const int64_t* labels = nullptr;  // [tokens]; a label outside the chunk's ids leaves label_logit alone.
  bool first = false;               // Begin anew: what the figures held before does not count.
  float* maximum = nullptr;         // [tokens], of this chunk and those before.
  float* sum = nullptr;             // [tokens], of exp(logit - maximum).
  float* label_logit = nullptr;     // [tokens], 0 while no chunk had the label.
  int threads = 1;
};
// `sum` is within 1e-6 of the truth, relative, for each 65,536 ids; the other two are exact. A token with a logit that
// is no number, or +infinity, ends with a sum that is none.
bool softmax_chunk(Level level, const SoftmaxChunk& args);

// gradient = (softmax - [id is the label]) * scale, rounded once, for the same chunk; rows of the ignored label are 0.
// Within 2e-6 * |scale| beside the rounding.
struct CrossEntropyGradient {
  int64_t tokens = 0, vocabulary = 0, first_id = 0;
  Dtype type = Dtype::kBf16;
  const void* logits = nullptr;
  int64_t stride = 0;
  void* gradient = nullptr;  // May be the logits.
  int64_t gradient_stride = 0;
  const int64_t* labels = nullptr;
  int64_t ignored = -100;
  const float* maximum = nullptr;
  const float* sum = nullptr;
  float scale = 1;
  int threads = 1;
};
bool cross_entropy_gradient(Level level, const CrossEntropyGradient& args);

// The sum over tokens whose label is not ignored of log(sum) + maximum - label_logit, in fp64 and the tokens' order.
struct CrossEntropyLoss {
  int64_t tokens = 0;
  const int64_t* labels = nullptr;
  int64_t ignored = -100;
  const float *maximum = nullptr, *sum = nullptr, *label_logit = nullptr;
};
double cross_entropy_loss(const CrossEntropyLoss& args);

}  // namespace titan::kernels
