#include "worker/rank/nn/saved_activations.h"

#include <c10/util/Exception.h>

#include <utility>

namespace titan::nn {
namespace {

thread_local SavedActivations* innermost = nullptr;

const char* name(OpCall::Kind kind) {
  switch (kind) {
    case OpCall::Kind::kProduct:
      return "product";
    case OpCall::Kind::kGroupedProduct:
      return "grouped product";
    case OpCall::Kind::kAttention:
      return "attention";
    case OpCall::Kind::kScatter:
      return "reduce-scatter";
    case OpCall::Kind::kExchange:
      return "all-to-all";
    case OpCall::Kind::kGreatest:
      return "greatest magnitude";
  }
  return "?";
}

}  // namespace

SavedActivations::Scope::Scope(SavedActivations& results, SaveRule rule) : outer_(std::exchange(innermost, &results)) {
  results.entries_.clear();
  results.rule_ = std::move(rule);
}

SavedActivations::Scope::Scope(SavedActivations& results) : outer_(std::exchange(innermost, &results)) {
  results.rule_ = nullptr;
  results.next_ = 0;
}

SavedActivations::Scope::~Scope() { innermost = outer_; }

SavedActivations* SavedActivations::current() { return innermost; }

std::vector<OpCall> SavedActivations::calls() const {
  std::vector<OpCall> all;
  for (const Entry& entry : entries_) all.push_back(entry.call);
  return all;
}

int64_t SavedActivations::bytes() const {
  int64_t sum = 0;
  for (const Entry& entry : entries_) {
    for (const at::Tensor& result : entry.results) sum += static_cast<int64_t>(result.nbytes());
  }
  return sum;
}

void SavedActivations::record(OpCall call, const at::Tensor& input, const std::vector<at::Tensor>& results) {
  call.bytes = 0;
  for (const at::Tensor& result : results) call.bytes += static_cast<int64_t>(result.nbytes());
  Entry entry(call);
  entry.kept = rule_(call);
  if (entry.kept) entry.results = results;
  if (call.kind == OpCall::Kind::kProduct && !call.scatters) {
    entry.produced = WeakResult(results[0].getIntrusivePtr());
    entry.stand_in = at::empty({}, results[0].options()).expand(results[0].sizes());
  }
  if (call.kind == OpCall::Kind::kScatter && !entries_.empty()) {
    Entry& before = entries_.back();
    const auto product = before.produced.lock();
    if (product && product.get() == input.unsafeGetTensorImpl()) {
      before.call.feeds = static_cast<int>(entries_.size());
      if (entry.kept) before.results.clear();
    }
  }
  entries_.push_back(std::move(entry));
}

SavedActivations::Entry& SavedActivations::repeat(const OpCall& call) {
  TORCH_CHECK(next_ < entries_.size() && entries_[next_].call.kind == call.kind,
              "recomputation: the second pass runs the operation \"", name(call.kind),
              "\", which the first pass did not run at this point; a block's forward pass must run the same operations "
              "each time");
  return entries_[next_++];
}

std::vector<at::Tensor> saved_or_compute(OpCall call, const at::Tensor& input,
                                         const std::function<std::vector<at::Tensor>()>& compute) {
  SavedActivations* all = SavedActivations::current();
  if (all == nullptr) return compute();
  if (all->rule_) {
    std::vector<at::Tensor> results = compute();
    all->record(call, input, results);
    return results;
  }
  SavedActivations::Entry& entry = all->repeat(call);
  // The stand-in is moved out, because it becomes part of the graph. If this entry kept it, the graph and the block's
  // input would live as long as the entry.
  if (entry.call.feeds >= 0 && all->entries_[entry.call.feeds].kept) return {std::move(entry.stand_in)};
  return entry.kept ? std::move(entry.results) : compute();
}

}  // namespace titan::nn
