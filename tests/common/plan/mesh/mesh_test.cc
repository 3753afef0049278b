#include "common/plan/mesh/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace titan::mesh {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Groups = std::vector<std::vector<int>>;

Mesh make(const Degrees& degrees, int world) {
  auto mesh = Mesh::create(degrees, world);
  EXPECT_TRUE(mesh.ok()) << mesh.status();
  return *mesh;
}

std::string error(const Degrees& degrees, int world) {
  const auto mesh = Mesh::create(degrees, world);
  EXPECT_EQ(mesh.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(mesh.status().message());
}

TEST(MeshTest, TensorRanksAreNeighboursAndPipelineRanksFarApart) {
  const Mesh mesh = make({.pp = 2, .dp_replicate = 1, .dp_shard = 2, .cp = 1, .tp = 2}, 8);
  EXPECT_EQ(mesh.groups(Axis::kTensor), (Groups{{0, 1}, {2, 3}, {4, 5}, {6, 7}}));
  EXPECT_EQ(mesh.groups(Axis::kShard), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(mesh.groups(Axis::kPipeline), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(MeshTest, HybridShardingSplitsBatchInReplicasOfShards) {
  const Mesh mesh = make({.dp_replicate = 2, .dp_shard = 2}, 4);
  EXPECT_EQ(mesh.groups(Axis::kFsdp), (Groups{{0, 1}, {2, 3}}));
  EXPECT_EQ(mesh.groups(Axis::kReplicate), (Groups{{0, 2}, {1, 3}}));
  EXPECT_EQ(mesh.groups(Axis::kBatch), (Groups{{0, 1, 2, 3}}));
}

TEST(MeshTest, ContextRanksShareABatchAndAShardGroup) {
  const Mesh mesh = make({.dp_shard = 2, .cp = 2, .tp = 2}, 8);
  EXPECT_THAT(mesh.group(3, Axis::kContext), ElementsAre(1, 3));
  EXPECT_THAT(mesh.group(3, Axis::kFsdp), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.group(3, Axis::kLoss), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.group(3, Axis::kBatch), ElementsAre(3, 7));
  EXPECT_EQ(mesh.index(3, Axis::kBatch), 0);
  EXPECT_EQ(mesh.index(3, Axis::kLoss), 1);
}

// dp_shard 2 x tp 2 with ep 4: tensor ranks are borrowed for experts (etp 1), or each expert stays split (etp 2).
TEST(MeshTest, ExpertsBorrowDenseRanks) {
  const Mesh borrowed = make({.dp_shard = 2, .tp = 2, .ep = 4, .etp = 1}, 4);
  EXPECT_EQ(borrowed.groups(Axis::kExpert), (Groups{{0, 1, 2, 3}}));
  EXPECT_EQ(borrowed.size(Axis::kExpertFsdp), 1);
  const Mesh split = make({.dp_shard = 4, .tp = 2, .ep = 2, .etp = 2}, 8);
  EXPECT_EQ(split.groups(Axis::kExpertTensor), split.groups(Axis::kTensor));
  EXPECT_EQ(split.groups(Axis::kExpert), (Groups{{0, 2}, {1, 3}, {4, 6}, {5, 7}}));
  EXPECT_EQ(split.groups(Axis::kExpertFsdp), (Groups{{0, 4}, {1, 5}, {2, 6}, {3, 7}}));
}

TEST(MeshTest, WithoutExpertParallelismExpertsAreDenseWeights) {
  const Mesh mesh = make({.dp_shard = 2, .cp = 2, .tp = 2}, 8);
  EXPECT_EQ(mesh.groups(Axis::kExpertFsdp), mesh.groups(Axis::kFsdp));
  EXPECT_EQ(mesh.groups(Axis::kExpertTensor), mesh.groups(Axis::kTensor));
}

TEST(MeshTest, ShardDegreeTakesWhatIsLeft) {
  EXPECT_EQ(make({}, 6).degrees().dp_shard, 6);
  EXPECT_EQ(make({.pp = 2, .dp_replicate = 3, .tp = 2}, 24).degrees().dp_shard, 2);
  EXPECT_EQ(make({.dp_replicate = 4}, 4).degrees().dp_shard, 1);
}

TEST(MeshTest, ErrorsNameKeysAndNumbers) {
  EXPECT_THAT(error({.dp_shard = 3, .tp = 4}, 16),
              AllOf(HasSubstr("multiply to 12 but the job has 16 ranks"), HasSubstr("tensor_parallel_degree 4")));
  EXPECT_THAT(error({.tp = 4}, 6),
              AllOf(HasSubstr("multiply to 4"), HasSubstr("does not divide the job's 6 ranks; use 4 or 8 ranks")));
  EXPECT_THAT(error({.tp = 8}, 4), AllOf(HasSubstr("multiply to 8"), HasSubstr("use 8 ranks, or other degrees")));
  EXPECT_THAT(error({.dp_shard = 2, .tp = 3}, 4), HasSubstr("but the job has 4 ranks; use 6 ranks"));
  EXPECT_THAT(error({.dp_shard = 2, .tp = 2}, 8), HasSubstr("set data_parallel_shard_degree = -1"));
  EXPECT_THAT(error({.tp = 0}, 4), HasSubstr("parallelism.tensor_parallel_degree: 0 is not a degree"));
  EXPECT_THAT(error({.dp_shard = -2}, 4), HasSubstr("data_parallel_shard_degree: -2"));
  EXPECT_THAT(error({.dp_shard = 0}, 4), HasSubstr("-1 for the ranks left over"));
  EXPECT_THAT(error({.ep = 3}, 4),
              AllOf(HasSubstr("expert_parallel_degree: 3"), HasSubstr("must divide"), HasSubstr("possible: 1, 2, 4")));
  EXPECT_THAT(error({.tp = 4, .ep = 2, .etp = 2}, 8), HasSubstr("must be 1 or equal to tensor_parallel_degree (4)"));
  EXPECT_THAT(error({}, 0), HasSubstr("resources.ranks: 0"));
  EXPECT_THAT(error({.pp = 1 << 30, .dp_replicate = 1 << 30, .cp = 1 << 30, .tp = 1 << 30}, 8),
              HasSubstr("does not divide"));
}

Degrees random_degrees(std::mt19937& random) {
  const auto pick = [&](std::initializer_list<int> from) { return from.begin()[random() % from.size()]; };
  Degrees degrees{.pp = pick({1, 1, 2, 3}),
                  .dp_replicate = pick({1, 2, 3}),
                  .dp_shard = pick({1, 2, 4, 5}),
                  .cp = pick({1, 1, 2, 4}),
                  .tp = pick({1, 2, 3, 4})};
  degrees.etp = pick({1, degrees.tp});
  const int available = degrees.dp_shard * degrees.cp * degrees.tp / degrees.etp;
  do {
    degrees.ep = 1 + static_cast<int>(random() % available);
  } while (available % degrees.ep != 0);
  return degrees;
}

// On every axis the groups partition the world, agree with group() and index(), and have the size of the axis.
void check_partition(const Mesh& mesh, Axis axis) {
  SCOPED_TRACE(name(axis));
  std::set<int> seen;
  for (const std::vector<int>& group : mesh.groups(axis)) {
    ASSERT_EQ(static_cast<int>(group.size()), mesh.size(axis));
    for (size_t i = 0; i < group.size(); ++i) {
      ASSERT_TRUE(seen.insert(group[i]).second);
      ASSERT_EQ(mesh.index(group[i], axis), static_cast<int>(i));
      ASSERT_EQ(mesh.group(group[i], axis), group);
    }
  }
  ASSERT_EQ(static_cast<int>(seen.size()), mesh.world_size());
}

TEST(MeshPropertyTest, RandomMeshes) {
  std::mt19937 random(20240101);
  for (int round = 0; round < 500; ++round) {
    const Degrees degrees = random_degrees(random);
    const int world = degrees.pp * degrees.dp_replicate * degrees.dp_shard * degrees.cp * degrees.tp;
    const Mesh mesh = make(degrees, world);
    for (Axis axis : kAllAxes) check_partition(mesh, axis);
    std::set<std::vector<int>> places;
    for (int rank = 0; rank < world; ++rank) {
      const Coordinate at = mesh.coordinate(rank);
      ASSERT_EQ(mesh.rank(at), rank);
      ASSERT_TRUE(places.insert({at.pp, at.dp_replicate, at.dp_shard, at.cp, at.tp}).second);
      // A flattened axis has the ranks of its parts, in rank order.
      ASSERT_EQ(mesh.group(rank, {Axis::kReplicate, Axis::kShard}), mesh.group(rank, Axis::kBatch));
      ASSERT_EQ(mesh.group(rank, {Axis::kShard, Axis::kContext}), mesh.group(rank, Axis::kFsdp));
      ASSERT_EQ(mesh.group(rank, {Axis::kContext, Axis::kReplicate, Axis::kShard}), mesh.group(rank, Axis::kLoss));
      ASSERT_EQ(mesh.group(rank, {kWorldAxes.begin(), kWorldAxes.end()}), mesh.group(rank, Axis::kWorld));
      ASSERT_EQ(mesh.group(rank, {Axis::kReplicate, Axis::kShard, Axis::kContext, Axis::kTensor}),
                mesh.group(rank, Axis::kHolders));
      ASSERT_THAT(mesh.group(rank, std::vector<Axis>{}), ElementsAre(rank));
      // Expert axes split the same ranks: dense and sparse shards of one stage and replica are the same ranks.
      ASSERT_EQ(mesh.size(Axis::kExpertFsdp) * mesh.size(Axis::kExpert) * mesh.size(Axis::kExpertTensor),
                mesh.size(Axis::kFsdp) * mesh.size(Axis::kTensor));
    }
  }
}

std::string divide_error(const Degrees& degrees, int world, const Sizes& sizes) {
  const absl::Status status = check_divisible(make(degrees, world), sizes);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(DivisibilityTest, ListsPossibleDegrees) {
  const Sizes llama8b{.seq_len = 8192, .n_heads = 32, .n_kv_heads = 8, .vocab_size = 128256};
  EXPECT_TRUE(check_divisible(make({.pp = 2, .cp = 2, .tp = 8}, 64), llama8b).ok());
  EXPECT_THAT(divide_error({.tp = 16}, 16, llama8b),
              AllOf(HasSubstr("tensor_parallel_degree: 16"), HasSubstr("8 key-value heads"),
                    HasSubstr("possible: 1, 2, 4, 8")));
  EXPECT_THAT(divide_error({.tp = 3}, 3, llama8b), HasSubstr("32 attention heads"));
  EXPECT_THAT(divide_error({.dp_shard = 2, .ep = 2}, 2, llama8b), HasSubstr("the model has no experts"));
}

TEST(DivisibilityTest, SequenceLength) {
  Sizes sizes{.seq_len = 1001, .n_heads = 16, .n_kv_heads = 16, .vocab_size = 2048};
  EXPECT_TRUE(check_divisible(make({}, 8), sizes).ok());
  EXPECT_THAT(divide_error({.cp = 4}, 4, sizes), AllOf(HasSubstr("training.seq_len: 1001 is not a multiple of 8"),
                                                       HasSubstr("below is 1000, above 1008")));
  EXPECT_THAT(divide_error({.tp = 2}, 2, sizes), HasSubstr("multiple of 2 (tensor_parallel_degree 2)"));
  EXPECT_THAT(divide_error({.cp = 4, .tp = 2}, 8, sizes),
              HasSubstr("multiple of 16 (2 x context_parallel_degree 4 x tensor_parallel_degree 2)"));
  sizes.seq_len = 3;
  EXPECT_THAT(divide_error({.cp = 4}, 4, sizes), HasSubstr("the nearest above is 8"));
  sizes.seq_len = 1001;
  sizes.sequence_parallel = false;
  EXPECT_TRUE(check_divisible(make({.tp = 2}, 2), sizes).ok());
  // Without load balancing a context rank holds one chunk.
  sizes.chunks_per_context_rank = 1;
  EXPECT_TRUE(check_divisible(make({.cp = 7}, 7), sizes).ok());
  EXPECT_THAT(divide_error({.cp = 4}, 4, sizes), HasSubstr("multiple of 4 (context_parallel_degree 4)"));
}

TEST(DivisibilityTest, Experts) {
  const Sizes sizes{.seq_len = 4096, .n_heads = 16, .num_experts = 64};
  EXPECT_TRUE(check_divisible(make({.dp_shard = 8, .ep = 8}, 8), sizes).ok());
  EXPECT_THAT(divide_error({.dp_shard = 6, .ep = 6}, 6, sizes),
              AllOf(HasSubstr("64 experts"), HasSubstr("1, 2, 4, 8")));
  // Only the rows of a library's model are known here; the same holds for held-out data.
  EXPECT_TRUE(check_divisible(make({.dp_shard = 2, .ep = 2}, 2), {.seq_len = 4096}).ok());
}

// The tensor axis splits experts unless it is lent to the expert axis.
TEST(DivisibilityTest, ChannelsOfExperts) {
  Sizes sizes{.seq_len = 4096, .n_heads = 16, .num_experts = 64, .expert_hidden = 6, .shared_hidden = 12, .rows = 1};
  EXPECT_THAT(divide_error({.tp = 4}, 4, sizes),
              AllOf(HasSubstr("6 channels of an expert"), HasSubstr("possible: 1, 2)")));
  EXPECT_THAT(divide_error({.dp_shard = 2, .tp = 4, .ep = 2, .etp = 4}, 8, sizes),
              HasSubstr("6 channels of an expert"));
  EXPECT_TRUE(check_divisible(make({.dp_shard = 2, .tp = 4, .ep = 2, .etp = 1}, 8), sizes).ok());
  sizes.shared_hidden = 6;
  EXPECT_THAT(divide_error({.dp_shard = 2, .tp = 4, .ep = 2, .etp = 1}, 8, sizes), HasSubstr("of the shared experts"));
  sizes.shared_hidden = 0;
  sizes.ffn_hidden = 10;
  EXPECT_THAT(divide_error({.dp_shard = 2, .tp = 4, .ep = 2, .etp = 1}, 8, sizes),
              HasSubstr("10 feed-forward channels"));
}

TEST(DivisibilityTest, TensorRanksMustSplitRoutedTokens) {
  Sizes sizes{.seq_len = 10, .n_heads = 16, .num_experts = 64, .rows = 1, .sequence_parallel = false};
  const Degrees lent{.dp_shard = 2, .tp = 4, .ep = 2, .etp = 1};
  EXPECT_THAT(divide_error(lent, 8, sizes), AllOf(HasSubstr("4 tensor ranks"), HasSubstr("10 tokens")));
  sizes.rows = 2;
  EXPECT_TRUE(check_divisible(make(lent, 8), sizes).ok());
}

}  // namespace
}  // namespace titan::mesh
