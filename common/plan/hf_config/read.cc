#include "common/plan/hf_config/read.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/flux.h"
#include "common/plan/hf_config/keys.h"
#include "common/plan/hf_config/qwen3_vl.h"
#include "common/plan/hf_config/rope.h"
#include "common/plan/models/flux.h"
#include "common/plan/models/registry.h"

namespace titan::hf_config {
namespace {

using models::ModelSpec;
using nlohmann::json;

// Lists settings that transformers applies and Titan does not. Only training would show the difference.
std::vector<std::string> notes_of(const Keys& keys, const ModelSpec& spec) {
  std::vector<std::string> notes;
  for (const std::string& key : dropout_keys()) {
    if (const json dropout = keys.at(key); dropout.is_number() && dropout != 0)
      notes.push_back(absl::StrCat(key, " ", dropout.dump(), " is not applied: Titan has no dropout"));
  }
  if (const json noise = keys.at("router_jitter_noise"); noise.is_number() && noise != 0)
    notes.push_back(absl::StrCat("router_jitter_noise ", noise.dump(), " is not applied: Titan adds no noise"));
  if (keys.at("output_router_logits") == json(true))
    notes.push_back("output_router_logits true: Titan does not add the routers' auxiliary loss");
  if (spec.attention == models::Attention::kLatent && spec.norm_eps != 1e-6) {
    notes.push_back(absl::StrCat("rms_norm_eps ", json(spec.norm_eps).dump(),
                                 ": transformers uses 1e-06 for the latents of attention, Titan uses this value"));
  }
  return notes;
}

// Kimi K2 has the class and the keys of DeepSeek V3.
std::string class_name_of(const std::string& model_type) {
  return model_type == "kimi_k2" ? "deepseek_v3" : model_type;
}

}  // namespace

bool reads(const std::string& model_type) { return config_classes().contains(class_name_of(model_type)); }

std::string model_type_of(const ModelSpec& spec) {
  if (spec.name == "llama3") return "llama";
  if (spec.name == "llama4") return "llama4_text";
  if (spec.name == "gemma3") return "gemma3_text";
  if (spec.name == "qwen3_vl") return spec.moe ? "qwen3_vl_moe" : "qwen3_vl";
  if (spec.name == "qwen3") return spec.moe ? "qwen3_moe" : "qwen3";
  if (spec.name == "deepseek_v3") return spec.moe && spec.moe->score_func == "softmax" ? "deepseek_v2" : "deepseek_v3";
  return spec.name;
}

absl::StatusOr<HfModel> read_model(const json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not a JSON object");
  if (is_nested_deeper(config, kMostLevels)) return absl::InvalidArgumentError("config.json: nested too deeply");
  if (config.contains("_class_name")) {  // diffusers has no model_type.
    TITAN_ASSIGN_OR_RETURN(const models::FluxSpec flux, read_flux(config));
    return HfModel{.spec = models::flux_model(flux), .model_type = "flux"};
  }
  if (is_qwen3_vl(config)) return read_whole_qwen3_vl(config);
  if (const auto inner = config.find("text_config"); inner != config.end() && inner->is_object()) {
    json language = *inner;
    if (config.contains("transformers_version") && !language.contains("transformers_version"))
      language["transformers_version"] = config["transformers_version"];
    return read_model(language);
  }
  Keys file(config);
  HfModel model;
  file.take("model_type", model.model_type);
  model.model_type = class_name_of(model.model_type);
  const auto found = config_classes().find(model.model_type);
  if (found == config_classes().end()) {
    std::vector<std::string> known;
    for (const auto& [name, any] : config_classes()) known.push_back(name);
    file.refuse("model_type", absl::StrJoin(known, ", "));
    return file.status();
  }
  const ConfigClass& config_class = found->second;
  TITAN_ASSIGN_OR_RETURN(model.spec, models::find(config_class.family, config_class.like));
  model.spec.flavor = "config.json";
  model.spec.mask = models::Mask::kCausal;  // Document packing is a choice of training.
  check_keys(file, model.model_type, config_class);
  Keys keys(with_defaults(file, config_class));
  take_common(keys, model.spec);
  config_class.read(keys, model.spec);
  take_rope(file, config_class.computed, model.spec);
  TITAN_RETURN_IF_ERROR(keys.status());
  TITAN_RETURN_IF_ERROR(file.status());
  model.notes = notes_of(keys, model.spec);
  return model;
}

}  // namespace titan::hf_config
