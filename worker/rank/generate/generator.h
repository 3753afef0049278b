#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/generate/sampler.h"
#include "worker/rank/nn/block.h"

// Text from a model, token by token: a whole pass over the prompts, then one pass for each further token of all rows.
namespace titan::generate {

// Runs a pass through a model and gives the logits [N, V] of N of its tokens, whose places in the pass, row after row,
// are `chosen` (int64 [N]). The same on every rank.
using Forward = std::function<at::Tensor(const nn::MicrobatchContext& context, const at::Tensor& chosen)>;

// One block after the other, each with its weights there (runtime::ShardedModel::visit).
using Visit = std::function<at::Tensor(at::Tensor, const std::function<at::Tensor(nn::Block&, const at::Tensor&)>&)>;
// Of a model whose last block makes logits of `vocabulary` columns, or on each rank of `tensor` as many of them in
// turn. `tensor` must outlive it.
Forward forward_through(Visit visit, const nn::Block* last, int64_t vocabulary, const comm::Group& tensor);

struct Options {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<int64_t> stop_tokens;  // End a row, and are not part of it.
  int64_t token_multiple = 1;        // A pass brings a multiple of so many tokens a row, which tensor ranks share.
  int64_t first_prompt = 0;          // The number of the first of `prompts`, for the random numbers.
  at::Device device = at::kCPU;
  // Makes everybody's choice rank 0's, where several ranks run this together; empty: there is one.
  std::function<void(std::vector<int64_t>&)> agree;
  std::function<void(size_t prompt, int64_t token)> on_token;  // Each as it comes; may be empty.
};

struct Generation {
  std::vector<int64_t> tokens;
  bool stopped = false;  // By a stop token; else by max_new_tokens.
  // Ended by logits of which one is NaN or infinite: no token follows `tokens`, and these may mean nothing.
  bool not_finite = false;
};

// All prompts as one batch; none may be empty. `blocks`: all of the model's, whose rotations reach as far as the
// longest prompt and max_new_tokens together.
std::vector<Generation> generate(const Forward& forward, const std::vector<nn::Block*>& blocks,
                                 const std::vector<std::vector<int64_t>>& prompts, const Options& options);

}  // namespace titan::generate
