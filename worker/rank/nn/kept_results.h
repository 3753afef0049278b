#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "worker/rank/nn/block.h"

// Selective activation checkpointing: a block that runs again for its backward pass can keep the results of some of its
// costly operations from its first pass. The second pass then takes them instead of computing them, while it builds the
// same graph; everything else is computed again from them. Bits are those of the first pass.
//
// Operations take part by asking kept_or(); who drives the block opens a KeptResults::Scope around each pass. The scope
// belongs to the thread that runs the pass, as at::GradMode does, so that no layer has to hand it on.
namespace titan::nn {

// One call of an operation whose result may be kept.
struct OpCall {
  enum class Kind {
    kProduct,         // A linear layer's matrix product.
    kGroupedProduct,  // Of routed experts.
    kAttention,       // Its output and the logarithms of its denominators.
    kScatter,         // The sum over ranks of partial results, scattered (reduce-scatter).
    kExchange,        // Rows that went to their experts' ranks, or came back (all-to-all).
    kGreatest,        // The greatest magnitude of all ranks' numbers, for their scale (all-reduce).
  };
  Kind kind = Kind::kProduct;
  const Parameter* weight = nullptr;  // Of products.
  bool scatters = false;              // A product that includes a reduce-scatter of its result.
  double flops = 0;                   // What computing it again costs.
  int64_t bytes = 0;                  // Of its results.
  // A product's index of the kScatter call that reads its result and nothing else does; -1: none. When that is kept,
  // the product is neither kept nor computed again.
  int feeds = -1;
};

// Whether to keep the results of the next call; asked once per call, in order.
using KeepRule = std::function<bool(const OpCall&)>;

// What a block keeps.
class KeepPolicy {
 public:
  virtual ~KeepPolicy() = default;
  virtual KeepRule begin() = 0;  // For one first pass.
  virtual void end(const std::vector<OpCall>& calls) { (void)calls; }
};

// Of one block and microbatch.
class KeptResults {
 public:
  // Makes a pass on this thread record results, or repeat with those recorded. Scopes may nest.
  class Scope {
   public:
    Scope(KeptResults& results, KeepRule rule);  // First pass.
    explicit Scope(KeptResults& results);        // Second pass.
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    KeptResults* const outer_;
  };

  // Of the innermost scope on this thread; null outside.
  static KeptResults* current();

  bool repeats() const { return !rule_; }  // Second pass.
  std::vector<OpCall> calls() const;       // Of the first pass.
  int64_t bytes() const;                   // Held.

 private:
  friend std::vector<at::Tensor> kept_or(OpCall call, const at::Tensor& input,
                                         const std::function<std::vector<at::Tensor>()>& compute);
  using WeakResult = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  struct Entry {
    explicit Entry(const OpCall& c) : call(c), produced(at::Tensor().getIntrusivePtr()) {}
    OpCall call;
    bool kept = false;
    std::vector<at::Tensor> results;  // While kept.
    at::Tensor stand_in;              // Shape and type of the result, without memory.
    WeakResult produced;              // Of a product.
  };
  void record(OpCall call, const at::Tensor& input, const std::vector<at::Tensor>& results);
  Entry& repeat(const OpCall& call);

  std::vector<Entry> entries_;
  KeepRule rule_;  // Empty in the second pass.
  size_t next_ = 0;
};

// The results of an operation: computed, or kept from the first pass. For the forward function of an autograd function,
// whose backward function must not need the values of `input` when results were kept. The caller must not change the
// results. `input`: what a kScatter call reads.
std::vector<at::Tensor> kept_or(OpCall call, const at::Tensor& input,
                                const std::function<std::vector<at::Tensor>()>& compute);

// The same for one result.
inline at::Tensor kept_or(const OpCall& call, const std::function<at::Tensor()>& compute,
                          const at::Tensor& input = {}) {
  if (KeptResults::current() == nullptr) return compute();
  return kept_or(call, input, [&] { return std::vector<at::Tensor>{compute()}; })[0];
}

}  // namespace titan::nn
