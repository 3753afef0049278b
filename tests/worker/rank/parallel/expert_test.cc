#include "worker/rank/parallel/expert.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/draw.h"
#include "tests/testing/flop_counter.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/nn/plain_moe.h"
#include "worker/rank/parallel/expert_dispatch.h"

namespace titan::parallel {
namespace {

using mesh::Axis;
using nn::TensorAxisPlacement;
using testing::moe_kinds;
using testing::MoeKind;
using testing::PlainMoe;

constexpr int64_t kBatch = 2, kLength = 8;  // Rows and tokens of one data rank.

struct World {
  const char* name;
  mesh::Degrees degrees;
  int ranks;
};
const World kWorlds[] = {{"tp 2", {.tp = 2, .etp = 2}, 2},
                         {"tp 4, etp 1 without expert ranks", {.tp = 4, .etp = 1}, 4},
                         {"ep 2", {.dp_shard = 2, .ep = 2}, 2},
                         {"ep 4", {.dp_shard = 4, .ep = 4}, 4},
                         {"ep 2 of 4", {.dp_shard = 4, .ep = 2}, 4},
                         {"ep 2 over cp", {.dp_shard = 1, .cp = 2, .ep = 2}, 2},
                         {"ep 2, tp 2, etp 2", {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 2}, 4},
                         {"ep 2, tp 2, etp 1", {.dp_shard = 2, .tp = 2, .ep = 2, .etp = 1}, 4},
                         {"ep 4, tp 2, etp 1", {.dp_shard = 2, .tp = 2, .ep = 4, .etp = 1}, 4},
                         {"ep 2 of tp alone, etp 1", {.dp_shard = 1, .tp = 2, .ep = 2, .etp = 1}, 2}};

class MoeBlock : public nn::Block {
 public:
  explicit MoeBlock(const nn::MoeOptions& options)
      : Block("layers.0"), moe(declare(), declare_buffer("moe.expert_bias"), "moe", options) {}
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext& context) override {
    return moe.forward(input, context.counting);
  }
  nn::MixtureOfExperts moe;
};

at::Tensor part_of(at::Tensor whole, const nn::Parameter& parameter) {
  for (size_t dim = 0; dim < parameter.shape.size(); ++dim) {
    whole = whole.narrow(static_cast<int64_t>(dim), parameter.offset[dim], parameter.shape[dim]);
  }
  return whole.contiguous();
}

struct Oracle {
  PlainMoe plain;
  std::vector<at::Tensor> leaves;  // In the order of the parameters, then the input.
  at::Tensor output;
  std::vector<at::Tensor> gradients;
};

Oracle run_oracle(const nn::MoeOptions& options, int data_ranks, bool skewed) {
  Oracle oracle{{options, {}, testing::moe_bias(options.router.num_experts, skewed, at::kDouble)}, {}, {}, {}};
  MoeBlock names(options);
  for (nn::Parameter& parameter : names.parameters()) {
    oracle.leaves.push_back(testing::moe_value(parameter.fqn, parameter.shape, at::kDouble).set_requires_grad(true));
    oracle.plain.weights[parameter.fqn.substr(4)] = oracle.leaves.back();
  }
  const std::vector<int64_t> shape = {data_ranks * kBatch, kLength, options.dim};
  oracle.leaves.push_back(testing::moe_value("input", shape, at::kFloat).to(at::kDouble).set_requires_grad(true));
  oracle.output = oracle.plain.forward(oracle.leaves.back());
  oracle.gradients =
      torch::autograd::grad({oracle.output}, oracle.leaves, {testing::moe_value("seed", shape, at::kDouble)});
  return oracle;
}

// One rank's layer, split and filled, and its share of the tokens.
struct Rank {
  Rank(testing::ThreadRank& self, const MoeKind& kind, bool sequence, bool skewed, at::ScalarType type,
       ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll)
      : mesh(*self.mesh), tensor(mesh.group(Axis::kTensor)), sequence(sequence), block(kind.options) {
    split_experts(block.moe, mesh, {.group = &tensor, .sequence = sequence}, dispatcher);
    for (nn::Parameter& parameter : block.parameters()) {
      parameter.weight = part_of(testing::moe_value(parameter.fqn, parameter.global_shape, type), parameter);
      leaves.push_back(parameter.weight.set_requires_grad(true));
    }
    block.buffers()[0].value =
        testing::moe_bias(kind.options.router.num_experts, skewed, at::kDouble).to(nn::accumulate_type(type));
    const std::vector<int64_t> shape = {data_ranks() * kBatch, kLength, kind.options.dim};
    leaves.push_back(share(testing::moe_value("input", shape, at::kFloat)).to(type).set_requires_grad(true));
    seed = share(testing::moe_value("seed", shape, type));
  }

  int data_ranks() const { return mesh.group(Axis::kFsdp).size(); }
  // Returns this rank's rows, or with sequence parallelism its piece of their tokens.
  at::Tensor share(const at::Tensor& all) const {
    const at::Tensor rows = all.narrow(0, mesh.group(Axis::kFsdp).rank() * kBatch, kBatch);
    if (!sequence) return rows.contiguous();
    const int64_t piece = kLength / tensor.size();
    return rows.narrow(1, tensor.rank() * piece, piece).contiguous();
  }
  // Sums a parameter's gradient over all ranks that compute parts of it, as the runtime does.
  at::Tensor reduced(size_t index, at::Tensor gradient) {
    const nn::Parameter& parameter = block.parameters()[index];
    gradient = gradient.contiguous();
    mesh.group(parameter.expert ? Axis::kExpertFsdp : Axis::kFsdp).all_reduce(gradient).wait();
    if (parameter.on_tensor_axis == TensorAxisPlacement::kPartial) tensor.all_reduce(gradient).wait();
    return gradient;
  }

  const comm::DeviceMesh& mesh;
  const comm::Group& tensor;
  const bool sequence;
  MoeBlock block;
  std::vector<at::Tensor> leaves;
  at::Tensor seed;
};

const std::set<Axis> kAxes = {Axis::kTensor, Axis::kExpert, Axis::kExpertTensor, Axis::kExpertFsdp,
                              Axis::kFsdp,   Axis::kLoss,   Axis::kPipeline};

// Calls the body for every world, kind of layer and load, with and without sequence parallelism.
using Body = std::function<void(testing::ThreadRank&, Rank&, const World&, const MoeKind&, bool skewed)>;
void for_each_rank(at::ScalarType type, const Body& body, testing::Via via = testing::Via::kMemory,
                   ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll) {
  for (const World& world : kWorlds) {
    if (dispatcher == ExpertDispatcher::kAllGather && world.degrees.ep == 1) continue;
    // Over sockets only the largest worlds run: they have exchanges of unequal numbers of rows and of none.
    if (via == testing::Via::kGloo && world.degrees.ep < 4) continue;
    testing::run_ranks(
        world.degrees, world.ranks, kAxes,
        [&](testing::ThreadRank& self) {
          for (const MoeKind& kind : moe_kinds()) {
            for (const bool sequence : {true, false}) {
              for (const bool skewed : {false, true}) {
                SCOPED_TRACE(::testing::Message() << world.name << ", " << kind.name << (sequence ? ", sequence" : "")
                                                  << (skewed ? ", empty experts" : "") << ", rank " << self.rank);
                Rank rank(self, kind, sequence, skewed, type, dispatcher);
                body(self, rank, world, kind, skewed);
              }
            }
          }
        },
        via);
  }
}

double distance(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return std::numeric_limits<double>::infinity();
  return ((a.to(at::kDouble) - b.to(at::kDouble)).abs().max() / std::max(1.0, b.abs().max().item<double>()))
      .item<double>();
}

void check_equal_one_rank(at::ScalarType type, double tolerance, testing::Via via = testing::Via::kMemory,
                          ExpertDispatcher dispatcher = ExpertDispatcher::kAllToAll) {
  const Body check = [&](testing::ThreadRank&, Rank& rank, const World&, const MoeKind& kind, bool skewed) {
    const Oracle oracle = run_oracle(kind.options, rank.data_ranks(), skewed);
    // Runs twice, as a recomputed block does; the first graph is dropped.
    rank.block.forward(rank.leaves.back(), {});
    nn::MicrobatchContext again;
    again.counting = false;
    const at::Tensor y = rank.block.forward(rank.leaves.back(), again);
    EXPECT_LE(distance(y.detach(), rank.share(oracle.output.detach())), tolerance);
    const auto gradients = torch::autograd::grad({y}, rank.leaves, {rank.seed});
    EXPECT_LE(distance(gradients.back(), rank.share(oracle.gradients.back())), tolerance) << "input";
    for (size_t i = 0; i < rank.block.parameters().size(); ++i) {
      const nn::Parameter& parameter = rank.block.parameters()[i];
      EXPECT_LE(distance(rank.reduced(i, gradients[i]), part_of(oracle.gradients[i], parameter)), tolerance)
          << parameter.fqn;
    }
    // Each token was counted once, on a rank that routes it.
    at::Tensor counts = rank.block.moe.tokens_per_expert.clone();
    rank.mesh.group(Axis::kLoss).all_reduce(counts).wait();
    if (tensor_ranks_split_tokens(rank.mesh.mesh())) rank.tensor.all_reduce(counts).wait();
    EXPECT_TRUE(counts.equal(oracle.plain.counts(oracle.leaves.back().flatten(0, 1))));
  };
  for_each_rank(type, check, via, dispatcher);
}

TEST(ExpertParallelTest, EveryMeshEqualsOneRankInFloat64) { check_equal_one_rank(at::kDouble, 1e-12); }
TEST(ExpertParallelTest, EveryMeshEqualsOneRankInFloat32) { check_equal_one_rank(at::kFloat, 2e-5); }
TEST(ExpertParallelTest, EqualsOneRankOverGloo) { check_equal_one_rank(at::kDouble, 1e-12, testing::Via::kGloo); }
TEST(GatheredTokensTest, EveryMeshEqualsOneRankInFloat64) {
  check_equal_one_rank(at::kDouble, 1e-12, testing::Via::kMemory, ExpertDispatcher::kAllGather);
}
TEST(GatheredTokensTest, EveryMeshEqualsOneRankInFloat32) {
  check_equal_one_rank(at::kFloat, 2e-5, testing::Via::kMemory, ExpertDispatcher::kAllGather);
}
TEST(GatheredTokensTest, EqualsOneRankOverGloo) {
  check_equal_one_rank(at::kDouble, 1e-12, testing::Via::kGloo, ExpertDispatcher::kAllGather);
}

// expert.h states that collectives and bytes of a layer's passes, and its products, follow from the degrees and from
// the number of tokens per expert.
void check_closed_form(ExpertDispatcher dispatcher) {
  const auto check = [&](testing::ThreadRank& self, Rank& rank, const World&, const MoeKind& kind, bool) {
    const mesh::Mesh& mesh = rank.mesh.mesh();
    const nn::MoeOptions& options = kind.options;
    const int64_t tp = rank.tensor.size(), ep = mesh.size(Axis::kExpert), cut = mesh.size(Axis::kExpertTensor);
    const bool apart = tensor_ranks_split_tokens(mesh);
    const int64_t tokens = kBatch * kLength, routed = apart ? tokens / tp : tokens, row = options.dim * 8;

    const comm::LedgerCounts before = self.ledger.counts();
    testing::FlopCounter flops;
    const at::Tensor y = rank.block.forward(rank.leaves.back(), {});
    torch::autograd::grad({y}, rank.leaves, {rank.seed});
    const int64_t products = flops.products();
    const comm::LedgerCounts traffic = comm::subtract(self.ledger.counts(), before);

    // Counts the rows, from all ranks of the expert group, of this rank's experts.
    at::Tensor counts = rank.block.moe.tokens_per_expert.clone();
    rank.mesh.group(Axis::kExpert).all_reduce(counts).wait();
    const int64_t local = options.router.num_experts / ep;
    const int64_t here = counts.narrow(0, rank.mesh.group(Axis::kExpert).rank() * local, local).sum().item<int64_t>();
    const int64_t gate = routed * options.dim * options.router.num_experts;
    const int64_t experts = here * 3 * options.dim * options.hidden / cut;
    const int64_t shared = tokens * 3 * options.dim * options.shared_hidden / tp;
    EXPECT_EQ(products, 3 * 2 * (gate + experts + shared));

    comm::LedgerCounts expected;
    const int64_t sent = routed * options.router.top_k;
    if (dispatcher == ExpertDispatcher::kAllGather) {
      expected["ep/all_gather"] = {4, ep * (2 * routed * row + sent * (8 + 8))};
      expected["ep/reduce_scatter"] = {3, ep * (2 * routed * row + sent * 8)};
    } else if (ep > 1) {
      expected["ep/all_to_all"] = {5, 8 * options.router.num_experts + 2 * (sent + here) * row};
    }
    if (tp > 1 && rank.sequence && (!apart || options.shared_hidden > 0)) {
      expected["tp/all_gather"] = {2, 2 * tokens * row};
      expected["tp/reduce_scatter"] = {2, 2 * tokens * row};
    } else if (tp > 1 && !rank.sequence && apart && options.shared_hidden == 0) {
      expected["tp/all_gather"] = {2, 2 * tokens * row};
    } else if (tp > 1 && !rank.sequence) {
      expected["tp/all_reduce"] = {2, 2 * tokens * row};
    }
    EXPECT_EQ(traffic, expected);
  };
  for_each_rank(at::kDouble, check, testing::Via::kMemory, dispatcher);
}

TEST(ExpertParallelTest, TrafficAndProductsEqualTheClosedForm) { check_closed_form(ExpertDispatcher::kAllToAll); }
TEST(GatheredTokensTest, TrafficAndProductsEqualTheClosedForm) { check_closed_form(ExpertDispatcher::kAllGather); }

// For any shape and any load, even all tokens at one expert or at one rank's experts, both dispatchers compute the
// same.
TEST(GatheredTokensTest, EqualExchangedRowsForAnyLoad) {
  for (unsigned seed = 0; seed < 12; ++seed) {
    testing::Draw pick(seed);
    const int ep = static_cast<int>(pick({2, 4}));
    const int64_t experts = ep * pick({1, 2, 4}), choices = pick({1, 2, 3}), tokens = pick({1, 3, 16});
    nn::MoeOptions options{
        .router = {.num_experts = experts, .top_k = std::min(choices, experts), .route_norm = pick({0, 1}) == 1},
        .dim = pick({4, 8, 12}),
        .hidden = pick({8, 20}),
        .shared_hidden = pick({0, 8})};
    options.score_before_experts = pick({0, 1}) == 1;
    if (options.shared_hidden == 0) options.swiglu_limit = pick({0, 2});
    const int64_t favored = pick({0, 1, experts - 1}) % experts;
    const bool loaded = pick({0, 1, 1}) == 1;
    testing::run_ranks({.dp_shard = ep, .ep = ep}, ep, kAxes, [&](testing::ThreadRank& self) {
      SCOPED_TRACE(::testing::Message() << "seed " << seed << ", rank " << self.rank);
      std::vector<std::vector<at::Tensor>> results;
      for (const auto dispatcher : {ExpertDispatcher::kAllToAll, ExpertDispatcher::kAllGather}) {
        Rank rank(self, {"drawn", options}, /*sequence=*/true, /*skewed=*/false, at::kDouble, dispatcher);
        if (loaded) rank.block.buffers()[0].value.select(0, favored).add_(5);
        const std::vector<int64_t> shape = {1, tokens, options.dim};
        const std::string name = std::to_string(self.rank);
        rank.leaves.back() = testing::moe_value("input" + name, shape, at::kDouble).set_requires_grad(true);
        const at::Tensor y = rank.block.forward(rank.leaves.back(), {});
        std::vector<at::Tensor> all =
            torch::autograd::grad({y}, rank.leaves, {testing::moe_value("seed" + name, shape, at::kDouble)});
        all.push_back(y.detach());
        all.push_back(rank.block.moe.tokens_per_expert);
        if (loaded) {
          EXPECT_EQ(rank.block.moe.tokens_per_expert[favored].item<int64_t>(), tokens);
        }
        results.push_back(std::move(all));
      }
      for (size_t i = 0; i < results[0].size(); ++i) EXPECT_LE(distance(results[1][i], results[0][i]), 1e-12) << i;
    });
  }
}

// The rank has experts 4 and 5 of 6.
TEST(LocalChoicesTest, AreNumberedFromTheFirstExpertHere) {
  const at::Tensor experts = at::tensor({4, 0, 5, 3, 2, 1, 5, 1, 4}, at::kLong).view({3, 3});
  const at::Tensor scores = at::arange(9, at::kDouble).view({3, 3});
  const LocalChoices all = local_choices(experts.narrow(1, 0, 2), scores.narrow(1, 0, 2), 4, 2, 6);
  EXPECT_TRUE(all.experts.equal(at::tensor({0, 2, 2, 2, 1, 2}, at::kLong).view({3, 2})));
  // The rank has two experts, so a token has at most two choices here.
  const LocalChoices two = local_choices(experts, scores, 4, 2, 6);
  EXPECT_TRUE(two.experts.equal(at::tensor({0, 1, 2, 2, 0, 1}, at::kLong).view({3, 2})));
  EXPECT_TRUE(two.scores.equal(at::tensor({0., 2., 3., 4., 8., 6.}, at::kDouble).view({3, 2})));
}

TEST(ExpertParallelTest, CutsAndMarksParameters) {
  const auto layout = [](const World& world, const MoeKind& kind,
                         const std::function<void(Rank&, const nn::Parameter&)>& check) {
    testing::run_ranks(world.degrees, world.ranks, kAxes, [&](testing::ThreadRank& self) {
      Rank rank(self, kind, true, false, at::kDouble);
      for (const nn::Parameter& parameter : rank.block.parameters()) check(rank, parameter);
    });
  };
  const MoeKind gpt_oss = moe_kinds()[4];
  layout(kWorlds[6], gpt_oss, [](Rank& rank, const nn::Parameter& parameter) {  // ep 2, etp 2
    const int64_t ep = rank.mesh.group(Axis::kExpert).rank(), tp = rank.tensor.rank();
    if (parameter.fqn == "moe.experts.mlp1_weight") {
      EXPECT_EQ(parameter.shape, (std::vector<int64_t>{4, 8, 12}));
      EXPECT_EQ(parameter.offset, (std::vector<int64_t>{4 * ep, 8 * tp, 0}));
      EXPECT_EQ(parameter.on_tensor_axis, TensorAxisPlacement::kShard);
    } else if (parameter.fqn == "moe.experts.mlp2_bias") {
      EXPECT_EQ(parameter.shape, (std::vector<int64_t>{4, 12}));
      EXPECT_EQ(parameter.on_tensor_axis, TensorAxisPlacement::kReplicate);
    } else if (!parameter.expert) {
      EXPECT_EQ(parameter.on_tensor_axis, TensorAxisPlacement::kPartial) << parameter.fqn;
    }
  });
  layout(kWorlds[8], gpt_oss, [](Rank& rank, const nn::Parameter& parameter) {  // ep 4, tp 2, etp 1
    if (!parameter.expert) return;
    EXPECT_EQ(parameter.shape[0], 2) << parameter.fqn;
    EXPECT_EQ(parameter.offset[0], 2 * rank.mesh.group(Axis::kExpert).rank());
    EXPECT_EQ(parameter.on_tensor_axis, TensorAxisPlacement::kShard) << parameter.fqn;
  });
}

TEST(RegroupTest, SegmentsMoveAsAWhole) {
  // Rank 0 sends one row for expert 0 and two for expert 1; rank 1 sends three and none.
  const std::vector<int64_t> received = {1, 2, 3, 0};
  const ExpertPermutation regrouping = permute_by_expert(received, at::tensor(received, at::kLong), 2);
  EXPECT_EQ(regrouping.rows, (std::vector<int64_t>{4, 2}));
  EXPECT_TRUE(regrouping.counts.equal(at::tensor({4, 2}, at::kLong)));
  EXPECT_TRUE(regrouping.order.equal(at::tensor({0, 3, 4, 5, 1, 2}, at::kLong)));
  EXPECT_TRUE(regrouping.order.index_select(0, regrouping.inverse).equal(at::arange(6)));
}

// Compares with a stable sort of the rows by expert, including segments, experts and ranks without rows.
TEST(RegroupTest, IsAStableSortByExpert) {
  titan::testing::Draw pick(7);
  for (int i = 0; i < 50; ++i) {
    const int64_t ranks = pick({1, 2, 3, 8}), experts = pick({2, 5, 16}), max_rows = pick({0, 1, 4, 40});
    std::vector<int64_t> received, expert_of_row;
    for (int64_t segment = 0; segment < ranks * experts; ++segment) {
      received.push_back(pick({int64_t{0}, max_rows / 2, max_rows}));
      expert_of_row.insert(expert_of_row.end(), received.back(), segment % experts);
    }
    const at::Tensor order = std::get<1>(at::tensor(expert_of_row, at::kLong).sort(/*stable=*/true, 0, false));
    const ExpertPermutation regrouping =
        permute_by_expert(received, at::tensor(received, at::kLong), static_cast<int>(ranks));
    EXPECT_TRUE(regrouping.order.equal(order));
    EXPECT_TRUE(regrouping.inverse.equal(order.argsort()));
    EXPECT_TRUE(regrouping.counts.equal(at::tensor(regrouping.rows, at::kLong)));
  }
}

TEST(RegroupTest, OneExpertMovesNothing) {
  const ExpertPermutation regrouping = permute_by_expert({3, 4}, at::tensor({3, 4}, at::kLong), 2);
  EXPECT_FALSE(regrouping.order.defined());
  EXPECT_TRUE(regrouping.counts.equal(at::tensor({7}, at::kLong)));
}

}  // namespace
}  // namespace titan::parallel
