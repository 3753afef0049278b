#include "worker/model/plugin.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/models/consistency.h"
#include "common/models/registry.h"
#include "common/status/status.h"
#include "common/storage/real_path.h"
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

// Empty when both are the same.
std::string differences(const PluginAbi& theirs, const PluginAbi& mine) {
  std::vector<std::string> all;
  const auto compare = [&](const char* what, const char* there, const char* here) {
    if (std::strcmp(there, here) == 0) return;
    all.push_back(absl::StrCat(what, " \"", there, "\" where this titan-rank has \"", here, "\""));
  };
  compare("Titan", theirs.titan, mine.titan);
  compare("LibTorch", theirs.torch, mine.torch);
  compare("compiler", theirs.compiler, mine.compiler);
  compare("Titan's headers of hash", theirs.headers, mine.headers);
  return absl::StrJoin(all, ", ");
}

// Where libraries may lie, as titan-worker says (--plugin-folder); nothing: anywhere.
std::optional<std::vector<std::string>> granted_folders() {
  const char* const folders = std::getenv("TITAN_RANK_PLUGIN_FOLDERS");
  if (folders == nullptr) return std::nullopt;
  return absl::StrSplit(folders, ':', absl::SkipEmpty());
}

// The name by which the library is loaded. Where it must lie in some folder, that is the file which was looked at,
// whatever has its path's name by then. Its descriptor is never closed, as the library is not.
absl::StatusOr<std::string> granted(const std::string& path) {
  const std::optional<std::vector<std::string>> folders = granted_folders();
  if (!folders) return path;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  struct stat info {};
  if (file < 0 || fstat(file, &info) != 0 || !S_ISREG(info.st_mode))
    return refuse(path, "cannot be opened as a file on this node");
  TITAN_ASSIGN_OR_RETURN(const std::string real, storage::real_path_of(file));
  if (storage::lies_below(real, *folders)) return absl::StrCat("/proc/self/fd/", file);
  ::close(file);
  return refuse(path,
                absl::StrCat("lies in no folder that this node grants to libraries (titan-worker --plugin-folder): ",
                             folders->empty() ? "there is none" : absl::StrJoin(*folders, ", ")));
}

absl::StatusOr<const Plugin*> open_plugin(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const std::string name, granted(path));
  // Never closed: models hold code of it. A symbol that is missing fails here, not in the middle of a step.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(path, absl::StrCat("cannot be loaded: ", dlerror()));
  const auto entry = reinterpret_cast<const Plugin* (*)()>(dlsym(library, "titan_model_plugin"));
  const Plugin* plugin = entry == nullptr ? nullptr : entry();
  if (plugin == nullptr) return refuse(path, "is no model library: it has no TITAN_MODEL_PLUGIN(...)");
  constexpr const char* kAgain =
      "; compile it again with this installation's headers (lib/titan/sdk, or deploy/plugin_sdk.sh)";
  if (plugin->form != kPluginForm)
    return refuse(path, absl::StrCat("was compiled for another form of library", kAgain));
  const std::string differ = differences(plugin->abi, TITAN_PLUGIN_ABI);
  if (!differ.empty()) return refuse(path, absl::StrCat("was compiled with ", differ, kAgain));
  return plugin;
}

absl::Status check_family(const std::string& path, const PluginFamily& family) {
  const std::string who = absl::StrCat("family \"", family.name, "\"");
  if (family.name.empty() || family.build == nullptr || family.flavors.empty()) {
    return refuse(path, absl::StrCat(who, " needs a name, a build function and flavors"));
  }
  std::set<std::string> names;
  for (const models::ModelSpec& spec : family.flavors) {
    const std::string which = absl::StrCat(who, ", flavor \"", spec.flavor, "\": ");
    if (spec.flavor.empty()) return refuse(path, absl::StrCat(which, "needs a name"));
    if (!names.insert(spec.flavor).second) return refuse(path, absl::StrCat(which, "is there twice"));
    const std::string wrong = models::inconsistency(spec);
    if (!wrong.empty()) return refuse(path, absl::StrCat(which, wrong));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<PluginFamily>> read_families(const std::string& path) {
  TITAN_ASSIGN_OR_RETURN(const Plugin* plugin, open_plugin(path));
  std::vector<PluginFamily> families;
  try {
    families = plugin->families();
  } catch (const std::exception& error) {
    return refuse(path, absl::StrCat("its families' function threw: ", error.what()));
  } catch (...) {
    return refuse(path, "its families' function threw something that is no exception");
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
          absl::StrCat("experimental.custom_import: ", path, ": there is a model \"", family.name, "\" already"));
    }
  }
  return families;
}

constexpr int kTrialDone = 113;  // The trial's own exit status: any other is the library's.

// In a process of its own first: a library's static initialisers run while it is loaded, and what they throw, or an
// exit that they call, ends the process before anything can catch it.
absl::Status try_elsewhere(const std::string& path) {
  const pid_t child = fork();
  if (child < 0) return absl::OkStatus();  // No trial, then.
  if (child == 0) {
    alarm(120);
    on_exit([](int ends, void*) { _exit(ends); }, nullptr);  // Handlers that titan-rank has are not the child's.
    static_cast<void>(read_families(path));
    _exit(kTrialDone);
  }
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == kTrialDone)) return absl::OkStatus();
  if (WIFEXITED(status)) {
    return refuse(path, absl::StrCat("loading it ends the process with exit status ", WEXITSTATUS(status),
                                     ": an object of static storage, or its families' function, calls exit"));
  }
  return refuse(path, absl::StrCat("loading it ends the process with signal ", WTERMSIG(status), " (",
                                   strsignal(WTERMSIG(status)),
                                   "): an object of static storage throws, crashes or hangs when it is made"));
}

}  // namespace

absl::Status load_plugin(const std::string& path) {
  std::error_code error;
  const std::string real = std::filesystem::canonical(path, error).string();
  if (error || !std::filesystem::is_regular_file(real, error)) {
    return absl::NotFoundError(absl::StrCat("experimental.custom_import: ", path, ": no such file on this node"));
  }
  const std::lock_guard<std::mutex> lock(loaded().mutex);
  if (loaded().paths.contains(real)) return absl::OkStatus();
  if (absl::Status bad = try_elsewhere(real); !bad.ok()) return bad;
  TITAN_ASSIGN_OR_RETURN(std::vector<PluginFamily> families, read_families(real));
  for (PluginFamily& family : families) {
    for (models::ModelSpec& spec : family.flavors) spec.name = family.name;
    const absl::Status added =
        add_family({family.name, family.build, family.hf.value_or(HfFamily{}), std::move(family.flavors)});
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

}  // namespace titan::model
