#include "common/plan/models/registry.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/text/nearest.h"
#include "common/plan/models/families.h"

namespace titan::models {
namespace {

struct Family {
  std::string name;
  std::vector<ModelSpec> flavors;
};

const std::vector<Family>& families() {
#define TITAN_ROW_OF(family) {#family, family##_flavors()},
  static const auto& table = *new std::vector<Family>{TITAN_MODEL_FAMILIES(TITAN_ROW_OF)};
#undef TITAN_ROW_OF
  return table;
}

absl::Status unknown(const std::string& what, const std::string& given, const std::vector<std::string>& known) {
  const std::string near = nearest(given, known);
  return absl::InvalidArgumentError(absl::StrCat(what, ": unknown value \"", given, "\"",
                                                 near.empty() ? "" : absl::StrCat("; did you mean \"", near, "\"?"),
                                                 " (known: ", absl::StrJoin(known, ", "), ")"));
}

}  // namespace

std::vector<std::string> names() {
  std::vector<std::string> result;
  for (const Family& family : families()) result.push_back(family.name);
  return result;
}

std::vector<std::string> flavors(const std::string& name) {
  std::vector<std::string> result;
  for (const Family& family : families()) {
    if (family.name != name) continue;
    for (const ModelSpec& spec : family.flavors) result.push_back(spec.flavor);
  }
  return result;
}

absl::StatusOr<ModelSpec> find(const std::string& name, const std::string& flavor) {
  for (const Family& family : families()) {
    if (family.name != name) continue;
    for (const ModelSpec& spec : family.flavors) {
      if (spec.flavor == flavor) return spec;
    }
    return unknown(absl::StrCat("model.flavor of ", name), flavor, flavors(name));
  }
  return unknown("model.name", name, names());
}

}  // namespace titan::models
