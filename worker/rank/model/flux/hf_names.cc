#include "worker/rank/model/flux/hf_names.h"

#include <map>
#include <set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/hf_config/flux.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"

namespace titan::model::flux {
namespace {

using checkpoint::HfLayout;

// A module of Titan, "img_in", and diffusers' name of it.
struct Renamed {
  const char* ours;
  const char* theirs;
};

constexpr Renamed kOutside[] = {
    {"img_in", "x_embedder"},
    {"txt_in", "context_embedder"},
    {"time_in.in_layer", "time_text_embed.timestep_embedder.linear_1"},
    {"time_in.out_layer", "time_text_embed.timestep_embedder.linear_2"},
    {"vector_in.in_layer", "time_text_embed.text_embedder.linear_1"},
    {"vector_in.out_layer", "time_text_embed.text_embedder.linear_2"},
    {"guidance_in.in_layer", "time_text_embed.guidance_embedder.linear_1"},
    {"guidance_in.out_layer", "time_text_embed.guidance_embedder.linear_2"},
    {"final_layer.adaLN_modulation.1", "norm_out.linear"},
    {"final_layer.linear", "proj_out"},
};
constexpr Renamed kInDouble[] = {
    {"img_mod.lin", "norm1.linear"},
    {"txt_mod.lin", "norm1_context.linear"},
    {"img_attn.norm.query_norm", "attn.norm_q"},
    {"img_attn.norm.key_norm", "attn.norm_k"},
    {"txt_attn.norm.query_norm", "attn.norm_added_q"},
    {"txt_attn.norm.key_norm", "attn.norm_added_k"},
    {"img_attn.proj", "attn.to_out.0"},
    {"txt_attn.proj", "attn.to_add_out"},
    {"img_mlp.0", "ff.net.0.proj"},
    {"img_mlp.2", "ff.net.2"},
    {"txt_mlp.0", "ff_context.net.0.proj"},
    {"txt_mlp.2", "ff_context.net.2"},
};
constexpr Renamed kInSingle[] = {
    {"modulation.lin", "norm.linear"},
    {"norm.query_norm", "attn.norm_q"},
    {"norm.key_norm", "attn.norm_k"},
    {"linear2", "proj_out"},
};

// Adds the modules of a table, below the prefixes of a block. A norm's bias does not exist and is not asked for.
template <size_t kCount>
void add_renamed(const Renamed (&table)[kCount], const std::string& ours, const std::string& theirs,
                 std::map<std::string, HfLayout>& layouts) {
  for (const Renamed& module : table) {
    for (const char* end : {".weight", ".bias"}) {
      layouts[absl::StrCat(ours, module.ours, end)] = {.keys = {absl::StrCat(theirs, module.theirs, end)}};
    }
  }
}

// A parameter whose rows are those of several tensors, one after the other.
void add_fused(const std::string& ours, const std::string& theirs,
               const std::vector<std::pair<std::string, int64_t>>& parts, std::map<std::string, HfLayout>& layouts) {
  for (const char* end : {".weight", ".bias"}) {
    HfLayout& layout = layouts[absl::StrCat(ours, end)];
    for (const auto& [name, rows] : parts) {
      layout.rows.push_back({.key = layout.keys.size(), .count = rows});
      layout.keys.push_back(absl::StrCat(theirs, name, end));
    }
  }
}

std::map<std::string, HfLayout> diffusers_layouts(const models::FluxSpec& spec) {
  std::map<std::string, HfLayout> layouts;
  const int64_t dim = spec.dim;
  add_renamed(kOutside, "", "", layouts);
  for (const char* end : {".weight", ".bias"}) {  // Shift and scale; there scale and shift.
    layouts[absl::StrCat("final_layer.adaLN_modulation.1", end)].rows = {{.begin = dim, .count = dim},
                                                                         {.begin = 0, .count = dim}};
  }
  for (int64_t i = 0; i < spec.n_double_blocks; ++i) {
    const std::string ours = absl::StrCat("double_blocks.", i, "."),
                      theirs = absl::StrCat("transformer_blocks.", i, ".");
    add_renamed(kInDouble, ours, theirs, layouts);
    add_fused(ours + "img_attn.qkv", theirs + "attn.", {{"to_q", dim}, {"to_k", dim}, {"to_v", dim}}, layouts);
    add_fused(ours + "txt_attn.qkv", theirs + "attn.", {{"add_q_proj", dim}, {"add_k_proj", dim}, {"add_v_proj", dim}},
              layouts);
  }
  for (int64_t i = 0; i < spec.n_single_blocks; ++i) {
    const std::string ours = absl::StrCat("single_blocks.", i, "."),
                      theirs = absl::StrCat("single_transformer_blocks.", i, ".");
    add_renamed(kInSingle, ours, theirs, layouts);
    add_fused(ours + "linear1", theirs,
              {{"attn.to_q", dim}, {"attn.to_k", dim}, {"attn.to_v", dim}, {"proj_mlp", spec.mlp_hidden()}}, layouts);
  }
  return layouts;
}

// "...query_norm.weight" is "...query_norm.scale" there.
std::string released_name(const std::string& fqn) {
  if (!absl::EndsWith(fqn, "_norm.weight")) return fqn;
  return absl::StrCat(fqn.substr(0, fqn.rfind('.')), ".scale");
}

class FluxMapper : public checkpoint::HfMapper {
 public:
  FluxMapper(const models::FluxSpec& spec, WeightNames written) : spec_(spec), written_(written) {
    const std::map<std::string, HfLayout> diffusers = diffusers_layouts(spec);
    for (const models::ParameterSpec& tensor : models::parameters(spec)) {
      std::vector<HfLayout>& forms = layouts_[tensor.fqn];
      forms = {diffusers.at(tensor.fqn), {.keys = {released_name(tensor.fqn)}}};
      if (written == WeightNames::kReleased) std::swap(forms[0], forms[1]);
      if (released_name(tensor.fqn) != tensor.fqn) forms.push_back({.keys = {tensor.fqn}});
      for (const HfLayout& form : forms) keys_.insert(form.keys.begin(), form.keys.end());
    }
  }

  absl::StatusOr<std::vector<HfLayout>> layouts(const std::string& fqn) const override {
    const auto found = layouts_.find(fqn);
    if (found != layouts_.end()) return found->second;
    return absl::NotFoundError(absl::StrCat(spec_.name, " ", spec_.flavor, " has no parameter \"", fqn, "\""));
  }
  bool knows(const std::string& key) const override { return keys_.contains(key); }
  nlohmann::json config() const override {
    return written_ == WeightNames::kDiffusers ? hf_config::flux_config(spec_) : nlohmann::json();
  }
  std::string second_index_name() const override {
    return written_ == WeightNames::kDiffusers ? checkpoint::kDiffusersIndexName : "";
  }

 private:
  const models::FluxSpec spec_;
  const WeightNames written_;
  std::map<std::string, std::vector<HfLayout>> layouts_;  // By FQN.
  std::set<std::string> keys_;
};

}  // namespace

std::unique_ptr<checkpoint::HfMapper> make_mapper(const models::FluxSpec& spec, WeightNames written) {
  return std::make_unique<FluxMapper>(spec, written);
}

}  // namespace titan::model::flux
