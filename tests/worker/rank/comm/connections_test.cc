// Tests the order in which ranks split the world's communicator into those of their groups, by NCCL's rules, for many
// meshes.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "worker/rank/comm/device_mesh.h"

namespace titan::comm {
namespace {

using mesh::Axis;
using mesh::Degrees;

std::set<Axis> all_axes() { return {mesh::kAllAxes.begin(), mesh::kAllAxes.end()}; }

// Returns many meshes of up to 24 ranks, with and without experts.
std::vector<mesh::Mesh> many_meshes() {
  std::vector<mesh::Mesh> meshes;
  for (int pp = 1; pp <= 5; ++pp) {
    for (const int replicate : {1, 2}) {
      for (const int shard : {1, 2, 3}) {
        for (const int cp : {1, 2}) {
          for (const int tp : {1, 2}) {
            const int world = pp * replicate * shard * cp * tp;
            if (world > 24) continue;
            for (const auto& [ep, etp] : {std::pair(1, 1), std::pair(2, 1), std::pair(2, tp)}) {
              const auto made = mesh::Mesh::create(
                  {.pp = pp, .dp_replicate = replicate, .dp_shard = shard, .cp = cp, .tp = tp, .ep = ep, .etp = etp},
                  world);
              if (made.ok()) meshes.push_back(*made);
            }
          }
        }
      }
    }
  }
  return meshes;
}

std::string text(const mesh::Mesh& mesh) {
  const Degrees& d = mesh.degrees();
  return absl::StrCat("pp ", d.pp, " replicate ", d.dp_replicate, " shard ", d.dp_shard, " cp ", d.cp, " tp ", d.tp,
                      " ep ", d.ep, " etp ", d.etp);
}

// Returns the groups that ncclCommSplit makes from the ranks' calls: the ranks of one color, in the order of their
// keys.
std::map<int, std::vector<int>> split(const CommSplit& cut, int world) {
  std::map<int, std::map<int, int>> by_key;
  for (int rank = 0; rank < world; ++rank) {
    const CommSplitPart part = part_of(cut.groups, rank);
    if (part.color < 0) continue;
    EXPECT_TRUE(by_key[part.color].emplace(part.index, rank).second) << "two ranks with one key";
  }
  std::map<int, std::vector<int>> groups;
  for (const auto& [color, ranks] : by_key) {
    for (const auto& [key, rank] : ranks) groups[color].push_back(rank);
  }
  return groups;
}

TEST(ConnectionsTest, EveryAxisHasItsGroups) {
  const std::vector<mesh::Mesh> meshes = many_meshes();
  ASSERT_GT(meshes.size(), 100U);
  for (const mesh::Mesh& mesh : meshes) {
    const ConnectionPlan plan = connection_plan(mesh, all_axes());
    for (const Axis axis : mesh::kAllAxes) {
      const auto found = plan.of_axis.find(axis);
      ASSERT_EQ(found != plan.of_axis.end(), mesh.size(axis) > 1) << text(mesh) << ", " << mesh::name(axis);
      if (mesh.size(axis) == 1) continue;
      const Connection& connection = plan.connections[found->second];
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const CommSplitPart part = part_of(connection.groups, rank);
        ASSERT_GE(part.color, 0);
        EXPECT_EQ(connection.groups[static_cast<size_t>(part.color)], mesh.group(rank, axis));
        EXPECT_EQ(part.index, mesh.index(rank, axis));
      }
    }
  }
}

// All ranks make the same splits. The splits for collectives form exactly the groups of each connection, once.
TEST(ConnectionsTest, CommSplitsFormTheGroups) {
  for (const mesh::Mesh& mesh : many_meshes()) {
    SCOPED_TRACE(text(mesh));
    const int world = mesh.world_size();
    const std::vector<Connection> connections = connection_plan(mesh, all_axes()).connections;
    const CommSplitPlan plan = comm_split_plan(connections);
    std::map<size_t, int> collectives;
    if (plan.whole) {
      ++collectives[*plan.whole];
      ASSERT_EQ(connections[*plan.whole].groups.size(), 1U);
      for (int rank = 0; rank < world; ++rank) EXPECT_EQ(connections[*plan.whole].groups[0].at(rank), rank);
    }
    for (const CommSplit& cut : plan.splits) {
      RankGroups made;
      for (const auto& [color, ranks] : split(cut, world)) made.push_back(ranks);
      EXPECT_EQ(made, cut.groups) << "colors are unique, and no rank is in two groups";
      if (cut.carries != Carries::kCollectives) continue;
      ++collectives[cut.connection];
      EXPECT_EQ(cut.groups, connections[cut.connection].groups);
    }
    ASSERT_EQ(collectives.size(), connections.size());
    for (const auto& [connection, count] : collectives) EXPECT_EQ(count, 1) << connections[connection].name;
    EXPECT_EQ(plan.whole.has_value(), world > 1) << "the world's group needs no split";
  }
}

// Each ordered pair of neighbours of a pipeline has one channel. Ranks without an edge in a split still take part,
// without a color.
TEST(ConnectionsTest, NeighboursHaveAChannelInEachDirection) {
  for (const mesh::Mesh& mesh : many_meshes()) {
    SCOPED_TRACE(text(mesh));
    std::map<std::pair<int, int>, int> channels_found, wanted;
    for (const CommSplit& cut : comm_split_plan(connection_plan(mesh, all_axes()).connections).splits) {
      if (cut.carries == Carries::kCollectives) continue;
      for (const std::vector<int>& pair : cut.groups) {
        ASSERT_EQ(pair.size(), 2U);
        ++channels_found[{pair[0], pair[1]}];
      }
    }
    for (int rank = 0; rank < mesh.world_size() && mesh.size(Axis::kPipeline) > 1; ++rank) {
      const std::vector<int> ring = mesh.group(rank, Axis::kPipeline);
      const auto next = static_cast<size_t>((mesh.index(rank, Axis::kPipeline) + 1) % static_cast<int>(ring.size()));
      wanted[{rank, ring[next]}] = wanted[{ring[next], rank}] = 1;
    }
    EXPECT_EQ(channels_found, wanted);
  }
  const CommSplit cut =
      comm_split_plan(connection_plan(mesh::Mesh::create({.pp = 3}, 3).value(), all_axes()).connections).splits.at(0);
  EXPECT_EQ(cut.carries, Carries::kOneWay);
  EXPECT_EQ(part_of(cut.groups, 2).color, -1) << "rank 2 has no edge in the first of three splits";
}

// Channels on other axes exist before the first message: between neighbours in a ring of contexts, between all pairs
// for asynchronous tensor parallelism. They come from splits into disjoint pairs, the same on every rank, and leave the
// collectives' groups as they were.
TEST(ConnectionsTest, RingsAndSwapsHaveTheirChannels) {
  const auto made = [](const Degrees& degrees, int world) { return mesh::Mesh::create(degrees, world).value(); };
  std::vector<mesh::Mesh> meshes = many_meshes();
  for (const int n : {3, 4, 5, 8}) {
    meshes.push_back(made({.tp = n}, n));
    meshes.push_back(made({.dp_shard = 2, .cp = n}, 2 * n));
    meshes.push_back(made({.pp = 2, .cp = 2, .tp = n}, 4 * n));
  }
  for (const mesh::Mesh& mesh : meshes) {
    SCOPED_TRACE(text(mesh));
    const std::map<Axis, Messages> messages = {{Axis::kTensor, Messages::kAll}, {Axis::kContext, Messages::kRing}};
    const ConnectionPlan plan = connection_plan(mesh, all_axes(), messages);
    const ConnectionPlan silent = connection_plan(mesh, all_axes());
    ASSERT_EQ(plan.of_axis, silent.of_axis);
    std::map<std::pair<size_t, std::pair<int, int>>, int> channels_found;
    std::map<size_t, size_t> splits;
    for (const CommSplit& cut : comm_split_plan(plan.connections).splits) {
      if (cut.carries == Carries::kCollectives) continue;
      ++splits[cut.connection];
      std::set<int> touched;
      for (const std::vector<int>& pair : cut.groups) {
        ASSERT_EQ(pair.size(), 2U);
        EXPECT_TRUE(touched.insert(pair[0]).second && touched.insert(pair[1]).second) << "a rank is in two pairs";
        ++channels_found[{cut.connection, {pair[0], pair[1]}}];
      }
    }
    std::map<std::pair<size_t, std::pair<int, int>>, int> wanted;
    const auto want = [&](Axis axis, Messages messages) {
      const bool all = messages == Messages::kAll, forward = messages == Messages::kRing;
      if (mesh.size(axis) == 1) return;
      const size_t connection = plan.of_axis.at(axis);
      for (int rank = 0; rank < mesh.world_size(); ++rank) {
        const std::vector<int> group = mesh.group(rank, axis);
        const int size = static_cast<int>(group.size()), index = mesh.index(rank, axis);
        for (int other = 0; other < size; ++other) {
          const int apart = (other - index + size) % size;
          if (apart != 0 && (all || apart == 1 || (!forward && apart == size - 1))) {
            wanted[{connection, {rank, group[static_cast<size_t>(other)]}}] = 1;
          }
        }
      }
      EXPECT_LE(splits[connection], 2 * (all ? static_cast<size_t>(mesh.size(axis)) : 3));
    };
    want(Axis::kPipeline, Messages::kNeighbours);
    want(Axis::kContext, Messages::kRing);
    want(Axis::kTensor, Messages::kAll);
    EXPECT_EQ(channels_found, wanted);
  }
}

struct Counted {
  const char* name;
  Degrees degrees;
  int world;
  int communicators;  // Communicators of the rank that has the most.
  bool shared;        // Whether pairs with paired calls share one.
};

// LibTorch has 32 streams for a rank's communicators. Two communicators on one stream would wait for each other's
// messages.
TEST(ConnectionsTest, EveryCommunicatorHasAStream) {
  const std::map<Axis, Messages> messages = {{Axis::kTensor, Messages::kAll}, {Axis::kContext, Messages::kRing}};
  for (const Counted& one : {
           Counted{"fsdp", {.dp_shard = 8}, 8, 1, false},
           Counted{"hsdp", {.dp_replicate = 2, .dp_shard = 4}, 8, 3, false},
           // The world; pp with four channels; fsdp, with the same ranks as loss and batch.
           Counted{"pipeline", {.pp = 4, .dp_shard = 2}, 8, 1 + 5 + 1, false},
           Counted{"ring", {.dp_shard = 2, .cp = 4}, 8, 1 + 3 + 1, false},
           // All axes at once, as in the largest jobs.
           Counted{"all, TP 8",
                   {.pp = 4, .dp_replicate = 2, .dp_shard = 4, .cp = 4, .tp = 8, .ep = 8, .etp = 1},
                   1024,
                   31,
                   false},
           Counted{"TP 16", {.dp_shard = 2, .tp = 16}, 32, 1 + 16 + 1, true},
           Counted{"all, TP 16",
                   {.pp = 4, .dp_replicate = 2, .dp_shard = 4, .cp = 4, .tp = 16, .ep = 16, .etp = 1},
                   2048,
                   32,
                   true},
           Counted{"too many", {.dp_shard = 2, .tp = 32}, 64, 1 + 32 + 1, true},
       }) {
    SCOPED_TRACE(one.name);
    const mesh::Mesh mesh = mesh::Mesh::create(one.degrees, one.world).value();
    const CommSplitPlan plan = comm_split_plan(connection_plan(mesh, all_axes(), messages).connections);
    int largest = 0;
    for (int rank = 0; rank < one.world; rank += 7) largest = std::max(largest, communicators_of(plan, rank));
    EXPECT_EQ(largest, one.communicators);
    const auto shares = [](const CommSplit& cut) { return cut.carries == Carries::kBothWays; };
    EXPECT_EQ(std::any_of(plan.splits.begin(), plan.splits.end(), shares), one.shared);
  }
}

// If pairs share a communicator, they are the same pairs, each once.
TEST(ConnectionsTest, SharedPairsCoverEveryPairOnce) {
  const mesh::Mesh mesh = mesh::Mesh::create({.tp = 20}, 20).value();
  std::set<std::pair<int, int>> pairs;
  for (const CommSplit& cut :
       comm_split_plan(connection_plan(mesh, all_axes(), {{Axis::kTensor, Messages::kAll}}).connections).splits) {
    if (cut.carries == Carries::kCollectives) continue;
    EXPECT_EQ(cut.carries, Carries::kBothWays);
    for (const std::vector<int>& pair : cut.groups) EXPECT_TRUE(pairs.emplace(pair[0], pair[1]).second);
  }
  EXPECT_EQ(pairs.size(), 20U * 19 / 2);
  for (const auto& [first, second] : pairs) EXPECT_LT(first, second);
}

// Axes that carry different traffic never share, even if they have the same ranks.
TEST(ConnectionsTest, DifferentTrafficNeverSharesCommunicators) {
  const mesh::Mesh tensor = mesh::Mesh::create({.tp = 4}, 4).value();
  const ConnectionPlan plan = connection_plan(tensor, all_axes());
  ASSERT_EQ(plan.connections.size(), 2U);
  EXPECT_NE(plan.of_axis.at(Axis::kTensor), plan.of_axis.at(Axis::kWorld));
  const CommSplitPlan splits = comm_split_plan(plan.connections);
  ASSERT_EQ(splits.splits.size(), 1U) << "one of the two is the world's communicator";
  EXPECT_EQ(part_of(splits.splits[0].groups, 3).color, 0);
  const ConnectionPlan shards = connection_plan(mesh::Mesh::create({.dp_shard = 4}, 4).value(), all_axes());
  EXPECT_EQ(shards.of_axis.at(Axis::kFsdp), shards.of_axis.at(Axis::kWorld));
  const ConnectionPlan apart =
      connection_plan(mesh::Mesh::create({.dp_shard = 4}, 4).value(), all_axes(), {}, {Axis::kWorld, Axis::kLoss});
  EXPECT_NE(apart.of_axis.at(Axis::kFsdp), apart.of_axis.at(Axis::kWorld)) << "scales must not queue behind weights";
  EXPECT_EQ(apart.of_axis.at(Axis::kLoss), apart.of_axis.at(Axis::kWorld));
  EXPECT_TRUE(connection_plan(mesh::Mesh::create({}, 1).value(), all_axes()).connections.empty());
}

}  // namespace
}  // namespace titan::comm
