// A model library (docs/howto/add-a-model.md) with the oracles' small models (tests/peer/oracle_models.py), so that
// titan-rank trains them. Each case.json in TITAN_GOLDEN_CASES (paths joined by ':') becomes a family with the case's
// name and the single flavor "golden". It is built as the family that its numbers change.
#include <cstdlib>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "common/plan/models/registry.h"
#include "tests/numerics/spec_changes.h"
#include "worker/rank/model/plugin.h"
#include "worker/rank/model/registry.h"

namespace {

using namespace titan;

model::PluginFamily read_case(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path);
  const nlohmann::json about = nlohmann::json::parse(file);
  models::ModelSpec spec = models::find(about.at("family"), about.at("flavor")).value();
  const model::Family& like = *model::find_family(spec.name);
  testing::change_spec(spec, about.at("spec"));
  spec.flavor = "golden";
  model::PluginFamily family{.name = about.at("case"), .flavors = {spec}, .build = like.build, .hf = like.hf};
  family.hf->name = family.name;
  return family;
}

std::vector<model::PluginFamily> families() {
  const char* const paths = std::getenv("TITAN_GOLDEN_CASES");
  if (paths == nullptr) throw std::runtime_error("TITAN_GOLDEN_CASES is not set: list the cases' folders");
  std::vector<model::PluginFamily> all;
  for (const absl::string_view path : absl::StrSplit(paths, ':')) all.push_back(read_case(std::string(path)));
  return all;
}

}  // namespace

TITAN_MODEL_PLUGIN(families)
