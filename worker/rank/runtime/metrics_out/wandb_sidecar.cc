#include "worker/rank/runtime/metrics_out/wandb_sidecar.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "common/io/storage/standard_paths.h"

extern char** environ;

namespace titan::runtime {
namespace {

constexpr char kProgram[] = "titan_wandb.py";
constexpr char kPythonVariable[] = "TITAN_RANK_PYTHON";
constexpr int kFirstOther = 3;  // Higher descriptors, such as a listening socket, are not inherited.
constexpr int kPauseMilliseconds = 5;

struct SpawnSetup {
  SpawnSetup() {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
  }
  ~SpawnSetup() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

// Sets up default signals, the socket as standard input and a log file for output, and lets the child inherit nothing
// else.
void prepare(SpawnSetup& setup, int socket, const std::string& log) {
  sigset_t none, all;
  sigemptyset(&none);
  sigfillset(&all);
  ::posix_spawnattr_setsigmask(&setup.attributes, &none);
  ::posix_spawnattr_setsigdefault(&setup.attributes, &all);
  ::posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
  ::posix_spawn_file_actions_adddup2(&setup.actions, socket, 0);
  ::posix_spawn_file_actions_addopen(&setup.actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0666);
  ::posix_spawn_file_actions_adddup2(&setup.actions, 1, 2);
  ::posix_spawn_file_actions_addclosefrom_np(&setup.actions, kFirstOther);
}

absl::StatusOr<pid_t> spawn(std::vector<std::string> words, int socket, const std::string& log) {
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  SpawnSetup setup;
  prepare(setup, socket, log);
  pid_t pid = 0;
  const int failed = ::posix_spawnp(&pid, arguments[0], &setup.actions, &setup.attributes, arguments.data(), environ);
  if (failed == 0) return pid;
  return errno_status(failed,
                      absl::StrCat("start ", words[0], ": install Python 3 on this machine, or set its path in ",
                                   kPythonVariable, ", with wandb (pip install wandb)"));
}

std::string python() {
  const char* named = std::getenv(kPythonVariable);
  return named != nullptr && *named != '\0' ? named : "python3";
}

}  // namespace

absl::StatusOr<std::unique_ptr<WandbSidecar>> WandbSidecar::start(const Setup& setup) {
  const std::string program = storage::installed_file(kProgram);
  if (program.empty()) {
    return absl::NotFoundError(
        absl::StrCat(kProgram, " is neither next to this program nor in ../lib/titan: reinstall Titan"));
  }
  const std::string folder = storage::join_path(setup.dump_folder, "wandb");
  TITAN_RETURN_IF_ERROR(storage::posix_files().make_folders(folder));
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) return errno_status(errno, "make a socket pair");
  const absl::StatusOr<pid_t> pid = spawn({python(), "-B", program, "--dump-folder", setup.dump_folder, "--job",
                                           setup.job_uid, "--attempt", absl::StrCat(setup.attempt)},
                                          ends[1], storage::join_path(folder, "sidecar.log"));
  ::close(ends[1]);
  if (pid.ok()) return std::unique_ptr<WandbSidecar>(new WandbSidecar(*pid, ends[0], folder));
  ::close(ends[0]);
  return pid.status();
}

WandbSidecar::~WandbSidecar() { ::close(socket_); }

void WandbSidecar::warn(News& news, const std::string& text) {
  if (!std::exchange(warned_, true)) {
    news.warning = absl::StrCat("metrics.enable_wandb: ", text);
  }
}

bool WandbSidecar::hear(News& news) {
  char bytes[1024];
  ssize_t count = 0;
  while ((count = ::recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT)) > 0) {
    heard_.append(bytes, static_cast<size_t>(count));
  }
  const bool closed = count == 0 || (errno != EAGAIN && errno != EINTR);
  for (size_t end = 0; (end = heard_.find('\n')) != std::string::npos; heard_.erase(0, end + 1)) {
    absl::string_view line(heard_.data(), end);
    if (absl::ConsumePrefix(&line, "run ")) news.run = std::string(line);
    if (absl::ConsumePrefix(&line, "warning ")) warn(news, std::string(line));
  }
  return !closed;
}

void WandbSidecar::reap(News& news) {
  int status = 0;
  if (pid_ == 0 || ::waitpid(pid_, &status, WNOHANG) != pid_) return;
  pid_ = 0;
  hear(news);  // Read its last message first.
  if (finishing_ && WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  warn(news, absl::StrCat(kProgram, " ended ",
                          WIFSIGNALED(status) ? absl::StrCat("by signal ", WTERMSIG(status))
                                              : absl::StrCat("with code ", WEXITSTATUS(status)),
                          " (", folder_,
                          "/sidecar.log); metrics.jsonl has the missing data, and the job's next attempt uploads it"));
}

WandbSidecar::News WandbSidecar::look() {
  News news;
  if (pid_ == 0) return news;
  hear(news);
  reap(news);
  return news;
}

void WandbSidecar::no_more_lines() {
  if (pid_ == 0 || std::exchange(finishing_, true)) return;
  constexpr char kFinish[] = "finish\n";
  (void)!::send(socket_, kFinish, sizeof kFinish - 1, MSG_NOSIGNAL | MSG_DONTWAIT);
}

WandbSidecar::News WandbSidecar::end(absl::Duration timeout) {
  using Clock = std::chrono::steady_clock;
  no_more_lines();
  const auto deadline = Clock::now() + absl::ToChronoNanoseconds(timeout);
  News news;
  for (reap(news); pid_ != 0 && Clock::now() < deadline; reap(news)) {
    pollfd ready{socket_, POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
    ::poll(&ready, 1, static_cast<int>(std::max<int64_t>(left, 0)));
    if (!hear(news)) ::poll(nullptr, 0, kPauseMilliseconds);  // It is exiting.
  }
  if (pid_ == 0) return news;
  ::kill(pid_, SIGKILL);
  ::waitpid(std::exchange(pid_, 0), nullptr, 0);
  warn(news, absl::StrCat("Weights & Biases had not received all data ", absl::FormatDuration(timeout),
                          " after the end; run wandb sync to upload ", folder_));
  return news;
}

}  // namespace titan::runtime
