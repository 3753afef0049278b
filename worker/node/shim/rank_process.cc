#include "worker/node/shim/rank_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/host/signals.h"
#include "common/base/status/status.h"
#include "worker/node/shim/process.h"

extern char** environ;

namespace titan::shim {
namespace {

constexpr int kPipeBytes = 1 << 20;
constexpr char kOomScore[] = "/proc/self/oom_score_adj";

std::vector<char*> pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  result.reserve(strings.size() + 1);
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

std::vector<std::string> merged_environment(const std::map<std::string, std::string>& added) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const char* const equals = std::strchr(*entry, '=');
    if (equals != nullptr && added.count(std::string(*entry, static_cast<size_t>(equals - *entry))) > 0) continue;
    result.emplace_back(*entry);
  }
  for (const auto& [name, value] : added) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

struct ChildSetup {
  pid_t parent;
  int null_fd;
  int output_fd;
  int error_fd;
  int listen_fd;
  int group_fd;
  const char* binary;
  char** arguments;
  char** environment;
  const char* folder;    // Null: no change.
  const RankUser* user;  // Null: no change.
};

// Uses system calls directly: the C library's functions would signal threads that do not exist in this process.
bool become_user(const RankUser& user) {
  return ::syscall(SYS_setgroups, user.groups.size(), user.groups.data()) == 0 &&
         ::syscall(SYS_setresgid, user.gid, user.gid, user.gid) == 0 &&
         ::syscall(SYS_setresuid, user.uid, user.uid, user.uid) == 0 && ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

[[noreturn]] void give_up(const ChildSetup& setup) {
  const int failed = errno;
  (void)!::write(setup.error_fd, &failed, sizeof(failed));
  ::_exit(127);
}

// Runs between fork and exec: only async-signal-safe calls are allowed, because this process has other threads.
[[noreturn]] void become_rank(const ChildSetup& setup) {
  ::setpgid(0, 0);
  const int score = ::open(kOomScore, O_WRONLY | O_CLOEXEC);
  if (score >= 0) (void)!::write(score, "0", 1);
  if (setup.group_fd >= 0) (void)!::write(setup.group_fd, "0", 1);  // The parent checks whether it worked.
  if (setup.user != nullptr && !become_user(*setup.user)) give_up(setup);
  if (setup.folder != nullptr && ::chdir(setup.folder) != 0) give_up(setup);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // Set it here: a change of user clears it.
  // Needed where Yama lets only ancestors trace: titan-stacks is a child of the shim, not of the rank.
  ::prctl(PR_SET_PTRACER, setup.parent);
  if (::getppid() != setup.parent) ::_exit(127);  // The parent died before the death signal was set.
  ::dup2(setup.null_fd, 0);
  ::dup2(setup.output_fd, 1);
  ::dup2(setup.output_fd, 2);
  if (setup.listen_fd >= 0) ::fcntl(setup.listen_fd, F_SETFD, 0);
  struct sigaction normal {};
  normal.sa_handler = SIG_DFL;
  for (const int number : {SIGCHLD, SIGTERM}) ::sigaction(number, &normal, nullptr);
  for (const int number : kIgnoredByShim) ::sigaction(number, &normal, nullptr);
  // Until the rank installs handlers there is nothing to save, and these signals would end it.
  host::ignore_warning_signals();
  sigset_t none;
  sigemptyset(&none);
  ::sigprocmask(SIG_SETMASK, &none, nullptr);
  ::execve(setup.binary, setup.arguments, setup.environment);
  give_up(setup);
}

absl::StatusOr<std::pair<host::Descriptor, host::Descriptor>> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_status(errno, "create a pipe");
  return std::pair<host::Descriptor, host::Descriptor>(host::Descriptor(ends[0]), host::Descriptor(ends[1]));
}

}  // namespace

absl::StatusOr<RankProcess> start_rank(const RankCommand& command) {
  std::vector<std::string> argument_strings = {command.binary};
  argument_strings.insert(argument_strings.end(), command.arguments.begin(), command.arguments.end());
  std::vector<std::string> environment_strings = merged_environment(command.environment);
  std::vector<char*> arguments = pointers(argument_strings);
  std::vector<char*> environment = pointers(environment_strings);
  TITAN_ASSIGN_OR_RETURN(auto output, make_pipe());
  TITAN_ASSIGN_OR_RETURN(auto error, make_pipe());
  const host::Descriptor null(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  ::fcntl(output.first.get(), F_SETFL, O_NONBLOCK);
  ::fcntl(output.second.get(), F_SETPIPE_SZ, kPipeBytes);  // Fails above the user's limit; then the default size stays.
  const ChildSetup setup{.parent = ::getpid(),
                         .null_fd = null.get(),
                         .output_fd = output.second.get(),
                         .error_fd = error.second.get(),
                         .listen_fd = command.listen_fd,
                         .group_fd = command.group_fd,
                         .binary = command.binary.c_str(),
                         .arguments = arguments.data(),
                         .environment = environment.data(),
                         .folder = command.folder.empty() ? nullptr : command.folder.c_str(),
                         .user = command.user ? &*command.user : nullptr};
  const pid_t pid = ::fork();
  if (pid < 0) return errno_status(errno, absl::StrCat("fork for ", command.binary));
  if (pid == 0) become_rank(setup);
  ::setpgid(pid, pid);  // The parent also does it, so that the group exists before anyone signals it.
  error.second.reset();
  int failed = 0;
  ssize_t n = 0;
  do {
    n = ::read(error.first.get(), &failed, sizeof(failed));  // Ends at exec, which closes the other end.
  } while (n < 0 && errno == EINTR);
  if (n == sizeof(failed)) {
    return errno_status(failed,
                        absl::StrCat("start ", command.binary, command.user ? " as " + command.user->name : ""));
  }
  return RankProcess{pid, start_ticks(pid), std::move(output.first)};
}

void protect_from_oom_killer() {
  const host::Descriptor score(::open(kOomScore, O_WRONLY | O_CLOEXEC));
  if (score) (void)!::write(score.get(), "-900", 4);
}

}  // namespace titan::shim
