#include "worker/rank/checkpoint/formats/dcp/dcp_torchtitan.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/rank/checkpoint/formats/pickle/plain.h"
#include "worker/rank/checkpoint/formats/pickle/reader.h"

namespace titan::checkpoint {
namespace {

constexpr char kModel[] = "model.", kOptim[] = "optim.";
constexpr size_t kModelSize = sizeof kModel - 1, kOptimSize = sizeof kOptim - 1;

// Returns whether the key does not belong to the model.
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

namespace {

using nlohmann::json;

constexpr int64_t kMaxRanks = 1 << 20;

absl::StatusOr<int64_t> integer(DcpFolder& folder, const std::string& key) {
  TITAN_ASSIGN_OR_RETURN(const json value, folder.object(key));
  if (value.is_number_integer() && value >= 0) return value.get<int64_t>();
  return absl::DataLossError(
      absl::StrCat(folder.folder(), ": ", key, " is ", value.dump(), ", not a number of 0 or more"));
}

json unread(const std::string& why) { return {{"unread", why}}; }

// Reads the position of torchdata's StatefulDataLoader over torchtitan's text dataset, which is pickled a second time.
absl::StatusOr<json> position(DcpFolder& folder, const std::string& key) {
  TITAN_ASSIGN_OR_RETURN(const json packed, folder.object(key));
  if (!packed.is_binary()) return unread(absl::StrCat(key, " is not a pickle"));
  const std::string where = absl::StrCat(folder.folder(), ": ", key);
  TITAN_ASSIGN_OR_RETURN(const pickle::ParsedPickle document, pickle::read(pickle::bytes_of(packed), where));
  TITAN_ASSIGN_OR_RETURN(const json state, pickle::plain(document, where));
  if (state.is_object() && state.contains("_snapshot"))
    return unread("it was saved with dataloader.num_workers above 0");
  const json dataset = state.is_object() ? state.value("dataset_state", json()) : json();
  if (!dataset.is_object()) return unread(absl::StrCat(key, " has no dataset_state"));
  const json sample = dataset.value("sample_idx", json()), buffer = dataset.value("token_buffer", json());
  if (!sample.is_number_integer() || sample < 0 || !buffer.is_array())
    return unread("its dataset was streamed, or is not torchtitan's text dataset");
  return json{{"sample_idx", sample}, {"tokens_left", buffer.size()}};
}

absl::StatusOr<json> dataloader(DcpFolder& folder) {
  TITAN_ASSIGN_OR_RETURN(const int64_t size, integer(folder, "dataloader.world_size"));
  if (size < 1 || size > kMaxRanks)
    return absl::DataLossError(absl::StrCat(folder.folder(), ": dataloader.world_size is ", size));
  json ranks = json::array();
  for (int64_t rank = 0; rank < size; ++rank) {
    const std::string key = absl::StrCat("dataloader.dp_rank_", rank);
    if (!folder.metadata().objects.contains(key)) {
      ranks.push_back(unread(absl::StrCat("it has no ", key)));
      continue;
    }
    TITAN_ASSIGN_OR_RETURN(json one, position(folder, key));
    ranks.push_back(std::move(one));
  }
  return json{{"order", "per_rank"}, {"dp_size", size}, {"ranks", std::move(ranks)}};
}

}  // namespace

absl::StatusOr<json> dcp_train_state(DcpFolder& folder) {
  const auto has = [&](const char* key) { return folder.metadata().objects.contains(key); };
  if (!has("train_state.step")) {
    return absl::FailedPreconditionError(absl::StrCat(
        folder.folder(), ": has no train_state.step, so a job cannot resume from it; to load only its weights set ",
        "checkpoint.initial_load_model_only = true"));
  }
  json state = json::object();
  TITAN_ASSIGN_OR_RETURN(state["step"], integer(folder, "train_state.step"));
  if (has("train_state.ntokens_seen")) {
    TITAN_ASSIGN_OR_RETURN(state["ntokens_seen"], integer(folder, "train_state.ntokens_seen"));
  }
  if (has("lr_scheduler.last_epoch")) {
    TITAN_ASSIGN_OR_RETURN(state["lr_scheduler"]["last_epoch"], integer(folder, "lr_scheduler.last_epoch"));
  }
  if (has("dataloader.world_size")) {
    TITAN_ASSIGN_OR_RETURN(state["dataloader"], dataloader(folder));
    // torchtitan counts the tokens of one data-parallel rank, Titan those of all.
    int64_t tokens = state.value("ntokens_seen", int64_t{0});
    if (__builtin_mul_overflow(tokens, state["dataloader"]["dp_size"].get<int64_t>(), &tokens))
      return absl::DataLossError(absl::StrCat(folder.folder(), ": train_state.ntokens_seen is too large"));
    state["ntokens_seen"] = tokens;
  }
  return state;
}

}  // namespace titan::checkpoint
