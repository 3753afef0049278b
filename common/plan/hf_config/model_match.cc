#include "common/plan/hf_config/model_match.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/models/spec_checks.h"

namespace titan::hf_config {
namespace {

using nlohmann::json;

constexpr size_t kMaxShown = 4;
constexpr const char* kTakeable[] = {"rope_theta", "window_rope_theta", "rope_scaling", "yarn", "rope", "norm_eps"};
constexpr char kGuidance[] = "flux.guidance_embed", kQwenTower[] = "qwen3_vl.vision.";

bool is_takeable(const std::string& name) {
  if (name == kGuidance) return true;
  const std::string part = name.substr(0, name.find('.'));
  return std::any_of(std::begin(kTakeable), std::end(kTakeable), [&](const char* one) { return part == one; });
}

// Keys of the experts, which differ by model type.
std::string key_of_experts(const std::string& name, const std::string& model_type) {
  const bool deepseek = model_type.starts_with("deepseek"), qwen = model_type.starts_with("qwen");
  if (name == "moe.hidden") return deepseek || qwen ? "moe_intermediate_size" : "intermediate_size";
  return deepseek ? "n_routed_experts" : qwen ? "num_experts" : "num_local_experts";
}

// Returns the key of a number of Qwen3-VL's tower.
std::string key_of_tower(const std::string& name) {
  static const std::map<std::string, const char*> keys = {{"dim", "hidden_size"},
                                                          {"ffn_hidden", "intermediate_size"},
                                                          {"n_layers", "depth"},
                                                          {"n_heads", "num_heads"},
                                                          {"channels", "in_channels"},
                                                          {"merge", "spatial_merge_size"},
                                                          {"position_side", "num_position_embeddings (its root)"},
                                                          {"out_dim", "out_hidden_size"},
                                                          {"deepstack_layers", "deepstack_visual_indexes"}};
  const auto found = keys.find(name);
  return absl::StrCat("vision_config.", found == keys.end() ? name : found->second);
}

// Returns the config.json key from which a member of a spec comes.
std::string key_of(const std::string& name, const std::string& model_type) {
  static const std::map<std::string, const char*> keys = {{"dim", "hidden_size"},
                                                          {"n_layers", "num_hidden_layers"},
                                                          {"n_heads", "num_attention_heads"},
                                                          {"n_kv_heads", "num_key_value_heads"},
                                                          {"norm_eps", "rms_norm_eps"},
                                                          {"tied_embeddings", "tie_word_embeddings"},
                                                          {"nope_layer_step", "no_rope_layers"},
                                                          {"nope_ends_step", "no_rope_layers"},
                                                          {"attention_chunk", "attention_chunk_size"},
                                                          {"query_temperature_floor", "floor_scale"},
                                                          {"query_temperature_scale", "attn_scale"},
                                                          {"rotated_qk_norm", "use_qk_norm"},
                                                          {"rope", "rope_interleave"},
                                                          {"rotary_dim", "partial_rotary_factor"},
                                                          {"window_rope_theta", "rope_local_base_freq"},
                                                          {"window_step", "layer_types"},
                                                          {"window_first_layer", "layer_types"},
                                                          {"attention_softcap", "attn_logit_softcapping"},
                                                          {"logit_softcap", "final_logit_softcapping"},
                                                          {"embedding_scale", "embedding_multiplier"},
                                                          {"residual_scale", "residual_multiplier"},
                                                          {"logit_divisor", "logits_scaling"},
                                                          {"moe.top_k", "num_experts_per_tok"},
                                                          {"moe.num_shared_experts", "n_shared_experts"},
                                                          {"moe.score_func", "scoring_func"},
                                                          {"moe.route_norm", "norm_topk_prob"},
                                                          {"moe.route_scale", "routed_scaling_factor"},
                                                          {"moe.num_expert_groups", "n_group"},
                                                          {"moe.num_limited_groups", "topk_group"},
                                                          {"moe.first_layer", "first_k_dense_replace"},
                                                          {"moe.layer_step", "interleave_moe_layer_step"},
                                                          {"qwen3_vl.image_token", "image_token_id"},
                                                          {"qwen3_vl.video_token", "video_token_id"},
                                                          {"qwen3_vl.vision_start_token", "vision_start_token_id"},
                                                          {"qwen3_vl.vision_end_token", "vision_end_token_id"},
                                                          {"qwen3_vl.mrope_section", "rope_scaling.mrope_section"},
                                                          {kGuidance, "guidance_embeds"},
                                                          {"flux.n_double_blocks", "num_layers"},
                                                          {"flux.n_single_blocks", "num_single_layers"},
                                                          {"flux.in_channels", "in_channels"},
                                                          {"flux.txt_width", "joint_attention_dim"},
                                                          {"flux.vec_width", "pooled_projection_dim"},
                                                          {"flux.axes_dim", "axes_dims_rope"}};
  if (name == "ffn_hidden") return model_type == "llama4_text" ? "intermediate_size_mlp" : "intermediate_size";
  if (name == "attention_scale") return model_type == "granite" ? "attention_multiplier" : "query_pre_attn_scalar";
  if (name == "moe.hidden" || name == "moe.num_experts") return key_of_experts(name, model_type);
  if (name.starts_with(kQwenTower)) return key_of_tower(name.substr(sizeof(kQwenTower) - 1));
  const auto found = keys.find(name);
  return found == keys.end() ? name : found->second;
}

json numbers_of(const models::ModelSpec& spec, const char* member) { return models::to_json(spec)[member]; }

// Compares the RoPE scaling as a whole, since its members have a meaning only together.
void add_scaling(const HfModel& there, const HfModel& here, std::vector<ConfigDifference>& found) {
  const auto scaling = [](const HfModel& model) -> json {
    const json llama = numbers_of(model.spec, "rope_scaling"), yarn = numbers_of(model.spec, "yarn");
    return llama.is_null() ? yarn : llama;
  };
  const json theirs = scaling(there), ours = scaling(here);
  if (theirs != ours) found.push_back({"rope_scaling", theirs.dump(), ours.dump(), true, true});
}

}  // namespace

std::vector<ConfigDifference> compare(const HfModel& there, const HfModel& here) {
  if (there.model_type != here.model_type)
    return {{"model_type", json(there.model_type).dump(), json(here.model_type).dump()}};
  std::vector<ConfigDifference> found;
  models::ModelSpec other = there.spec;
  other.name = here.spec.name;
  for (const models::SpecDifference& one : models::differences(models::to_json(other), here.spec)) {
    const std::string part = one.name.substr(0, one.name.find('.'));
    if (part == "rope_scaling" || part == "yarn") continue;
    if (one.name == "tied_embeddings" && other.tied_embeddings) continue;
    found.push_back({key_of(one.name, here.model_type), one.there, one.here, is_takeable(one.name), one.positions});
    if (one.name != "rope") continue;
    found.back().there = there.spec.rope == models::RopeStyle::kInterleaved ? "true" : "false";
    found.back().here = here.spec.rope == models::RopeStyle::kInterleaved ? "true" : "false";
  }
  add_scaling(there, here, found);
  return found;
}

void take_numbers(const models::ModelSpec& from, models::ModelSpec& into) {
  into.rope_theta = from.rope_theta;
  into.window_rope_theta = from.window_rope_theta;
  into.rope_scaling = from.rope_scaling;
  into.yarn = from.yarn;
  into.rope = from.rope;
  into.norm_eps = from.norm_eps;
  if (from.flux && into.flux) into.flux->guidance_embed = from.flux->guidance_embed;
}

std::string text_of(const std::vector<ConfigDifference>& differences) {
  std::vector<std::string> words;
  for (const ConfigDifference& one : differences) {
    if (words.size() == kMaxShown) {
      words.push_back("...");
      break;
    }
    words.push_back(absl::StrCat(one.key, " ", one.there, ", this model has ", one.here));
  }
  return absl::StrJoin(words, "; ");
}

namespace {

constexpr uint64_t kMaxHeader = 100'000'000;  // Limit of the Python library.
constexpr size_t kMaxFiles = 100;
// Suffix of every family's embedding name (worker/rank/model/hf_names.cc).
constexpr char kEmbedding[] = "embed_tokens.weight";

std::vector<std::string> weights_in(const std::string& folder) {
  std::vector<std::string> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (entry.path().extension() == ".safetensors") files.push_back(entry.path().string());
  }
  std::sort(files.begin(), files.end());
  files.resize(std::min(files.size(), kMaxFiles));
  return files;
}

}  // namespace

std::string weights_folder(storage::Files& files, const std::string& folder) {
  const bool whole_pipeline = files.exists(storage::join_path(folder, "model_index.json"));
  return whole_pipeline ? storage::join_path(folder, "transformer") : folder;
}

absl::StatusOr<WeightsHeader> read_weights_header(storage::ReadableFile& file, const std::string& path) {
  const auto bad = [&](auto... what) {
    return absl::DataLossError(absl::StrCat(path, ": not a safetensors file: ", what...));
  };
  uint64_t length = 0;
  if (file.size() < 8) return bad("only ", file.size(), " bytes");
  TITAN_RETURN_IF_ERROR(file.read(0, 8, reinterpret_cast<char*>(&length)));
  if (length > kMaxHeader || static_cast<int64_t>(length) > file.size() - 8) {
    return bad("header of ", length, " bytes in a file of ", file.size());
  }
  std::string text(length, '\0');
  TITAN_RETURN_IF_ERROR(file.read(8, static_cast<int64_t>(length), text.data()));
  json header = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) return bad("the header is not a JSON object");
  return WeightsHeader{std::move(header), 8 + static_cast<int64_t>(length)};
}

absl::StatusOr<std::string> embedding_misfit(const std::string& folder, const models::ModelSpec& spec) {
  const json here = {spec.vocab_size, spec.dim};
  std::string misfit;
  int found = 0;
  for (const std::string& path : weights_in(folder)) {
    TITAN_ASSIGN_OR_RETURN(const std::unique_ptr<storage::ReadableFile> file, storage::posix_files().open(path));
    TITAN_ASSIGN_OR_RETURN(const WeightsHeader header, read_weights_header(*file, path));
    for (const auto& [name, tensor] : header.tensors.items()) {
      if (name != kEmbedding && !absl::EndsWith(name, absl::StrCat(".", kEmbedding))) continue;
      const json shape = tensor.is_object() ? tensor.value("shape", json()) : json();
      if (!shape.is_array() || shape.size() != 2) continue;
      ++found;
      if (shape == here) continue;
      misfit = absl::StrCat(std::filesystem::path(path).filename().string(), " holds ", name, " of ", shape.dump(),
                            ", but this model has a vocabulary of ", spec.vocab_size, " and dim ", spec.dim);
    }
  }
  return found == 1 ? misfit : "";
}

}  // namespace titan::hf_config
