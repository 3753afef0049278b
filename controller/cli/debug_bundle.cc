#include "controller/cli/debug_bundle.h"

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status/status.h"

extern char** environ;

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

// Runs a program of the system and waits until it ends.
absl::Status run(std::vector<std::string> words) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  pid_t pid = 0;
  if (const int failed = ::posix_spawnp(&pid, arguments[0], nullptr, nullptr, arguments.data(), environ); failed != 0)
    return errno_status(failed, absl::StrCat("start ", words[0]));
  int ended = 0;
  while (::waitpid(pid, &ended, 0) < 0) {
    if (errno != EINTR) return errno_status(errno, absl::StrCat("wait for ", words[0]));
  }
  if (WIFEXITED(ended) && WEXITSTATUS(ended) == 0) return absl::OkStatus();
  return absl::InternalError(absl::StrCat("`", absl::StrJoin(words, " "), "` failed; is the disk full?"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<DebugBundle>> DebugBundle::begin(const std::string& name) {
  std::error_code failed;
  std::string root = (fs::temp_directory_path(failed) / "titan-debug-XXXXXX").string();
  if (failed || ::mkdtemp(root.data()) == nullptr)  // Mode 0700.
    return errno_status(
        errno, absl::StrCat("make a folder for temporary files, ", root, " (set TMPDIR to use another folder)"));
  fs::create_directory(fs::path(root) / name, failed);
  return std::unique_ptr<DebugBundle>(new DebugBundle(root, name));
}

void DebugBundle::abandon() {
  const sync::Lock lock(mutex_);
  std::error_code ignored;
  if (!std::exchange(abandoned_, true)) fs::remove_all(root_, ignored);
}

void DebugBundle::add(const std::string& path, const std::string& text) {
  const sync::Lock lock(mutex_);
  if (abandoned_ || !written_.ok()) return;
  const fs::path file = fs::path(root_) / name_ / path;
  std::error_code ignored;
  fs::create_directories(file.parent_path(), ignored);
  std::ofstream out(file, std::ios::binary);
  out << text;
  out.close();
  if (!out)
    written_ = errno_status(
        errno,
        absl::StrCat("write ", file.string(), " to the folder for temporary files (set TMPDIR to use another folder)"));
}

void DebugBundle::miss(const std::string& what, const absl::Status& why) {
  missing_.push_back(absl::StrCat(what, ": ", why.message()));
}

absl::Status DebugBundle::pack(const std::string& file) {
  std::error_code failed;
  if (fs::exists(file, failed))
    return absl::AlreadyExistsError(absl::StrCat(file, " already exists: name another file"));
  add("missing.txt", missing_.empty() ? "nothing\n" : absl::StrJoin(missing_, "\n") + "\n");
  const sync::Lock lock(mutex_);
  if (abandoned_) return absl::CancelledError("interrupted");
  TITAN_RETURN_IF_ERROR(written_);
  // Made next to its final place, so that a link publishes it whole; made here, so that its mode is not tar's.
  std::string part = file + ".XXXXXX";
  const int fd = ::mkstemp(part.data());  // Mode 0600.
  if (fd < 0) return errno_status(errno, absl::StrCat("create ", part));
  ::close(fd);
  absl::Status packed = run({"tar", "--create", "--gzip", "--file", part, "--directory", root_, name_});
  if (packed.ok() && ::link(part.c_str(), file.c_str()) != 0)
    packed = errno_status(errno, absl::StrCat("rename the archive to ", file));
  ::unlink(part.c_str());
  return packed;
}

}  // namespace titan::cli
