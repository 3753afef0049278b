#include "worker/rank/model/plugin.h"

#include <exception>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"
#include "common/plan/config/config_flavor.h"
#include "common/plan/config/trained_model.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/spec_checks.h"
#include "worker/rank/model/registry.h"
#include "worker/rank/plugin/library.h"

namespace titan::model {
namespace {

// The libraries that this process has loaded. Ranks that are threads of one process may all request the same one.
struct Loaded {
  std::mutex mutex;
  std::set<std::string> paths;
};

Loaded& loaded() {
  static Loaded& instance = *new Loaded;
  return instance;
}

using plugin::refuse;

absl::Status check_family(const std::string& path, const PluginFamily& family) {
  const std::string who = absl::StrCat("family \"", family.name, "\"");
  if (family.name.empty() || family.build == nullptr || family.flavors.empty()) {
    return refuse(path, absl::StrCat(who, " needs a name, a build function and flavors"));
  }
  std::set<std::string> names;
  for (const models::ModelSpec& spec : family.flavors) {
    const std::string which = absl::StrCat(who, ", flavor \"", spec.flavor, "\": ");
    if (spec.flavor.empty()) return refuse(path, absl::StrCat(which, "needs a name"));
    if (!names.insert(spec.flavor).second) return refuse(path, absl::StrCat(which, "is registered twice"));
    const std::string wrong = models::inconsistency(spec);
    if (!wrong.empty()) return refuse(path, absl::StrCat(which, wrong));
  }
  return absl::OkStatus();
}

// Returns no families for a library without models.
absl::StatusOr<std::vector<PluginFamily>> read_families(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const plugin::PluginHeader* head,
                         plugin::open(path, plugin::kModelSymbol, {kPluginForm, TITAN_PLUGIN_ABI(TORCH_VERSION)}));
  std::vector<PluginFamily> families;
  if (head == nullptr) return families;
  try {
    families = reinterpret_cast<const Plugin*>(head)->families();
  } catch (const std::exception& error) {
    return refuse(path, absl::StrCat("its families' function threw: ", error.what()));
  } catch (...) {
    return refuse(path, "its families' function threw a value that is not a std::exception");
  }
  if (families.empty()) return refuse(path, "registers no family");
  std::set<std::string> names;
  for (const PluginFamily& family : families) {
    if (absl::Status bad = check_family(path, family); !bad.ok()) return bad;
    if (!names.insert(family.name).second) {
      return refuse(path, absl::StrCat("registers family \"", family.name, "\" twice"));
    }
    if (find_family(family.name) != nullptr) {
      return absl::AlreadyExistsError(
          absl::StrCat("experimental.custom_import: ", path, ": model \"", family.name, "\" exists already"));
    }
  }
  return families;
}

}  // namespace

absl::Status load_plugin(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::string real, plugin::find(path));
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  if (loaded().paths.contains(real)) return absl::OkStatus();
  TITAN_RETURN_IF_ERROR(plugin::try_in_child(real, [&] { static_cast<void>(read_families(real)); }));
  TITAN_ASSIGN_OR_RETURN(std::vector<PluginFamily> families, read_families(real));
  for (PluginFamily& family : families) {
    for (models::ModelSpec& spec : family.flavors) spec.name = family.name;
    const absl::Status added = add_family(
        {family.name, family.build, family.hf.value_or(HfFamily{}), std::move(family.flavors), family.objective});
    if (!added.ok()) return refuse(real, std::string(added.message()));
  }
  loaded().paths.insert(real);
  return absl::OkStatus();
}

absl::StatusOr<models::ModelSpec> find_spec(const std::string& name, const std::string& flavor,
                                            const std::string& plugin) {
  if (!plugin.empty()) {
    if (absl::Status bad = load_plugin(plugin); !bad.ok()) return bad;
  }
  const Family* family = find_family(name);
  if (family == nullptr || family->flavors.empty()) {
    absl::StatusOr<models::ModelSpec> spec = models::find(name, flavor);
    if (spec.ok() || plugin.empty() || family != nullptr) return spec;
    return absl::InvalidArgumentError(absl::StrCat("model.name: neither Titan nor ", plugin, " has a model \"", name,
                                                   "\"; known: ", absl::StrJoin(family_names(), ", ")));
  }
  std::vector<std::string> known;
  for (const models::ModelSpec& spec : family->flavors) {
    if (spec.flavor == flavor) return spec;
    known.push_back(spec.flavor);
  }
  return absl::InvalidArgumentError(absl::StrCat("model.flavor of ", name, ": unknown value \"", flavor,
                                                 "\" (known: ", absl::StrJoin(known, ", "), ")"));
}

absl::StatusOr<models::ModelSpec> find_spec(const config::ModelSection& model, const std::string& plugin) {
  if (model.flavor == config::kConfigFlavor) return config::resolve_model(model);
  TITAN_ASSIGN_OR_RETURN(models::ModelSpec spec, find_spec(model.name, model.flavor, plugin));
  return config::apply_model_overrides(std::move(spec), model);
}

}  // namespace titan::model
