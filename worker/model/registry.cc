#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "worker/model/hf_names.h"
#include "worker/model/llama/llama.h"
#include "worker/model/model.h"

namespace titan::model {
namespace {

// One row per family; a new model adds its folder and a line here.
struct Family {
  const char* name;
  absl::StatusOr<Model> (*build)(const models::ModelSpec&, const BuildOptions&);
  absl::StatusOr<HfTensor> (*hf_tensor)(const models::ModelSpec&, const std::string&);
  absl::StatusOr<std::optional<std::string>> (*fqn_of_hf_key)(const models::ModelSpec&, const std::string&);
  nlohmann::json (*hf_config)(const models::ModelSpec&);
};

constexpr Family kFamilies[] = {
    {"llama3", llama::build, llama::hf_tensor, llama::fqn_of_hf_key, llama::hf_config},
};

absl::StatusOr<const Family*> find_family(const std::string& name) {
  for (const Family& family : kFamilies) {
    if (name == family.name) return &family;
  }
  std::string known;
  for (const Family& family : kFamilies) absl::StrAppend(&known, known.empty() ? "" : ", ", family.name);
  return absl::UnimplementedError(
      absl::StrCat("model.name: training \"", name, "\" is not supported yet; known: ", known));
}

}  // namespace

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  const absl::StatusOr<const Family*> family = find_family(spec.name);
  if (!family.ok()) return family.status();
  return (*family)->build(spec, options);
}

absl::StatusOr<HfTensor> hf_tensor(const models::ModelSpec& spec, const std::string& fqn) {
  const absl::StatusOr<const Family*> family = find_family(spec.name);
  if (!family.ok()) return family.status();
  return (*family)->hf_tensor(spec, fqn);
}

absl::StatusOr<std::optional<std::string>> fqn_of_hf_key(const models::ModelSpec& spec, const std::string& key) {
  const absl::StatusOr<const Family*> family = find_family(spec.name);
  if (!family.ok()) return family.status();
  return (*family)->fqn_of_hf_key(spec, key);
}

absl::StatusOr<nlohmann::json> hf_config(const models::ModelSpec& spec) {
  const absl::StatusOr<const Family*> family = find_family(spec.name);
  if (!family.ok()) return family.status();
  return (*family)->hf_config(spec);
}

// Hugging Face rotates halves (i, i + D/2) where the model rotates neighbours (2i, 2i + 1).
at::Tensor to_hf(const HfTensor& place, const at::Tensor& value) {
  if (place.permute_heads == 0) return value;
  const int64_t half = value.size(0) / place.permute_heads / 2;
  return value.view({place.permute_heads, half, 2, value.size(1)}).transpose(1, 2).reshape(value.sizes());
}

at::Tensor from_hf(const HfTensor& place, const at::Tensor& value) {
  if (place.permute_heads == 0) return value;
  const int64_t half = value.size(0) / place.permute_heads / 2;
  return value.view({place.permute_heads, 2, half, value.size(1)}).transpose(1, 2).reshape(value.sizes());
}

}  // namespace titan::model
