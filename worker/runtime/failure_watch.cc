#include "worker/runtime/failure_watch.h"

#include <optional>
#include <string>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/sync/sync.h"

namespace titan::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr char kReason[] = "failure/reason";
constexpr char kReaders[] = "failure/readers";
constexpr std::chrono::minutes kOneWait{10};               // A store's wait needs an end.
constexpr std::chrono::seconds kStorePatience{2};          // For an answer of the store.
constexpr std::chrono::milliseconds kReaderPatience{800};  // For the others to read the reason before the store goes.

// Waits for the reason of the first rank to fail.
std::string read_reason(c10d::Store& store) {
  while (true) {
    try {
      store.wait({kReason}, kOneWait);
      const std::string reason = store.get_to_str(kReason);
      store.add(kReaders, 1);
      return reason;
    } catch (const c10::DistStoreError&) {
      try {
        store.check({kReason});  // Nothing yet, then.
      } catch (const std::exception&) {
        return "rank 0: its store is gone";
      }
    } catch (const std::exception&) {
      return "rank 0: its store is gone";
    }
  }
}

// The store ends with rank 0: it stays until the others have read, or a moment, since some of them may be gone.
void let_others_read(c10d::Store& store, int others) {
  const auto deadline = Clock::now() + kReaderPatience;
  while (store.add(kReaders, 0) < others && Clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
}

// Whether a failure after this rank's connections were broken may come of that: numbers and kernels were cut short.
// What the first rank ran into as well (a mistake in the configuration, say) is this rank's own.
bool may_follow(const Failure& own, const std::string& first) {
  const bool same = absl::StrContains(first, absl::StrCat(": ", own.reason(), ": "));
  return !same && (own.exit_code() == rank_protocol::kExitInternal || own.reason() == "NONFINITE_LOSS");
}

}  // namespace

struct FailureWatch::State {
  explicit State(Setup all) : setup(std::move(all)) {}

  const Setup setup;
  sync::Mutex mutex;
  sync::Condition changed;
  bool over TITAN_GUARDED_BY(mutex) = false;                 // Nobody watches any more.
  bool broken TITAN_GUARDED_BY(mutex) = false;               // break_connections() has been called.
  std::optional<std::string> first TITAN_GUARDED_BY(mutex);  // The reason of the first rank to fail.
  bool told TITAN_GUARDED_BY(mutex) = false;  // This rank's failure is in the store, or another's was there.
  bool read TITAN_GUARDED_BY(mutex) = false;  // The store may go.

  void watch();
  void tell(const std::string& reason);
  void set(bool& flag);
  void wait_for(const bool& flag, std::chrono::milliseconds limit);
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
void FailureWatch::State::wait_for(const bool& flag, std::chrono::milliseconds limit) {
  const auto deadline = Clock::now() + limit;
  while (!flag && changed.wait_until(mutex, deadline) != std::cv_status::timeout) continue;
}

void FailureWatch::State::watch() {
  std::string reason;
  try {
    // A connection of its own: calls to a store wait for each other.
    reason = read_reason(*setup.store->clone());
  } catch (const std::exception&) {
    return;  // No connection: the rendezvous itself will say why.
  }
  sync::Lock lock(mutex);
  if (over) return;
  first = reason;
  broken = true;
  setup.break_connections();
  wait_for(over, setup.patience);
  if (over) return;
  setup.leave(
      Failure(rank_protocol::kExitPeerLost, "PEER_LOST", absl::StrCat("the attempt has failed, first ", reason)));
}

// Writes this rank's reason unless another was first.
void FailureWatch::State::tell(const std::string& reason) {
  try {
    c10d::Store& store = *setup.store;  // Connected: to a store that is gone a new connection would be tried for long.
    const std::vector<uint8_t> mine(reason.begin(), reason.end());
    const std::vector<uint8_t> written = store.compareSet(kReason, std::vector<uint8_t>(), mine);
    if (written != mine) {
      sync::Lock lock(mutex);
      first = std::string(written.begin(), written.end());
    }
    set(told);
    if (setup.rank == 0) let_others_read(store, setup.world - 1);
  } catch (const std::exception&) {
    // The store is gone, and rank 0 with it: there is nobody to tell.
  }
  set(told);
  set(read);
}

Failure FailureWatch::failed(const Failure& own) {
  State& state = *state_;
  const std::string reason = absl::StrCat("rank ", state.setup.rank, ": ", own.reason(), ": ", own.what());
  std::thread([shared = state_, reason] { shared->tell(reason); }).detach();
  sync::Lock lock(state.mutex);
  state.over = true;  // Whoever would end this process need not.
  state.changed.notify_all();
  const bool was_broken = std::exchange(state.broken, true);
  state.wait_for(state.told, kStorePatience);  // Who sees the broken connections will look there.
  if (!was_broken) state.setup.break_connections();
  if (state.setup.rank == 0) state.wait_for(state.read, kReaderPatience);
  if (!state.first) return own;
  const bool by_peer = own.exit_code() == rank_protocol::kExitPeerLost;
  if (!by_peer && !(was_broken && may_follow(own, *state.first))) return own;
  return {rank_protocol::kExitPeerLost, "PEER_LOST",
          absl::StrCat(by_peer ? "" : absl::StrCat(own.reason(), ": "), own.what(), "; the first to fail was ",
                       *state.first)};
}

}  // namespace titan::runtime
