#include "worker/checkpoint/model_check.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/models/identity.h"
#include "common/status/status.h"

namespace titan::checkpoint {
namespace {

using nlohmann::json;

absl::Status mismatch(const std::string& text) {
  return absl::FailedPreconditionError(absl::StrCat(kModelMismatch, text));
}

// The first few of "name value", of one side.
std::string numbers_of(const std::vector<models::Difference>& all, std::string models::Difference::*side) {
  std::vector<std::string> words;
  for (size_t i = 0; i < all.size() && i < 4; ++i) words.push_back(absl::StrCat(all[i].name, " ", all[i].*side));
  return absl::StrCat("(", absl::StrJoin(words, ", "), all.size() > words.size() ? ", ...)" : ")");
}

// What a transformers config says about `key`, wherever its version puts it; null: nothing.
json said(const json& config, const std::string& key) {
  if (const auto found = config.find(key); found != config.end()) return *found;
  const auto parameters = config.find("rope_parameters");  // transformers 5.
  if (parameters == config.end() || !parameters->is_object()) return nullptr;
  if (key == "rope_theta") return parameters->value(key, json());
  if (key == "rope_scaling" && parameters->value("rope_type", json("default")) != "default") return *parameters;
  return nullptr;
}

bool scalings_differ(const json& there, const json& here) {
  if (there.is_null() != here.is_null()) return true;
  for (const auto& [key, value] : here.items()) {
    if (there.contains(key) && there[key] != value) return true;
  }
  return false;
}

// Keys whose difference is the business of something else, or none.
bool counts(const std::string& key, const json& there, const json& here, const json& model) {
  if (key == "architectures" || key == "max_position_embeddings" || key == "topk_method") return false;
  if (there.is_null() || here.is_null()) return false;
  if (there.is_array() && there.empty()) return false;  // "As usual": no_rope_layers of the released Llama 4.
  // A head of one's own may begin as the embedding, which such folders hold twice or not at all; the reverse loses one.
  if (key == "tie_word_embeddings") return here == json(true);
  // Of dense layers, which a Qwen3 or Llama 4 with experts in every layer does not have.
  if (key == "intermediate_size") return model.value("decoder_sparse_step", 0) != 1;
  if (key == "intermediate_size_mlp") return model.value("interleave_moe_layer_step", 0) != 1;
  return true;
}

bool same(const json& there, const json& here) {
  if (here.is_boolean() && there.is_number()) return here.get<bool>() == (there != 0);  // Llama 4's older spelling.
  return there == here;
}

}  // namespace

absl::StatusOr<std::vector<std::string>> check_model(const Manifest& manifest, const models::ModelSpec& spec, Use use,
                                                     const std::string& path, const std::string& remedy) {
  std::vector<std::string> warnings;
  if (manifest.model.is_null()) return warnings;
  std::vector<models::Difference> all = models::differences(manifest.model, spec);
  if (use == Use::kInitial) {
    std::erase_if(all, [&](const models::Difference& one) {
      if (one.positions) {
        warnings.push_back(absl::StrCat(path, ": ", one.name, " was ", one.there, " there and is ", one.here,
                                        " here: the weights meet other positions than they were trained with"));
      }
      return one.positions;
    });
  }
  if (all.empty()) return warnings;
  return mismatch(absl::StrCat(path, " holds ", models::label(manifest.model), " ",
                               numbers_of(all, &models::Difference::there), ", this is ", spec.name, " ", spec.flavor,
                               " ", numbers_of(all, &models::Difference::here), ": ", remedy));
}

absl::StatusOr<std::vector<std::string>> check_hf_config(storage::Files& files, const std::string& folder,
                                                         const HfMapper& mapper) {
  std::vector<std::string> warnings;
  const json model = mapper.config();
  const std::string path = storage::join_path(folder, "config.json");
  if (model.is_null() || !files.exists(path)) return warnings;
  TITAN_ASSIGN_OR_RETURN(const std::string text, storage::read_file(files, path, 1 << 24));
  json config = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return absl::FailedPreconditionError(absl::StrCat(path, ": not a JSON object"));
  // Of a release that sees too: its language model has a config of its own.
  if (const auto inner = config.find("text_config"); inner != config.end() && inner->is_object()) config = json(*inner);

  std::vector<std::string> refused;
  if (scalings_differ(said(config, "rope_scaling"), model.value("rope_scaling", json()))) {
    warnings.push_back(absl::StrCat(path, " says rope_scaling ", said(config, "rope_scaling").dump(),
                                    ", this model has ", model.value("rope_scaling", json()).dump()));
  }
  for (const auto& [key, here] : model.items()) {
    const json there = said(config, key);
    if (key == "rope_scaling" || !counts(key, there, here, model) || same(there, here)) continue;
    const std::string difference = absl::StrCat(key, " ", there.dump(), ", this model has ", here.dump());
    if (key == "rms_norm_eps") {
      warnings.push_back(absl::StrCat(path, " says ", difference));
    } else {
      refused.push_back(difference);
    }
  }
  if (refused.empty()) return warnings;
  const size_t shown = std::min<size_t>(refused.size(), 4);
  return mismatch(absl::StrCat(path, " says ",
                               absl::StrJoin(refused.begin(), refused.begin() + static_cast<int64_t>(shown), "; "),
                               shown < refused.size() ? "; ..." : "",
                               ": name the model.name and model.flavor that the weights belong to, or, when the "
                               "difference is meant, remove this config.json"));
}

}  // namespace titan::checkpoint
