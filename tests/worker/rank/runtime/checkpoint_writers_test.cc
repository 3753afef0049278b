// Replicas hold the same weights and optimizer state. All ranks take part in writing a save, and it still contains each
// number once.
#include <map>
#include <mutex>
#include <tuple>

#include "tests/worker/rank/runtime/training_world.h"

namespace titan::runtime {
namespace {

using Place = std::pair<std::string, std::vector<int64_t>>;  // Key and offset of a piece.

struct Written {
  std::map<Place, int> pieces;         // Number of ranks that write it.
  std::map<int, int64_t> model, both;  // Bytes by rank: of the weights, and of all.
  int64_t total = 0;
};

Written written_by(const testing::TrainingPlan& plan, const mesh::Degrees& degrees, int world) {
  Written all;
  std::mutex mutex;
  testing::run_ranks(degrees, world, testing::every_axis(), [&](testing::ThreadRank& self) {
    testing::RankModel model = testing::build_rank(plan, self);
    model.sharded->init_weights(1);
    const auto optimizer = optim::make_optimizer({}, model.sharded->optimizer_slots());
    const std::lock_guard lock(mutex);
    for (const checkpoint::Slice& slice : model.sharded->slices(optimizer.get())) {
      if (slice.local.numel() == 0) continue;
      all.pieces[{slice.key, slice.offset}] += slice.primary;
      if (!slice.primary) continue;
      const auto bytes = static_cast<int64_t>(slice.local.nbytes());
      all.total += bytes;
      all.both[self.rank] += bytes;
      if (slice.key.starts_with("model.")) all.model[self.rank] += bytes;
    }
  });
  return all;
}

void expect_even(const std::map<int, int64_t>& bytes, int world, const char* what) {
  int64_t total = 0, largest = 0;
  for (const auto& [rank, count] : bytes) {
    total += count;
    largest = std::max(largest, count);
  }
  EXPECT_EQ(bytes.size(), static_cast<size_t>(world)) << what << ": some rank writes nothing";
  EXPECT_LE(largest, total / world * 5 / 4) << what;
}

TEST(CheckpointWritersTest, EveryReplicaWritesItsShare) {
  testing::TrainingPlan plan;
  plan.spec.n_layers = 6;
  plan.spec.vocab_size = 64;
  plan.spec.ffn_hidden = 48;
  const int64_t whole = written_by(plan, {}, 1).total;
  for (const mesh::Degrees& degrees :
       {mesh::Degrees{.dp_replicate = 4}, mesh::Degrees{.dp_replicate = 2, .dp_shard = 2},
        mesh::Degrees{.dp_replicate = 2, .tp = 2}}) {
    SCOPED_TRACE(::testing::Message() << "replicas " << degrees.dp_replicate << ", shards " << degrees.dp_shard
                                      << ", tensor " << degrees.tp);
    const Written found = written_by(plan, degrees, 4);
    for (const auto& [place, writers] : found.pieces) EXPECT_EQ(writers, 1) << place.first;
    EXPECT_EQ(found.total, whole);
    expect_even(found.model, 4, "weights");
    expect_even(found.both, 4, "weights and optimizer state");
  }
}

// Both ends of a pipeline hold a tied matrix. One of them writes it, in one replica.
TEST(CheckpointWritersTest, ATiedMatrixIsWrittenOnce) {
  testing::TrainingPlan plan;
  plan.spec.tied_embeddings = true;
  const Written found = written_by(plan, {.pp = 2, .dp_replicate = 2, .dp_shard = 1}, 4);
  for (const auto& [place, writers] : found.pieces) EXPECT_EQ(writers, 1) << place.first;
  EXPECT_EQ(found.total, written_by(plan, {}, 1).total);
}

}  // namespace
}  // namespace titan::runtime
