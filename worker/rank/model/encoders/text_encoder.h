#pragma once

// A frozen text encoder as a chain of blocks, so that the weights of a large one can be sharded over ranks and gathered
// block by block.

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "worker/rank/model/encoders/weight_names.h"
#include "worker/rank/nn/block.h"

namespace titan::encoders {

// Data that the blocks of one call share. It lives as long as the call, so blocks keep no tensor between calls.
struct EncoderCall {
  at::Tensor ids;  // int64 [B, T]
  // [1, heads, T, T] in compute dtype: T5's first block computes it from its table, and all later ones add it to their
  // logits. Undefined: the encoder has none.
  at::Tensor position_bias;
};

class EncoderBlock : public nn::Block {
 public:
  using nn::Block::Block;

  // `input` is int64 ids [B, T] for the first block, else activations [B, T, D]. Returns activations [B, T, D]; the
  // last block returns the encoder's result.
  virtual at::Tensor run(const at::Tensor& input, EncoderCall& call) const = 0;

  // Does the same as a call with this block alone, of context.tokens. Throws if the block needs what an earlier one
  // computes for the call.
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) final;
  bool backward_reads_weights() const final { return false; }
};

// Functions around each block's pass, called with its index: to gather its weights before, and to free them after.
// Empty functions do nothing.
struct BlockHooks {
  std::function<void(size_t)> before;
  std::function<void(size_t)> after;
};

class TextEncoder {
 public:
  TextEncoder(std::vector<std::unique_ptr<EncoderBlock>> blocks, WeightNames names);

  // Returns the encoding of ids, int64 [B, T] on the weights' device: T5's last hidden states [B, T, D], or CLIP's
  // pooled output [B, D], in the weights' type. Padding is attended like any token, as in Flux's training. Records no
  // graph.
  at::Tensor encode(const at::Tensor& ids, const BlockHooks& hooks = {}) const;

  const std::vector<std::unique_ptr<EncoderBlock>>& blocks() const { return blocks_; }
  std::vector<nn::Parameter*> parameters() const;  // Those of all blocks, in order. All are frozen.
  const WeightNames& names() const { return names_; }

 private:
  std::vector<std::unique_ptr<EncoderBlock>> blocks_;
  WeightNames names_;
};

}  // namespace titan::encoders
