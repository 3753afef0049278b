// Tests that no mesh hangs on NCCL: training, evaluation and shutdown run over tests/worker/rank/comm/simulated_nccl.h,
// which uses the CPU's backends under NCCL's rules, and the code that opens a GPU's communicators opens it.
#include "tests/worker/rank/comm/simulated_nccl.h"

#include "absl/strings/str_cat.h"
#include "common/plan/models/registry.h"
#include "tests/worker/rank/runtime/training_world.h"
#include "worker/rank/comm/device_mesh.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::runtime {
namespace {

using mesh::Axis;
using testing::RankOutcome;
using testing::SimulatedNccl;
using testing::TrainingPlan;

struct Case {
  std::string name;
  mesh::Degrees degrees;
  int world = 1;
  std::function<void(TrainingPlan&)> change = {};

  friend void PrintTo(const Case& value, std::ostream* out) { *out << value.name; }
};

// Returns what runtime::messages_of() returns for the same configuration.
std::map<Axis, comm::Messages> messages_of(const TrainingPlan& plan) {
  config::ParallelismSection parallelism;
  parallelism.enable_async_tensor_parallel = plan.parallel.async_tensor_parallel;
  parallelism.context_parallel_rotate_method = plan.parallel.rotate_method;
  return runtime::messages_of(parallelism);
}

TrainingPlan plan_of(const Case& one) {
  TrainingPlan plan;
  plan.spec.vocab_size = 64;
  plan.spec.ffn_hidden = 48;
  plan.steps = 2;
  if (one.change) one.change(plan);
  return plan;
}

testing::ThreadWorld world_of(const Case& one, const TrainingPlan& plan, const std::shared_ptr<SimulatedNccl>& nccl) {
  testing::ThreadWorld world{.degrees = one.degrees, .size = one.world, .store = {}};
  world.make_device = [nccl](int rank, const std::shared_ptr<comm::LocalHub>& hub) {
    return std::make_unique<testing::SimulatedNcclDevice>(comm::make_local_device(hub), rank, nccl);
  };
  world.messages = messages_of(plan);
  return world;
}

// Returns the error that ends the world, or "" if there is none.
std::string error_text(const std::vector<std::exception_ptr>& failures) {
  try {
    testing::rethrow_cause(failures);
    return "";
  } catch (const std::exception& error) {
    return comm::describe(error);
  }
}

std::string train(const Case& one, const TrainingPlan& plan, const std::shared_ptr<SimulatedNccl>& nccl,
                  std::vector<RankOutcome>& outcomes) {
  outcomes.resize(one.world);
  return error_text(testing::run_world(world_of(one, plan, nccl), [&](testing::ThreadRank& self) {
    outcomes[self.rank] = testing::train_rank(plan, self);
    self.mesh->abort();
  }));
}

std::vector<Case> pipelines() {
  std::vector<Case> all;
  struct Kind {
    const char* schedule;
    int stages_per_rank;
    std::vector<int> ranks;
  };
  for (const Kind& kind :
       {Kind{"GPipe", 1, {2, 4, 8}}, Kind{"1F1B", 1, {2, 4, 8}}, Kind{"Interleaved1F1B", 2, {2, 4, 8}},
        Kind{"LoopedBFS", 2, {2, 4, 8}}, Kind{"InterleavedZeroBubble", 2, {2, 4, 8}},
        Kind{"ZBVZeroBubble", 2, {2, 4, 8}}, Kind{"DualPipeV", 2, {2, 4, 8}}}) {
    for (const int ranks : kind.ranks) {
      all.push_back({absl::StrCat(kind.schedule, "_", ranks), {.pp = ranks}, ranks, [=](TrainingPlan& plan) {
                       plan.schedule = kind.schedule;
                       plan.stages_per_rank = kind.stages_per_rank;
                       plan.spec.n_layers = std::max<int64_t>(3, ranks * kind.stages_per_rank);
                       plan.pipeline_microbatches = 2 * ranks;
                       plan.global_batch = 2 * ranks;
                       plan.seq_len = 8;
                       plan.steps = 1;
                     }});
    }
  }
  return all;
}

std::vector<Case> other_meshes() {
  const auto ring = [](TrainingPlan& plan) { plan.parallel.rotate_method = "alltoall"; };
  const auto asynchronous = [](TrainingPlan& plan) { plan.parallel.async_tensor_parallel = true; };
  const auto wide = [](TrainingPlan& plan) {
    plan.spec.n_heads = plan.spec.n_kv_heads = 8;
    plan.spec.dim = 64;
  };
  const auto tied = [](TrainingPlan& plan) { plan.spec.tied_embeddings = true; };
  return {
      {"fsdp", {.dp_shard = 2}, 2},
      {"hsdp_recomputing",
       {.dp_replicate = 2, .dp_shard = 2},
       4,
       [](TrainingPlan& plan) { plan.sharding.ac.mode = "full"; }},
      {"tensor", {.dp_shard = 2, .tp = 2}, 4},
      {"ring_2", {.dp_shard = 1, .cp = 2}, 2, ring},
      {"ring_4", {.dp_shard = 1, .cp = 4}, 4, ring},
      {"async_2", {.tp = 2}, 2, asynchronous},
      {"async_4",
       {.tp = 4},
       4,
       [=](TrainingPlan& plan) {
         asynchronous(plan);
         wide(plan);
       }},
      {"async_ring_pipeline",
       {.pp = 2, .dp_shard = 1, .cp = 2, .tp = 2},
       8,
       [=](TrainingPlan& plan) {
         ring(plan);
         asynchronous(plan);
       }},
      {"tied_2", {.pp = 2}, 2, tied},
      {"tied_4",
       {.pp = 4},
       4,
       [=](TrainingPlan& plan) {
         tied(plan);
         plan.spec.n_layers = 4;
       }},
      {"tied_split",
       {.pp = 2},
       2,
       [=](TrainingPlan& plan) {
         tied(plan);
         plan.schedule = "ZBVZeroBubble";
         plan.spec.n_layers = 4;
         plan.pipeline_microbatches = 4;
       }},
      {"always",
       {.pp = 2, .dp_shard = 2},
       4,
       [](TrainingPlan& plan) { plan.sharding.reshard_after_forward = "always"; }},
      {"accumulating", {.pp = 2}, 2, [](TrainingPlan& plan) { plan.microbatches = 2; }},
      {"experts",
       {.dp_shard = 2, .ep = 2},
       2,
       [](TrainingPlan& plan) {
         plan.spec = models::find("llama4", "debugmodel").value();
         plan.spec.n_layers = 2;
         plan.spec.vocab_size = 64;
         plan.steps = 1;
       }},
      {"experts_paired",
       {.pp = 2, .dp_shard = 2, .ep = 2},
       4,
       [](TrainingPlan& plan) {
         plan.spec = models::find("llama4", "debugmodel").value();
         plan.spec.n_layers = 4;
         plan.spec.vocab_size = 64;
         plan.schedule = "DualPipeV";
         plan.pipeline_microbatches = 4;
         plan.global_batch = 8;
         plan.overlap_pairs = true;
         plan.steps = 1;
       }},
  };
}

// Returns a case with a schedule as read from a file: a list for each rank.
Case written_schedule() {
  return {"CSV", {.pp = 2}, 2, [](TrainingPlan& plan) {
            plan.custom_schedule = pipeline::generate("1F1B", 2, 1, 4).value();
            plan.custom_schedule->name = "CSV";
            plan.pipeline_microbatches = 4;
          }};
}

class SimulatedNcclTest : public ::testing::TestWithParam<Case> {};

// Numbers are compared, too: without tags, every message must still meet its own receive. The memory of messages is
// free once they were waited for.
TEST_P(SimulatedNcclTest, TrainsAsOneRank) {
  const TrainingPlan plan = plan_of(GetParam());
  TrainingPlan alone = plan;
  alone.parallel = {};
  const RankOutcome reference = testing::train_world(alone, {}, 1)[0];
  const auto nccl = std::make_shared<SimulatedNccl>(GetParam().world);
  std::vector<RankOutcome> outcomes;
  ASSERT_EQ(train(GetParam(), plan, nccl, outcomes), "");
  testing::expect_same_training(reference, outcomes, 1e-10);
  EXPECT_EQ(nccl->late_bytes(), 0);
  for (const auto& [name, count] : nccl->aborts()) EXPECT_GE(count, 1) << name;
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }

INSTANTIATE_TEST_SUITE_P(Schedules, SimulatedNcclTest, ::testing::ValuesIn(pipelines()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Meshes, SimulatedNcclTest, ::testing::ValuesIn(other_meshes()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Files, SimulatedNcclTest, ::testing::Values(written_schedule()), name_of_case);

// Without the greeting every schedule hangs in its first step, because receives are posted ahead. The simulation must
// report it.
TEST(SimulatedNcclRules, PipelinesHangWithoutTheGreeting) {
  std::vector<Case> cases = pipelines();
  for (const Case& one : other_meshes()) {
    if (one.degrees.pp > 1) cases.push_back(one);
  }
  cases.push_back(written_schedule());
  ASSERT_EQ(cases.size(), 29u);
  for (const Case& one : cases) {
    const auto nccl = std::make_shared<SimulatedNccl>(one.world, /*greets=*/false);
    std::vector<RankOutcome> outcomes;
    const std::string why = train(one, plan_of(one), nccl, outcomes);
    EXPECT_NE(why.find("no rank can continue: rank 0 connects to issue receive from rank"), std::string::npos)
        << one.name << ": " << why;
  }
}

// Runs `body` on the ranks of one tensor group, all pairs of which may exchange messages. Returns the error, or "".
std::string run_group(int ranks, const std::function<void(const comm::Group&)>& body) {
  const auto nccl = std::make_shared<SimulatedNccl>(ranks);
  testing::ThreadWorld world = world_of({"group", {.tp = ranks}, ranks}, TrainingPlan(), nccl);
  world.messages = {{Axis::kTensor, comm::Messages::kAll}};
  return error_text(
      testing::run_world(world, [&](testing::ThreadRank& self) { body(self.mesh->group(Axis::kTensor)); }));
}

TEST(SimulatedNcclRules, MutualWaitIsDetectedAtOnce) {
  const std::string why = run_group(2, [](const comm::Group& pair) {
    at::Tensor mine = at::zeros({2});
    pair.recv(mine, 1 - pair.rank()).wait();
  });
  EXPECT_NE(why.find("rank 0 waits for receive from rank 1 of 8 bytes"), std::string::npos) << why;
  EXPECT_NE(why.find("rank 1 waits for receive from rank 0"), std::string::npos) << why;
}

// Makes ranks 0 and 1 swap two tensors. Other ranks do nothing.
void swap(const comm::Group& group, bool send_first) {
  if (group.rank() > 1) return;
  const int peer = 1 - group.rank();
  at::Tensor mine = at::full({2}, group.rank(), at::kFloat), theirs = at::zeros({2});
  comm::Pending sending, receiving;
  if (send_first) sending = group.send(mine, peer);
  receiving = group.recv(theirs, peer);
  if (!send_first) sending = group.send(mine, peer);
  receiving.wait(), sending.wait();
  EXPECT_EQ(theirs[0].item<double>(), peer);
}

// Among many ranks pairs share a communicator, so only matching calls can end. The code that swaps makes its calls
// match.
TEST(SimulatedNcclRules, SharedPairsNeedMatchingCalls) {
  EXPECT_EQ(run_group(2, [](const comm::Group& group) { swap(group, true); }), "") << "one communicator per direction";
  EXPECT_EQ(run_group(20, [](const comm::Group& group) { swap(group, group.rank() == 0); }), "");
  const std::string why = run_group(20, [](const comm::Group& group) { swap(group, true); });
  EXPECT_NE(why.find("rank 0 waits for receive from rank 1 of 8 bytes"), std::string::npos) << why;
}

// A channel delivers messages in the order of their issue, whatever their tags are.
TEST(SimulatedNcclRules, MessagesOfOneChannelKeepTheirOrder) {
  const std::string why = run_group(2, [](const comm::Group& pair) {
    at::Tensor few = at::zeros({2}), many = at::zeros({3});
    if (pair.rank() == 0) {
      comm::Pending one = pair.send(few, 1, /*tag=*/1), other = pair.send(many, 1, /*tag=*/2);
      one.wait(), other.wait();
    } else {
      comm::Pending other = pair.recv(many, 0, /*tag=*/2), one = pair.recv(few, 0, /*tag=*/1);
      other.wait(), one.wait();
    }
  });
  EXPECT_NE(why, "");
}

// Communicators get the limits of how much of a GPU a message may use while it is in flight, and of how much a
// collective may.
TEST(SimulatedNcclRules, CommunicatorsKnowTheirLimits) {
  const auto nccl = std::make_shared<SimulatedNccl>(4);
  const Case one{"limits", {.pp = 2, .dp_shard = 2}, 4};
  testing::ThreadWorld world = world_of(one, TrainingPlan(), nccl);
  world.max_ctas = 16;
  world.message_max_ctas = 3;
  ASSERT_EQ(error_text(testing::run_world(world, [](testing::ThreadRank&) {})), "");
  const auto plan = comm::comm_split_plan(
      comm::connection_plan(mesh::Mesh::create(one.degrees, 4).value(), testing::every_axis(), {}).connections);
  std::map<std::string, int> expected = {{"world", 16}};
  int messages = 0;
  for (size_t number = 0; number < plan.splits.size(); ++number) {
    const bool carries = plan.splits[number].carries != comm::Carries::kCollectives;
    messages += carries;
    expected[absl::StrCat("cut ", number)] = carries ? 3 : 16;
  }
  EXPECT_EQ(messages, 2);
  EXPECT_EQ(nccl->limits(), expected);
}

}  // namespace
}  // namespace titan::runtime
