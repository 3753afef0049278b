#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "worker/rank/nn/attention_pairs.h"
#include "worker/rank/nn/matmul_recipe.h"

namespace titan::nn {

class DeferredGradients;
class FlashCalls;

// Initial distribution of a parameter. worker/rank/nn/init draws the numbers, keyed by (seed, FQN, global element
// index).
struct Init {
  enum class Kind { kOnes, kZeros, kNormal, kTruncatedNormal, kUniform };
  Kind kind = Kind::kZeros;
  double std = 0;               // The mean is 0.
  double lower = 0, upper = 0;  // Absolute bounds of kTruncatedNormal and kUniform. kUniform requires lower = -upper.
};

// How the ranks of the tensor axis hold one parameter.
enum class TensorAxisPlacement {
  kReplicate,  // Each holds all of it and computes its whole gradient.
  kPartial,    // Each holds all of it and computes a part of its gradient. Parts are summed over the axis.
  kShard,      // Each holds a different part.
};

struct Parameter;

// Adds a low-rank product to that of a linear layer (LoRA, arXiv 2106.09685): scale * (x A^T) B^T.
struct Adapter {
  const Parameter* a = nullptr;  // [rank, in]
  const Parameter* b = nullptr;  // [out, rank]
  double scale = 1;
};

// A parameter as its layer sees it. The layer reads `weight`, and the runtime decides where the values are.
struct Parameter {
  std::string fqn;             // torchtitan's name, such as "layers.0.attention.wq.weight".
  std::vector<int64_t> shape;  // Shape of this rank's part: the whole until `parallel` splits it.
  Init init;
  at::Tensor weight;  // [shape]: leaf in compute dtype. Its storage is empty while resharded.
  // Recipe of products with this weight. Null: plain_matmul_recipe().
  const MatmulRecipe* products = nullptr;
  // The weight if it was gathered quantised, for products of that recipe. Then the leaf's storage is empty.
  Operand arrived;
  std::vector<int64_t> global_shape = shape;
  std::vector<int64_t> offset = std::vector<int64_t>(shape.size(), 0);  // Offset of the part in the whole.
  TensorAxisPlacement on_tensor_axis = TensorAxisPlacement::kReplicate;
  // Parameter of routed experts: dim 0 is the expert. Under expert parallelism it is split over a separate mesh.
  bool expert = false;
  bool of_linear = false;  // Matrix of a Linear: it may have an adapter and be packed.
  bool frozen = false;     // Not trained: no gradient and no optimizer state.
  std::optional<Adapter> adapter;
  bool adapts = false;     // This is a matrix of an adapter.
  int64_t packed_row = 0;  // Bytes of a row of [out, in] if rows are stored and gathered packed (nf4.h). 0: not packed.
  // Where products with this weight put the deferred computation of its gradient (worker/rank/nn/matmul_autograd.h).
  // Null: it is computed together with the input's gradient.
  DeferredGradients* deferred = nullptr;
};

// State other than parameters that is saved with them and is the same on all ranks of a data-parallel group.
struct Buffer {
  std::string fqn;
  at::Tensor value;  // [...]: any shape.
};

// Registers one parameter with the block that owns a layer.
using Declare = std::function<Parameter&(std::string fqn, std::vector<int64_t> shape, Init init)>;

// Base of what a model's objective hands to its blocks apart from tensors, such as the shapes of images.
class ContextExtension {
 public:
  virtual ~ContextExtension() = default;
};

// Data that all blocks of one microbatch share. Under context parallelism a rank has T of a row's `seq_len` tokens. A
// model's objective fills it (worker/rank/model/objective.h): that of language models sets `tokens` and `labels`,
// others set `tensors`.
struct MicrobatchContext {
  at::Tensor tokens;     // int64 [B, T]
  at::Tensor labels;     // int64 [B, T]. -100 is ignored by the loss.
  at::Tensor positions;  // int64 [T]: position of each token in its row. Undefined: 0, 1, ..., T - 1.
  // int64 [B, seq_len]: document of each token of the whole row. Undefined: one document.
  at::Tensor documents;
  int64_t seq_len() const {
    return documents.defined() ? documents.size(1) : whole_row > 0 ? whole_row : tokens.size(1);
  }
  int64_t whole_row = 0;  // Tokens of a whole row. 0: as many as `tokens` has.
  // Arguments of attention on a GPU that follow from the documents, shared by all layers. Null: each layer makes them.
  std::shared_ptr<FlashCalls> flash_calls;
  std::shared_ptr<const RowShares> shares;  // Shares of all ranks that have a part. Null: this rank has the whole row.
  // False if a block runs again for its backward pass, and in validation: statistics (tokens per expert) count each
  // training token once.
  bool counting = true;
  std::map<std::string, at::Tensor> tensors = {};               // Other inputs by name. Their shapes are the model's.
  std::shared_ptr<const ContextExtension> extension = nullptr;  // The model defines its type. Null: none.

  // Returns one of `tensors`. Throws c10::Error that names it if it is missing.
  const at::Tensor& tensor(const std::string& name) const {
    const auto found = tensors.find(name);
    TORCH_CHECK(found != tensors.end(), "the microbatch has no tensor \"", name, "\"");
    return found->second;
  }
  // Returns the device of the microbatch's tensors.
  at::Device device() const {
    if (tokens.defined()) return tokens.device();
    return tensors.empty() ? at::Device(at::kCPU) : tensors.begin()->second.device();
  }
};

// A unit of the explicit engine. The runtime feeds it a detached input, runs its graph separately, and may recompute it
// at any time. forward must be deterministic given (input, weights) and keep no tensor between calls, except in
// buffers.
class Block {
 public:
  explicit Block(std::string name) : name_(std::move(name)) {}
  virtual ~Block() = default;
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  // `input` is what the model's `input` returns for the first block (int64 tokens [B, T] of a language model), else
  // activations [B, T, D]. Returns activations [B, T, D], or from the last block what the loss takes, such as logits
  // [B, T, V].
  virtual at::Tensor forward(const at::Tensor& input, const MicrobatchContext& context) = 0;

  // Fills buffers that are not parameters (RoPE tables) on `device`. Parameters may still be empty. `dtype` is the
  // compute dtype.
  virtual void init_buffers(at::Device device, at::ScalarType dtype) { (void)device, (void)dtype; }

  // Returns parameters of another block that this one reads too (a head tied to the embedding).
  virtual std::vector<Parameter*> shared_parameters() { return {}; }

  // Whether the backward pass reads the parameters' values, so that they are gathered for it. False if gradients follow
  // from the input alone, as an embedding's do.
  virtual bool backward_reads_weights() const { return true; }

  // "tok_embeddings", "layers.3" or "output" (norm and head together).
  const std::string& name() const { return name_; }
  std::deque<Parameter>& parameters() { return parameters_; }  // In declaration order. Addresses are stable.
  std::deque<Buffer>& buffers() { return buffers_; }
  // Adds a parameter of an adapter, after those of the layers.
  Parameter& add_parameter(Parameter parameter) { return parameters_.emplace_back(std::move(parameter)); }

 protected:
  // Returns the function with which the constructors of the block's layers register parameters.
  Declare declare() {
    return [this](std::string fqn, std::vector<int64_t> shape, Init init) -> Parameter& {
      Parameter& made = parameters_.emplace_back();
      made.fqn = std::move(fqn);
      made.init = init;
      made.shape = made.global_shape = shape;
      made.offset.assign(shape.size(), 0);
      return made;
    };
  }
  // Declares a buffer for a layer with saved state. The layer reads Buffer::value at each use.
  Buffer& declare_buffer(std::string fqn) { return buffers_.emplace_back(Buffer{std::move(fqn), {}}); }

 private:
  std::string name_;
  std::deque<Parameter> parameters_;
  std::deque<Buffer> buffers_;
};

}  // namespace titan::nn
