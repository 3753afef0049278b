#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/config/job_config.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/objective.h"

namespace titan::model {

// A family that can be built.
struct Family {
  std::string name;
  absl::StatusOr<Model> (*build)(const models::ModelSpec&, const BuildOptions&);
  HfFamily hf;                             // Hugging Face names. `names` null: none.
  std::vector<models::ModelSpec> flavors;  // Flavors of a plug-in. Titan's flavors are in common/plan/models.
  // Makes its objective. Null: it is a language model.
  std::unique_ptr<Objective> (*objective)(const models::ModelSpec&) = nullptr;
};

// Adds a family to the table of this process. The table is global because loaded code is. Plug-ins add entries, which
// never change. AlreadyExists: a family has that name.
absl::Status add_family(Family family);

// Returns a family's entry, which lives as long as the process. Null: the family does not exist.
const Family* find_family(const std::string& name);
std::vector<std::string> family_names();

// Makes a library's families available to build(), find_spec() and hf_family() in this process. Loading a library again
// has no effect, and a library with only datasets adds no families. Errors: NotFound (no such file), InvalidArgument
// (not a plug-in, compiled against other headers, or a family that is incomplete or occurs twice), AlreadyExists (Titan
// or another library has a family of that name).
absl::Status load_plugin(const std::string& path);

// Returns the numbers of a flavor, from a loaded plug-in's family or else from Titan's tables. `plugin`: a library to
// load first (experimental.custom_import); may be empty. Errors: those of load_plugin(), InvalidArgument (unknown
// family or flavor).
absl::StatusOr<models::ModelSpec> find_spec(const std::string& name, const std::string& flavor,
                                            const std::string& plugin = "");

// Returns the model that a job trains: the flavor, or the model of config.json, with the job's changes
// (config::resolve_model()). Errors: those of find_spec() and resolve_model().
absl::StatusOr<models::ModelSpec> find_spec(const config::ModelSection& model, const std::string& plugin = "");

}  // namespace titan::model
