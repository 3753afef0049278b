#include "controller/cli/local_cluster.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/host/host_facts.h"
#include "common/base/host/signals.h"
#include "common/base/status/status.h"
#include "controller/cli/interrupt.h"
#include "nlohmann/json.hpp"

namespace titan::cli {
namespace {

namespace fs = std::filesystem;

constexpr absl::Duration kStartTimeout = absl::Seconds(20);
constexpr absl::Duration kPortPoll = absl::Milliseconds(2);

// Runs in the new process between fork and exec: async-signal-safe calls only.
[[noreturn]] void exec_child(const std::vector<char*>& arguments, int log, pid_t parent) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() != parent) _exit(1);
  Interrupt::unblock_signals();
  host::ignore_warning_signals();  // The command handles them for all of its processes: it saves and stops.
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  const int nothing = open("/dev/null", O_RDONLY);
  dup2(nothing, STDIN_FILENO);
  execv(arguments[0], arguments.data());
  _exit(127);
}

std::string end_text(int status) {
  return WIFSIGNALED(status) ? absl::StrCat("ended by signal ", WTERMSIG(status))
                             : absl::StrCat("ended with exit code ", WEXITSTATUS(status));
}

absl::StatusOr<std::string> program(const std::string& name) {
  const fs::path path = host::folder_of_program() / name;
  if (access(path.c_str(), X_OK) != 0)
    return errno_status(errno, absl::StrCat("the program ", path.string(), " is needed"));
  return path.string();
}

absl::StatusOr<int> wait_for_port(const std::string& port_file, const Child& child, const std::string& log) {
  const absl::Time deadline = absl::Now() + kStartTimeout;
  while (absl::Now() < deadline && !child.ended()) {
    std::ifstream in(port_file);
    const std::string text(std::istreambuf_iterator<char>(in), {});
    const nlohmann::json ports = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (ports.is_object() && ports.contains("port")) return ports["port"].get<int>();
    absl::SleepFor(kPortPoll);
  }
  return absl::InternalError(absl::StrCat("the private controller did not start; its log is ", log));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Child>> Child::start(const std::vector<std::string>& command,
                                                    const std::string& log_path,
                                                    std::function<void(const std::string&)> on_exit) {
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (log < 0) return errno_status(errno, "open " + log_path);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) exec_child(arguments, log, parent);
  const int error = errno;
  close(log);
  if (pid < 0) return errno_status(error, "fork for " + command[0]);
  const std::string name = fs::path(command[0]).filename().string();
  return std::unique_ptr<Child>(new Child(pid, name, [on_exit = std::move(on_exit), log_path](const std::string& text) {
    on_exit(absl::StrCat(text, "; its log is ", log_path));
  }));
}

Child::Child(pid_t pid, std::string name, std::function<void(const std::string&)> on_exit)
    : pid_(pid), name_(std::move(name)), on_exit_(std::move(on_exit)), reaper_([this] { reap(); }) {}

Child::~Child() {
  stop(absl::ZeroDuration());
  reaper_.join();
}

void Child::reap() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  bool expected = false;
  {
    const sync::Lock lock(mutex_);
    ended_ = true;
    expected = stopping_;
  }
  changed_.notify_all();
  if (!expected) on_exit_(absl::StrCat(name_, " ", end_text(status)));
}

bool Child::ended() const {
  const sync::Lock lock(mutex_);
  return ended_;
}

void Child::stop(absl::Duration grace) {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  if (ended_) return;
  kill(pid_, SIGTERM);
  if (changed_.wait_for(lock, absl::ToChronoNanoseconds(grace), [this] { return ended_; })) return;
  kill(pid_, SIGKILL);
  changed_.wait(lock, [this] { return ended_; });
}

absl::StatusOr<std::unique_ptr<LocalCluster>> LocalCluster::start(const Options& options) {
  TITAN_ASSIGN_OR_RETURN(const std::string controller, program("titan-controller"));
  TITAN_ASSIGN_OR_RETURN(const std::string worker, program("titan-worker"));
  std::unique_ptr<LocalCluster> cluster(new LocalCluster());

  const std::string port_file = options.folder + "/controller.json";
  const std::string log = options.folder + "/controller.log";
  TITAN_ASSIGN_OR_RETURN(cluster->controller_,
                         Child::start({controller, "--listen", "127.0.0.1:0", "--state", options.folder + "/controller",
                                       "--metrics-port", "-1", "--port-file", port_file},
                                      log, options.on_failure));
  TITAN_ASSIGN_OR_RETURN(const int port, wait_for_port(port_file, *cluster->controller_, log));
  cluster->controller_address_ = absl::StrCat("127.0.0.1:", port);

  std::vector<std::string> command = {worker,
                                      "--controller",
                                      cluster->controller_address_,
                                      "--node",
                                      "local",
                                      "--address",
                                      "127.0.0.1",
                                      "--metrics-port",
                                      "-1",
                                      "--stop-ranks-on-exit",
                                      "--pass-env",
                                      "*",  // Its ranks are part of the user's command.
                                      "--state",
                                      options.folder + "/worker"};
  if (options.device == "cpu") command.insert(command.end(), {"--devices", absl::StrCat("cpu:", options.devices)});
  TITAN_ASSIGN_OR_RETURN(cluster->worker_, Child::start(command, options.folder + "/worker.log", options.on_failure));
  return cluster;
}

void LocalCluster::stop(absl::Duration grace) {
  if (worker_ != nullptr) worker_->stop(grace);
  if (controller_ != nullptr) controller_->stop(grace);
}

}  // namespace titan::cli
