#include "tests/worker/node/shim/run_folder.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/host/file_io.h"
#include "common/rank_protocol/launch.h"
#include "common/rank_protocol/spool.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/server.h"
#include "worker/node/shim/sockets.h"

namespace titan::shim {
namespace {

using nlohmann::json;
constexpr int64_t kTimeoutNanos = 20'000'000'000;

std::string bin() {
  const char* const folder = std::getenv("TITAN_BIN");
  if (folder != nullptr) return folder;
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path().parent_path() / "bin").string();
}

}  // namespace

std::string shim_binary() { return bin() + "/titan-shim"; }
std::string worker_binary() { return bin() + "/titan-worker"; }
std::string fake_rank_binary() { return bin() + "/../tests/fake_rank"; }

json fake_launch(int world, const json& fake, int attempt) {
  rank_protocol::Launch launch;
  launch.job_uid = "u1";
  launch.attempt = attempt;
  launch.config = {{"fake", fake.is_null() ? json::object() : fake}};
  for (int rank = 0; rank < world; ++rank) launch.ranks.push_back({rank, rank, "n1", "127.0.0.1"});
  launch.threads_per_rank = 3;
  return to_json(launch);
}

bool eventually(const std::function<bool()>& done) {
  const int64_t deadline = monotonic_nanos() + kTimeoutNanos;
  while (!done()) {
    if (monotonic_nanos() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

RunFolder::RunFolder(int ranks, const json& fake, Spec changes) {
  path_ = (std::filesystem::temp_directory_path() / "titan-shim-XXXXXX").string();
  if (::mkdtemp(path_.data()) == nullptr) throw std::runtime_error("mkdtemp");
  changes.job_uid = "u1";
  changes.leader = true;
  if (changes.rank_binary.empty()) changes.rank_binary = fake_rank_binary();
  for (int rank = 0; rank < ranks; ++rank) changes.ranks.push_back(rank);
  changes.world = ranks;
  changes.environment["OMP_NUM_THREADS"] = "3";
  (void)host::replace_file(path_ + "/spec.json", to_json(changes).dump());
  (void)host::replace_file(path_ + "/launch.json", fake_launch(ranks, fake).dump());
}

RunFolder::~RunFolder() {
  if (shim_ > 0) kill_shim(SIGKILL);
  (void)kill_marked(absl::StrCat(kRunFolderVariable, "=", path_));
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

void RunFolder::start_shim() {
  const std::string binary = shim_binary();
  const std::string spec = path_ + "/spec.json";
  shim_ = ::fork();
  if (shim_ == 0) {
    ::execl(binary.c_str(), binary.c_str(), "--spec", spec.c_str(), nullptr);
    ::_exit(127);
  }
  if (!eventually([&] { return std::filesystem::exists(path_ + "/shim.json"); }))
    throw std::runtime_error("no shim.json");
}

int RunFolder::wait_for_shim() {
  int status = 0;
  ::waitpid(shim_, &status, 0);
  shim_ = 0;
  return status;
}

void RunFolder::kill_shim(int signal) {
  ::kill(shim_, signal);
  (void)wait_for_shim();
}

std::vector<rank_protocol::RankExit> RunFolder::exits() const { return read_exits(path_).value(); }

std::vector<json> RunFolder::events(int rank, const std::string& kind) const {
  std::vector<json> events;
  const auto batch = rank_protocol::read_spool(rank_protocol::spool_path(path_, rank), 0, 64 << 20);
  if (!batch.ok()) return events;
  for (const rank_protocol::SpoolLine& line : batch->lines) {
    json event = json::parse(line.json);
    if (kind.empty() || event["kind"] == kind) events.push_back(std::move(event));
  }
  return events;
}

json RunFolder::wait_for_event(int rank, const std::string& kind) const {
  json found;
  eventually([&] {
    const std::vector<json> all = events(rank, kind);
    if (!all.empty()) found = all.front();
    return !found.is_null();
  });
  return found;
}

Client::Client(const std::string& run_folder) : socket_(connect_unix(run_folder, kSocketName).value()) {}

json Client::ask(json request) {
  const int64_t id = next_id_++;
  request["id"] = id;
  const std::string line = request.dump() + "\n";
  (void)!::send(socket_.get(), line.data(), line.size(), MSG_NOSIGNAL);
  for (;;) {
    json message = read_message();
    if (message.is_null() || message.value("id", int64_t{0}) == id) return message;
    events_.push_back(std::move(message));
  }
}

json Client::next_event() {
  if (events_.empty()) return read_message();
  json event = events_.front();
  events_.erase(events_.begin());
  return event;
}

json Client::read_message() {
  const int64_t deadline = monotonic_nanos() + kTimeoutNanos;
  while (in_.find('\n') == std::string::npos) {
    pollfd wait{socket_.get(), POLLIN, 0};
    if (monotonic_nanos() > deadline || ::poll(&wait, 1, 1000) < 0) return nullptr;
    char buffer[65536];
    const ssize_t n = ::read(socket_.get(), buffer, sizeof(buffer));
    if (n == 0) return nullptr;
    if (n > 0) in_.append(buffer, static_cast<size_t>(n));
  }
  const size_t end = in_.find('\n');
  json message = json::parse(in_.substr(0, end));
  in_.erase(0, end + 1);
  return message;
}

}  // namespace titan::shim
