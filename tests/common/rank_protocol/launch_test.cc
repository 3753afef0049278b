#include "common/rank_protocol/launch.h"

#include <fstream>
#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/rank_protocol/temp_folder.h"

namespace titan::rank_protocol {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

Launch example() {
  Launch launch;
  launch.job = "projects/default/jobs/tiny";
  launch.job_uid = "u1";
  launch.attempt = 4;
  launch.config = {{"training", {{"steps", 10}}}};
  launch.ranks = {{0, 0, "n1", "10.0.0.1"}, {1, 0, "n2", "10.0.0.2"}};
  launch.threads_per_rank = 2;
  launch.committed_step = 200;
  launch.folder_id = "f1";
  launch.previous_end_cause = "RANK_KILLED";
  launch.previous_end_message = "rank 1 on n2 was killed by signal 9";
  return launch;
}

TEST(LaunchTest, RoundTrips) {
  const json written = to_json(example());
  const absl::StatusOr<Launch> read = launch_from_json(written);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_json(*read), written);
  EXPECT_EQ(read->ranks[1].host, "10.0.0.2");
}

// Two ranks of one node are listed once; two nodes may have the same address.
TEST(LaunchTest, ListsRanksByNode) {
  Launch launch = example();
  launch.ranks = {{0, 0, "n1", "10.0.0.1"}, {1, 1, "n1", "10.0.0.1"}, {2, 0, "n2", "10.0.0.1"}, {3, 0, "n3", ""}};
  const json written = to_json(launch);
  EXPECT_EQ(written["nodes"], json::parse(R"([{"node":"n1","host":"10.0.0.1","ranks":2},)"
                                          R"({"node":"n2","host":"10.0.0.1","ranks":1},)"
                                          R"({"node":"n3","host":"","ranks":1}])"));
  const absl::StatusOr<Launch> read = launch_from_json(written);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(to_json(*read), written);
  ASSERT_EQ(read->ranks.size(), launch.ranks.size());
  for (size_t rank = 0; rank < launch.ranks.size(); ++rank) {
    EXPECT_EQ(read->ranks[rank].rank, launch.ranks[rank].rank);
    EXPECT_EQ(read->ranks[rank].local_rank, launch.ranks[rank].local_rank);
    EXPECT_EQ(read->ranks[rank].node, launch.ranks[rank].node);
    EXPECT_EQ(read->ranks[rank].host, launch.ranks[rank].host);
  }

  json none = written, text = written, nobody = written, listed = written;
  none["nodes"][1]["ranks"] = 0;
  EXPECT_THAT(std::string(launch_from_json(none).status().message()), HasSubstr("nodes[1].ranks is 0"));
  text["nodes"][0] = "n1";
  EXPECT_THAT(std::string(launch_from_json(text).status().message()), HasSubstr("nodes[0]"));
  nobody["nodes"] = json::array();
  EXPECT_THAT(std::string(launch_from_json(nobody).status().message()), HasSubstr("nodes"));
  listed.erase("nodes");
  listed["ranks"] = json::parse(R"([{"rank":0,"local_rank":0,"node":"n1","host":"10.0.0.1"}])");
  EXPECT_EQ(launch_from_json(listed).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(launch_from_json(listed).status().message()), HasSubstr("nodes is missing"));
}

// Many nodes take little space, and each rank keeps its place; addresses of other nodes are left out.
TEST(LaunchTest, FoldedFormMergesNodes) {
  Launch launch = example();
  launch.ranks.clear();
  for (int node = 1; node <= 300; ++node) {
    for (int local = 0; local < (node == 300 ? 3 : 8); ++local) {
      launch.ranks.push_back({static_cast<int>(launch.ranks.size()), local, absl::StrCat("n", node), "10.0.0.1"});
    }
  }
  const json folded = to_folded_json(launch);
  EXPECT_EQ(folded["nodes"], json::parse(R"([{"names":"n[1-299]","ranks":8},{"names":"n300","ranks":3}])"));
  const absl::StatusOr<Launch> read = launch_from_json(folded);
  ASSERT_TRUE(read.ok()) << read.status();
  const Launch launch_of_addresses = launch;
  for (RankPlacement& place : launch.ranks) place.host = "";
  EXPECT_EQ(to_json(*read), to_json(launch));

  const json with_own = to_folded_json(launch_of_addresses, "n7");
  EXPECT_EQ(with_own["nodes"], json::parse(R"([{"names":"n[1-6]","ranks":8},{"node":"n7","host":"10.0.0.1","ranks":8},)"
                                           R"({"names":"n[8-299]","ranks":8},{"names":"n300","ranks":3}])"));
  for (int rank = 48; rank < 56; ++rank) launch.ranks[rank].host = "10.0.0.1";
  EXPECT_EQ(to_json(*launch_from_json(with_own)), to_json(launch));

  json text = folded, number = folded, many = folded;
  text["nodes"][1]["names"] = "n[1";
  EXPECT_THAT(std::string(launch_from_json(text).status().message()), HasSubstr("launch file: nodes[1].names"));
  number["nodes"][0]["names"] = 7;
  EXPECT_THAT(std::string(launch_from_json(number).status().message()), HasSubstr("nodes[0].names"));
  many["nodes"][0]["names"] = "n[1-999999999]";
  EXPECT_THAT(std::string(launch_from_json(many).status().message()), HasSubstr("more than"));
}

TEST(LaunchTest, EveryMissingMemberIsNamed) {
  const json whole = to_json(example());
  const std::set<std::string> optional = {"committed_step", "folder_id", "previous_end_cause", "previous_end_message"};
  for (const auto& member : whole.items()) {
    if (optional.contains(member.key())) continue;
    json cut = whole;
    cut.erase(member.key());
    const absl::Status status = launch_from_json(cut).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << member.key();
    EXPECT_THAT(std::string(status.message()), HasSubstr(member.key()));
  }
}

TEST(LaunchTest, ResumptionMembersAreOptional) {
  json first = to_json(example());
  first.erase("committed_step");
  first.erase("folder_id");
  first.erase("previous_end_cause");
  first.erase("previous_end_message");
  const absl::StatusOr<Launch> read = launch_from_json(first);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->committed_step, -1);
  EXPECT_EQ(read->folder_id, "");
  EXPECT_EQ(read->previous_end_cause, "");
}

TEST(LaunchTest, NamesWrongValues) {
  json newer = to_json(example());
  newer["version"] = 2;
  EXPECT_THAT(std::string(launch_from_json(newer).status().message()), HasSubstr("version 2 is newer than 1"));
  json host = to_json(example());
  host["nodes"][1]["host"] = 5;
  EXPECT_THAT(std::string(launch_from_json(host).status().message()), HasSubstr("nodes[1].host"));
  json attempt = to_json(example());
  attempt["attempt"] = 0;
  EXPECT_THAT(std::string(launch_from_json(attempt).status().message()), HasSubstr("attempt is 0"));
}

TEST(LaunchTest, UnknownMembersOfANewerWriterAreIgnored) {
  json extra = to_json(example());
  extra["later"] = 1;
  EXPECT_TRUE(launch_from_json(extra).ok());
}

TEST(LaunchTest, ReadsFiles) {
  const TempFolder folder;
  EXPECT_EQ(read_launch(folder.file("none")).status().code(), absl::StatusCode::kNotFound);
  std::ofstream(folder.file("bad")) << "{";
  EXPECT_EQ(read_launch(folder.file("bad")).status().code(), absl::StatusCode::kInvalidArgument);
  std::ofstream(folder.file("good")) << to_json(example()).dump();
  EXPECT_TRUE(read_launch(folder.file("good")).ok());
}

}  // namespace
}  // namespace titan::rank_protocol
