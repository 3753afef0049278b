#include "worker/rank/nn/kept_results.h"

#include <c10/util/Exception.h>

#include <utility>

namespace titan::nn {
namespace {

thread_local KeptResults* innermost = nullptr;

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

KeptResults::Scope::Scope(KeptResults& results, KeepRule rule) : outer_(std::exchange(innermost, &results)) {
  results.entries_.clear();
  results.rule_ = std::move(rule);
}

KeptResults::Scope::Scope(KeptResults& results) : outer_(std::exchange(innermost, &results)) {
  results.rule_ = nullptr;
  results.next_ = 0;
}

KeptResults::Scope::~Scope() { innermost = outer_; }

KeptResults* KeptResults::current() { return innermost; }

std::vector<OpCall> KeptResults::calls() const {
  std::vector<OpCall> all;
  for (const Entry& entry : entries_) all.push_back(entry.call);
  return all;
}

int64_t KeptResults::bytes() const {
  int64_t sum = 0;
  for (const Entry& entry : entries_) {
    for (const at::Tensor& result : entry.results) sum += static_cast<int64_t>(result.nbytes());
  }
  return sum;
}

void KeptResults::record(OpCall call, const at::Tensor& input, const std::vector<at::Tensor>& results) {
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

KeptResults::Entry& KeptResults::repeat(const OpCall& call) {
  TORCH_CHECK(next_ < entries_.size() && entries_[next_].call.kind == call.kind, "recomputation: a ", name(call.kind),
              " that was not there in the first pass; a block's forward pass must do the same each time");
  return entries_[next_++];
}

std::vector<at::Tensor> kept_or(OpCall call, const at::Tensor& input,
                                const std::function<std::vector<at::Tensor>()>& compute) {
  KeptResults* all = KeptResults::current();
  if (all == nullptr) return compute();
  if (all->rule_) {
    std::vector<at::Tensor> results = compute();
    all->record(call, input, results);
    return results;
  }
  KeptResults::Entry& entry = all->repeat(call);
  // The stand-in is handed over too: it becomes part of the graph, which would otherwise live as long as this entry and
  // hold the block's input.
  if (entry.call.feeds >= 0 && all->entries_[entry.call.feeds].kept) return {std::move(entry.stand_in)};
  return entry.kept ? std::move(entry.results) : compute();
}

}  // namespace titan::nn
