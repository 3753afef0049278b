#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/rank/nn/block.h"

// Selective activation checkpointing. A block that runs again for its backward pass can keep the results of some costly
// operations of its first pass. The second pass builds the same graph, but takes these results instead of computing
// them, and computes everything else again. The bits are those of the first pass.
//
// Operations take part by calling saved_or_compute(). The driver of the block opens a SavedActivations::Scope around
// each pass. The scope belongs to the thread that runs the pass, like at::GradMode, so that layers need not pass it on.
namespace titan::nn {

// One call of an operation with a result that may be kept.
struct OpCall {
  enum class Kind {
    kProduct,         // A linear layer's matrix product.
    kGroupedProduct,  // The product of routed experts.
    kAttention,       // Attention's output and the logs of its denominators.
    kScatter,         // The sum over ranks of partial results, scattered (reduce-scatter).
    kExchange,        // Rows that were sent to their experts' ranks, or came back (all-to-all).
    kGreatest,        // The greatest magnitude of all ranks' numbers, for their scale (all-reduce).
  };
  Kind kind = Kind::kProduct;
  const Parameter* weight = nullptr;  // Weight of a product.
  bool scatters = false;              // A product that includes a reduce-scatter of its result.
  double flops = 0;                   // Cost of computing it again.
  int64_t bytes = 0;                  // Size of its results.
  // For a product, the index of the kScatter call that is the only reader of its result. -1: none. If that call is
  // kept, the product is neither kept nor computed again.
  int feeds = -1;
};

// Whether to keep the results of the next call. Called once per call, in order.
using SaveRule = std::function<bool(const OpCall&)>;

// Decides what a block keeps.
class RecomputePolicy {
 public:
  virtual ~RecomputePolicy() = default;
  virtual SaveRule begin() = 0;                                        // Begins one first pass.
  virtual void end(const std::vector<OpCall>& calls) { (void)calls; }  // Gets the calls of that pass.
};

// Results that one block keeps for one microbatch.
class SavedActivations {
 public:
  // Makes a pass on this thread record results, or repeat with the recorded ones. Scopes may nest.
  class Scope {
   public:
    Scope(SavedActivations& results, SaveRule rule);  // First pass.
    explicit Scope(SavedActivations& results);        // Second pass.
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SavedActivations* const outer_;
  };

  // Returns the results of the innermost scope on this thread. Null outside a scope.
  static SavedActivations* current();

  bool repeats() const { return !rule_; }  // Whether this is the second pass.
  std::vector<OpCall> calls() const;       // Calls of the first pass.
  int64_t bytes() const;                   // Bytes that are held.

 private:
  friend std::vector<at::Tensor> saved_or_compute(OpCall call, const at::Tensor& input,
                                                  const std::function<std::vector<at::Tensor>()>& compute);
  using WeakResult = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    explicit Entry(const OpCall& c) : call(c), produced(at::Tensor().getIntrusivePtr()) {}
    OpCall call;
    bool kept = false;
    std::vector<at::Tensor> results;  // [...] each, while kept.
    at::Tensor stand_in;              // [...]: shape and type of the result, without memory.
    WeakResult produced;              // Result of a product.
  };
  // Records the results [...] of a call that reads `input` [...], as in saved_or_compute().
  void record(OpCall call, const at::Tensor& input, const std::vector<at::Tensor>& results);
  Entry& repeat(const OpCall& call);

  std::vector<Entry> entries_;
  SaveRule rule_;  // Empty in the second pass.
  size_t next_ = 0;
};

// Returns the results [...] of an operation, computed or kept from the first pass. Call it in the forward function of
// an autograd function. Its backward function must not need the values of `input` if results were kept. The caller must
// not change the results. `input` [...] is the tensor that a kScatter call reads.
std::vector<at::Tensor> saved_or_compute(OpCall call, const at::Tensor& input,
                                         const std::function<std::vector<at::Tensor>()>& compute);

// The same for one result [...].
inline at::Tensor saved_or_compute(const OpCall& call, const std::function<at::Tensor()>& compute,
                                   const at::Tensor& input = {}) {
  if (SavedActivations::current() == nullptr) return compute();
  return saved_or_compute(call, input, [&] { return std::vector<at::Tensor>{compute()}; })[0];
}

}  // namespace titan::nn
