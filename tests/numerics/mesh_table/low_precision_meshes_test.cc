// Every recipe of low precision trains alike on every mesh with the same microbatches.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/numerics/mesh_table/mesh_job.h"
#include "tests/numerics/small_models/small_specs.h"

namespace titan::testing {
namespace {

using config::JobConfig;
using Change = std::function<void(JobConfig&)>;

constexpr int64_t kGlobalBatch = 4, kSeqLen = 32;
// Relative limits for the losses of three steps. Scales are fp32 of fp64 numbers, so fp64 sums in another order move no
// number to another grid point. If a rank quantizes rows or blocks of its part, a few operands round differently in
// e4m3.
constexpr double kExact = 1e-10, kOwnRows = 2e-2;

Change recipe(const std::string& name) {
  return [name](JobConfig& config) {
    config.model.converters = {"quantize.linear.float8"};
    config.quantize.linear.float8.recipe_name = name;
    config.quantize.linear.float8.filter_fqns = {"output", "router.gate"};
  };
}
void float8_gather(JobConfig& config) { config.quantize.linear.float8.enable_fsdp_float8_all_gather = true; }
void precomputed(JobConfig& config) {
  float8_gather(config);
  config.quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp = true;
}
void head_too(JobConfig& config) { config.quantize.linear.float8.filter_fqns.clear(); }
void mx(JobConfig& config) { config.model.converters = {"quantize.linear.mx"}; }
void experts(JobConfig& config) {
  config.model.converters = {"quantize.grouped_mm.float8"};
  config.quantize.grouped_mm.float8.fqns = {"experts"};
}
void shard(JobConfig& config) { config.parallelism.data_parallel_shard_degree = 2; }
void replicate(JobConfig& config) { config.parallelism.data_parallel_replicate_degree = 2; }
void tensor(JobConfig& config) { config.parallelism.tensor_parallel_degree = 2; }
void async_tensor(JobConfig& config) {
  tensor(config);
  config.parallelism.enable_async_tensor_parallel = true;
}
void context(JobConfig& config) { config.parallelism.context_parallel_degree = 2; }
void pipeline_of_rows(JobConfig& config) {
  config.parallelism.pipeline_parallel_degree = 2;
  config.parallelism.pipeline_parallel_microbatch_size = 1;
}
void split_backward(JobConfig& config) {
  pipeline_of_rows(config);
  config.parallelism.pipeline_parallel_schedule = "ZBVZeroBubble";
}
void expert_ranks(JobConfig& config) {
  shard(config);
  config.parallelism.expert_parallel_degree = 2;
}
void recompute_all(JobConfig& config) { config.activation_checkpoint.mode = "full"; }
void recompute_some(JobConfig& config) {
  config.activation_checkpoint.mode = "selective";
  config.activation_checkpoint.selective_ac_option = "op";
}
void rows_one_by_one(JobConfig& config) { config.training.local_batch_size = 1; }

models::ModelSpec spec_of(const std::string& family) {
  models::ModelSpec spec = small_spec(family);
  spec.n_layers = 4;
  spec.n_kv_heads = spec.n_heads;  // A rank's part of every matrix has whole blocks of 32.
  if (spec.ffn_hidden > 0) spec.ffn_hidden = 64;
  return spec;
}

std::vector<RankRecord> train(const std::string& family, const std::vector<Change>& changes) {
  MeshJob job;
  job.spec = spec_of(family);
  job.global_batch = kGlobalBatch;
  job.steps = 3;
  JobConfig& config = job.config;
  config.training.seq_len = kSeqLen;
  config.training.dtype = "float64";
  config.training.mixed_precision_param = "float32";
  config.activation_checkpoint.mode = "none";
  config.parallelism.data_parallel_shard_degree = 1;
  config.training.local_batch_size = 0;
  for (const Change& change : changes) change(config);
  const config::ParallelismSection& degrees = config.parallelism;
  const int batch_ranks = degrees.data_parallel_replicate_degree * degrees.data_parallel_shard_degree;
  job.world =
      batch_ranks * degrees.tensor_parallel_degree * degrees.context_parallel_degree * degrees.pipeline_parallel_degree;
  config.resources.ranks = job.world;
  if (config.training.local_batch_size == 0) config.training.local_batch_size = kGlobalBatch / batch_ranks;
  return run_mesh_job(job);
}

// Returns the largest relative difference of a step's loss.
double difference(const RankRecord& a, const RankRecord& b) {
  double worst = 0;
  for (size_t step = 0; step < a.losses.size(); ++step) {
    const double one = std::abs(a.losses[step] / b.losses[step] - 1);
    worst = one <= worst ? worst : one;
  }
  return worst;
}

std::vector<Change> both(std::vector<Change> one, const std::vector<Change>& other) {
  one.insert(one.end(), other.begin(), other.end());
  return one;
}

void expect_alike(const std::vector<Change>& precision, const std::vector<std::vector<Change>>& meshes, double bound,
                  const std::vector<Change>& reference = {}, const std::string& family = "llama3") {
  const RankRecord one = train(family, both(precision, reference))[0];
  EXPECT_GT(difference(one, train(family, reference)[0]), 1e-9) << "low precision changes nothing";
  for (size_t i = 0; i < meshes.size(); ++i) {
    for (const RankRecord& rank : train(family, both(precision, meshes[i]))) {
      EXPECT_LE(difference(rank, one), bound) << "mesh " << i;
    }
  }
}

TEST(LowPrecisionMeshesTest, TensorwiseScalesAreTheSameOnEveryMesh) {
  expect_alike({recipe("tensorwise")},
               {{shard},
                {shard, replicate},
                {tensor},
                {async_tensor},
                {context},
                {shard, tensor},
                {shard, float8_gather},
                {shard, precomputed},
                {shard, async_tensor, precomputed},
                {shard, context, precomputed, recompute_all},
                {async_tensor, recompute_some},
                {tensor, recompute_some},
                {tensor, recompute_all},
                {shard, recompute_some}},
               kExact);
}

TEST(LowPrecisionMeshesTest, TensorwiseScalesAreTheSameInAPipeline) {
  expect_alike({recipe("tensorwise")},
               {{pipeline_of_rows}, {split_backward}, {pipeline_of_rows, tensor}, {split_backward, tensor}}, kExact,
               {rows_one_by_one});
}

// These are the meshes of torchtitan's own tests of float8: FSDP 2, asynchronous TP 2, PP 2; and HSDP 2x2, CP 2.
TEST(LowPrecisionMeshesTest, TorchtitansMeshesOfEightRanks) {
  expect_alike({recipe("tensorwise")}, {{shard, pipeline_of_rows, async_tensor, precomputed}}, kExact,
               {shard, pipeline_of_rows});
  expect_alike({recipe("tensorwise")}, {{shard, replicate, context, precomputed}}, kExact);
}

TEST(LowPrecisionMeshesTest, AHeadIsConvertedLikeAnyLayer) {
  expect_alike({recipe("tensorwise"), head_too}, {{shard, precomputed}, {tensor}, {async_tensor}}, kExact);
}

// Row scales of the forward pass and of the input's gradient depend only on the rank's own rows, if it has whole ones.
// With weight gradients in high precision no scale depends on other ranks.
TEST(LowPrecisionMeshesTest, RowsOfDataRanksHaveTheirOwnScales) {
  expect_alike({recipe("rowwise_with_gw_hp")}, {{shard}, {shard, replicate}, {context}, {shard, recompute_some}},
               kExact);
  expect_alike({recipe("rowwise")}, {{shard}, {tensor}, {async_tensor}, {context}}, kOwnRows);
  expect_alike({recipe("rowwise_with_gw_hp")}, {{tensor}, {async_tensor}}, kOwnRows);
}

// Every rank has whole blocks of 32 numbers, so it quantizes as one rank does.
TEST(LowPrecisionMeshesTest, MxBlocksAreTheSameOnEveryMesh) {
  expect_alike({mx}, {{shard}, {shard, replicate}, {tensor}, {async_tensor}, {shard, tensor}}, kExact);
  expect_alike({mx}, {{pipeline_of_rows}}, kExact, {rows_one_by_one});
}

TEST(LowPrecisionMeshesTest, ExpertsAreQuantizedOnEveryRank) {
  expect_alike({experts}, {{shard}, {expert_ranks}}, kOwnRows, {}, "deepseek_v3");
}

// Quantized weights are gathered as one byte per element instead of four (eight in this fp64 test).
TEST(LowPrecisionMeshesTest, Float8WeightsTravelAsBytes) {
  const auto gathered = [](const std::vector<Change>& changes) {
    return train("llama3", both({recipe("tensorwise"), shard}, changes))[0].traffic.at("fsdp/all_gather").bytes;
  };
  const int64_t wide = gathered({}), narrow = gathered({float8_gather});
  EXPECT_LT(narrow, wide / 2);
  EXPECT_GT(narrow, wide / 8);  // The embedding, the head and norms are not quantized.
  EXPECT_EQ(gathered({precomputed}), narrow);
}

// With one scale per tensor, the inputs and the output gradients of sub-blocks are gathered as bytes, here instead of
// eight bytes per element. The embedding and the head are not quantized.
TEST(LowPrecisionMeshesTest, TensorRanksGatherBytes) {
  const auto gathered = [](const std::vector<Change>& changes) {
    return train("llama3", both({tensor}, changes))[0].traffic.at("tp/all_gather").bytes;
  };
  const int64_t wide = gathered({}), narrow = gathered({recipe("tensorwise")});
  const int64_t one = wide / 18;  // Two per pass and layer, the head's, the embedding gradient's.
  EXPECT_EQ(narrow, 16 * one / 8 + 2 * one);
  EXPECT_EQ(gathered({recipe("rowwise")}), wide);
}

}  // namespace
}  // namespace titan::testing
