#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace titan::nn {

// How a parameter is drawn at the start; the numbers come from worker/nn/init, keyed by (seed, FQN, global element
// index).
struct Init {
  enum class Kind { kOnes, kZeros, kNormal, kTruncatedNormal };
  Kind kind = Kind::kZeros;
  double std = 0;               // Mean is 0.
  double lower = 0, upper = 0;  // Absolute bounds of kTruncatedNormal.
};

// A parameter as its layer sees it. The layer reads `weight`; the runtime decides where the values live.
struct Parameter {
  std::string fqn;             // torchtitan's name: "layers.0.attention.wq.weight".
  std::vector<int64_t> shape;  // Full shape.
  Init init;
  at::Tensor weight;  // Leaf of the full shape in compute dtype; its storage is empty while resharded.
};

// Registers one parameter with the block that owns a layer.
using Declare = std::function<Parameter&(std::string fqn, std::vector<int64_t> shape, Init init)>;

// What all blocks of one microbatch share.
struct MicrobatchContext {
  at::Tensor tokens;  // int64 [B, T]
  at::Tensor labels;  // int64 [B, T], -100 is ignored
};

// A unit of the explicit engine: the runtime feeds it a detached input, runs its graph alone, and recomputes it at
// will. forward must be deterministic given (input, weights) and keep no tensor between calls, except buffers.
class Block {
 public:
  explicit Block(std::string name) : name_(std::move(name)) {}
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // input: int64 tokens [B, T] for the first block, else activations [B, T, D].
  // Output: activations [B, T, D]; logits [B, T, V] from the last block.
  virtual at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) = 0;

  // Fills non-parameter buffers (RoPE tables) on `device`; parameters may still be empty. `dtype` is the compute dtype.
  virtual void init_buffers(at::Device device, at::ScalarType dtype) { (void)device, (void)dtype; }

  const std::string& name() const { return name_; }  // "tok_embeddings", "layers.3", "output" (norm and head together)
  std::deque<Parameter>& parameters() { return parameters_; }  // Stable addresses, in declaration order.

 protected:
  // For the constructors of the block's layers.
  Declare declare() {
    return [this](std::string fqn, std::vector<int64_t> shape, Init init) -> Parameter& {
      return parameters_.emplace_back(Parameter{std::move(fqn), std::move(shape), init, {}});
    };
  }

 private:
  std::string name_;
  std::deque<Parameter> parameters_;
};

}  // namespace titan::nn
