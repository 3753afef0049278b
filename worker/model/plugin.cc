#include "worker/model/plugin.h"

#include <dlfcn.h>

#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/models/registry.h"
#include "worker/model/registry.h"

namespace titan::model {
namespace {

// Of libraries that have been loaded, so that ranks which are threads of one process may all ask for the same one.
struct Loaded {
  std::mutex mutex;
  std::set<std::string> paths;
};

Loaded& loaded() {
  static Loaded& instance = *new Loaded;
  return instance;
}

absl::Status refuse(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("experimental.custom_import: ", path, ": ", why));
}

absl::StatusOr<const Plugin*> open(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {
    return absl::NotFoundError(absl::StrCat("experimental.custom_import: ", path, ": no such file on this node"));
  }
  // Never closed: models hold code of it. A symbol that is missing fails here, not in the middle of a step.
  void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(path, absl::StrCat("cannot be loaded: ", dlerror()));
  const auto entry = reinterpret_cast<const Plugin* (*)()>(dlsym(library, "titan_model_plugin"));
  if (entry == nullptr) return refuse(path, "is no model library: it has no TITAN_MODEL_PLUGIN(...)");
  const Plugin* plugin = entry();
  const PluginAbi mine = plugin_abi();
  if (plugin->abi == mine) return plugin;
  return refuse(path, absl::StrCat("was compiled for \"", plugin->abi.compiler, "\" with types of layout ",
                                   absl::Hex(plugin->abi.layout), ", this titan-rank is \"", mine.compiler, "\" with ",
                                   absl::Hex(mine.layout), "; compile it again with this installation's headers"));
}

absl::Status add(const std::string& path, PluginFamily family) {
  if (family.name.empty() || family.build == nullptr || family.flavors.empty()) {
    return refuse(path, absl::StrCat("family \"", family.name, "\" needs a name, a build function and flavors"));
  }
  for (models::ModelSpec& spec : family.flavors) spec.name = family.name;
  const absl::Status added =
      add_family({family.name, family.build, family.hf.value_or(HfFamily{}), std::move(family.flavors)});
  if (added.ok()) return added;
  return absl::Status(added.code(), absl::StrCat("experimental.custom_import: ", path, ": ", added.message()));
}

}  // namespace

absl::Status load_plugin(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::weakly_canonical(path, error).string();
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  if (loaded().paths.contains(real)) return absl::OkStatus();
  const absl::StatusOr<const Plugin*> plugin = open(path);
  if (!plugin.ok()) return plugin.status();
  std::vector<PluginFamily> families = (*plugin)->families();
  if (families.empty()) return refuse(path, "registers no family");
  for (PluginFamily& family : families) {
    if (absl::Status bad = add(path, std::move(family)); !bad.ok()) return bad;
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

}  // namespace titan::model
