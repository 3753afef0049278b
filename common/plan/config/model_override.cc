#include "common/plan/config/model_override.h"

#include <cmath>
#include <type_traits>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/config/fields.h"
#include "common/plan/models/spec_checks.h"
#include "common/plan/models/spec_json.h"
#include "nlohmann/json.hpp"

namespace titan::config {
namespace {

using models::ModelSpec;
using nlohmann::json;

absl::Status refuse(const std::string& key, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("model.override.", key, ": ", why));
}

// Returns the keys that are set, as members of a spec.
json values_of(const std::vector<Field>& fields) {
  json values = json::object();
  for (const Field& field : fields) {
    std::visit(
        [&](auto* member) {
          if constexpr (requires { member->has_value(); }) {
            using Value = typename std::remove_pointer_t<decltype(member)>::value_type;
            if constexpr (!std::is_same_v<Value, StringLists>) {
              if (member->has_value()) values[std::string(field.key)] = **member;
            }
          }
        },
        field.ref);
  }
  return values;
}

// Sets or removes the scaling of RoPE: one of the two kinds, or none. A new YaRN is that of transformers.
void set_rope_type(const std::string& type, ModelSpec& spec) {
  if (type != "llama3") spec.rope_scaling.reset();
  if (type != "yarn") spec.yarn.reset();
  if (type == "llama3" && !spec.rope_scaling) spec.rope_scaling.emplace();
  if (type != "yarn" || spec.yarn) return;
  spec.yarn.emplace();
  spec.yarn->original_seq_len = spec.max_seq_len;
  spec.yarn->only_beyond_original = false;
  if (spec.attention == models::Attention::kGrouped) spec.yarn->scales_cos_sin = spec.yarn->rounds_bounds = true;
}

absl::Status check_parts(const json& values, const ModelSpec& spec) {
  if (values.contains("rope_scaling") && !spec.rope_scaling)
    return refuse(absl::StrCat("rope_scaling.", values["rope_scaling"].begin().key()),
                  "the model has no such scaling; set model.override.rope_type = \"llama3\"");
  if (values.contains("yarn") && !spec.yarn)
    return refuse(absl::StrCat("yarn.", values["yarn"].begin().key()),
                  "the model has no YaRN; set model.override.rope_type = \"yarn\"");
  return absl::OkStatus();
}

absl::Status follow(const json& values, const ModelSpec& before, ModelSpec& spec) {
  const bool grouped = spec.attention == models::Attention::kGrouped;
  if (!values.contains("head_dim")) {
    if (!grouped) {
      spec.head_dim = spec.qk_nope_head_dim + spec.qk_rope_head_dim;
    } else if (before.n_heads > 0 && before.head_dim * before.n_heads == before.dim) {
      if (spec.n_heads <= 0 || spec.dim % spec.n_heads != 0)
        return refuse(values.contains("n_heads") ? "n_heads" : "dim",
                      absl::StrCat("dim ", spec.dim, " is not a multiple of n_heads ", spec.n_heads,
                                   "; set model.override.head_dim if heads have another width"));
      spec.head_dim = spec.dim / spec.n_heads;
    }
  }
  if (grouped && !values.contains("v_head_dim")) spec.v_head_dim = spec.head_dim;
  const auto root = [](int64_t dim) { return std::sqrt(static_cast<double>(dim)); };
  const bool scales_by_root = before.dim > 1 && before.embedding_scale == root(before.dim);
  if (scales_by_root && !values.contains("embedding_scale")) spec.embedding_scale = root(spec.dim);
  if (before.n_kv_heads == before.n_heads && !values.contains("n_kv_heads")) spec.n_kv_heads = spec.n_heads;
  return absl::OkStatus();
}

}  // namespace

absl::Status apply_override(const ModelOverrideSection& section, ModelSpec& spec) {
  ModelOverrideSection copy = section;  // Fields refer to members that they may change.
  json values = values_of(fields_of(copy));
  const json type = values.value("rope_type", json());
  values.erase("rope_type");
  for (auto& [name, fields] :
       std::initializer_list<std::pair<const char*, std::vector<Field>>>{{"rope_scaling", fields_of(copy.rope_scaling)},
                                                                         {"yarn", fields_of(copy.yarn)},
                                                                         {"moe", fields_of(copy.moe)}}) {
    if (json part = values_of(fields); !part.empty()) values[name] = std::move(part);
  }
  if (values.empty() && type.is_null()) return absl::OkStatus();
  if (spec.flux || spec.other) {
    return refuse(type.is_null() ? values.begin().key() : "rope_type",
                  absl::StrCat("numbers of decoders do not apply to ", spec.name, " ", spec.flavor));
  }
  const ModelSpec before = spec;
  if (type.is_string()) set_rope_type(type.get<std::string>(), spec);
  TITAN_RETURN_IF_ERROR(check_parts(values, spec));
  if (absl::Status bad = models::set_members(values, spec); !bad.ok()) return annotate(bad, "model.override");
  TITAN_RETURN_IF_ERROR(follow(values, before, spec));
  const std::string wrong = models::inconsistency(spec);
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat("model.override.", wrong));
}

}  // namespace titan::config
