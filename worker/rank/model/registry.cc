#include "worker/rank/model/registry.h"

#include <deque>
#include <mutex>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/model/families.h"

namespace titan::model {
namespace {

struct Table {
  Table() {
#define TITAN_OBJECTIVE_OF(family)                              \
  for (Family & one : families) {                               \
    if (one.name == #family) one.objective = family::objective; \
  }
    TITAN_OTHER_OBJECTIVES(TITAN_OBJECTIVE_OF)
#undef TITAN_OBJECTIVE_OF
  }

  std::mutex mutex;
#define TITAN_ROW_OF(family) {#family, family::build, family::hf(), {}, nullptr},
  std::deque<Family> families{TITAN_MODEL_FAMILIES(TITAN_ROW_OF)};
#undef TITAN_ROW_OF
};

Table& table() {
  static Table& instance = *new Table;  // Never destroyed: ranks may be running when the process ends.
  return instance;
}

// The caller holds the lock.
const Family* find(const std::string& name) {
  for (const Family& family : table().families) {
    if (name == family.name) return &family;
  }
  return nullptr;
}

absl::StatusOr<const Family*> known_family(const std::string& name) {
  if (const Family* family = find_family(name)) return family;
  return absl::UnimplementedError(absl::StrCat("model.name: no model \"", name,
                                               "\"; known: ", absl::StrJoin(family_names(), ", "),
                                               " (for a custom library set experimental.custom_import)"));
}

// Pipeline stages, checkpoints and recomputation find blocks and parameters by these names.
absl::Status check_blocks(const Model& model, const models::ModelSpec& spec) {
  const std::vector<std::string> expected = models::block_names(spec).names();
  std::vector<std::string> names;
  std::set<std::string> parameters;
  for (const auto& block : model.blocks) {
    names.push_back(block == nullptr ? "(null)" : block->name());
    if (block == nullptr) continue;
    for (const nn::Parameter& parameter : block->parameters()) {
      if (parameters.insert(parameter.fqn).second) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("model ", spec.name, ": two parameters are called ", parameter.fqn));
    }
  }
  if (names == expected) return absl::OkStatus();
  if (spec.other) {
    return absl::InvalidArgumentError(absl::StrCat("model ", spec.name, ", flavor ", spec.flavor, ": its blocks are ",
                                                   absl::StrJoin(names, ", "), "; other.blocks lists ",
                                                   absl::StrJoin(expected, ", ")));
  }
  return absl::InvalidArgumentError(absl::StrCat("model ", spec.name, ", flavor ", spec.flavor, ": its blocks are ",
                                                 absl::StrJoin(names, ", "),
                                                 "; they must be tok_embeddings, layers.0 to ", "layers.",
                                                 spec.n_layers - 1, " (n_layers) and output, in this order"));
}

}  // namespace

absl::Status add_family(Family family) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  if (find(family.name) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("model \"", family.name, "\" exists already"));
  }
  table().families.push_back(std::move(family));
  return absl::OkStatus();
}

const Family* find_family(const std::string& name) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  return find(name);
}

std::vector<std::string> family_names() {
  const std::lock_guard<std::mutex> lock(table().mutex);
  std::vector<std::string> names;
  for (const Family& family : table().families) names.push_back(family.name);
  return names;
}

absl::StatusOr<Model> build(const models::ModelSpec& spec, const BuildOptions& options) {
  const absl::StatusOr<const Family*> family = known_family(spec.name);
  if (!family.ok()) return family.status();
  absl::StatusOr<Model> model = (*family)->build(spec, options);
  if (!model.ok()) return model;
  if (absl::Status wrong = check_blocks(*model, spec); !wrong.ok()) return wrong;
  return model;
}

absl::StatusOr<HfFamily> hf_family(const std::string& name) {
  const absl::StatusOr<const Family*> family = known_family(name);
  if (!family.ok()) return family.status();
  if ((*family)->hf.names != nullptr || (*family)->hf.mapper != nullptr) return (*family)->hf;
  return absl::UnimplementedError(absl::StrCat("the weights of ", name, " have no Hugging Face names"));
}

}  // namespace titan::model
