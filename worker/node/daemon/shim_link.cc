#include "worker/node/daemon/shim_link.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status/status.h"
#include "worker/node/shim/server.h"
#include "worker/node/shim/sockets.h"

namespace titan::daemon {
namespace {

using nlohmann::json;
constexpr int kControlFd = 3;

struct SpawnSetup {
  SpawnSetup() {
    posix_spawnattr_init(&attributes);
    posix_spawn_file_actions_init(&actions);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions);
    posix_spawnattr_destroy(&attributes);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t actions;
};

}  // namespace

absl::StatusOr<SpawnedShim> spawn_shim(const std::string& binary, const std::string& run_folder,
                                       std::vector<std::string> environment) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    return errno_status(errno, "create a socket pair");
  host::Descriptor own(ends[0]);
  const host::Descriptor theirs(ends[1]);
  const std::string log = run_folder + "/shim.log";
  SpawnSetup setup;
  sigset_t all;
  sigset_t none;
  sigfillset(&all);
  sigemptyset(&none);
  posix_spawnattr_setsigdefault(&setup.attributes, &all);
  posix_spawnattr_setsigmask(&setup.attributes, &none);
  posix_spawnattr_setflags(&setup.attributes, POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  // dup2 comes first: opening the log or /dev/null could otherwise use the descriptor number that dup2 replaces.
  posix_spawn_file_actions_adddup2(&setup.actions, theirs.get(), kControlFd);
  posix_spawn_file_actions_addopen(&setup.actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_addopen(&setup.actions, 1, log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0644);
  posix_spawn_file_actions_adddup2(&setup.actions, 1, 2);
  posix_spawn_file_actions_addclosefrom_np(&setup.actions, kControlFd + 1);
  std::string arguments[] = {binary, "--spec", run_folder + "/spec.json", "--control-fd", absl::StrCat(kControlFd)};
  char* pointers[] = {arguments[0].data(), arguments[1].data(), arguments[2].data(),
                      arguments[3].data(), arguments[4].data(), nullptr};
  std::vector<char*> entries;
  for (std::string& entry : environment) entries.push_back(entry.data());
  entries.push_back(nullptr);
  pid_t pid = 0;
  const int failed = ::posix_spawn(&pid, binary.c_str(), &setup.actions, &setup.attributes, pointers, entries.data());
  if (failed != 0) return errno_status(failed, absl::StrCat("start ", binary));
  ::fcntl(own.get(), F_SETFL, O_NONBLOCK);
  return SpawnedShim{std::move(own), pid};
}

absl::StatusOr<host::Descriptor> connect_to_shim(const std::string& run_folder) {
  return shim::connect_unix(run_folder, shim::kSocketName);
}

ShimLink::ShimLink(Loop& loop, host::Descriptor socket, Callbacks callbacks)
    : loop_(loop), socket_(std::move(socket)), callbacks_(std::move(callbacks)) {
  loop_.watch(socket_.get(), [this] { on_readable(); });
}

ShimLink::~ShimLink() {
  *gone_ = true;
  loop_.unwatch(socket_.get());
}

void ShimLink::send(const json& request) {
  const std::string line = request.dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
  // The shim always reads and a request is small, so a full socket means that the shim hangs. Then closing is right.
  const ssize_t n = ::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(line.size())) ::shutdown(socket_.get(), SHUT_RDWR);
}

void ShimLink::on_readable() {
  bool closed = false;
  char buffer[65536];
  for (;;) {
    const ssize_t n = ::read(socket_.get(), buffer, sizeof(buffer));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) break;
    if (n <= 0) {
      closed = true;
      break;
    }
    in_.append(buffer, static_cast<size_t>(n));
  }
  const std::shared_ptr<bool> gone = gone_;
  for (size_t end = 0; (end = in_.find('\n')) != std::string::npos;) {
    const json message = json::parse(in_.substr(0, end), nullptr, false);
    in_.erase(0, end + 1);
    if (message.is_object()) callbacks_.on_message(message);
    if (*gone) return;
  }
  if (!closed) return;
  loop_.unwatch(socket_.get());
  const std::function<void()> on_closed = callbacks_.on_closed;
  on_closed();
}

absl::StatusOr<bool> shim_holds(const std::string& run_folder) {
  const std::string path = run_folder + "/shim.lock";
  const host::Descriptor lock(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!lock && errno == ENOENT) return false;
  if (!lock) return errno_status(errno, absl::StrCat("open ", path));
  return ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0;
}

}  // namespace titan::daemon
