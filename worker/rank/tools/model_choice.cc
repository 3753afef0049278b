#include "worker/rank/tools/model_choice.h"

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "worker/rank/checkpoint/loading/model_check.h"
#include "worker/rank/model/registry.h"

namespace titan::tools {

namespace {

// Returns experimental.custom_import of the step's job; empty if it had none.
std::string library_of(const checkpoint::Manifest& manifest) {
  if (!manifest.config.is_object()) return "";
  const nlohmann::json experimental = manifest.config.value("experimental", nlohmann::json());
  return experimental.is_object() ? experimental.value("custom_import", "") : "";
}

}  // namespace

absl::StatusOr<models::ModelSpec> model_of(const std::string& path, const checkpoint::Manifest& manifest,
                                           const ModelChoice& choice) {
  std::string name = choice.name, flavor = choice.flavor;
  if (manifest.model.is_null()) {
    if (name.empty() || flavor.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": was written before steps recorded their model: give --model and --flavor of its job"));
    }
  } else {
    if (name.empty()) name = manifest.model.value("name", "");
    if (flavor.empty()) flavor = manifest.model.value("flavor", "");
  }
  // A step of one of Titan's families records every number, of any size.
  const bool recorded = manifest.model.is_object() && choice.flavor.empty() && !models::flavors(name).empty();
  auto spec = recorded ? models::from_json(manifest.model) : model::find_spec(name, flavor, choice.library);
  if (!spec.ok() && !manifest.model.is_null()) {
    const absl::Status held = annotate(spec.status(), absl::StrCat(path, " holds ", models::label(manifest.model)));
    if (!choice.library.empty() || !choice.name.empty()) return held;
    const std::string library = library_of(manifest);
    return absl::Status(held.code(), absl::StrCat(std::string(held.message()), "; a model from a library needs ",
                                                  library.empty() ? "--library FILE" : "--library " + library));
  }
  TITAN_RETURN_IF_ERROR(spec.status());
  // The job may have changed numbers of a library's flavor.
  if (!recorded && manifest.model.is_object() && choice.flavor.empty() && !spec->other)
    TITAN_RETURN_IF_ERROR(models::set_members(manifest.model, *spec));
  spec = checkpoint::with_numbers_of_step(manifest, *spec);
  TITAN_RETURN_IF_ERROR(checkpoint::check_model(manifest, *spec, checkpoint::Use::kResume, path,
                                                "omit --model and --flavor, or give the step's")
                            .status());
  return spec;
}

}  // namespace titan::tools
