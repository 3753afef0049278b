#include "common/plan/hf_config/flux.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "common/plan/hf_config/keys.h"

namespace titan::hf_config {
namespace {

constexpr char kClass[] = "FluxTransformer2DModel";
constexpr int64_t kAxes = 3;

void take_axes(Keys& keys, models::FluxSpec& spec) {
  if (!keys.has("axes_dims_rope")) return;
  const nlohmann::json axes = keys.at("axes_dims_rope");
  bool fits = axes.is_array() && axes.size() == kAxes;
  for (size_t i = 0; fits && i < spec.axes_dim.size(); ++i) {
    fits = axes[i].is_number_integer();
    if (fits) spec.axes_dim[i] = axes[i].get<int64_t>();
  }
  if (!fits) keys.refuse("axes_dims_rope", "a list of three integers");
}

}  // namespace

absl::StatusOr<models::FluxSpec> read_flux(const nlohmann::json& config) {
  if (!config.is_object() || config.value("_class_name", nlohmann::json()) != kClass) {
    return absl::InvalidArgumentError(absl::StrCat("config.json: _class_name is not \"", kClass, "\""));
  }
  Keys keys(config);
  models::FluxSpec spec{
      .flavor = "config.json", .n_heads = 24, .n_double_blocks = 19, .n_single_blocks = 38};  // The class's defaults.
  int64_t head_dim = 128;
  keys.expect("patch_size", int64_t{1});
  keys.take("in_channels", spec.in_channels);
  keys.expect("out_channels", spec.in_channels);
  keys.take("num_layers", spec.n_double_blocks);
  keys.take("num_single_layers", spec.n_single_blocks);
  keys.take("attention_head_dim", head_dim);
  keys.take("num_attention_heads", spec.n_heads);
  keys.take("joint_attention_dim", spec.txt_width);
  keys.take("pooled_projection_dim", spec.vec_width);
  keys.take("guidance_embeds", spec.guidance_embed);
  take_axes(keys, spec);
  if (!keys.status().ok()) return keys.status();
  spec.dim = spec.n_heads * head_dim;
  if (absl::Status bad = models::check(spec); !bad.ok()) return bad;
  return spec;
}

nlohmann::json flux_config(const models::FluxSpec& spec) {
  return {{"_class_name", kClass},
          {"patch_size", 1},
          {"in_channels", spec.in_channels},
          {"num_layers", spec.n_double_blocks},
          {"num_single_layers", spec.n_single_blocks},
          {"attention_head_dim", spec.head_dim()},
          {"num_attention_heads", spec.n_heads},
          {"joint_attention_dim", spec.txt_width},
          {"pooled_projection_dim", spec.vec_width},
          {"guidance_embeds", spec.guidance_embed},
          {"axes_dims_rope", spec.axes_dim}};
}

}  // namespace titan::hf_config
