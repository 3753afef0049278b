// Compares Muon with its definition in plain fp64, and shards on ranks that are threads with whole matrices.
#include "worker/rank/optim/muon.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "worker/rank/optim/muon_plan.h"
#include "worker/rank/optim/newton_schulz.h"

namespace titan::optim {
namespace {

// Limits LibTorch to one thread: small products are not worth two, and ranks that are threads have one each.
class OneThread {
 public:
  OneThread() { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  const int before_ = at::get_num_threads();
};

// Computes Keller Jordan's iteration for one matrix.
at::Tensor plain_newton_schulz(const at::Tensor& g, int steps) {
  at::Tensor x = g.to(at::kDouble);
  const bool tall = x.size(0) > x.size(1);
  if (tall) x = x.t();
  x = x / std::max(x.norm().item<double>(), 1e-7);
  for (int i = 0; i < steps; ++i) {
    const at::Tensor a = x.matmul(x.t());
    x = 3.4445 * x + (-4.7750 * a + 2.0315 * a.matmul(a)).matmul(x);
  }
  return tall ? x.t() : x;
}

at::Tensor plain_newton_schulz_of_all(const at::Tensor& g, int steps) {
  if (g.dim() == 2) return plain_newton_schulz(g, steps);
  std::vector<at::Tensor> all;
  for (int64_t i = 0; i < g.size(0); ++i) all.push_back(plain_newton_schulz(g[i], steps));
  return at::stack(all);
}

// The training of one parameter, written out.
struct PlainMuon {
  at::Tensor value, momentum;
  explicit PlainMuon(const at::Tensor& start)
      : value(start.to(at::kDouble, /*non_blocking=*/false, /*copy=*/true)), momentum(at::zeros_like(value)) {}

  void step(const OptimizerOptions& o, double rate, const at::Tensor& gradient) {
    const at::Tensor g = gradient.to(at::kDouble);
    momentum = o.momentum * momentum + (1 - o.momentum) * g;
    const at::Tensor u = o.nesterov ? (1 - o.momentum) * g + o.momentum * momentum : momentum;
    const auto rows = static_cast<double>(g.size(-2)), columns = static_cast<double>(g.size(-1));
    const double scale =
        o.adjust_lr == "original" ? std::sqrt(std::max(1.0, rows / columns)) : 0.2 * std::sqrt(std::max(rows, columns));
    value = (1 - rate * o.weight_decay) * value - rate * scale * plain_newton_schulz_of_all(u, o.ns_steps);
  }
};

std::vector<std::vector<int64_t>> random_shapes(std::mt19937_64& random) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  std::vector<std::vector<int64_t>> shapes = {{1, 9}, {9, 1}, {1, 1}};
  for (int i = 0; i < 4; ++i) shapes.push_back({draw(2, 70), draw(2, 70)});
  for (int i = 0; i < 2; ++i) shapes.push_back({draw(2, 5), draw(2, 40), draw(2, 40)});
  return shapes;
}

TEST(NewtonSchulzTest, MatchesTheIteration) {
  const OneThread one_thread;
  std::mt19937_64 random(11);
  for (const std::vector<int64_t>& shape : random_shapes(random)) {
    const at::Tensor g = at::randn(shape, at::kDouble);
    const at::Tensor stack = g.dim() == 2 ? g.unsqueeze(0) : g;
    const at::Tensor want = plain_newton_schulz_of_all(g, 5).view_as(stack);
    EXPECT_LE((newton_schulz(stack, 5) - want).abs().max().item<double>(), 1e-12) << g.sizes();
    // In bf16, singular values that come only from rounding grow, too, so the result is close only to the iteration of
    // the same numbers.
    const at::Tensor half = stack.to(at::kBFloat16);
    const at::Tensor near = plain_newton_schulz_of_all(half.view_as(g), 5).view_as(stack);
    const at::Tensor got = newton_schulz(half.clone(), 5).to(at::kDouble);
    EXPECT_LE((got - near).norm().item<double>(), 0.08 * near.norm().item<double>()) << g.sizes();
  }
  EXPECT_EQ(newton_schulz(at::zeros({2, 3, 4}), 5).abs().max().item<float>(), 0);
}

// Five steps with changing rates and every option follow the formula. For float32 weights the iteration is in bf16.
TEST(MuonTest, FollowsTheFormula) {
  const OneThread one_thread;
  std::mt19937_64 random(5);
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (const bool nesterov : {true, false}) {
      for (const char* adjust : {"match_rms_adamw", "original"}) {
        const OptimizerOptions options{.name = "Muon",
                                       .weight_decay = 0.1,
                                       .lr = 0.5,
                                       .momentum = nesterov ? 0.95 : 0.8,
                                       .nesterov = nesterov,
                                       .ns_steps = nesterov ? 5 : 3,
                                       .adjust_lr = adjust};
        std::vector<Slot> slots;
        std::vector<PlainMuon> references;
        for (const std::vector<int64_t>& shape : random_shapes(random)) {
          slots.push_back({"w", at::randn(shape, type), at::zeros(shape, type)});
          references.emplace_back(slots.back().value);
        }
        const auto muon = make_optimizer(options, slots);
        for (const double rate : {0.02, 0.04, 0.03, 0.01, 0.02}) {
          for (size_t i = 0; i < slots.size(); ++i) {
            slots[i].grad.copy_(at::randn(slots[i].grad.sizes(), type));
            references[i].step(options, rate * options.lr, slots[i].grad);
          }
          muon->step(rate);
        }
        for (size_t i = 0; i < slots.size(); ++i) {
          const at::Tensor error = slots[i].value.to(at::kDouble) - references[i].value;
          const double moved = (references[i].value - slots[i].value.to(at::kDouble)).abs().max().item<double>();
          const double bound = type == at::kDouble ? 1e-12 : 0.06 * 0.12;  // Scaled by rates and singular values.
          EXPECT_LE(error.abs().max().item<double>(), bound) << slots[i].value.sizes() << " " << moved;
          const at::Tensor momentum = muon->states()[i]["momentum_buffer"].to(at::kDouble);
          EXPECT_LE((momentum - references[i].momentum).abs().max().item<double>(), type == at::kDouble ? 1e-14 : 1e-6);
        }
        EXPECT_EQ(muon->step_count().item<float>(), 5);
      }
    }
  }
}

// Groups of both kinds train together as each would separately.
TEST(MuonTest, LeavesOthersToAdam) {
  const std::vector<OptimizerOptions> groups = {
      {.name = "AdamW", .lr = 0.1}, {.name = "Muon"}, {.name = "Adam", .lr = 0.2}};
  std::vector<Slot> slots;
  for (size_t i = 0; i < 6; ++i) slots.push_back({"w", at::randn({4, 5}), at::randn({4, 5}), i % 3});
  std::vector<at::Tensor> alone, grads;
  for (const Slot& slot : slots) {
    alone.push_back(slot.value.clone());
    grads.push_back(slot.grad.clone());
  }
  const auto together = make_grouped_optimizer(groups, slots);
  together->step(0.1);
  for (size_t i = 0; i < 6; ++i) {
    const auto one = make_optimizer(groups[i % 3], {{"w", alone[i], grads[i]}});
    one->step(0.1);
    EXPECT_TRUE(slots[i].value.equal(alone[i])) << i;
    ASSERT_EQ(together->states()[i].tensors.size(), one->states()[0].tensors.size());
    EXPECT_TRUE(together->states()[i].tensors[0].value.equal(one->states()[0].tensors[0].value)) << i;
  }
  EXPECT_THROW(together->step_slots(0, 1, 0.1), c10::Error);
  EXPECT_THROW(make_optimizer({.name = "Muon"}, {{"w", at::zeros({3}), at::zeros({3})}}), c10::Error);
  EXPECT_THROW(make_optimizer({.name = "Muon", .adjust_lr = "x"}, {{"w", at::zeros({3, 3}), at::zeros({3, 3})}}),
               c10::Error);
}

// State types and stochastic rounding apply only to Adam's parameters. Muon's momentum has the type of its value.
TEST(MuonTest, StateTypesAndStochasticRoundingAreForAdam) {
  const OneThread one_thread;
  std::vector<OptimizerOptions> groups = {{.name = "AdamW"}, {.name = "Muon"}};
  for (OptimizerOptions& group : groups) {
    group.state_dtype = "8bit";
    group.stochastic_rounding = true;
    group.seed = 3;
  }
  const auto numbers = [] { return at::randn({64, 70}).to(at::kBFloat16); };
  std::vector<Slot> slots;
  for (size_t i = 0; i < 2; ++i) slots.push_back({"w", numbers(), numbers(), i});
  const at::Tensor adam_value = slots[0].value.clone(), adam_grad = slots[0].grad.clone();
  const at::Tensor muon_value = slots[1].value.clone(), muon_grad = slots[1].grad.clone();
  const auto together = make_grouped_optimizer(groups, slots);
  EXPECT_EQ(together->states()[0]["exp_avg"].scalar_type(), at::kByte);
  EXPECT_EQ(together->states()[1]["momentum_buffer"].scalar_type(), at::kBFloat16);
  together->step(0.1);
  make_optimizer(groups[0], {{"w", adam_value, adam_grad}})->step(0.1);
  make_optimizer({.name = "Muon"}, {{"w", muon_value, muon_grad}})->step(0.1);
  EXPECT_TRUE(slots[0].value.equal(adam_value));
  EXPECT_TRUE(slots[1].value.equal(muon_value));
}

// A gate's divisor applies before momentum, and a skipped step leaves no trace, whatever the gradient holds.
TEST(MuonTest, AppliesTheGate) {
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    const OptimizerOptions options{.name = "Muon"};
    at::Tensor value = at::randn({6, 9}, type), grad = at::empty({6, 9}, type);
    at::Tensor plain = value.clone(), divided = at::empty({6, 9}, type);
    const auto gated = make_optimizer(options, {{"w", value, grad}});
    const auto without = make_optimizer(options, {{"w", plain, divided}});
    const auto gate = [](double divisor, bool skip) {
      return Gate{at::scalar_tensor(divisor, at::kDouble), at::scalar_tensor(skip ? 1.0 : 0.0, at::kFloat)};
    };
    for (const double divisor : {1.0, 3.7, 1e5}) {
      for (const double bad : {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
        const at::Tensor before = value.clone(), momentum = gated->states()[0]["momentum_buffer"].clone();
        grad.fill_(bad);
        gated->step(0.1, gate(bad, true));
        EXPECT_TRUE(value.equal(before));
        EXPECT_TRUE(gated->states()[0]["momentum_buffer"].equal(momentum));
      }
      grad.copy_(at::randn({6, 9}, type));
      divided.copy_(grad / divisor);
      gated->step(0.1, gate(divisor, false));
      without->step(0.1);
      EXPECT_TRUE(value.equal(plain));
    }
    EXPECT_EQ(gated->step_count().item<float>(), 3);
  }
}

// Momentum is Muon's only state.
TEST(MuonTest, StateIsComplete) {
  at::Tensor a = at::randn({7, 5}), grad = at::randn({7, 5});
  const auto first = make_optimizer({.name = "Muon"}, {{"w", a, grad.clone()}});
  first->step(0.1);
  at::Tensor b = a.clone();
  at::Tensor mine = grad.clone(), other = grad.clone();
  const auto second = make_optimizer({.name = "Muon"}, {{"w", b, other}});
  second->states()[0]["momentum_buffer"].copy_(first->states()[0]["momentum_buffer"]);
  const auto third = make_optimizer({.name = "Muon"}, {{"w", a, mine}});
  third->states()[0]["momentum_buffer"].copy_(first->states()[0]["momentum_buffer"]);
  second->step(0.1);
  third->step(0.1);
  EXPECT_TRUE(a.equal(b));
}

// Draws a parameter's layout on `ranks` ranks: cut along one dimension (unevenly if it does not divide), cut along two,
// or whole on each.
MatrixParameter random_layout(std::mt19937_64& random, int ranks, bool many) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  MatrixParameter parameter{{many ? draw(1, 7) : 1, draw(1, 30), draw(1, 30)}, {}};
  const int64_t kind = draw(0, 3), outer = kind == 3 && ranks % 2 == 0 ? 2 : 1;
  if (outer == 2) parameter.shape[2] *= 2;
  const auto dim = static_cast<size_t>(many ? draw(0, 1) : 1);
  for (int rank = 0; rank < ranks; ++rank) {
    MatrixBox box{{}, parameter.shape};
    if (kind != 0) {
      const int64_t parts = ranks / outer, total = parameter.shape[dim], chunk = (total + parts - 1) / parts;
      box.offset[dim] = std::min(chunk * (rank / outer), total);
      box.size[dim] = std::min(box.offset[dim] + chunk, total) - box.offset[dim];
    }
    if (outer == 2) {
      box.size[2] /= 2;
      box.offset[2] = rank % 2 * box.size[2];
    }
    parameter.held.push_back(box);
  }
  return parameter;
}

std::vector<MatrixParameter> random_layouts(uint64_t seed, int ranks, int count = 9) {
  std::mt19937_64 random(seed);
  std::vector<MatrixParameter> all;
  for (int i = 0; i < count; ++i) all.push_back(random_layout(random, ranks, i % 2 == 1));
  return all;
}

int64_t shared(const MatrixBox& box, const MatrixRun& run) {
  const int64_t first = std::max(box.offset[0], run.first);
  const int64_t end = std::min(box.offset[0] + box.size[0], run.first + run.count);
  return std::max<int64_t>(end - first, 0) * box.size[1] * box.size[2];
}

TEST(MuonPlanTest, EveryMatrixHasOneOwner) {
  for (uint64_t seed = 0; seed < 40; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 6);
    const std::vector<MatrixParameter> parameters = random_layouts(seed, ranks);
    const std::vector<MatrixRun> runs = deal_matrices(parameters, ranks);
    std::vector<std::vector<int>> owners(parameters.size());
    for (size_t i = 0; i < parameters.size(); ++i) owners[i].resize(parameters[i].shape[0], 0);
    for (const MatrixRun& run : runs) {
      ASSERT_TRUE(run.owner >= 0 && run.owner < ranks);
      for (int64_t m = run.first; m < run.first + run.count; ++m) ++owners[run.parameter][m];
      bool whole = false, owner_has_it = false;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto& shape = parameters[run.parameter].shape;
        const bool here = shared(parameters[run.parameter].held[rank], run) == run.count * shape[1] * shape[2];
        whole |= here;
        owner_has_it |= here && rank == run.owner;
      }
      EXPECT_EQ(whole, owner_has_it) << "a matrix left the ranks that hold it";
    }
    for (const auto& counts : owners) EXPECT_EQ(std::count(counts.begin(), counts.end(), 1), std::ssize(counts));
  }
}

// No rank has more work than the average plus one matrix: dealing the costliest matrices first guarantees this.
TEST(MuonPlanTest, WorkIsEven) {
  for (const int ranks : {2, 3, 8, 64}) {
    std::vector<MatrixParameter> parameters;  // An 8B model's layers on FSDP.
    for (int layer = 0; layer < 32; ++layer) {
      for (const auto& [rows, columns] : std::vector<std::pair<int64_t, int64_t>>{
               {4096, 4096}, {1024, 4096}, {1024, 4096}, {4096, 4096}, {14336, 4096}, {4096, 14336}, {14336, 4096}}) {
        MatrixParameter& one = parameters.emplace_back(MatrixParameter{{1, rows, columns}, {}});
        for (int rank = 0; rank < ranks; ++rank)
          one.held.push_back({{0, rank * rows / ranks, 0}, {1, rows / ranks, columns}});
      }
    }
    const std::vector<MatrixRun> runs = deal_matrices(parameters, ranks);
    const std::vector<int64_t> work = work_of_ranks(parameters, runs, ranks);
    const int64_t total = std::accumulate(work.begin(), work.end(), int64_t{0});
    const int64_t largest = *std::max_element(work.begin(), work.end());
    EXPECT_LE(largest, total / ranks + int64_t{14336} * 4096 * 4096);
    if (ranks > 8) continue;  // With more ranks each has fewer matrices.
    EXPECT_LE(static_cast<double>(largest), 1.05 * static_cast<double>(total) / ranks) << ranks;
  }
}

// Experts that a rank holds whole stay there, so nothing is sent.
TEST(MuonPlanTest, WholeExpertsStay) {
  MatrixParameter experts{{8, 16, 8}, {}};
  for (int64_t rank = 0; rank < 4; ++rank) experts.held.push_back({{2 * rank, 0, 0}, {2, 16, 8}});
  const std::vector<MatrixRun> runs = deal_matrices({experts}, 4);
  EXPECT_EQ(runs.size(), 4u);
  for (const MatrixRun& run : runs) EXPECT_EQ(run.first, 2 * run.owner);
  for (const MatrixRound& round : plan_rounds({experts}, runs, 4, 1, 1 << 20)) {
    EXPECT_FALSE(round.gather.travels || round.back.travels);
    EXPECT_EQ(round.runs.size(), 1u);
  }
}

// Each rank plans to send exactly what the other plans to receive, and an owner gets every number once.
TEST(MuonPlanTest, RanksAgree) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const int ranks = 1 + static_cast<int>(seed % 5);
    const std::vector<MatrixParameter> parameters = random_layouts(seed, ranks);
    const std::vector<MatrixRun> runs = deal_matrices(parameters, ranks);
    std::vector<std::vector<MatrixRound>> plans;
    for (int rank = 0; rank < ranks; ++rank) plans.push_back(plan_rounds(parameters, runs, ranks, rank, 500));
    for (size_t round = 0; round < plans[0].size(); ++round) {
      for (int a = 0; a < ranks; ++a) {
        ASSERT_EQ(plans[a].size(), plans[0].size());
        const MatrixRound& mine = plans[a][round];
        int64_t owned = 0, got = 0;
        for (const size_t run : mine.runs) {
          owned +=
              runs[run].count * parameters[runs[run].parameter].shape[1] * parameters[runs[run].parameter].shape[2];
        }
        for (int b = 0; b < ranks; ++b) {
          for (const auto& [to, from] : {std::pair(&mine.gather.to[b], &plans[b][round].gather.from[a]),
                                         std::pair(&mine.back.to[b], &plans[b][round].back.from[a])}) {
            ASSERT_EQ(to->size(), from->size());
            for (size_t i = 0; i < to->size(); ++i) {
              EXPECT_EQ((*to)[i].run, (*from)[i].run);
              EXPECT_EQ((*to)[i].box, (*from)[i].box);
            }
          }
          for (const MatrixPiece& piece : mine.gather.from[b]) got += piece.box.elements();
        }
        EXPECT_EQ(got, owned);
        EXPECT_TRUE(mine.runs.size() <= 1 || owned <= 500);
      }
    }
  }
}

// Returns a rank's part of a tensor. For a parameter of one matrix it has two dimensions.
at::Tensor take(const at::Tensor& whole, const MatrixBox& box) {
  at::Tensor part = whole;
  for (size_t dim = 0; dim < 3; ++dim) part = part.narrow(static_cast<int64_t>(dim), box.offset[dim], box.size[dim]);
  part = part.contiguous().clone();
  return whole.size(0) == 1 && box.size[0] == 1 ? part.squeeze(0) : part;
}

// Compares three steps of shards, on ranks that are threads, with whole matrices on one rank: in fp64 they differ only
// by the order of sums in products, in bf16 within its rounding. Only numbers that go to the owners and come back are
// sent.
TEST(MuonOnRanksTest, TrainsAsOneRank) {
  const OneThread one_thread;
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    for (uint64_t seed = 0; seed < 12; ++seed) {
      const int ranks = 2 + static_cast<int>(seed % 3);
      const std::vector<MatrixParameter> parameters = random_layouts(seed, ranks);
      at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed);
      std::vector<at::Tensor> start;
      std::vector<std::vector<at::Tensor>> grads(3);
      for (const MatrixParameter& one : parameters) {
        start.push_back(at::randn(one.shape, generator, at::TensorOptions(type)));
        for (auto& of_step : grads) of_step.push_back(at::randn(one.shape, generator, at::TensorOptions(type)));
      }
      const std::vector<OptimizerOptions> groups = {{.name = "Muon", .lr = 0.05}, {.name = "AdamW"}};
      std::vector<Slot> whole;
      for (const at::Tensor& one : start) whole.push_back({"w", one.clone(), at::empty_like(one)});
      const auto alone = make_grouped_optimizer(groups, whole);
      for (const auto& of_step : grads) {
        for (size_t i = 0; i < whole.size(); ++i) whole[i].grad.copy_(of_step[i]);
        alone->step(1);
      }

      std::vector<std::vector<at::Tensor>> got(ranks);
      std::vector<int64_t> sent(ranks);
      testing::run_ranks({.dp_shard = ranks}, ranks, testing::every_axis(), [&](testing::ThreadRank& self) {
        std::vector<Slot> slots;
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor part = take(start[i], parameters[i].held[self.rank]);
          slots.push_back({"w", part, at::empty_like(part)});
        }
        MatrixMesh mesh{&self.mesh->group(mesh::Axis::kHolders), at::kCPU, parameters};
        mesh.round_elements = seed % 2 == 0 ? 300 : 1 << 24;
        const auto muon = make_grouped_optimizer(groups, slots, mesh);
        for (const auto& of_step : grads) {
          for (size_t i = 0; i < slots.size(); ++i)
            slots[i].grad.copy_(take(of_step[i], parameters[i].held[self.rank]));
          muon->step(1);
        }
        for (const Slot& slot : slots) got[self.rank].push_back(slot.value);
        for (const auto& [key, entry] : self.ledger.counts()) sent[self.rank] += entry.bytes;
        EXPECT_LE(self.ledger.counts().size(), 1u);
      });

      for (int rank = 0; rank < ranks; ++rank) {
        for (size_t i = 0; i < parameters.size(); ++i) {
          const at::Tensor want = take(whole[i].value, parameters[i].held[rank]);
          if (want.numel() == 0) continue;
          const double bound = type == at::kDouble ? 1e-12 : 3 * 0.05 * 0.06;
          EXPECT_LE((got[rank][i] - want).abs().max().item<double>(), bound) << seed << " " << rank << " " << i;
          // A single matrix even has the same bits.
          const bool same = parameters[i].shape[0] > 1 || got[rank][i].equal(want);
          EXPECT_TRUE(same) << seed << " " << rank << " " << i;
        }
      }
      // Every number of a matrix that its owner lacks is sent to it once, and each rank that holds a part gets that
      // part back.
      int64_t numbers = 0;
      for (const MatrixRun& run : deal_matrices(parameters, ranks)) {
        const MatrixParameter& one = parameters[run.parameter];
        const int64_t had = shared(one.held[run.owner], run);
        numbers += run.count * one.shape[1] * one.shape[2] - 2 * had;
        for (const MatrixBox& box : one.held) numbers += shared(box, run);
      }
      const int64_t width = type == at::kDouble ? 8 : 2;
      EXPECT_EQ(std::accumulate(sent.begin(), sent.end(), int64_t{0}), 3 * width * numbers) << seed;
    }
  }
}

}  // namespace
}  // namespace titan::optim
