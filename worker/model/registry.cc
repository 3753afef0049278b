#include "worker/model/registry.h"

#include <deque>
#include <mutex>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "worker/model/deepseek_v3/deepseek_v3.h"
#include "worker/model/gpt_oss/gpt_oss.h"
#include "worker/model/hf_families.h"
#include "worker/model/llama/llama.h"
#include "worker/model/llama4/llama4.h"
#include "worker/model/qwen3/qwen3.h"

namespace titan::model {
namespace {

struct Table {
  std::mutex mutex;
  // One row per family; a new model adds its folder and a line here.
  std::deque<Family> families{
      {"llama3", llama::build, llama3_hf(), {}},
      {"llama4", llama4::build, llama4_hf(), {}},
      {"deepseek_v3", deepseek_v3::build, deepseek_v3_hf(), {}},
      {"qwen3", qwen3::build, qwen3_hf(), {}},
      {"gpt_oss", gpt_oss::build, gpt_oss_hf(), {}},
  };
};

Table& table() {
  static Table& instance = *new Table;  // Never destroyed: ranks may be running when the process ends.
  return instance;
}

// Under the lock.
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
                                               " (a library of one's own: experimental.custom_import)"));
}

}  // namespace

absl::Status add_family(Family family) {
  const std::lock_guard<std::mutex> lock(table().mutex);
  if (find(family.name) != nullptr) {
    return absl::AlreadyExistsError(absl::StrCat("there is a model \"", family.name, "\" already"));
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
  return (*family)->build(spec, options);
}

absl::StatusOr<HfFamily> hf_family(const std::string& name) {
  const absl::StatusOr<const Family*> family = known_family(name);
  if (!family.ok()) return family.status();
  if ((*family)->hf.names != nullptr) return (*family)->hf;
  return absl::UnimplementedError(absl::StrCat("the weights of ", name, " have no Hugging Face names"));
}

}  // namespace titan::model
