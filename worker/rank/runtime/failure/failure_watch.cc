#include "worker/rank/runtime/failure/failure_watch.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/sync/sync.h"
#include "worker/rank/comm/group.h"

namespace titan::runtime {
namespace {

using SteadyClock = std::chrono::steady_clock;

constexpr char kReason[] = "failure/reason";
constexpr char kReaders[] = "failure/readers";
constexpr char kBegun[] = "failure/begun";                // Number of ranks that have begun to record.
constexpr char kRecorded[] = "failure/recorded";          // Number of ranks that have finished recording.
constexpr std::chrono::minutes kOneWait{10};              // A store's wait needs a limit.
constexpr std::chrono::seconds kStoreTimeout{2};          // Timeout for an answer of the store.
constexpr std::chrono::seconds kBreakTimeout{2};          // Timeout for breaking this rank's connections.
constexpr std::chrono::milliseconds kReaderTimeout{800};  // Timeout for the others to read the reason.
constexpr std::chrono::seconds kRecordTimeout{2};         // Timeout for writing this rank's recordings.
constexpr std::chrono::milliseconds kOthersTimeout{500};  // Timeout for those of the other ranks: they delay a restart.
// Replaces kRecordTimeout if ranks stall, because capturing their stacks takes longer.
constexpr std::chrono::seconds kStacksTimeout{7};
constexpr std::chrono::seconds kLeaveTimeout{10};  // Timeout for another thread of this rank to exit with its failure.
constexpr std::chrono::seconds kBeginTimeout{1};  // Timeout for the other ranks to begin. A stopped process never does.

// Returns false if the process cannot create a thread.
bool run_detached(std::function<void()> call) {
  try {
    std::thread(std::move(call)).detach();
    return true;
  } catch (const std::system_error&) {
    return false;
  }
}

// Waits for the reason of the first rank to fail. Rank 0 is not counted as a reader, because it owns the store.
std::string read_reason(c10d::Store& store, int rank) {
  while (true) {
    try {
      store.wait({kReason}, kOneWait);
      std::string reason = store.get_to_str(kReason);
      if (rank != 0) store.add(kReaders, 1);
      return reason;
    } catch (const c10::DistStoreError&) {
      try {
        store.check({kReason});  // No reason has been written yet.
      } catch (const std::exception&) {
        return "rank 0: its store is gone";
      }
    } catch (const std::exception&) {
      return "rank 0: its store is gone";
    }
  }
}

// Returns the interval between polls. It grows with `world`, because all ranks poll one store.
std::chrono::microseconds ask_again(int world) {
  return std::max<std::chrono::microseconds>(std::chrono::milliseconds(10), world * std::chrono::microseconds(50));
}

// Waits until `count` ranks are counted under `key`, at most for `limit`, because some may be gone.
void await_count(c10d::Store& store, const char* key, int count, std::chrono::milliseconds limit) {
  const auto deadline = SteadyClock::now() + limit;
  while (store.add(key, 0) < count && SteadyClock::now() < deadline) std::this_thread::sleep_for(ask_again(count));
}

// Waits until all ranks have recorded, at most for `limit`. After kBeginTimeout it waits only for those that have
// begun.
void await_recordings_of(c10d::Store& store, int world, std::chrono::milliseconds limit) {
  const auto start = SteadyClock::now();
  while (true) {
    const int64_t recorded = store.add(kRecorded, 0);
    const auto waited = SteadyClock::now() - start;
    if (recorded >= world || waited >= limit) return;
    if (waited >= kBeginTimeout && recorded >= store.add(kBegun, 0)) return;
    std::this_thread::sleep_for(ask_again(world));
  }
}

// Returns whether the reason written by the first rank to fail says that ranks stall or disagree.
bool needs_stacks(const std::string& first) {
  for (const char* reason : {kCollectiveTimeout, kCollectiveMismatch}) {
    if (absl::StrContains(first, absl::StrCat(": ", reason, ": "))) return true;
  }
  return false;
}

// Returns whether a failure after this rank's connections were broken may be a consequence, because numbers and kernels
// were cut short. A failure for the same reason as the first rank's (such as a configuration error) is this rank's own.
bool may_follow(const Failure& own, const std::string& first) {
  const bool same = absl::StrContains(first, absl::StrCat(": ", own.reason(), ": "));
  return !same && (own.exit_code() == rank_protocol::kExitInternal || own.reason() == "NONFINITE_LOSS");
}

}  // namespace

struct FailureWatch::State : std::enable_shared_from_this<State> {
  explicit State(Setup all) : setup(std::move(all)) {}

  const Setup setup;
  sync::Mutex mutex;
  sync::Condition changed;
  bool over TITAN_GUARDED_BY(mutex) = false;                 // The watch has ended.
  bool breaking TITAN_GUARDED_BY(mutex) = false;             // break_connections() has been called.
  bool broken TITAN_GUARDED_BY(mutex) = false;               // break_connections() has returned.
  bool cut TITAN_GUARDED_BY(mutex) = false;                  // break_connections() broke a connection.
  std::optional<std::string> first TITAN_GUARDED_BY(mutex);  // The reason of the first rank to fail.
  bool published TITAN_GUARDED_BY(mutex) = false;            // This rank's or another's failure is in the store.
  bool read TITAN_GUARDED_BY(mutex) = false;                 // The store may end.
  bool recording TITAN_GUARDED_BY(mutex) = false;            // record() has been called.
  bool recorded TITAN_GUARDED_BY(mutex) = false;             // record() has returned.
  bool all_recorded TITAN_GUARDED_BY(mutex) = false;  // record() has returned on all other ranks that can record.
  bool shows TITAN_GUARDED_BY(mutex) = false;         // Stacks are captured too.

  void watch();
  void start_recording(bool shows_stacks);
  std::chrono::milliseconds record_timeout() const TITAN_REQUIRES(mutex);
  std::chrono::milliseconds others_timeout() const TITAN_REQUIRES(mutex);
  bool count(const char* key);
  void await_others(std::chrono::milliseconds limit);
  void await_recordings();
  void start_breaking();
  void publish_reason(const std::string& reason);
  void await_first_reason(const std::string& reason) TITAN_REQUIRES(mutex);
  Failure fail(const Failure& own);
  void set(bool& flag);
  // `flag` is one of the above, or `first`. Returns early once it is set.
  template <typename Flag>
  void wait_for(const Flag& flag, std::chrono::milliseconds limit);
};

FailureWatch::FailureWatch(Setup setup) : state_(std::make_shared<State>(std::move(setup))) {
  std::thread([state = state_] { state->watch(); }).detach();
}

FailureWatch::~FailureWatch() { state_->set(state_->over); }

void FailureWatch::State::set(bool& flag) {
  sync::Lock lock(mutex);
  flag = true;
  changed.notify_all();
}

// Call with the lock held.
template <typename Flag>
void FailureWatch::State::wait_for(const Flag& flag, std::chrono::milliseconds limit) {
  const auto deadline = SteadyClock::now() + limit;
  while (!flag && changed.wait_until(mutex, deadline) != std::cv_status::timeout) continue;
}

// Call with the lock held. A disk may hang, so nothing here waits for it.
void FailureWatch::State::start_recording(bool shows_stacks) {
  if (recording) return;
  recording = true;
  shows = shows_stacks && setup.show_stacks;
  const auto others = others_timeout();
  // On another thread, because the store may stall with rank 0.
  run_detached([self = shared_from_this()] { self->count(kBegun); });
  const bool started = (setup.record || shows) && run_detached([self = shared_from_this(), shows = shows, others] {
                         if (self->setup.record) self->setup.record();
                         if (shows) self->setup.show_stacks();
                         self->set(self->recorded);
                         if (self->count(kRecorded)) self->await_others(others);
                         self->set(self->all_recorded);
                       });
  if (!started) recorded = all_recorded = true;
}

// Counts this rank under `key`. Returns false if the store is gone, and rank 0 with it.
bool FailureWatch::State::count(const char* key) {
  try {
    setup.store->add(key, 1);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

void FailureWatch::State::await_others(std::chrono::milliseconds limit) {
  try {
    await_recordings_of(*setup.store, setup.world, limit);
  } catch (const std::exception&) {
    // The store is gone.
  }
}

// Call with the lock held.
void FailureWatch::State::await_recordings() {
  wait_for(recorded, record_timeout());
  if (recorded) wait_for(all_recorded, others_timeout());
}

std::chrono::milliseconds FailureWatch::State::record_timeout() const {
  return shows ? kStacksTimeout : kRecordTimeout;
}

std::chrono::milliseconds FailureWatch::State::others_timeout() const {
  return shows ? setup.stacks_timeout : kOthersTimeout;
}

// Call with the lock held, once. NCCL's abort may take as long as a collective, and may throw, so nothing here waits
// for it.
void FailureWatch::State::start_breaking() {
  breaking = true;
  const bool started = run_detached([self = shared_from_this()] {
    bool cut = true;  // Even a partial abort can corrupt what is in flight.
    try {
      cut = self->setup.break_connections();
    } catch (...) {
    }
    sync::Lock lock(self->mutex);
    self->cut = cut;
    self->broken = true;
    self->changed.notify_all();
  });
  if (!started) broken = true;
}

void FailureWatch::State::watch() {
  std::string reason;
  try {
    // A separate connection, because calls to one store client block each other.
    reason = read_reason(*setup.store->clone(), setup.rank);
  } catch (const std::exception&) {
    return;  // No connection: the rendezvous itself reports why.
  }
  sync::Lock lock(mutex);
  if (over) return;
  first = reason;
  changed.notify_all();
  start_recording(needs_stacks(reason));
  wait_for(recorded, record_timeout());  // Recorded before the connections are broken.
  if (over) return;
  start_breaking();
  wait_for(over, setup.notice_timeout);
  if (over) return;
  setup.leave(Failure(rank_protocol::kExitPeerLost, kPeerLost, absl::StrCat("the attempt failed first on ", reason)));
}

// Writes this rank's reason unless another rank was first.
void FailureWatch::State::publish_reason(const std::string& reason) {
  try {
    c10d::Store& store = *setup.store;  // Connected: a new connection to a lost store would retry for long.
    const std::vector<uint8_t> mine(reason.begin(), reason.end());
    const std::vector<uint8_t> written = store.compareSet(kReason, std::vector<uint8_t>(), mine);
    if (written != mine) {
      sync::Lock lock(mutex);
      first = std::string(written.begin(), written.end());
    }
    set(published);
    // The store ends with rank 0.
    if (setup.rank == 0) await_count(store, kReaders, setup.world - 1, kReaderTimeout);
  } catch (const std::exception&) {
    // The store is gone, and rank 0 with it: there is nobody to report to.
  }
  set(published);
  set(read);
}

std::function<void(const std::string& words)> FailureWatch::record_first() const {
  return [state = state_](const std::string& words) {
    const char* const why = comm::is_timeout(words) ? kCollectiveTimeout : kPeerLost;
    const std::string reason = absl::StrCat("rank ", state->setup.rank, ": ", why, ": ", words);
    sync::Lock lock(state->mutex);
    state->await_first_reason(why);
    const bool publishing = run_detached([state, reason] { state->publish_reason(reason); });
    state->start_recording(/*shows_stacks=*/true);
    if (publishing) state->wait_for(state->published, kStoreTimeout);
    state->await_recordings();
  };
}

// Waits for the first rank's reason if this rank's reason is only that another rank is gone.
void FailureWatch::State::await_first_reason(const std::string& reason) {
  if (reason == kPeerLost) wait_for(first, setup.word_timeout);
}

Failure FailureWatch::State::fail(const Failure& own) {
  if (setup.expect_broken) setup.expect_broken();
  const std::string reason = absl::StrCat("rank ", setup.rank, ": ", own.reason(), ": ", own.what());
  sync::Lock lock(mutex);
  await_first_reason(own.reason());
  const bool publishing = run_detached([self = shared_from_this(), reason] { self->publish_reason(reason); });
  over = true;  // Other threads need not end the process.
  changed.notify_all();
  start_recording(needs_stacks(reason) || (first && needs_stacks(*first)));
  const bool by_other = breaking;
  if (publishing) wait_for(published, kStoreTimeout);  // Ranks that see the broken connections read it there.
  wait_for(recorded, record_timeout());
  if (!by_other) start_breaking();
  wait_for(broken, kBreakTimeout);
  const bool was_cut = by_other && (cut || !broken);
  if (publishing && setup.rank == 0) wait_for(read, kReaderTimeout);
  if (recorded) await_recordings();
  if (!first) return own;
  const bool by_peer = own.exit_code() == rank_protocol::kExitPeerLost;
  if (!by_peer && !(was_cut && may_follow(own, *first))) return own;
  return {
      rank_protocol::kExitPeerLost, by_peer ? own.reason() : kPeerLost,
      absl::StrCat(by_peer ? "" : absl::StrCat(own.reason(), ": "), own.what(), "; the first to fail was ", *first)};
}

Failure FailureWatch::failed(const Failure& own) { return state_->fail(own); }

std::function<void(const Failure& own)> FailureWatch::fail_and_leave() const {
  return [state = state_](const Failure& own) {
    bool is_leaving = false;
    {
      sync::Lock lock(state->mutex);
      is_leaving = std::exchange(state->over, true);
    }
    if (is_leaving) return std::this_thread::sleep_for(kLeaveTimeout);
    state->setup.leave(state->fail(own));
  };
}

}  // namespace titan::runtime
