#pragma once

#include <cstdint>

#include "worker/rank/kernels/dtype.h"
#include "worker/rank/kernels/level.h"

// Cross-entropy over chunks of the vocabulary, so that the full logits never exist. A first pass over the chunks
// collects each token's maximum and sum (Milakov and Gimelshein, arXiv 1805.02867) and its label's logit. A second
// pass, over the same logits computed again, turns each chunk into its gradient. Ranks that hold parts of the
// vocabulary merge the three figures between the passes: they take the largest maximum, add the sums each times
// exp(maximum - largest), and add the labels' logits.
namespace titan::kernels {

// Takes the logits of ids [first_id, first_id + vocabulary). Strides are in elements from token to token.
struct SoftmaxChunk {
  int64_t tokens = 0, vocabulary = 0, first_id = 0;
  Dtype type = Dtype::kBf16;
  const void* logits = nullptr;  // [tokens, vocabulary]
  int64_t stride = 0;
  const int64_t* labels = nullptr;  // [tokens]. A label outside the chunk's ids leaves label_logit unchanged.
  bool first = false;               // Starts over: earlier figures are ignored.
  float* maximum = nullptr;         // [tokens], of this chunk and those before.
  float* sum = nullptr;             // [tokens], of exp(logit - maximum).
  float* label_logit = nullptr;     // [tokens], 0 until a chunk has the label.
  int threads = 1;
};
// The relative error of `sum` is at most 1e-6 per 65,536 ids, and the other two are exact. A logit of NaN or +infinity
// makes its token's sum NaN.
bool softmax_chunk(Level level, const SoftmaxChunk& args);

// gradient = (softmax - [id is the label]) * scale for the same chunk, rounded once. Rows of the ignored label are 0.
// The error is at most 2e-6 * |scale| plus the rounding.
struct CrossEntropyGradient {
  int64_t tokens = 0, vocabulary = 0, first_id = 0;
  Dtype type = Dtype::kBf16;
  const void* logits = nullptr;  // [tokens, vocabulary]
  int64_t stride = 0;
  void* gradient = nullptr;  // [tokens, vocabulary]. May be the logits.
  int64_t gradient_stride = 0;
  const int64_t* labels = nullptr;  // [tokens]
  int64_t ignored = -100;
  const float* maximum = nullptr;  // [tokens]
  const float* sum = nullptr;      // [tokens]
  float scale = 1;
  int threads = 1;
};
bool cross_entropy_gradient(Level level, const CrossEntropyGradient& args);

// Sums log(sum) + maximum - label_logit over the tokens with a label that is not ignored, in fp64 and in token order.
struct CrossEntropyLoss {
  int64_t tokens = 0;
  const int64_t* labels = nullptr;  // [tokens]
  int64_t ignored = -100;
  const float *maximum = nullptr, *sum = nullptr, *label_logit = nullptr;  // [tokens] each.
};
double cross_entropy_loss(const CrossEntropyLoss& args);

}  // namespace titan::kernels
