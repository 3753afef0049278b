#include "worker/rank/checkpoint/loading/model_check.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

absl::Status mismatch(const std::string& text) {
  return absl::FailedPreconditionError(absl::StrCat(kModelMismatch, text));
}

// Returns the first few "name value" of one side.
std::string numbers_of(const std::vector<models::SpecDifference>& all, std::string models::SpecDifference::*side) {
  std::vector<std::string> words;
  for (size_t i = 0; i < all.size() && i < 4; ++i) words.push_back(absl::StrCat(all[i].name, " ", all[i].*side));
  return absl::StrCat("(", absl::StrJoin(words, ", "), all.size() > words.size() ? ", ...)" : ")");
}

constexpr char kNameTheModel[] =
    ": set model.name and model.flavor to the model of the weights, or model.flavor = \"config.json\"";
// For a flavor that keeps its own numbers (a library's), and weights that are to be trained with other numbers on
// purpose.
constexpr char kOtherPositions[] =
    ": give the flavor the numbers of the weights, or, to train them with others on purpose, make a step of them with "
    "titan-checkpoint import under a flavor that has theirs, and name it in checkpoint.initial_load_path";

// Returns the config.json at `path`; null if there is none.
absl::StatusOr<json> read_config(storage::Files& files, const std::string& path) {
  if (!files.exists(path)) return json();
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 24));
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::FailedPreconditionError(absl::StrCat(path, ": not a JSON object"));
  return config;
}

// Compares the keys that both files have, for a library's family with a custom model type.
absl::Status compare_keys(const json& there, const json& here, const std::string& path) {
  std::vector<hf_config::ConfigDifference> found;
  for (const auto& [key, value] : here.items()) {
    if (key == "architectures" || key == "max_position_embeddings" || !there.contains(key)) continue;
    if (there[key] != value) found.push_back({key, there[key].dump(), value.dump()});
  }
  return found.empty() ? absl::OkStatus()
                       : mismatch(absl::StrCat(path, " says ", hf_config::text_of(found), kNameTheModel));
}

}  // namespace

absl::StatusOr<std::vector<std::string>> check_model(const Manifest& manifest, const models::ModelSpec& spec, Use use,
                                                     const std::string& path, const std::string& remedy,
                                                     bool larger_vocabulary) {
  std::vector<std::string> warnings;
  if (manifest.model.is_null()) return warnings;
  std::vector<models::SpecDifference> all = models::differences(manifest.model, spec);
  if (use == Use::kInitial) {
    std::erase_if(all, [&](const models::SpecDifference& one) {
      if (one.positions) {
        warnings.push_back(absl::StrCat(path, ": ", one.name, " is ", one.there, " in the checkpoint, but ", one.here,
                                        " in the configuration: the weights were trained with other positions"));
      }
      return one.positions;
    });
  }
  if (larger_vocabulary) {
    const int64_t there = manifest.model.value("vocab_size", int64_t{0});
    std::erase_if(all, [&](const auto& one) { return one.name == "vocab_size" && there < spec.vocab_size; });
  }
  if (all.empty()) return warnings;
  return mismatch(absl::StrCat(path, " holds ", models::label(manifest.model), " ",
                               numbers_of(all, &models::SpecDifference::there), ", this is ", spec.name, " ",
                               spec.flavor, " ", numbers_of(all, &models::SpecDifference::here), ": ", remedy));
}

absl::StatusOr<std::vector<std::string>> check_hf_config(storage::Files& files, const std::string& folder,
                                                         const HfMapper& mapper, const Setup& leeway) {
  const json own = mapper.config();
  const std::string path = storage::join_path(folder, "config.json");
  if (own.is_null()) return std::vector<std::string>{};
  TITAN_ASSIGN_OR_RETURN(json config, read_config(files, path));
  if (config.is_null()) return std::vector<std::string>{};
  const auto here = hf_config::read_model(own);
  if (!here.ok()) {
    TITAN_RETURN_IF_ERROR(compare_keys(config, own, path));
    return std::vector<std::string>{};
  }
  const auto there = hf_config::read_model(config);
  if (!there.ok()) return mismatch(absl::StrCat(storage::join_path(folder, ""), std::string(there.status().message())));
  std::vector<hf_config::ConfigDifference> found = hf_config::compare(*there, *here);
  std::vector<std::string> warnings;
  for (const std::string& note : there->notes) warnings.push_back(absl::StrCat(path, ": ", note));
  if (leeway.larger_vocabulary) {
    const bool larger = there->spec.vocab_size < here->spec.vocab_size;
    std::erase_if(found, [&](const auto& one) { return one.key == "vocab_size" && larger; });
  }
  if (leeway.other_positions) {
    std::erase_if(found, [&](const hf_config::ConfigDifference& one) {
      if (!one.positions) return false;
      warnings.push_back(absl::StrCat(path, ": ", one.key, " is ", one.there, ", but ", one.here,
                                      " in the configuration: the weights were trained with other positions"));
      return true;
    });
  }
  if (found.empty()) return warnings;
  const bool positions = std::all_of(found.begin(), found.end(), [](const auto& one) { return one.takeable; });
  return mismatch(absl::StrCat(path, " says ", hf_config::text_of(found), positions ? kOtherPositions : kNameTheModel));
}

namespace {

// Black Forest Labs' own file comes without a config.json: its tensors show whether it has the guidance's layers.
absl::StatusOr<models::ModelSpec> with_guidance_of_tensors(storage::Files& files, const std::string& folder,
                                                           const models::ModelSpec& spec, std::string& taken) {
  TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<HfFolder> weights, HfFolder::open(files, folder));
  models::ModelSpec result = spec;
  result.flux->guidance_embed = weights->has("guidance_in.in_layer.weight");
  if (result.flux->guidance_embed != spec.flux->guidance_embed)
    taken = absl::StrCat("taken from ", folder, ": guidance_in.in_layer.weight");
  return result;
}

}  // namespace

absl::StatusOr<models::ModelSpec> with_numbers_of_hf(storage::Files& files, const std::string& folder,
                                                     const models::ModelSpec& spec, std::string& taken,
                                                     bool larger_vocabulary) {
  if (!takes_numbers_from_weights(spec)) return spec;
  TITAN_ASSIGN_OR_RETURN(const json config, read_config(files, storage::join_path(folder, "config.json")));
  if (config.is_null() && spec.flux) return with_guidance_of_tensors(files, folder, spec, taken);
  const auto there = hf_config::read_model(config);
  if (!there.ok()) return spec;  // check_hf_config() reports why, once it is known that these weights are loaded.
  std::vector<hf_config::ConfigDifference> found =
      hf_config::compare(*there, {.spec = spec, .model_type = hf_config::model_type_of(spec)});
  if (larger_vocabulary) std::erase_if(found, [](const auto& one) { return one.key == "vocab_size"; });
  const bool same_model = std::all_of(found.begin(), found.end(), [](const auto& one) { return one.takeable; });
  if (found.empty() || !same_model) return spec;
  taken = absl::StrCat("taken from ", storage::join_path(folder, "config.json"), ": ", hf_config::text_of(found));
  models::ModelSpec result = spec;
  hf_config::take_numbers(there->spec, result);
  return result;
}

models::ModelSpec with_numbers_of_step(const Manifest& manifest, const models::ModelSpec& spec) {
  if (!takes_numbers_from_weights(spec) || !manifest.model.is_object()) return spec;
  return models::with_weights_numbers(manifest.model, spec);
}

bool takes_numbers_from_weights(const models::ModelSpec& spec) { return models::find(spec.name, spec.flavor).ok(); }

}  // namespace titan::checkpoint
