// A dump folder belongs to one live job under all of its names, and every attempt gets the job's committed step.

#include "common/service/rpc/error.h"
#include "tests/controller/world.h"

namespace titan::reconcile {
namespace {

using ::testing::HasSubstr;

class FoldersTest : public ::testing::Test, protected World {
 protected:
  job::SchedulingSpec spec_at(const std::string& id, const std::string& folder) {
    job::SchedulingSpec spec = this->spec(id, 1, 0);
    spec.dump_folder = folder;
    return spec;
  }
  // Returns the newest Prepare that any node got.
  v1::Prepare last_prepare() {
    v1::Prepare last;
    for (const auto& [name, node] : nodes) {
      for (const auto& message : node.received) {
        if (message.has_prepare() && message.prepare().id().number() >= last.id().number()) last = message.prepare();
      }
    }
    return last;
  }
  std::string placed_on(const std::string& id) { return job(id)->attempts.back()->placements[0].node; }
  // Kills the rank and waits for the next attempt, past any backoff.
  void kill(const std::string& id) {
    exit_rank(nodes.at(placed_on(id)), key(id), 0, -1, 9);
    settle();
    advance(absl::Seconds(5));
  }
  void committed(const std::string& id, int64_t step) {
    event(nodes.at(placed_on(id)), key(id), 0,
          absl::StrCat(R"({"kind":"checkpoint_committed","full":true,"seconds":1,"step":)", step, "}"));
    settle();
  }
};

// Two names of one folder that were not recognized at submit: the second job fails before any of its ranks starts, and
// the first one is not disturbed.
TEST_F(FoldersTest, SecondNameOfAFolderFailsTheJob) {
  folder_ids = {{"/dump/real", "f1"}, {"/dump/link", "f1"}};
  add_node("n1", 2);
  ASSERT_TRUE(submit(spec_at("a", "/dump/real")).ok());
  ASSERT_TRUE(submit(spec_at("b", "/dump/link")).ok());
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(state("b"), "FAILED");
  EXPECT_EQ(job("b")->record->failure_reason, "DUMP_FOLDER_IN_USE");
  EXPECT_THAT(job("b")->record->failure_message, HasSubstr("projects/default/jobs/a under the name /dump/real"));
  EXPECT_EQ(job("b")->attempts.size(), 1u);
  const FakeNode& node = nodes.at("n1");
  EXPECT_EQ(node.count(v1::ControllerMessage::kStart), 1) << "only job a started";
  finish_all("a");
  ASSERT_TRUE(submit(spec_at("c", "/dump/link")).ok());
  EXPECT_EQ(state("c"), "STARTING") << "the folder of a finished job is free";
}

TEST_F(FoldersTest, JobOfAnotherProjectIsNotNamed) {
  folder_ids = {{"/dump/real", "f1"}, {"/dump/link", "f1"}};
  add_node("n1", 2);
  job::SchedulingSpec first = spec_at("secret", "/dump/real");
  first.project = "vision";
  ASSERT_TRUE(submit(first).ok());
  ASSERT_TRUE(submit(spec_at("b", "/dump/link")).ok());
  EXPECT_EQ(job("b")->record->failure_reason, "DUMP_FOLDER_IN_USE");
  EXPECT_THAT(job("b")->record->failure_message, HasSubstr("belongs to a job of another project, which"));
  EXPECT_THAT(job("b")->record->failure_message, ::testing::Not(HasSubstr("/dump/real")));
}

// If the client can see it, the second name is rejected at submit: by the path without links, and by the id.
TEST_F(FoldersTest, SecondNameIsRefusedAtSubmit) {
  folder_ids = {{"/dump/a", "f1"}};
  add_node("n1", 4);
  job::SchedulingSpec first = spec_at("a", "/dump/a");
  first.real_folder = "/disk/a";
  ASSERT_TRUE(submit(first).ok());
  job::SchedulingSpec by_path = spec_at("b", "/link/a"), by_id = spec_at("c", "/bind/a"),
                      direct = spec_at("d", "/disk/a");
  by_path.real_folder = "/disk/a";
  by_id.folder_id = "f1";
  for (const job::SchedulingSpec& spec : {by_path, by_id, direct}) {
    const absl::Status refused = submit(spec).status();
    EXPECT_EQ(rpc::reason(refused), "DUMP_FOLDER_IN_USE") << spec.dump_folder;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("projects/default/jobs/a under the name /dump/a"));
  }
  crash();
  for (auto& [name, node] : nodes) connect(node);
  EXPECT_EQ(rpc::reason(submit(by_id).status()), "DUMP_FOLDER_IN_USE") << "remembered";
  ASSERT_TRUE(cancel("a").ok());
  EXPECT_TRUE(submit(by_path).ok());
  EXPECT_TRUE(submit(by_id).ok());
}

// The submitting user was proven when the job was created, and all later attempts run as that user.
TEST_F(FoldersTest, AttemptsRunAsTheSubmittingUser) {
  add_node("n1");
  run_as = "alice";
  run_as_local = true;
  ASSERT_TRUE(submit(spec_at("a", "/dump/a")).ok());
  EXPECT_EQ(last_prepare().run_as(), "alice");
  EXPECT_TRUE(last_prepare().run_as_local());
  loaded("a", 0);
  crash();
  for (auto& [name, node] : nodes) connect(node);
  kill("a");
  EXPECT_EQ(last_prepare().id().number(), 2);
  EXPECT_EQ(last_prepare().run_as(), "alice");
}

// The next attempt gets the committed step and the folder that the controller knows.
TEST_F(FoldersTest, AttemptsGetTheCommittedStepAndFolder) {
  folder_ids = {{"/dump/a", "f1"}};
  add_node("n1");
  ASSERT_TRUE(submit(spec_at("a", "/dump/a")).ok());
  EXPECT_EQ(last_prepare().folder_id(), "") << "nothing is known yet";
  EXPECT_EQ(nlohmann::json::parse(last_prepare().launch_json())["committed_step"], -1);
  loaded("a", 0);
  train("a", 250);
  committed("a", 200);
  kill("a");
  EXPECT_EQ(last_prepare().id().number(), 2);
  EXPECT_EQ(last_prepare().folder_id(), "f1");
  nlohmann::json launch = nlohmann::json::parse(last_prepare().launch_json());
  EXPECT_EQ(launch["committed_step"], 200);
  EXPECT_EQ(launch["folder_id"], "f1");
  // After a fall-back to an older step, the latest commit in time counts.
  loaded("a", 100);
  committed("a", 150);
  kill("a");
  EXPECT_EQ(nlohmann::json::parse(last_prepare().launch_json())["committed_step"], 150);
}

// A mount is missing on the node where the job restarts: the job continues elsewhere, and never returns to that node.
TEST_F(FoldersTest, ANodeWithoutTheFolderIsAvoided) {
  folder_ids = {{"/dump/a", "f1"}};
  add_node("n1");
  ASSERT_TRUE(submit(spec_at("a", "/dump/a")).ok());
  add_node("n2");
  loaded("a", 0);
  train("a", 250);
  refuses = {"n1"};
  refusal = "CHECKPOINTS_GONE";
  kill("a");
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(placed_on("a"), "n2");
  EXPECT_EQ(job("a")->attempts[1]->end_cause, "USER_ERROR");
  refuses.clear();
  loaded("a", 200);
  kill("a");
  EXPECT_EQ(placed_on("a"), "n2");
}

// One of three nodes has a stale mount. Whether it leads or follows, the nodes that see the same folder train, with
// that folder's id.
TEST_F(FoldersTest, NodesThatShareAFolderAreFound) {
  for (const char* stale : {"n1", "n2", "n3"}) {
    World world;
    world.folder_ids = {{"/dump/a", "f1"}};
    world.stale_mounts = {stale};
    for (const char* name : {"n1", "n2", "n3"}) world.add_node(name);
    ASSERT_TRUE(world.submit(world.spec("a", 2, 1)).ok());
    world.advance(absl::Seconds(5));
    ASSERT_EQ(world.state("a"), "STARTING") << stale << ": " << world.job("a")->record->failure_message;
    EXPECT_EQ(world.job("a")->record->folder_id, "f1") << stale;
    for (const job::Placement& placement : world.job("a")->attempts.back()->placements) {
      EXPECT_NE(placement.node, stale);
    }
  }
}

TEST_F(FoldersTest, AFolderThatNoTwoNodesShareEndsTheJob) {
  folder_ids = {{"/dump/a", "f1"}};
  stale_mounts = {"n1", "n2", "n3", "n4"};
  for (const char* name : {"n1", "n2", "n3", "n4"}) add_node(name);
  ASSERT_TRUE(submit(spec("a", 2, 1)).ok());
  advance(absl::Seconds(5));
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "DUMP_FOLDER_NOT_SHARED");
  EXPECT_EQ(job("a")->attempts.size(), 2u);
}

TEST_F(FoldersTest, MissingCheckpointsEndTheJob) {
  folder_ids = {{"/dump/a", "f1"}};
  add_node("n1");
  ASSERT_TRUE(submit(spec_at("a", "/dump/a")).ok());
  loaded("a", 0);
  train("a", 250);
  refuses = {"n1"};
  refusal = "CHECKPOINTS_GONE";
  kill("a");
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "CHECKPOINTS_GONE");
  EXPECT_EQ(job("a")->attempts.size(), 3u);
}

// A job that is resubmitted where the mount is missing would silently start from step 0.
TEST_F(FoldersTest, FolderThatDiffersFromTheClientsIsReported) {
  folder_ids = {{"/dump/a", "f1"}};
  add_node("n1");
  job::SchedulingSpec seen = spec_at("a", "/dump/a");
  seen.folder_id = "f0";
  ASSERT_TRUE(submit(seen).ok());
  EXPECT_EQ(state("a"), "STARTING");
  EXPECT_EQ(count_events("a", "DumpFolderDiffers"), 1);
}

// A worker of an older version prepares any folder that is there; the controller compares the ids.
TEST_F(FoldersTest, AReplacedFolderNeverStarts) {
  folder_ids = {{"/dump/a", "f1"}};
  FakeNode& node = add_node("n1");
  ASSERT_TRUE(submit(spec_at("a", "/dump/a")).ok());
  loaded("a", 0);
  folder_ids = {{"/dump/a", "f2"}};
  const int starts = node.count(v1::ControllerMessage::kStart);
  kill("a");
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "DUMP_FOLDER_REPLACED");
  EXPECT_EQ(node.count(v1::ControllerMessage::kStart), starts);
}

// The failure names the other job, and there is no second attempt.
TEST_F(FoldersTest, AFolderTakenByAnotherJobEndsTheJob) {
  add_node("n1");
  ASSERT_TRUE(submit(spec_at("a", "/dump/a")).ok());
  loaded("a", 0);
  train("a", 5);
  event(nodes.at("n1"), key("a"), 0,
        R"({"kind":"error","class":"fenced","reason":"FENCED","message":"was taken over by job projects/p/jobs/x",)"
        R"("holder_job":"projects/p/jobs/x","holder_attempt":1,"same_job":false})");
  finish_all("a", rank_protocol::kExitFenced);
  EXPECT_EQ(state("a"), "FAILED");
  EXPECT_EQ(job("a")->record->failure_reason, "DUMP_FOLDER_TAKEN");
  EXPECT_THAT(job("a")->record->failure_message, HasSubstr("projects/p/jobs/x"));
  EXPECT_EQ(job("a")->attempts.size(), 1u);
}

}  // namespace
}  // namespace titan::reconcile
