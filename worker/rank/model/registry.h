#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"

namespace titan::model {

// A family that can be built.
struct Family {
  std::string name;
  absl::StatusOr<Model> (*build)(const models::ModelSpec&, const BuildOptions&);
  HfFamily hf;                             // Hugging Face names; `names` null: none.
  std::vector<models::ModelSpec> flavors;  // Of a plug-in; Titan's own are in common/plan/models.
};

// Loaded code belongs to the whole process, so this table does too: it grows by plug-ins, entries never change.
// AlreadyExists: a family of that name is there.
absl::Status add_family(Family family);

// Null: there is none. The entry lives as long as the process.
const Family* find_family(const std::string& name);
std::vector<std::string> family_names();

// Makes a library's families known to this process: to build(), find_spec() and hf_family(). Once is enough; again does
// nothing, and a library that has datasets alone has no families. Errors: NotFound (no such file), InvalidArgument (not
// a plug-in, compiled against other headers, or a family that says nothing), AlreadyExists (two families of one name).
absl::Status load_plugin(const std::string& path);

// The numbers of a flavor: of a plug-in's family that is loaded, else of Titan's own tables. `plugin`: a library to
// load first (experimental.custom_import); may be empty.
absl::StatusOr<models::ModelSpec> find_spec(const std::string& name, const std::string& flavor,
                                            const std::string& plugin = "");

}  // namespace titan::model
