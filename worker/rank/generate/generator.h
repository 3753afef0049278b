#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/rank/comm/group.h"
#include "worker/rank/generate/sampler.h"
#include "worker/rank/nn/block.h"

// Text generation, token by token: one pass over the whole prompts, then one pass per further token of all rows.
namespace titan::generate {

// Runs a pass through a model and returns the logits [N, V] of N of its tokens. `chosen` (int64 [N]) gives their
// indices in the pass, row after row. All ranks get the same logits.
using Forward = std::function<at::Tensor(const nn::MicrobatchContext& context, const at::Tensor& chosen)>;

// Calls a function for one block after another, with its weights gathered (runtime::ShardedModel::visit). Takes tokens
// [B, T]; the function maps an activation [B, T, D] to the next one; returns the output of the last block [B, T, V].
using Visit = std::function<at::Tensor(at::Tensor, const std::function<at::Tensor(nn::Block&, const at::Tensor&)>&)>;
// Makes a Forward of a model whose last block returns logits of `vocabulary` columns, or an equal share of the columns
// on each rank of `tensor`. `tensor` must outlive the result.
Forward forward_through(Visit visit, const nn::Block* last, int64_t vocabulary, const comm::Group& tensor);

struct GeneratorOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<int64_t> stop_tokens;  // They end a row and are not part of it.
  // Tokens per row of a pass are padded to a multiple of this, because tensor ranks share them.
  int64_t token_multiple = 1;
  int64_t first_prompt = 0;  // Number of the first of `prompts`, for the random numbers.
  at::Device device = at::kCPU;
  // Replaces the chosen tokens by those of rank 0 if several ranks run this together. Empty: there is one rank.
  std::function<void(std::vector<int64_t>&)> agree;
  std::function<void(size_t prompt, int64_t token)> on_token;  // Called for each new token. May be empty.
};

struct Generation {
  std::vector<int64_t> tokens;
  bool stopped = false;  // Ended by a stop token; otherwise by max_new_tokens or `not_finite`.
  // Ended because a logit was NaN or infinite: no token follows `tokens`, which may be meaningless.
  bool not_finite = false;
};

// Generates from all prompts as one batch; no prompt may be empty. `blocks`: all blocks of the model, whose rotary
// embeddings must cover the longest prompt plus max_new_tokens.
std::vector<Generation> generate(const Forward& forward, const std::vector<nn::Block*>& blocks,
                                 const std::vector<std::vector<int64_t>>& prompts, const GeneratorOptions& options);

}  // namespace titan::generate
