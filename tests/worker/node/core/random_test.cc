// Random lives of a node under random faults. A failure prints its seed: TITAN_NODE_SEED=N runs only that seed,
// TITAN_NODE_SEEDS=N runs N seeds.

#include <cstdlib>
#include <random>
#include <set>

#include "gtest/gtest.h"
#include "tests/worker/node/core/node_world.h"

namespace titan::node {
namespace {

using Report = v1::AttemptReport;
using Phase = AttemptRecord::Phase;

constexpr int kSeeds = 2000;
constexpr int kActions = 250;

int64_t from_environment(const char* name, int64_t fallback) {
  const char* const text = std::getenv(name);
  return text == nullptr ? fallback : std::atoll(text);
}

class Life {
 public:
  explicit Life(uint64_t seed) : random_(seed) {}

  void run() {
    world_.connect();
    for (int i = 0; i < kActions && !::testing::Test::HasFailure(); ++i) {
      act();
      check();
    }
    if (!::testing::Test::HasFailure()) recover_and_check();
  }

 private:
  int64_t below(int64_t n) { return std::uniform_int_distribution<int64_t>(0, n - 1)(random_); }
  absl::Duration below(absl::Duration n) { return absl::Nanoseconds(below(absl::ToInt64Nanoseconds(n))); }
  bool one_in(int64_t n) { return below(n) == 0; }

  void act() {
    const int64_t what = below(100);
    if (what < 45) {
      // Any pending item may run first, except ordered ones.
      (void)world_.run_one([this](const NodeWorld::Waiting&) { return one_in(2); });
    } else if (what < 52) {
      world_.settle();
    } else if (what < 62) {
      world_.move_clock(one_in(5) ? below(absl::Seconds(40)) : below(absl::Seconds(1)));
      world_.tick();
    } else if (what < 65) {
      world_.advance(below(absl::Seconds(20)));
    } else if (what < 80) {
      command();
    } else if (what < 88) {
      ranks_live();
    } else if (what < 91) {
      session_changes();
    } else if (what < 94) {
      if (one_in(2)) {
        world_.restart();
      } else {
        world_.run_one_and_crash([this](const NodeWorld::Waiting&) { return one_in(2); });
      }
      if (!one_in(4)) world_.connect();
    } else {
      machine_changes();
    }
  }

  // Sends a command that a controller may send, also one that is late or repeats itself.
  void command() {
    const int attempt =
        newest_ == 0 || one_in(6) ? newest_ + 1 : static_cast<int>(newest_ - below(std::min(newest_, 3)));
    switch (below(6)) {
      case 0:
      case 1:
        newest_ = std::max(newest_, attempt);
        if (forgotten_.count(attempt) > 0) return;
        return world_.prepare(attempt, static_cast<int>(1 + below(4)), one_in(2), one_in(2) ? 0 : below(20'000));
      case 2:
      case 3:
        return world_.start(attempt);
      case 4:
        return world_.stop(attempt, one_in(2), one_in(2) ? 0 : below(10'000), one_in(2) ? 0 : below(20'000));
      default:
        if (one_in(3)) world_.checkpoint(attempt);
        // A controller forgets only attempts whose end it has received.
        if (world_.last(attempt).phase() < Report::ENDED) return;
        forgotten_.insert(attempt);
        world_.forget(attempt);
    }
  }

  void ranks_live() {
    for (auto& [key, shim] : world_.shims) {
      if (!shim.alive || !one_in(2)) continue;
      const int rank = static_cast<int>(below(static_cast<int64_t>(shim.ranks.size())));
      if (shim.ranks[rank].running && one_in(2)) world_.rank_emits(key.number, rank, static_cast<int>(below(5)));
      if (!shim.hangs && one_in(5)) world_.rank_exits(key.number, rank, static_cast<int>(below(20)));
    }
  }

  void session_changes() {
    if (one_in(3)) return world_.disconnect();
    if (one_in(6)) return world_.connect("another");
    world_.acknowledge = !one_in(3);
    world_.connect("c1", ++epoch_);
  }

  template <typename E>
  void toggle_fault() {
    const int64_t what = below(4);
    if (what == 0) world_.hang<E>();
    if (what == 1) world_.fail<E>("no space");
    if (what == 2) world_.release<E>();
    if (what == 3) world_.clear_failure<E>();
  }

  void machine_changes() {
    switch (below(16)) {
      case 0:
        return toggle_fault<RaiseFence>();
      case 1:
        return toggle_fault<AddRecord>();
      case 2:
        return toggle_fault<WriteRecord>();
      case 3:
        return toggle_fault<PrepareFolder>();
      case 4:
        return toggle_fault<CheckToken>();
      case 5:
        return toggle_fault<SpawnShim>();
      case 6:
        return one_in(2) ? toggle_fault<ReadSpool>() : toggle_fault<ReadLogTail>();
      case 7:
        return toggle_fault<WritePlaces>();
      case 8:
        return toggle_fault<WriteLeaderEpoch>();
      case 9:
        return toggle_fault<ForgetAttempt>();
      case 10:
        world_.unreadable = world_.unreadable.empty() && one_in(2) ? "Input/output error" : "";
        return;
      case 11:
        world_.prepare_refusal = world_.prepare_refusal.empty() ? "DUMP_FOLDER_UNUSABLE" : "";
        return;
      case 12:
        world_.token_refusal = world_.token_refusal.empty() ? "DUMP_FOLDER_NOT_SHARED" : "";
        return;
      case 13:
        world_.new_shims_hang = one_in(3);
        return world_.end_unkillable();
      default:
        shims_change();
    }
  }

  void shims_change() {
    for (auto& [key, shim] : world_.shims) {
      if (!shim.alive || !one_in(2)) continue;
      switch (below(4)) {
        case 0:
          world_.kill_shim(key.number);
          break;
        case 1:
          shim.hangs ? world_.wake_shim(key.number) : world_.hang_shim(key.number);
          break;
        case 2:
          if (shim.ranks[0].running) world_.unkillable.insert(shim.ranks[0].pid);
          break;
        default:
          if (shim.link != 0) world_.break_link(key.number);
      }
    }
  }

  // Checks the invariants that hold at every moment.
  void check() {
    world_.devices_in_use();
    int with_ranks = 0;
    for (const auto& [key, shim] : world_.shims) with_ranks += world_.running_ranks(key.number) > 0 ? 1 : 0;
    EXPECT_LE(with_ranks, 1) << "two attempts of a job run at once";
    EXPECT_EQ(world_.gaps(), 0);
    EXPECT_GE(world_.core().next_deadline(), absl::ZeroDuration());
  }

  // Ends all faults and checks that every wait ends, everything can be stopped, nothing remains, and new work starts.
  void recover_and_check() {
    world_.clear_all_faults();
    world_.connect("c1", ++epoch_);
    world_.advance(3 * kPrepareTimeout);
    for (int attempt = 0; attempt <= newest_; ++attempt) world_.stop(attempt);
    world_.advance(absl::Seconds(20));
    for (const auto& [key, attempt] : world_.core().state().attempts) {
      EXPECT_TRUE(attempt.over()) << "attempt " << key.number << " in stage " << static_cast<int>(attempt.stage);
      EXPECT_FALSE(attempt.shim_may_live()) << "attempt " << key.number;
      const auto shim = world_.shims.find(key);
      if (shim == world_.shims.end()) continue;
      const Report last = world_.last(key.number);
      EXPECT_TRUE(last.phase() == Report::ENDED || last.phase() == Report::REFUSED) << "attempt " << key.number;
      for (const NodeWorld::Rank& rank : shim->second.ranks) {
        EXPECT_EQ(world_.events_of(key.number, rank.rank), rank.events) << "attempt " << key.number;
        EXPECT_EQ(has_exit(last, rank.rank), shim->second.started) << "attempt " << key.number;
      }
    }
    for (const auto& [key, shim] : world_.shims) EXPECT_FALSE(shim.alive) << "attempt " << key.number;
    EXPECT_EQ(world_.core().free_devices().size(), 4u);
    for (int daemon = 0; daemon < 2;
         ++daemon) {  // A restarted daemon still has attempts whose Forget could not be written.
      for (int attempt = 0; attempt <= newest_; ++attempt) world_.forget(attempt);
      world_.advance(absl::Seconds(2));
      world_.restart();
      world_.connect("c1", ++epoch_);
      world_.advance(absl::Seconds(2));
    }
    EXPECT_TRUE(world_.core().state().attempts.empty());
    EXPECT_TRUE(world_.core().state().pending.empty());
    for (const auto& [key, record] : world_.disk.records) {
      EXPECT_EQ(record.phase, Phase::kForgotten) << "attempt " << key.number;
    }
    world_.launch(newest_ + 1, 4);
    EXPECT_EQ(world_.last(newest_ + 1).phase(), Report::STARTED);
  }

  static bool has_exit(const Report& report, int rank) {
    for (const v1::RankExitReport& exit : report.exits()) {
      if (exit.rank() == rank) return true;
    }
    return false;
  }

  NodeWorld world_;
  std::mt19937_64 random_;
  int newest_ = 0;
  std::set<int> forgotten_;
  int64_t epoch_ = 0;
};

TEST(RandomTest, RandomLivesRecoverFromFaults) {
  const int64_t one = from_environment("TITAN_NODE_SEED", -1);
  const int64_t first = one >= 0 ? one : 1;
  const int64_t count = one >= 0 ? 1 : from_environment("TITAN_NODE_SEEDS", kSeeds);
  for (int64_t seed = first; seed < first + count; ++seed) {
    Life(static_cast<uint64_t>(seed)).run();
    ASSERT_FALSE(HasFailure()) << "TITAN_NODE_SEED=" << seed;
  }
}

}  // namespace
}  // namespace titan::node
