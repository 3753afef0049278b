#include "worker/node/shim/stacks_requests.h"

#include <sys/wait.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/node/shim/process.h"
#include "worker/node/shim/say.h"
#include "worker/node/shim/stacks.h"

namespace titan::shim {
namespace {

using nlohmann::json;

constexpr int64_t kStackRequestInterval = 100 * kMilli;
constexpr int64_t kStacksFresh = 10 * kSecond;

}  // namespace

absl::Status take_stacks(StacksRequests& requests, const std::vector<Rank>& ranks, Server& server,
                         const std::string& run_folder, int64_t timeout_milliseconds) {
  if (requests.pid != 0) return absl::OkStatus();
  if (requests.taken_at != 0 && monotonic_nanos() - requests.taken_at < kStacksFresh) {
    server.broadcast({{"event", "stacks"}});
    return absl::OkStatus();
  }
  std::vector<StackTarget> running;
  for (const Rank& rank : ranks) {
    if (rank.running) running.push_back({rank.process.pid, rank.rank});
  }
  if (running.empty()) return absl::FailedPreconditionError("no rank runs");
  const absl::StatusOr<pid_t> started = start_stacks(stacks_program(), run_folder, running, timeout_milliseconds);
  if (!started.ok()) return started.status();
  requests.pid = *started;
  return absl::OkStatus();
}

void check_stack_requests(StacksRequests& requests, std::vector<Rank>& ranks, Server& server, const Folders& folders) {
  requests.look_at = monotonic_nanos() + kStackRequestInterval;
  if (requests.pid != 0) return;
  for (Rank& rank : ranks) {
    if (!rank.running || !open_beacon(rank, folders.rank) || !rank.beacon->look().ok()) continue;
    const rank_protocol::BeaconPage& page = rank.beacon->page();
    if (page.stacks_wanted.load() == 0 || page.stacks_taken.load() != 0) continue;
    const absl::Status begun = take_stacks(requests, ranks, server, folders.run, kStacksTimeoutMilliseconds);
    if (!begun.ok()) say(absl::StrCat("stacks: ", begun.message()));
    // No rank may wait for stacks that cannot be captured or were captured a moment ago.
    if (requests.pid == 0) end_stacks(requests, ranks, server, folders.rank, 0);
    return;
  }
}

void end_stacks(StacksRequests& requests, std::vector<Rank>& ranks, Server& server, const std::string& rank_folder,
                int wait_status) {
  const bool is_all = WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0;
  if (std::exchange(requests.pid, 0) != 0) requests.taken_at = monotonic_nanos();
  for (Rank& rank : ranks) {
    if (!rank.running || !open_beacon(rank, rank_folder)) continue;
    (void)rank.beacon->write(rank.beacon->page().stacks_taken, uint32_t{1});
  }
  json message = {{"event", "stacks"}};
  if (!is_all) message["error"] = "titan-stacks could not read the stacks of all ranks";
  server.broadcast(message);
}

}  // namespace titan::shim
