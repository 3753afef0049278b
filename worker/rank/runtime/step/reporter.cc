#include "worker/rank/runtime/step/reporter.h"

#include <cstdio>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/io/storage/file.h"
#include "common/rank_protocol/launch.h"

namespace titan::runtime {

using rank_protocol::BeaconCommand;
using rank_protocol::Phase;

namespace {
constexpr absl::Duration kLookAgain = absl::Milliseconds(10);
}

absl::StatusOr<std::unique_ptr<Reporter>> Reporter::open(const std::string& run_folder, int rank, const Clock& clock) {
  TITAN_RETURN_IF_ERROR(storage::posix_files().make_folders(run_folder));
  TITAN_ASSIGN_OR_RETURN(auto spool, rank_protocol::SpoolWriter::open(rank_protocol::spool_path(run_folder, rank)));
  TITAN_ASSIGN_OR_RETURN(auto beacon,
                         rank_protocol::Beacon::create(rank_protocol::beacon_path(run_folder, rank), rank));
  return std::unique_ptr<Reporter>(new Reporter(std::move(spool), std::move(beacon), clock));
}

void Reporter::event(const char* kind, nlohmann::json members) {
  sync::Lock lock(mutex_);
  if (absl::Status status = spool_.append(kind, std::move(members)); !status.ok()) {
    std::fprintf(stderr, "event %s is lost: %s\n", kind, std::string(status.message()).c_str());
  }
}

void Reporter::warning(const std::string& message) {
  std::fprintf(stderr, "warning: %s\n", message.c_str());
  event(rank_protocol::event::kWarning, {{"message", message}});
}

void Reporter::enter_start_phase(Phase phase, double earlier) {
  const absl::Duration now = clock_.monotonic();
  event(rank_protocol::event::kPhase, {{"phase", rank_protocol::name(phase)},
                                       {"previous", rank_protocol::name(phase_)},
                                       {"seconds", earlier + absl::ToDoubleSeconds(now - phase_began_)}});
  phase_ = phase;
  phase_began_ = now;
  beacon_->enter(phase);
}

void Reporter::microbatch(int64_t index) {
  auto& page = beacon_->page();
  page.microbatch.store(index, std::memory_order_relaxed);
  page.counter.fetch_add(1, std::memory_order_relaxed);
}

void Reporter::finished_step(int64_t step, absl::Duration duration) {
  auto& page = beacon_->page();
  page.step.store(step, std::memory_order_relaxed);
  page.step_nanos.store(absl::ToInt64Nanoseconds(duration), std::memory_order_relaxed);
  page.counter.fetch_add(1, std::memory_order_relaxed);
}

void Reporter::own_time(absl::Duration duration) {
  auto& page = beacon_->page();
  page.own_nanos.fetch_add(absl::ToInt64Nanoseconds(duration), std::memory_order_relaxed);
  page.own_steps.fetch_add(1, std::memory_order_release);
}

BeaconCommand Reporter::command() const {
  const auto& page = beacon_->page();
  const uint32_t command = page.command.load(std::memory_order_relaxed);
  if (command == page.command_seen.load(std::memory_order_relaxed)) return BeaconCommand::kNone;
  return static_cast<BeaconCommand>(command);
}

bool Reporter::stop_asked() const {
  return beacon_->page().command.load(std::memory_order_relaxed) == static_cast<uint32_t>(BeaconCommand::kStopAndSave);
}

void Reporter::await_stacks(absl::Duration timeout) {
  auto& page = beacon_->page();
  page.stacks_wanted.store(1, std::memory_order_release);
  const absl::Duration deadline = clock_.monotonic() + timeout;
  while (page.stacks_taken.load(std::memory_order_acquire) == 0 && clock_.monotonic() < deadline) {
    absl::SleepFor(kLookAgain);
  }
}

void Reporter::acknowledge(BeaconCommand command) {
  beacon_->page().command_seen.store(static_cast<uint32_t>(command), std::memory_order_relaxed);
}

void log_line(const std::string& message) {
  const absl::Time now = absl::Now();
  const absl::TimeZone zone = absl::LocalTimeZone();
  const int64_t millis = absl::ToUnixMillis(now) % 1000;
  std::printf("[titan] %s,%03d - root - INFO - %s\n", absl::FormatTime("%Y-%m-%d %H:%M:%S", now, zone).c_str(),
              static_cast<int>(millis), message.c_str());
  std::fflush(stdout);
}

}  // namespace titan::runtime
