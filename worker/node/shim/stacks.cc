#include "worker/node/shim/stacks.h"

#include <signal.h>
#include <spawn.h>
#include <unistd.h>

#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "common/base/host/host_facts.h"
#include "common/base/status/status.h"
#include "common/rank_protocol/spool.h"

extern char** environ;

namespace titan::shim {
namespace {

std::vector<std::string> arguments_for(const std::string& program, const std::string& run_folder,
                                       const std::vector<StackTarget>& ranks, int64_t deadline_milliseconds) {
  std::vector<std::string> arguments = {program, "--deadline-milliseconds", absl::StrCat(deadline_milliseconds),
                                        "--out-dir", run_folder};
  for (const StackTarget& of : ranks) {
    const std::string path = rank_protocol::stacks_path(run_folder, of.rank);
    arguments.insert(arguments.end(),
                     {"--name", absl::StrCat(of.pid, "=", path.substr(path.rfind('/') + 1)), absl::StrCat(of.pid)});
  }
  return arguments;
}

// The shim blocks and ignores signals; a child must start with the defaults.
void let_signals_through(posix_spawnattr_t& attributes) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
}

}  // namespace

absl::StatusOr<pid_t> start_stacks(const std::string& program, const std::string& run_folder,
                                   const std::vector<StackTarget>& ranks, int64_t deadline_milliseconds) {
  for (const StackTarget& of : ranks) ::unlink(rank_protocol::stacks_path(run_folder, of.rank).c_str());
  std::vector<std::string> arguments = arguments_for(program, run_folder, ranks, deadline_milliseconds);
  std::vector<char*> pointers;
  for (std::string& argument : arguments) pointers.push_back(argument.data());
  pointers.push_back(nullptr);
  posix_spawnattr_t attributes;
  if (const int failed = ::posix_spawnattr_init(&attributes); failed != 0) return errno_status(failed, program);
  const absl::Cleanup destroy = [&attributes] { ::posix_spawnattr_destroy(&attributes); };
  let_signals_through(attributes);
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, program.c_str(), nullptr, &attributes, pointers.data(), environ);
  if (failed == 0) return pid;
  return errno_status(failed, absl::StrCat("start ", program, ", which must be in titan-shim's folder"));
}

std::string stacks_program() { return (host::folder_of_program() / "titan-stacks").string(); }

}  // namespace titan::shim
