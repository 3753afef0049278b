// Tests mixed precision in bfloat16 on every kind of mesh, by LibTorch's operations and by every level of Titan's
// kernels that the machine has. A mesh rounds at other places than one rank, so their bits differ. The allowed
// difference is derived from the distance of one rank itself from float64 with the same weights.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/numerics/mesh_table/mesh_job.h"
#include "tests/numerics/small_models/small_specs.h"
#include "tests/worker/rank/comm/interposed_backend.h"
#include "worker/rank/kernels/choice.h"

namespace titan::testing {
namespace {

// Limits of a mesh's error divided by one rank's, as docs/golden.md defines them for Titan and an oracle.
constexpr double kOwn = 1.25, kWorst = 1.5;
constexpr double kSpread = 2;  // Margin of a gradient's limit, times the square root of its element count: errors of
                               // few elements vary more.
constexpr int64_t kFew = 64;   // A gradient with fewer elements has a random error: it counts only in the median.
constexpr double kGain = 5;    // Factor on matrices: with plain initial values attention hides errors.
constexpr char kReference[] = "reference";  // The kernels that run first.
constexpr double kUnit = 0x1p-9;            // Largest relative error of one rounding.

// Returns the distance of two independent errors, one rank's of 1 and a mesh's of `own`. Roundings that both share only
// reduce it.
double apart(double own) { return std::sqrt(1 + own * own); }

double rms(const at::Tensor& value) { return std::sqrt(value.to(at::kDouble).square().mean().item<double>()); }
double rms(const at::Tensor& a, const at::Tensor& b) { return rms(a.to(at::kDouble) - b.to(at::kDouble)); }

struct Outcome {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // Whole gradients, not shards.
};

// Joins the ranks' pieces. A piece that several ranks hold must be equal in all of them.
Outcome run(const MeshJob& job) {
  const std::vector<RankRecord> world = run_mesh_job(job);
  Outcome joined{world[0].losses[0], {}};
  std::map<std::string, std::vector<int64_t>> shapes;
  for (const RankRecord& rank : world) {
    EXPECT_EQ(rank.losses[0], joined.loss);
    for (const auto& [fqn, piece] : rank.gradients) {
      std::vector<int64_t>& shape = shapes[fqn];
      shape.resize(piece.offset.size());
      for (size_t d = 0; d < shape.size(); ++d) {
        shape[d] = std::max(shape[d], piece.offset[d] + piece.value.size(static_cast<int64_t>(d)));
      }
    }
  }
  for (const auto& [fqn, shape] : shapes) joined.gradients[fqn] = at::full(shape, NAN, at::kDouble);
  for (const RankRecord& rank : world) {
    for (const auto& [fqn, piece] : rank.gradients) {
      at::Tensor place = joined.gradients.at(fqn);
      for (size_t d = 0; d < piece.offset.size(); ++d) {
        const auto dim = static_cast<int64_t>(d);
        place = place.narrow(dim, piece.offset[d], piece.value.size(dim));
      }
      if (place.numel() == 0) continue;
      EXPECT_TRUE(place.isnan().all().item<bool>() || place.equal(piece.value.to(at::kDouble))) << fqn;
      place.copy_(piece.value);
    }
  }
  return joined;
}

// Results of one rank for a job, in float64 and in bfloat16.
struct OneRank {
  Outcome exact, rounded;
};

// Distances divided by their limits: 1 is the limit.
struct Distance {
  double loss = 0, median = 0, worst = 0;                             // Distance of the mesh from float64.
  double loss_distance = 0, median_distance = 0, worst_distance = 0;  // Distance of the mesh from one rank in bfloat16.
  std::string of;                                                     // Parameter with the worst gradient.

  double largest() const { return std::max({loss, median, worst, loss_distance, median_distance, worst_distance}); }
};

double median(std::vector<double> all) {
  std::nth_element(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(all.size() / 2), all.end());
  return all[all.size() / 2];
}

Distance compare(const OneRank& one, const Outcome& mesh, int64_t tokens) {
  Distance distance;
  std::vector<double> own, between;
  for (const auto& [fqn, exact] : one.exact.gradients) {
    const at::Tensor& rounded = one.rounded.gradients.at(fqn);
    const at::Tensor& got = mesh.gradients.at(fqn);
    const double error = rms(rounded, exact);
    own.push_back(rms(got, exact) / error);
    between.push_back(rms(got, rounded) / error);
    if (exact.numel() < kFew) continue;
    const double allowed = 1 + kSpread / std::sqrt(static_cast<double>(exact.numel()));
    const double far = own.back() / allowed / kWorst, far_apart = between.back() / allowed / apart(kWorst);
    if (!(std::max(far, far_apart) <= std::max(distance.worst, distance.worst_distance))) distance.of = fqn;
    if (!(far <= distance.worst)) distance.worst = far;  // NaN counts as the largest.
    if (!(far_apart <= distance.worst_distance)) distance.worst_distance = far_apart;
  }
  distance.median = median(own) / kOwn;
  distance.median_distance = median(between) / apart(kOwn);
  // A single number may happen to be exact, so the error has a floor. A token's loss has at least the error of the last
  // rounding of its logits; the error of the mean of n tokens is that divided by sqrt(n).
  const double floor = kUnit * std::abs(one.exact.loss) / std::sqrt(static_cast<double>(tokens));
  const double error = std::abs(one.rounded.loss - one.exact.loss) + floor;
  distance.loss = std::abs(mesh.loss - one.exact.loss) / error / kOwn;
  distance.loss_distance = std::abs(mesh.loss - one.rounded.loss) / error / apart(kOwn);
  return distance;
}

bool same_bits(const Outcome& a, const Outcome& b) {
  return std::equal(a.gradients.begin(), a.gradients.end(), b.gradients.begin(), b.gradients.end(),
                    [](const auto& one, const auto& other) { return one.second.equal(other.second); });
}

struct Case {
  std::string name, family;
  int world = 2;
  std::function<void(config::ParallelismSection&)> split;
  const char* damaged = "reduce_scatter";  // The operation that is damaged to see whether the test notices.
};

const std::vector<Case>& cases() {
  using P = config::ParallelismSection;
  const auto pipeline = [](const char* schedule) {
    return [schedule](P& p) {
      p.pipeline_parallel_degree = 2;
      p.pipeline_parallel_schedule = schedule;
    };
  };
  const auto experts = [](P& p) { p.data_parallel_shard_degree = p.expert_parallel_degree = 2; };
  static const auto& all = *new std::vector<Case>{
      {"Fsdp2", "llama3", 2, [](P& p) { p.data_parallel_shard_degree = 2; }},
      {"Hsdp2x2", "llama3", 4, [](P& p) { p.data_parallel_shard_degree = p.data_parallel_replicate_degree = 2; },
       "all_reduce"},
      {"Tp2", "llama3", 2, [](P& p) { p.tensor_parallel_degree = 2; }},
      {"Tp2WholeSequence", "llama3", 2,
       [](P& p) {
         p.tensor_parallel_degree = 2;
         p.enable_sequence_parallel = false;
       },
       "all_reduce"},
      {"Cp2", "llama3", 2, [](P& p) { p.context_parallel_degree = 2; }},
      {"Cp2Ring", "llama3_packed", 2,
       [](P& p) {
         p.context_parallel_degree = 2;
         p.context_parallel_rotate_method = "alltoall";
       },
       "send"},
      {"Pp2_1F1B", "llama3", 2, pipeline("1F1B"), "send"},
      {"Pp2_Zbv", "llama3", 2, pipeline("ZBVZeroBubble"), "send"},
      {"Ep2Qwen3", "qwen3_moe", 2, experts, "all_to_all"},
      {"Ep2DeepSeekV3", "deepseek_v3", 2, experts, "all_to_all"},
      {"Ep2GptOss", "gpt_oss", 2, experts, "all_to_all"},
  };
  return all;
}

// Returns a spec whose rows fill several vectors of each level of kernels.
models::ModelSpec spec_of(const std::string& family) {
  models::ModelSpec spec = small_spec(family);
  spec.dim = 64;
  if (spec.ffn_hidden > 0) spec.ffn_hidden = 96;
  if (spec.moe) spec.moe->hidden = 32;
  return spec;
}

MeshJob job_of(const Case& one) {
  MeshJob job;
  job.spec = spec_of(one.family);
  job.world = one.world;
  job.steps = 1;
  config::JobConfig& config = job.config;
  config.training.seq_len = 32;
  config.activation_checkpoint.mode = "none";
  config.resources.ranks = one.world;
  // Experts are assigned in turn, because rounding in bfloat16 would sometimes choose other experts on any mesh.
  config.debug.moe_force_load_balance = job.spec.moe.has_value();
  one.split(config.parallelism);
  config.training.local_batch_size = job.global_batch / (std::max(1, config.parallelism.data_parallel_shard_degree) *
                                                         config.parallelism.data_parallel_replicate_degree);
  // Weights start as numbers that bfloat16 holds exactly, so that the error of their cast does not hide other errors.
  job.start_from = [](at::Tensor& value) { value.mul_(value.dim() > 1 ? kGain : 1).copy_(value.to(at::kBFloat16)); };
  return job;
}

MeshJob in(const char* precision, MeshJob job) {
  const bool rounded = std::strcmp(precision, "bfloat16") == 0;
  job.config.training.dtype = rounded ? "float32" : precision;
  job.config.training.mixed_precision_param = rounded ? precision : "float32";
  return job;
}

MeshJob on_one_rank(const Case& one) {
  MeshJob job = job_of(one);
  job.world = job.config.resources.ranks = 1;
  job.config.parallelism = {};
  job.config.training.local_batch_size = job.global_batch;
  return job;
}

const OneRank& one_rank(const Case& one, const std::string& kernels) {
  static auto& exact = *new std::map<std::string, Outcome>;
  static auto& known = *new std::map<std::string, OneRank>;
  if (exact.count(one.family) == 0) exact[one.family] = run(in("float64", on_one_rank(one)));
  const std::string key = absl::StrCat(one.family, " ", kernels);
  if (known.count(key) == 0) known[key] = {exact[one.family], run(in("bfloat16", on_one_rank(one)))};
  return known[key];
}

constexpr int64_t kTokens = 8 * 32;

std::string describe(const Distance& d) {
  return absl::StrCat("of what is allowed: loss ", d.loss, " (", d.loss_distance, " from one rank), gradients' median ",
                      d.median, " (", d.median_distance, "), worst ", d.worst, " (", d.worst_distance, "), ", d.of);
}

class Bfloat16MeshTest : public ::testing::TestWithParam<Case> {
 protected:
  ~Bfloat16MeshTest() override { kernels::choose(kReference); }
};

TEST_P(Bfloat16MeshTest, IsAsAccurateAsOneRankWithEveryKernel) {
  for (const std::string kernels : {kReference, "avx2", "avx512", "avx512bf16", "amx"}) {
    if (!kernels::choose(kernels)) continue;
    SCOPED_TRACE(absl::StrCat("kernels: ", kernels));
    const OneRank& one = one_rank(GetParam(), kernels);
    EXPECT_EQ(same_bits(one.rounded, one_rank(GetParam(), kReference).rounded), kernels == kReference)
        << "these kernels have computed nothing";
    const Distance distance = compare(one, run(in("bfloat16", job_of(GetParam()))), kTokens);
    std::cout << GetParam().name << ", " << kernels << ", " << describe(distance) << std::endl;
    EXPECT_LE(distance.largest(), 1) << describe(distance);
  }
}

// Multiplies the second rank's part of one operation of a step by `factor`.
class DamagedBackend : public InterposedBackend {
 public:
  DamagedBackend(c10::intrusive_ptr<c10d::Backend> inner, std::string operation, double factor,
                 std::shared_ptr<std::vector<at::Tensor>> damaged)
      : InterposedBackend(std::move(inner)),
        operation_(std::move(operation)),
        factor_(factor),
        damaged_(std::move(damaged)) {}

 protected:
  WorkPtr interpose(const InterposedCall& call) override {
    // Operations without inputs reduce in place.
    const Tensors& operands = call.inputs.empty() ? call.outputs : call.inputs;
    const bool meant = operation_ == call.operation && damaged_->empty() && operands[0].is_floating_point() &&
                       operands[0].nbytes() >= kMinBytes;
    if (!meant) return call.issue(call.inputs, call.outputs);
    damaged_->push_back(call.inputs.empty() ? operands[0].mul_(factor_) : operands[0] * factor_);
    if (call.inputs.empty()) return call.issue({}, *damaged_);
    return call.issue(*damaged_, call.outputs);
  }

 private:
  static constexpr size_t kMinBytes = 1024;  // Selects activations and gradients, not single numbers such as the loss.

  const std::string operation_;
  const double factor_;
  const std::shared_ptr<std::vector<at::Tensor>> damaged_;  // Shared by all groups of the rank: at most one tensor.
};

class DamagedDevice : public ForwardingDevice {
 public:
  DamagedDevice(std::unique_ptr<device::Device> inner, std::string operation, double factor,
                std::shared_ptr<std::vector<at::Tensor>> damaged)
      : ForwardingDevice(std::move(inner)),
        operation_(std::move(operation)),
        factor_(factor),
        damaged_(std::move(damaged)) {}

  c10::intrusive_ptr<c10d::Backend> make_backend(const device::BackendOptions& options) override {
    return c10::make_intrusive<DamagedBackend>(inner_->make_backend(options), operation_, factor_, damaged_);
  }

 private:
  const std::string operation_;
  const double factor_;
  const std::shared_ptr<std::vector<at::Tensor>> damaged_;
};

// The test of the test: if one operation of one rank is lost, or an eighth too large, the errors exceed the limits.
TEST_P(Bfloat16MeshTest, DetectsOneWrongExchange) {
  kernels::choose("auto");
  const OneRank& one = one_rank(GetParam(), "auto");
  for (const double factor : {0.0, 1.125}) {
    SCOPED_TRACE(absl::StrCat(GetParam().damaged, " times ", factor));
    const auto damaged = std::make_shared<std::vector<at::Tensor>>();
    MeshJob job = in("bfloat16", job_of(GetParam()));
    job.device = [&](int rank, std::unique_ptr<device::Device> device) -> std::unique_ptr<device::Device> {
      if (rank != 1) return device;
      return std::make_unique<DamagedDevice>(std::move(device), GetParam().damaged, factor, damaged);
    };
    const Distance distance = compare(one, run(job), kTokens);
    ASSERT_EQ(damaged->size(), 1U) << "no such operation";
    std::cout << GetParam().name << ", damaged by " << factor << ", " << describe(distance) << std::endl;
    EXPECT_GT(distance.largest(), 1) << describe(distance);
  }
}

std::string name_of(const ::testing::TestParamInfo<Case>& info) { return info.param.name; }
INSTANTIATE_TEST_SUITE_P(Meshes, Bfloat16MeshTest, ::testing::ValuesIn(cases()), name_of);

}  // namespace
}  // namespace titan::testing
