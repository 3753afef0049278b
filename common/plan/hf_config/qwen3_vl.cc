#include "common/plan/hf_config/qwen3_vl.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/hf_config/keys.h"
#include "common/plan/models/qwen3_vl.h"

namespace titan::hf_config {
namespace {

using nlohmann::json;

constexpr char kDense[] = "qwen3_vl", kExperts[] = "qwen3_vl_moe";

// Defaults of Qwen3VLTextConfig and Qwen3VLMoeTextConfig that differ from those of Qwen 3's classes.
constexpr char kDenseText[] = R"({
  "hidden_size": 4096, "intermediate_size": 22016, "num_hidden_layers": 32, "num_attention_heads": 32,
  "num_key_value_heads": 32, "head_dim": 128, "vocab_size": 151936, "max_position_embeddings": 128000,
  "rms_norm_eps": 1e-6, "rope_theta": 5e6})";
constexpr char kExpertsText[] = R"({
  "hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 16, "num_key_value_heads": 16,
  "vocab_size": 151936, "max_position_embeddings": 128000, "rms_norm_eps": 1e-6, "rope_theta": 5e6,
  "moe_intermediate_size": 1408, "num_experts_per_tok": 4, "num_experts": 60, "norm_topk_prob": true})";

// Takes the entries of multimodal positions out of the table, so that what remains is Qwen 3's.
void take_sections(Keys& file, json& text, models::Qwen3VlSpec& spec) {
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!text.contains(key) || !text[key].is_object()) continue;
    json& table = text[key];
    const auto interleaved = table.find("mrope_interleaved");
    if (interleaved != table.end() && *interleaved != json(true)) file.refuse(key, "only mrope_interleaved true");
    if (const auto sections = table.find("mrope_section"); sections != table.end()) {
      const bool three = sections->is_array() && sections->size() == 3;
      for (size_t axis = 0; axis < 3; ++axis) {
        if (!three || !sections->at(axis).is_number_integer() || sections->at(axis) <= 0)
          return file.refuse(key, "a mrope_section of three integers above 0");
        spec.mrope_section[axis] = sections->at(axis);
      }
    }
    table.erase("mrope_interleaved");
    table.erase("mrope_section");
  }
}

// Returns the language model's table as a config.json of Qwen 3.
json as_qwen3(const json& text, bool experts) {
  json all = json::parse(experts ? kExpertsText : kDenseText);
  if (text.contains("rope_parameters") && text["rope_parameters"].is_object() &&
      text["rope_parameters"].contains("rope_theta")) {
    all.erase("rope_theta");  // transformers 5 writes it in the table.
  }
  if (text.contains("num_local_experts")) all.erase("num_experts");  // The same number in transformers 5.
  all.update(text);
  if (experts && all.value("head_dim", json()).is_null() && all["hidden_size"].is_number_integer() &&
      all["num_attention_heads"].is_number_integer() && all["num_attention_heads"] > 0) {
    all["head_dim"] = all["hidden_size"].get<int64_t>() / all["num_attention_heads"].get<int64_t>();
  }
  if (experts && all.value("mlp_only_layers", json()).is_null()) all["mlp_only_layers"] = json::array();
  all["model_type"] = experts ? "qwen3_moe" : "qwen3";
  return all;
}

absl::Status read_vision(const json& table, const std::string& type, models::Qwen3VlVisionSpec& spec) {
  Keys keys(table, "vision_config.");
  keys.expect("model_type", type);
  const auto take_size = [&](const char* key, int64_t& into) {
    if (keys.has(key)) keys.need(key, into);
  };
  take_size("depth", spec.n_layers);
  take_size("hidden_size", spec.dim);
  take_size("intermediate_size", spec.ffn_hidden);
  take_size("num_heads", spec.n_heads);
  take_size("in_channels", spec.channels);
  take_size("patch_size", spec.patch_size);
  take_size("spatial_merge_size", spec.merge);
  take_size("temporal_patch_size", spec.temporal_patch_size);
  take_size("out_hidden_size", spec.out_dim);
  int64_t rows = spec.position_side * spec.position_side;
  take_size("num_position_embeddings", rows);
  spec.position_side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(rows))));
  if (spec.position_side * spec.position_side != rows) keys.refuse("num_position_embeddings", "only a square number");
  keys.expect("hidden_act", std::string("gelu_pytorch_tanh"));
  if (const json layers = keys.at("deepstack_visual_indexes"); !layers.is_null()) {
    spec.deepstack_layers.clear();
    for (const json& layer : layers.is_array() ? layers : json::array({layers})) {
      if (!layers.is_array() || !layer.is_number_integer()) {
        keys.refuse("deepstack_visual_indexes", "a list of integers");
        break;
      }
      spec.deepstack_layers.push_back(layer);
    }
  }
  return keys.status();
}

void take_tokens(Keys& file, models::Qwen3VlSpec& spec) {
  file.take("image_token_id", spec.image_token);
  file.take("video_token_id", spec.video_token);
  file.take("vision_start_token_id", spec.vision_start_token);
  file.take("vision_end_token_id", spec.vision_end_token);
}

// A part of the file; an empty table if it is missing.
json part_of(Keys& file, const char* key) {
  const json part = file.at(key);
  if (!part.is_null() && !part.is_object()) file.refuse(key, "a table");
  return part.is_object() ? part : json::object();
}

}  // namespace

absl::StatusOr<HfQwen3Vl> read_qwen3_vl(const json& config) {
  if (!config.is_object()) return absl::InvalidArgumentError("config.json: not a JSON object");
  Keys file(config);
  std::string type;
  file.take("model_type", type);
  if (type != kDense && type != kExperts) file.refuse("model_type", absl::StrCat(kDense, ", ", kExperts));
  const bool experts = type == kExperts;
  json text = part_of(file, "text_config");
  const json vision = part_of(file, "vision_config");
  HfQwen3Vl result;
  take_sections(file, text, result.vl);
  take_tokens(file, result.vl);
  TITAN_RETURN_IF_ERROR(file.status());
  Keys language(text, "text_config.");
  language.expect("model_type", absl::StrCat(type, "_text"));
  for (const char* key : {"attention_bias", "use_sliding_window"})
    language.expect(key, false);  // Its names have neither.
  TITAN_RETURN_IF_ERROR(language.status());
  if (config.contains("transformers_version")) text.emplace("transformers_version", config["transformers_version"]);
  if (file.has("tie_word_embeddings") &&
      file.at("tie_word_embeddings") != text.value("tie_word_embeddings", json(false)))
    file.refuse("tie_word_embeddings", "the same as in text_config");
  TITAN_RETURN_IF_ERROR(file.status());
  TITAN_ASSIGN_OR_RETURN(HfModel model, read_model(as_qwen3(text, experts)));
  result.text = std::move(model.spec);
  result.notes = std::move(model.notes);
  TITAN_RETURN_IF_ERROR(read_vision(vision, type, result.vl.vision));
  if (const std::string bad = models::inconsistency(result.text, result.vl); !bad.empty())
    return absl::InvalidArgumentError(absl::StrCat("config.json: ", bad));
  return result;
}

bool is_qwen3_vl(const json& config) {
  const json type = config.is_object() ? config.value("model_type", json()) : json();
  return type == kDense || type == kExperts;
}

absl::StatusOr<HfModel> read_whole_qwen3_vl(const json& config) {
  TITAN_ASSIGN_OR_RETURN(HfQwen3Vl read, read_qwen3_vl(config));
  HfModel model{.spec = std::move(read.text),
                .model_type = config["model_type"].get<std::string>(),
                .notes = std::move(read.notes)};
  model.spec.name = "qwen3_vl";
  model.spec.qwen3_vl = std::move(read.vl);
  return model;
}

json qwen3_vl_config(const models::ModelSpec& text, const models::Qwen3VlSpec& spec, json language) {
  const std::string type = text.moe ? kExperts : kDense;
  language.erase("architectures");
  language["model_type"] = type + "_text";
  language["rope_scaling"] = {
      {"rope_type", "default"}, {"mrope_interleaved", true}, {"mrope_section", spec.mrope_section}};
  const models::Qwen3VlVisionSpec& vision = spec.vision;
  const json tower = {{"model_type", type},
                      {"depth", vision.n_layers},
                      {"hidden_size", vision.dim},
                      {"hidden_act", "gelu_pytorch_tanh"},
                      {"intermediate_size", vision.ffn_hidden},
                      {"num_heads", vision.n_heads},
                      {"in_channels", vision.channels},
                      {"patch_size", vision.patch_size},
                      {"spatial_merge_size", vision.merge},
                      {"temporal_patch_size", vision.temporal_patch_size},
                      {"out_hidden_size", vision.out_dim},
                      {"num_position_embeddings", vision.position_side * vision.position_side},
                      {"deepstack_visual_indexes", vision.deepstack_layers}};
  return {{"architectures", {text.moe ? "Qwen3VLMoeForConditionalGeneration" : "Qwen3VLForConditionalGeneration"}},
          {"model_type", type},
          {"text_config", std::move(language)},
          {"vision_config", tower},
          {"image_token_id", spec.image_token},
          {"video_token_id", spec.video_token},
          {"vision_start_token_id", spec.vision_start_token},
          {"vision_end_token_id", spec.vision_end_token},
          {"tie_word_embeddings", text.tied_embeddings}};
}

}  // namespace titan::hf_config
