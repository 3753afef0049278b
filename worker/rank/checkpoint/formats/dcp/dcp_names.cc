#include "worker/rank/checkpoint/formats/dcp/dcp_names.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace titan::checkpoint {
namespace {

constexpr char kModel[] = "model.", kOptim[] = "optim.";
constexpr size_t kModelSize = sizeof kModel - 1, kOptimSize = sizeof kOptim - 1;

// Of what is no model.
bool is_other_state(const std::string& key) {
  for (const char* prefix : {"optimizer.", "lr_scheduler.", "dataloader.", "train_state."}) {
    if (absl::StartsWith(key, prefix)) return true;
  }
  return false;
}

}  // namespace

DcpNames::DcpNames(const DcpMetadata& metadata) {
  const auto first = metadata.tensors.lower_bound(kModel);
  nested_ = first != metadata.tensors.end() && absl::StartsWith(first->first, kModel);
}

std::string DcpNames::of(const std::string& key) const {
  if (absl::StartsWith(key, kModel)) return nested_ ? key : key.substr(kModelSize);
  const size_t dot = key.find('.', kOptimSize);  // optim.STATE.FQN
  if (!absl::StartsWith(key, kOptim) || dot == key.npos) return "";
  return absl::StrCat(kDcpOptimizer, key.substr(dot + 1), ".", key.substr(kOptimSize, dot - kOptimSize));
}

std::string DcpNames::model_key(const std::string& there) const {
  if (is_other_state(there) || nested_ != absl::StartsWith(there, kModel)) return "";
  return nested_ ? there : absl::StrCat(kModel, there);
}

std::string DcpNames::optimizer_key(const std::string& there) const {
  const size_t dot = there.rfind('.');
  if (!absl::StartsWith(there, kDcpOptimizer) || dot < sizeof kDcpOptimizer) return "";
  const std::string fqn = there.substr(sizeof kDcpOptimizer - 1, dot - sizeof kDcpOptimizer + 1);
  const std::string state = there.substr(dot + 1);
  return state == "step" ? "optim.step" : absl::StrCat(kOptim, state, ".", fqn);
}

bool is_derived(const std::string& fqn) {
  for (const char* suffix : {"freqs_cis", "rope_cache", "tokens_per_expert"}) {
    if (absl::EndsWith(fqn, suffix)) return true;
  }
  return false;
}

}  // namespace titan::checkpoint
