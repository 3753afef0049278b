#include "worker/rank/plugin/library.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status/status.h"
#include "common/io/storage/real_path.h"

namespace titan::plugin {
namespace {

// Describes the differences; empty if both are equal.
std::string differences(const Abi& theirs, const Abi& mine) {
  std::vector<std::string> all;
  const auto compare = [&](const char* what, const char* there, const char* here) {
    if (std::strcmp(there, here) == 0) return;
    all.push_back(absl::StrCat(what, " \"", there, "\" where this titan-rank has \"", here, "\""));
  };
  compare("Titan", theirs.titan, mine.titan);
  compare("LibTorch", theirs.torch, mine.torch);
  compare("compiler", theirs.compiler, mine.compiler);
  compare("Titan's headers (hash)", theirs.headers, mine.headers);
  return absl::StrJoin(all, ", ");
}

// Returns the folders that may contain libraries, from titan-worker (--plugin-folder). None: any folder may.
std::optional<std::vector<std::string>> granted_folders() {
  const char* const folders = std::getenv("TITAN_RANK_PLUGIN_FOLDERS");
  if (folders == nullptr) return std::nullopt;
  return absl::StrSplit(folders, ':', absl::SkipEmpty());
}

// Returns the path to load the library from. If folders are restricted, it names the open file that was checked, even
// if `path` is replaced meanwhile; the descriptor is never closed, like the library.
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
                absl::StrCat("is not in a folder that this node grants to libraries (titan-worker --plugin-folder): ",
                             folders->empty() ? "none" : absl::StrJoin(*folders, ", ")));
}

}  // namespace

absl::Status refuse(const std::string& path, const std::string& why) {
  return absl::InvalidArgumentError(absl::StrCat("experimental.custom_import: ", path, ": ", why));
}

absl::StatusOr<std::string> find(const std::string& path) {
  std::error_code error;
  std::string real = std::filesystem::canonical(path, error).string();
  if (!error && std::filesystem::is_regular_file(real, error)) return real;
  return absl::NotFoundError(absl::StrCat("experimental.custom_import: ", path, ": no such file on this node"));
}

absl::StatusOr<const PluginHeader*> open(const std::string& path, const char* symbol, const PluginHeader& mine) {
  TITAN_ASSIGN_OR_RETURN(const std::string name, granted(path));
  // Never closed, because models contain its code. A missing symbol fails here and not during a step.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return refuse(path, absl::StrCat("cannot be loaded: ", dlerror()));
  const auto entry = reinterpret_cast<const PluginHeader* (*)()>(dlsym(library, symbol));
  const bool others = dlsym(library, kModelSymbol) != nullptr || dlsym(library, kDataSymbol) != nullptr;
  if (entry == nullptr && others) return nullptr;
  const PluginHeader* head = entry == nullptr ? nullptr : entry();
  if (head == nullptr) {
    return refuse(path,
                  "brings neither models nor datasets: it has no TITAN_MODEL_PLUGIN(...) and no "
                  "TITAN_DATA_PLUGIN(...)");
  }
  constexpr const char* kAgain =
      "; compile it again with this installation's headers (lib/titan/sdk, or deploy/plugin_sdk.sh)";
  if (head->form != mine.form) return refuse(path, absl::StrCat("was compiled for another plugin format", kAgain));
  const std::string differ = differences(head->abi, mine.abi);
  if (!differ.empty()) return refuse(path, absl::StrCat("was compiled with ", differ, kAgain));
  return head;
}

absl::Status try_in_child(const std::string& path, absl::FunctionRef<void()> trial) {
  constexpr int kTrialDone = 113;  // Exit status of a successful trial; any other is the library's.
  const pid_t child = fork();
  if (child < 0) return absl::OkStatus();  // Skip the trial.
  if (child == 0) {
    alarm(120);
    // The child must not run the exit handlers of this program.
    on_exit([](int ends, void*) { _exit(ends); }, nullptr);
    trial();
    _exit(kTrialDone);
  }
  int status = 0;
  pid_t ended;
  while ((ended = waitpid(child, &status, 0)) < 0 && errno == EINTR) {
  }
  if (ended < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == kTrialDone)) return absl::OkStatus();
  if (WIFEXITED(status)) {
    return refuse(path,
                  absl::StrCat("loading it ends the process with exit status ", WEXITSTATUS(status),
                               ": the initializer of a static object, or the function that describes the library, "
                               "calls exit"));
  }
  return refuse(path, absl::StrCat("loading it ends the process with signal ", WTERMSIG(status), " (",
                                   strsignal(WTERMSIG(status)),
                                   "): the initializer of a static object, or the function that describes the "
                                   "library, throws, crashes or hangs"));
}

}  // namespace titan::plugin
