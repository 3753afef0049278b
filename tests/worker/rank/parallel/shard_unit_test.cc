#include "worker/rank/parallel/shard_unit.h"

#include <ATen/CPUGeneratorImpl.h>
#include <gtest/gtest.h>

#include <atomic>

#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/comm/thread_ranks.h"

namespace titan::parallel {
namespace {

using mesh::Axis;

// Returns parameters whose rows do not divide by the ranks, and one with fewer rows than ranks.
std::deque<nn::Parameter> uneven_parameters() {
  std::deque<nn::Parameter> parameters;
  parameters.push_back({"matrix", {5, 3}, {}, {}});
  parameters.push_back({"vector", {7}, {}, {}});
  parameters.push_back({"short", {2, 2}, {}, {}});
  return parameters;
}

std::vector<nn::Parameter*> pointers(std::deque<nn::Parameter>& parameters) {
  std::vector<nn::Parameter*> all;
  for (nn::Parameter& parameter : parameters) all.push_back(&parameter);
  return all;
}

at::Tensor counted(const nn::Parameter& parameter, double start) {
  int64_t numel = 1;
  for (const int64_t size : parameter.shape) numel *= size;
  return (at::arange(numel) + start).to(at::kFloat).view(parameter.shape);
}

// A rank holds its chunk of torch.chunk, and gathering joins the chunks again, whatever the sizes are.
TEST(ShardUnitTest, UnevenRowsAreChunkedAndGathered) {
  for (const int world : {1, 2, 3, 4}) {
    testing::run_ranks({}, world, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
      auto parameters = uneven_parameters();
      ShardUnit unit("unit", pointers(parameters),
                     {.shard_group = &self.mesh->group(Axis::kFsdp), .device = self.device.get()});
      for (ShardedParameter& placed : unit.parameters()) {
        const at::Tensor full = counted(*placed.parameter, 1);
        const auto chunks = full.chunk(world, 0);
        const int64_t expected = self.rank < static_cast<int>(chunks.size()) ? chunks[self.rank].size(0) : 0;
        ASSERT_EQ(placed.rows, expected) << placed.parameter->fqn;
        if (expected > 0) placed.value.copy_(chunks[self.rank]);
      }
      unit.unshard();
      for (nn::Parameter& parameter : parameters) {
        EXPECT_TRUE(parameter.weight.equal(counted(parameter, 1))) << parameter.fqn;
      }
    });
  }
}

// Gathers one byte per element, as low precision does: e4m3, with a scale for each parameter that all ranks know.
class EightBits final : public GatherRecipe {
 public:
  static float scale(const nn::Parameter& parameter) { return parameter.fqn == "matrix" ? 0.25F : 0.5F; }

  at::ScalarType type(const Precision& /*precision*/) const override { return at::kFloat8_e4m3fn; }
  void pack(const at::Tensor& master, const std::vector<ShardedParameter>& parameters,
            at::Tensor& piece) const override {
    for (const ShardedParameter& placed : parameters) {
      const int64_t size = placed.chunk_rows * placed.row_numel;
      piece.narrow(0, placed.offset, size).copy_(master.narrow(0, placed.offset, size) / scale(*placed.parameter));
    }
  }
  at::Tensor scales(const nn::Parameter& parameter) const override { return at::full({1}, scale(parameter)); }
};

// Weights may be gathered quantized, whatever the layout of the shards: one parameter and several, cut along either
// dim, with and without padding. Their leaves then have no memory, and the traffic is one byte per element.
TEST(ShardUnitTest, WeightsMayArriveQuantised) {
  const EightBits recipe;
  for (const int world : {1, 2, 3, 4}) {
    testing::run_ranks({}, world, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
      for (const std::vector<std::vector<int64_t>>& shapes :
           {std::vector<std::vector<int64_t>>{{5, 3}, {7}, {2, 2}}, {{8, 3}}, {{5, 3}}, {{4, 8}, {12, 4}}}) {
        for (const int64_t dim : {0, 1}) {
          std::deque<nn::Parameter> parameters;
          for (const auto& shape : shapes)
            parameters.push_back({parameters.empty() ? "matrix" : "more", shape, {}, {}});
          if (dim == 1 && shapes[1 % shapes.size()].size() < 2) continue;
          ShardUnit unit("unit", pointers(parameters),
                         {.shard_group = &self.mesh->group(Axis::kFsdp),
                          .device = self.device.get(),
                          .precision = {.param = at::kBFloat16},
                          .gather = &recipe,
                          .dim = dim});
          for (ShardedParameter& placed : unit.parameters()) {
            if (placed.rows > 0) placed.value.copy_(placed.piece_of(counted(*placed.parameter, 0.3)));
          }
          for (int repeat = 0; repeat < 2; ++repeat) {
            const auto before = self.ledger.counts();
            unit.unshard();
            const auto traffic = comm::subtract(self.ledger.counts(), before);
            const int64_t bytes = world > 1 ? traffic.at("fsdp/all_gather").bytes : unit.gather_bytes();
            EXPECT_EQ(bytes, unit.gather_bytes());
            for (const nn::Parameter& parameter : parameters) {
              const at::Tensor truth = (counted(parameter, 0.3) / EightBits::scale(parameter)).to(at::kFloat8_e4m3fn);
              EXPECT_TRUE(parameter.arrived.values.to(at::kFloat).equal(truth.to(at::kFloat))) << parameter.fqn;
              EXPECT_EQ(parameter.arrived.scales.item<float>(), EightBits::scale(parameter));
              EXPECT_EQ(parameter.weight.storage().nbytes(), 0U);
              EXPECT_EQ(parameter.weight.scalar_type(), at::kBFloat16);
            }
            unit.reshard();
            EXPECT_EQ(parameters[0].arrived.values.storage().nbytes(), 0U);
          }
          int64_t shard = 0;
          for (const ShardedParameter& placed : unit.parameters()) shard += placed.chunk_rows * placed.row_numel;
          EXPECT_EQ(unit.gather_bytes(), world * shard);
        }
      }
    });
  }
}

// Besides the gathered buffer and the weights, a gather allocates nothing of a shard's size: the cast writes into the
// buffer.
TEST(ShardUnitTest, CastsIntoTheGatheredBuffer) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    testing::AllocationMeter meter;
    std::deque<nn::Parameter> parameters;
    for (const char* name : {"one", "other"}) parameters.push_back({name, {64, 256}, {}, {}});
    ShardUnit unit("unit", pointers(parameters),
                   {.shard_group = &self.mesh->group(Axis::kFsdp),
                    .device = self.device.get(),
                    .precision = {.param = at::kBFloat16}});
    for (ShardedParameter& placed : unit.parameters())
      placed.value.copy_(placed.piece_of(counted(*placed.parameter, 1)));
    const testing::AllocationMeter::Scope scope(meter);
    const int64_t before = meter.begin();
    unit.begin_unshard();
    EXPECT_LT(meter.highest() - before, unit.gather_bytes() * 5 / 4);
    unit.unshard();
    for (const nn::Parameter& parameter : parameters) {
      EXPECT_TRUE(parameter.weight.equal(counted(parameter, 1).to(at::kBFloat16)));
    }
  });
}

// A single parameter is gathered into its own storage, including the padding, and nothing else is allocated for it.
TEST(ShardUnitTest, OneUnevenParameterIsGatheredInPlace) {
  testing::run_ranks({}, 4, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
    for (const int64_t rows : {5, 2, 8}) {
      nn::Parameter parameter{"matrix", {rows, 3}, {}, {}};
      ShardUnit unit("unit", {&parameter},
                     {.shard_group = &self.mesh->group(Axis::kFsdp), .device = self.device.get()});
      const ShardedParameter& placed = unit.parameters()[0];
      const at::Tensor full = counted(parameter, 1);
      if (placed.rows > 0) placed.value.copy_(full.narrow(0, placed.first_row, placed.rows));
      for (int repeat = 0; repeat < 2; ++repeat) {
        unit.unshard();
        EXPECT_TRUE(parameter.weight.equal(full)) << rows;
        EXPECT_EQ(static_cast<int64_t>(parameter.weight.storage().nbytes()), unit.gather_bytes());
        unit.reshard();
        EXPECT_EQ(parameter.weight.storage().nbytes(), 0U);
      }
    }
  });
}

// Gradients are summed over ranks and microbatches into the shard. A gradient that a graph did not produce counts as
// zero.
TEST(ShardUnitTest, ReducesAndAccumulates) {
  testing::run_ranks(
      {.dp_replicate = 2, .dp_shard = 2}, 4, {Axis::kFsdp, Axis::kReplicate}, [](testing::ThreadRank& self) {
        auto parameters = uneven_parameters();
        ShardUnit unit("unit", pointers(parameters),
                       {.shard_group = &self.mesh->group(Axis::kFsdp),
                        .replicate_group = &self.mesh->group(Axis::kReplicate),
                        .device = self.device.get()});
        for (int step = 0; step < 2; ++step) {
          unit.reset_gradients();
          for (const bool last : {false, true}) {
            std::vector<at::Tensor> gradients;
            for (nn::Parameter& parameter : parameters) gradients.push_back(counted(parameter, self.rank));
            gradients[2].reset();
            unit.begin_reduce(std::move(gradients), last);
            unit.finish_reduce();
          }
          unit.finish_gradients();
          for (ShardedParameter& placed : unit.parameters()) {
            if (placed.rows == 0) continue;
            at::Tensor full = 8 * counted(*placed.parameter, 0) + 2 * (0 + 1 + 2 + 3);
            if (placed.parameter->fqn == "short") full.zero_();
            EXPECT_TRUE(placed.grad.equal(full.narrow(0, placed.first_row, placed.rows))) << placed.parameter->fqn;
          }
        }
      });
}

// A parameter may be cut along its second dim: pieces, gradients and weights equal those computed by hand.
TEST(ShardUnitTest, CutsTheSecondDim) {
  for (const int world : {2, 3, 4}) {
    testing::run_ranks({}, world, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
      std::deque<nn::Parameter> parameters;
      parameters.push_back({"experts", {2, 5, 3}, {}, {}});
      parameters.push_back({"biases", {2, 8}, {}, {}});
      ShardUnit unit("unit", pointers(parameters),
                     {.shard_group = &self.mesh->group(Axis::kFsdp), .device = self.device.get(), .dim = 1});
      for (ShardedParameter& placed : unit.parameters()) {
        placed.value.copy_(placed.piece_of(counted(*placed.parameter, 1)));
      }
      unit.unshard();
      std::vector<at::Tensor> gradients;
      for (nn::Parameter& parameter : parameters) {
        EXPECT_TRUE(parameter.weight.equal(counted(parameter, 1))) << parameter.fqn;
        gradients.push_back(counted(parameter, self.rank));
      }
      unit.begin_reduce(std::move(gradients), /*last=*/true);
      unit.finish_gradients();
      for (ShardedParameter& placed : unit.parameters()) {
        const at::Tensor sum = world * counted(*placed.parameter, 0) + world * (world - 1) / 2;
        EXPECT_TRUE(placed.grad.equal(placed.piece_of(sum))) << placed.parameter->fqn;
      }
    });
  }
}

// Partial gradients are summed over the tensor axis once per step; whole and split ones are not. One of the ranks that
// hold the same piece counts it.
TEST(ShardUnitTest, SumsPartialGradientsOverTheTensorAxis) {
  testing::run_ranks({.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8, {Axis::kFsdp, Axis::kReplicate, Axis::kTensor},
                     [](testing::ThreadRank& self) {
                       std::deque<nn::Parameter> parameters;
                       for (const char* name : {"whole", "partial", "split", "partial_too"}) {
                         parameters.push_back({name, {5, 3}, {}, {}});
                       }
                       parameters[1].on_tensor_axis = parameters[3].on_tensor_axis = nn::TensorAxisPlacement::kPartial;
                       parameters[2].on_tensor_axis = nn::TensorAxisPlacement::kShard;
                       ShardUnit unit("unit", pointers(parameters),
                                      {.shard_group = &self.mesh->group(Axis::kFsdp),
                                       .replicate_group = &self.mesh->group(Axis::kReplicate),
                                       .tensor_group = &self.mesh->group(Axis::kTensor),
                                       .device = self.device.get()});
                       const auto before = self.ledger.counts();
                       for (const bool last : {false, true}) {
                         std::vector<at::Tensor> gradients;
                         for (nn::Parameter& one : parameters) gradients.push_back(counted(one, self.rank));
                         unit.begin_reduce(std::move(gradients), last);
                         unit.finish_reduce();
                       }
                       unit.finish_gradients();
                       EXPECT_EQ(comm::subtract(self.ledger.counts(), before).at("tp/all_reduce").calls, 1);
                       const int tensor = self.mesh->group(Axis::kTensor).rank();
                       const bool leader = self.mesh->group(Axis::kReplicate).rank() == 0;
                       for (ShardedParameter& placed : unit.parameters()) {
                         // Each rank 2 * i + tensor, with i from 0 to 3, contributes counted() + rank in each of two
                         // microbatches.
                         const at::Tensor numbers = counted(*placed.parameter, 0);
                         const bool partial = placed.parameter->on_tensor_axis == nn::TensorAxisPlacement::kPartial;
                         const at::Tensor sum = partial ? 16 * numbers + 2 * 28 : 8 * numbers + 2 * (12 + 4 * tensor);
                         EXPECT_TRUE(placed.grad.equal(placed.piece_of(sum))) << placed.parameter->fqn;
                         const bool split = placed.parameter->on_tensor_axis == nn::TensorAxisPlacement::kShard;
                         EXPECT_EQ(placed.primary, leader && (split || tensor == 0)) << placed.parameter->fqn;
                       }
                     });
}

// Draws the gradients of one rank and microbatch, the same on every rank.
std::vector<at::Tensor> drawn_gradients(const std::deque<nn::Parameter>& parameters, int rank, int microbatch,
                                        at::ScalarType type) {
  at::Generator generator = at::detail::createCPUGenerator(static_cast<uint64_t>(100 * microbatch + rank + 1));
  std::vector<at::Tensor> all;
  for (const nn::Parameter& one : parameters) {
    all.push_back(at::randn(one.shape, generator).to(type));
  }
  return all;
}

struct Axes {
  mesh::Degrees degrees;
  int world;
};

// With bfloat16 shards, gradients are summed over microbatches, shards, tensor ranks and replicas in the wire's fp32
// and rounded once, so the bits are those of a sum in fp64. Rounding before the sum over replicas would be visible.
TEST(ShardUnitTest, RoundsTheFullSumOnce) {
  for (const Axes& axes : {Axes{{.dp_shard = 1}, 1}, Axes{{.dp_shard = 2}, 2},
                           Axes{{.dp_replicate = 2, .dp_shard = 1}, 2}, Axes{{.dp_replicate = 2, .dp_shard = 2}, 4},
                           Axes{{.dp_shard = 2, .tp = 2}, 4}, Axes{{.dp_replicate = 2, .dp_shard = 2, .tp = 2}, 8}}) {
    for (const bool unsharded : {false, true}) {
      for (const bool offload : {false, true}) {
        std::atomic<int64_t> early = 0;  // Elements that rounding elsewhere would change.
        testing::run_ranks(
            axes.degrees, axes.world, {Axis::kFsdp, Axis::kReplicate, Axis::kTensor}, [&](testing::ThreadRank& self) {
              auto parameters = uneven_parameters();
              parameters[1].on_tensor_axis = nn::TensorAxisPlacement::kPartial;
              ShardUnit unit("unit", pointers(parameters),
                             {.shard_group = &self.mesh->group(Axis::kFsdp),
                              .replicate_group = &self.mesh->group(Axis::kReplicate),
                              .tensor_group = &self.mesh->group(Axis::kTensor),
                              .device = self.device.get(),
                              .precision = {.master = at::kBFloat16, .param = at::kBFloat16, .reduce = at::kFloat},
                              .offload = offload});
              constexpr int kMicrobatches = 3;
              for (int step = 0; step < 2; ++step) {
                unit.reset_gradients();
                for (int i = 0; i < kMicrobatches; ++i) {
                  auto gradients = drawn_gradients(parameters, self.rank, i, at::kBFloat16);
                  const bool last = i + 1 == kMicrobatches;
                  if (unsharded && !last) {
                    unit.add_gradients(std::move(gradients));
                  } else {
                    unit.begin_reduce(std::move(gradients), last);
                    unit.finish_reduce();
                  }
                }
                unit.finish_gradients();
                EXPECT_TRUE(unit.complete());
              }
              const mesh::Coordinate mine = self.mesh->mesh().coordinate(self.rank);
              for (size_t p = 0; p < parameters.size(); ++p) {
                ShardedParameter& placed = unit.parameters()[p];
                if (placed.rows == 0) continue;
                at::Tensor sum = at::zeros(parameters[p].shape, at::kDouble), rounded = sum.to(at::kBFloat16);
                for (int rank = 0; rank < axes.world; ++rank) {
                  const bool partial = parameters[p].on_tensor_axis == nn::TensorAxisPlacement::kPartial;
                  if (!partial && self.mesh->mesh().coordinate(rank).tp != mine.tp) continue;
                  for (int i = 0; i < kMicrobatches; ++i) {
                    const at::Tensor one = drawn_gradients(parameters, rank, i, at::kBFloat16)[p];
                    sum += one.to(at::kDouble);
                    rounded += one;
                  }
                }
                EXPECT_TRUE(placed.grad.equal(placed.piece_of(sum.to(at::kBFloat16)))) << placed.parameter->fqn;
                early += placed.piece_of(rounded.ne(sum.to(at::kBFloat16))).sum().item<int64_t>();
              }
            });
        EXPECT_GT(early.load(), 0) << axes.world;
      }
    }
  }
}

// Shards whose type is the wire's or wider are summed in their own type: each microbatch over the shard axis, then one
// microbatch after the other, then the replicas.
TEST(ShardUnitTest, SumsOfOneTypeKeepTheirOrder) {
  for (const at::ScalarType wire : {at::kFloat, at::kBFloat16}) {
    testing::run_ranks(
        {.dp_replicate = 2, .dp_shard = 2}, 4, {Axis::kFsdp, Axis::kReplicate}, [&](testing::ThreadRank& self) {
          auto parameters = uneven_parameters();
          ShardUnit unit("unit", pointers(parameters),
                         {.shard_group = &self.mesh->group(Axis::kFsdp),
                          .replicate_group = &self.mesh->group(Axis::kReplicate),
                          .device = self.device.get(),
                          .precision = {.master = at::kFloat, .param = at::kFloat, .reduce = wire}});
          const auto drawn = [&](int rank, int microbatch, size_t p) {
            return drawn_gradients(parameters, rank, microbatch, at::kFloat)[p];
          };
          for (const int microbatch : {0, 1}) {
            std::vector<at::Tensor> gradients;
            for (size_t p = 0; p < parameters.size(); ++p) gradients.push_back(drawn(self.rank, microbatch, p));
            unit.begin_reduce(std::move(gradients), /*last=*/microbatch == 1);
            unit.finish_reduce();
          }
          unit.finish_gradients();
          for (size_t p = 0; p < parameters.size(); ++p) {
            ShardedParameter& placed = unit.parameters()[p];
            if (placed.rows == 0) continue;
            const auto of_replica = [&](int replica) {
              const auto of_microbatch = [&](int i) {
                return (drawn(2 * replica, i, p).to(wire) + drawn(2 * replica + 1, i, p).to(wire)).to(at::kFloat);
              };
              return (of_microbatch(0) + of_microbatch(1)).to(wire);
            };
            const at::Tensor sum = (of_replica(0) + of_replica(1)).to(at::kFloat);
            EXPECT_TRUE(placed.grad.equal(placed.piece_of(sum))) << placed.parameter->fqn << " " << wire;
          }
        });
  }
}

// Gradients that are added unsharded (of pipeline microbatches, or of a parameter that two blocks read) are reduced
// once, with the last one.
TEST(ShardUnitTest, ReducesAddedGradientsOnce) {
  for (const int world : {1, 2}) {
    testing::run_ranks({}, world, {Axis::kFsdp}, [&](testing::ThreadRank& self) {
      for (const bool shared : {false, true}) {
        auto parameters = uneven_parameters();
        ShardUnit unit("unit", pointers(parameters),
                       {.shard_group = &self.mesh->group(Axis::kFsdp), .device = self.device.get()});
        if (shared) unit.share(Reshard::kAfterForward);
        const auto gradients = [&](double start) {
          std::vector<at::Tensor> all;
          for (nn::Parameter& one : parameters) all.push_back(counted(one, start));
          return all;
        };
        const auto before = self.ledger.counts();
        if (shared) {
          unit.begin_reduce(gradients(1), /*last=*/true);
          unit.finish_reduce();
        } else {
          unit.add_gradients(gradients(0));
          unit.add_gradients(gradients(1));
        }
        unit.begin_reduce(gradients(2), /*last=*/true);
        unit.finish_gradients();
        const auto traffic = comm::subtract(self.ledger.counts(), before);
        EXPECT_EQ(world > 1 ? traffic.at("fsdp/reduce_scatter").calls : 1, 1);
        for (ShardedParameter& placed : unit.parameters()) {
          if (placed.rows == 0) continue;
          const at::Tensor sum = world * ((shared ? 2 : 3) * counted(*placed.parameter, 0) + 3);
          EXPECT_TRUE(placed.grad.equal(placed.piece_of(sum))) << placed.parameter->fqn << shared;
        }
      }
    });
  }
}

// Resharding frees the memory. A graph's saved tensors are valid again after the refill, and the backward pass throws
// if it uses them while they are empty.
TEST(ShardUnitTest, StorageIsFreedAndRefilledBelowAutograd) {
  testing::run_ranks({}, 2, {Axis::kFsdp}, [](testing::ThreadRank& self) {
    std::deque<nn::Parameter> parameters;
    parameters.push_back({"weight", {4, 4}, {}, {}});
    parameters.push_back({"other", {4}, {}, {}});
    ShardUnit unit("unit", pointers(parameters),
                   {.shard_group = &self.mesh->group(Axis::kFsdp), .device = self.device.get()});
    unit.parameters()[0].value.fill_(2);
    const at::Tensor& weight = parameters[0].weight;
    EXPECT_EQ(weight.storage().nbytes(), 0U);
    unit.unshard();
    EXPECT_EQ(weight.storage().nbytes(), 64U);
    at::Tensor input = at::ones({1, 4}).set_requires_grad(true);
    const at::Tensor output = at::matmul(input, weight);
    unit.reshard();
    EXPECT_EQ(weight.storage().nbytes(), 0U);
    unit.unshard();
    EXPECT_TRUE(torch::autograd::grad({output.sum()}, {input})[0].equal(at::full({1, 4}, 8.0F)));
  });
}

// Shards keep their own type, weights and the wire have theirs, and float64 overrides everything.
TEST(PrecisionTest, PolicyFromTheConfiguration) {
  const Precision mixed = make_precision("float32", "bfloat16", "float32").value();
  EXPECT_EQ(mixed.master, at::kFloat);
  EXPECT_EQ(mixed.param, at::kBFloat16);
  EXPECT_EQ(mixed.reduce, at::kFloat);
  EXPECT_EQ(make_precision("float64", "bfloat16", "float32").value().param, at::kDouble);
  EXPECT_EQ(make_precision("bfloat16", "bfloat16", "float32").value().master, at::kBFloat16);
  EXPECT_EQ(make_precision("float8", "bfloat16", "float32").status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace titan::parallel
