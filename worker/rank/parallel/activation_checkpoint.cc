#include "worker/rank/parallel/activation_checkpoint.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace titan::parallel {
namespace {

// Returns N if every Nth block is recomputed, or 0 if none is.
absl::StatusOr<int> recompute_every(const CheckpointOptions& options) {
  if (options.mode == "none") return 0;
  if (options.mode == "full" || options.mode == "memory_budget") return 1;
  if (options.mode != "selective") {
    return absl::InvalidArgumentError(absl::StrCat("activation_checkpoint.mode: \"", options.mode,
                                                   "\" is not one of full, selective, memory_budget and none"));
  }
  if (options.selective_ac_option == "op") return 1;
  int every = 0;
  if (!absl::SimpleAtoi(options.selective_ac_option, &every) || every < 0) {
    return absl::InvalidArgumentError(absl::StrCat("activation_checkpoint.selective_ac_option: \"",
                                                   options.selective_ac_option,
                                                   "\" is neither \"op\" nor an integer of 0 or more"));
  }
  return every == 0 ? 1 : every;
}

std::shared_ptr<nn::RecomputePolicy> policy_for(const CheckpointOptions& options, nn::Block& block) {
  if (options.mode == "memory_budget") {
    Planned planned;
    if (options.planned) {
      planned = [report = options.planned, name = block.name()](const auto& choices, const ParetoPoint& chosen) {
        report(name, choices, chosen);
      };
    }
    return memory_budget_policy(options.memory_budget, std::move(planned));
  }
  if (options.mode == "selective" && options.selective_ac_option == "op")
    return selective_op_policy(block, options.per_op_sac_force_recompute_mm_shapes_by_fqns);
  return nullptr;
}

// Block "layers.7" has index 7.
bool is_listed(const CheckpointOptions& options, const nn::Block& block) {
  return std::any_of(options.layers.begin(), options.layers.end(),
                     [&](int64_t index) { return block.name() == absl::StrCat("layers.", index); });
}

}  // namespace

absl::StatusOr<std::vector<BlockCheckpoint>> checkpoint_plan(const CheckpointOptions& options,
                                                             const std::vector<nn::Block*>& blocks) {
  const absl::StatusOr<int> every = recompute_every(options);
  if (!every.ok()) return every.status();
  if (options.mode == "memory_budget" && !(options.memory_budget >= 0 && options.memory_budget <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("activation_checkpoint.memory_budget: ", options.memory_budget, " is not from 0 to 1"));
  }
  std::vector<BlockCheckpoint> plan(blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool counts =
        options.layers.empty() ? (static_cast<int>(i) + 1) % std::max(*every, 1) == 0 : is_listed(options, *blocks[i]);
    plan[i].recompute = *every > 0 && counts;
    if (plan[i].recompute) plan[i].keep = policy_for(options, *blocks[i]);
  }
  return plan;
}

namespace {

using nn::OpCall;

// Returns "layers.1.attention.wq" for "layers.1.attention.wq.weight".
std::string module_of(const std::string& fqn) { return fqn.substr(0, fqn.rfind('.')); }

class ByOperation final : public nn::RecomputePolicy {
 public:
  ByOperation(nn::Block& block, const std::vector<std::string>& recompute_fqns) {
    std::set<std::string> biased;
    for (const nn::Parameter& parameter : block.parameters()) {
      if (parameter.fqn.ends_with(".bias")) biased.insert(module_of(parameter.fqn));
    }
    for (const nn::Parameter& parameter : block.parameters()) {
      const std::string module = module_of(parameter.fqn);
      if (biased.contains(module)) biased_.insert(&parameter);
      const bool listed = std::any_of(recompute_fqns.begin(), recompute_fqns.end(),
                                      [&](const std::string& part) { return module.find(part) != std::string::npos; });
      if (listed && parameter.global_shape.size() == 2) recomputed_shapes_.insert(parameter.global_shape);
    }
  }

  nn::SaveRule begin() override {
    return [this, products = 0](const OpCall& call) mutable {
      if (call.kind == OpCall::Kind::kGroupedProduct) return false;
      if (call.kind != OpCall::Kind::kProduct) return true;
      if (call.weight->adapts)
        return false;  // They have few columns and do not affect which matmuls of the layers are saved.
      if (biased_.contains(call.weight) || recomputed_shapes_.contains(call.weight->global_shape)) return call.scatters;
      return ++products % 2 == 1 || call.scatters;
    };
  }

 private:
  std::set<std::vector<int64_t>> recomputed_shapes_;
  std::set<const nn::Parameter*> biased_;
};

class ByBudget final : public nn::RecomputePolicy {
 public:
  ByBudget(double budget, Planned planned) : budget_(budget), planned_(std::move(planned)) {}

  nn::SaveRule begin() override {
    return [this, place = size_t{0}](const OpCall&) mutable { return place < keep_.size() && keep_[place++]; };
  }

  void end(const std::vector<OpCall>& calls) override {
    if (!keep_.empty() || calls.empty()) return;
    std::vector<KnapsackItem> items;
    std::vector<size_t> place;  // Index of each item among the calls.
    int64_t all = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
      if (calls[i].feeds >= 0) continue;  // Counted with the call that reads its result.
      if (calls[i].kind == OpCall::Kind::kGroupedProduct || calls[i].kind == OpCall::Kind::kExchange) continue;
      if (calls[i].kind == OpCall::Kind::kGreatest) continue;
      KnapsackItem item{calls[i].bytes, calls[i].flops};
      for (const OpCall& other : calls) {
        if (other.feeds == static_cast<int>(i)) item.flops += other.flops;
      }
      items.push_back(item);
      place.push_back(i);
      all += item.bytes;
    }
    const std::vector<ParetoPoint> choices = pareto_front(items);
    const ParetoPoint& chosen = best_within(choices, static_cast<int64_t>(budget_ * static_cast<double>(all)));
    keep_.assign(calls.size(), false);
    for (size_t i = 0; i < calls.size(); ++i) keep_[i] = budget_ > 0 && calls[i].kind == OpCall::Kind::kGreatest;
    for (size_t i = 0; i < items.size(); ++i) keep_[place[i]] = chosen.taken[i];
    if (planned_) planned_(choices, chosen);
  }

 private:
  const double budget_;
  const Planned planned_;
  std::vector<bool> keep_;  // By call. Empty until the first pass ends.
};

}  // namespace

std::shared_ptr<nn::RecomputePolicy> selective_op_policy(nn::Block& block,
                                                         const std::vector<std::string>& recompute_fqns) {
  return std::make_shared<ByOperation>(block, recompute_fqns);
}

std::shared_ptr<nn::RecomputePolicy> memory_budget_policy(double budget, Planned planned) {
  return std::make_shared<ByBudget>(budget, std::move(planned));
}

}  // namespace titan::parallel
