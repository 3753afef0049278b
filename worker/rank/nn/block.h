#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/product_recipe.h"

namespace titan::nn {

class DeferredGradients;
class FlashCalls;

// How a parameter is drawn at the start; the numbers come from worker/rank/nn/init, keyed by (seed, FQN, global element
// index).
struct Init {
  enum class Kind { kOnes, kZeros, kNormal, kTruncatedNormal, kUniform };
  Kind kind = Kind::kZeros;
  double std = 0;               // Mean is 0.
  double lower = 0, upper = 0;  // Absolute bounds of kTruncatedNormal and kUniform, whose lower one is -upper.
};

// How the ranks of the tensor axis stand to one parameter.
enum class OnTensorAxis {
  kWhole,    // Each holds all of it and computes its whole gradient.
  kPartial,  // Each holds all of it and computes a part of its gradient: parts are summed over the axis.
  kSplit,    // Each holds another part.
};

struct Parameter;

// What a linear layer of weights W adds to its product (LoRA, arXiv 2106.09685): scale * (x A^T) B^T.
struct Adapter {
  const Parameter* a = nullptr;  // [rank, in]
  const Parameter* b = nullptr;  // [out, rank]
  double scale = 1;
};

// A parameter as its layer sees it. The layer reads `weight`; the runtime decides where the values live.
struct Parameter {
  std::string fqn;             // torchtitan's name: "layers.0.attention.wq.weight".
  std::vector<int64_t> shape;  // Of the part that this rank computes with: all of it until `parallel` splits it.
  Init init;
  at::Tensor weight;  // Leaf of `shape` in compute dtype; its storage is empty while resharded.
  // How products with this weight are computed; null: plain_products().
  const ProductRecipe* products = nullptr;
  // The weight where it was gathered quantised, for products of that recipe: the leaf's storage is empty then.
  Operand arrived;
  std::vector<int64_t> global_shape = shape;
  std::vector<int64_t> offset = std::vector<int64_t>(shape.size(), 0);  // Of the part in the whole.
  OnTensorAxis on_tensor_axis = OnTensorAxis::kWhole;
  bool expert =
      false;  // Of routed experts: dim 0 counts them, and under expert parallelism they have a mesh of theirs.
  bool of_linear = false;  // The matrix of a Linear: products with it may have an adapter and be packed.
  bool frozen = false;     // Not trained: no gradient, no optimizer state.
  std::optional<Adapter> adapter;
  bool adapts = false;     // Is itself a matrix of an adapter.
  int64_t packed_row = 0;  // Bytes that a row of [out, in] is kept, gathered and read as (nf4.h); 0: numbers.
  // Where products with this weight leave the computation of its gradient (worker/rank/nn/matmul_autograd.h). Null:
  // it is computed with the input's.
  DeferredGradients* deferred = nullptr;
};

// State beside the parameters that is saved with them and is the same on all ranks of a data-parallel group.
struct Buffer {
  std::string fqn;
  at::Tensor value;
};

// Registers one parameter with the block that owns a layer.
using Declare = std::function<Parameter&(std::string fqn, std::vector<int64_t> shape, Init init)>;

// What all blocks of one microbatch share. Under context parallelism a rank has T of a row's `seq_len` tokens.
struct MicrobatchContext {
  at::Tensor tokens;     // int64 [B, T]
  at::Tensor labels;     // int64 [B, T], -100 is ignored
  at::Tensor positions;  // int64 [T]: place of each token in its row; undefined: 0, 1, ..., T - 1.
  at::Tensor documents;  // int64 [B, seq_len]: number of the document that each token of the whole row belongs to;
                         // undefined: one document.
  int64_t seq_len() const {
    return documents.defined() ? documents.size(1) : whole_row > 0 ? whole_row : tokens.size(1);
  }
  int64_t whole_row = 0;  // Tokens of a whole row; 0: as many as `tokens` has.
  // Shared by all layers, where documents are: what attention tells a GPU of them; null: each layer tells it anew.
  std::shared_ptr<FlashCalls> flash_calls;
  std::shared_ptr<const RowShares> shares;  // Of all ranks that have a part of the rows; null: this one has all.
  bool counting = true;  // False when a block runs again for its backward pass, and in validation: statistics (tokens
                         // per expert) count each training token once.
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

  // Parameters of another block that this one reads too (a head tied to the embedding).
  virtual std::vector<Parameter*> shared_parameters() { return {}; }

  // Whether the backward pass reads the parameters' values: then they are gathered for it. Not where the gradients
  // follow from the input alone, as an embedding's do.
  virtual bool backward_reads_weights() const { return true; }

  const std::string& name() const { return name_; }  // "tok_embeddings", "layers.3", "output" (norm and head together)
  std::deque<Parameter>& parameters() { return parameters_; }  // Stable addresses, in declaration order.
  std::deque<Buffer>& buffers() { return buffers_; }
  // One more parameter, after the layers' own: of an adapter.
  Parameter& add_parameter(Parameter parameter) { return parameters_.emplace_back(std::move(parameter)); }

 protected:
  // For the constructors of the block's layers.
  Declare declare() {
    return [this](std::string fqn, std::vector<int64_t> shape, Init init) -> Parameter& {
      return parameters_.emplace_back(Parameter{std::move(fqn), std::move(shape), init, {}});
    };
  }
  // For layers with saved state; the tensor is live.
  Buffer& declare_buffer(std::string fqn) { return buffers_.emplace_back(Buffer{std::move(fqn), {}}); }

 private:
  std::string name_;
  std::deque<Parameter> parameters_;
  std::deque<Buffer> buffers_;
};

}  // namespace titan::nn
