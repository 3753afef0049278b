#include "worker/rank/parallel/context.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <numeric>
#include <sstream>

#include "tests/testing/draw.h"
#include "tests/testing/flop_counter.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/nn/plain_attention.h"

namespace titan::parallel {
namespace {

struct Case {
  int ranks = 2;
  LoadBalance balance = LoadBalance::kHeadTail;
  int64_t rows = 2, kv_heads = 2, sharing = 1, tokens = 32, head = 8, v_head = 8;
  nn::AttentionMask mask;
  bool sinks = false;
  at::ScalarType type = at::kDouble;
};

std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.ranks << " ranks, balance " << static_cast<int>(c.balance) << ", " << c.rows << " rows, " << c.sharing
             << " x " << c.kv_heads << " heads of " << c.head << " and " << c.v_head << ", " << c.tokens
             << " tokens, window " << c.mask.window << ", chunk " << c.mask.chunk << ", documents " << c.mask.documents
             << ", sinks " << c.sinks;
}

// The whole rows, as one rank would compute them.
struct Whole {
  explicit Whole(const Case& c) {
    const auto heads = [&](int64_t count, int64_t size) {
      return at::randn({c.rows, c.tokens, count, size}, at::kDouble).to(c.type).transpose(1, 2);
    };
    input = {.q = heads(c.kv_heads * c.sharing, c.head),
             .k = heads(c.kv_heads, c.head),
             .v = heads(c.kv_heads, c.v_head),
             .scale = 0.3,
             .mask = c.mask,
             .sinks = c.sinks ? at::randn({c.kv_heads * c.sharing}, at::kDouble).to(c.type) : at::Tensor()};
    grad_out = heads(c.kv_heads * c.sharing, c.v_head);
    microbatch.tokens = at::randint(50, {c.rows, c.tokens}, at::kLong);
    microbatch.labels = microbatch.tokens + 100;
    if (c.mask.documents) microbatch.documents = testing::random_documents(c.rows, c.tokens, 0.08);
  }
  nn::AttentionInput input;
  at::Tensor grad_out;
  nn::MicrobatchContext microbatch;
};

// Returns a context in which every layer has the case's mask.
ContextParallel context_of(const testing::ThreadRank& self, const Case& c, const std::string& rotate) {
  return {&self.mesh->group(mesh::Axis::kContext), c.balance, {{c.mask}}, rotate};
}

using Results = std::vector<at::Tensor>;  // Output, then the gradients of q, k, v and sinks.

Results run(nn::AttentionInput input, const at::Tensor& grad_out, const nn::AttentionCore& core,
            const nn::MicrobatchContext& microbatch) {
  std::vector<at::Tensor> leaves;
  for (at::Tensor* tensor : {&input.q, &input.k, &input.v, &input.sinks}) {
    if (!tensor->defined()) continue;
    *tensor = tensor->detach().requires_grad_();
    leaves.push_back(*tensor);
  }
  Results results{core(input, microbatch)};
  for (at::Tensor& gradient : torch::autograd::grad({results[0]}, leaves, {grad_out})) {
    results.push_back(std::move(gradient));
  }
  return results;
}

// Returns one rank's results from its share of the whole.
Results run_share(const Whole& whole, const ContextParallel& context) {
  const nn::MicrobatchContext share = shard_microbatch(whole.microbatch, context);
  nn::AttentionInput input = whole.input;
  for (at::Tensor* tensor : {&input.q, &input.k, &input.v}) *tensor = tensor->index_select(2, share.positions);
  return run(input, whole.grad_out.index_select(2, share.positions), context_parallel_attention(context), share);
}

void expect_near(const at::Tensor& one, const at::Tensor& other, double tolerance, const std::string& what) {
  ASSERT_EQ(one.sizes(), other.sizes()) << what;
  EXPECT_LE((one - other).abs().max().item<double>(), tolerance * (1 + other.abs().max().item<double>())) << what;
}

// Compares every rank's share of outputs and gradients with the oracle's, and the two methods with each other.
void expect_exact(const Case& c, double tolerance) {
  const Whole whole(c);
  const at::Tensor documents = whole.microbatch.documents;
  const Results oracle = run(whole.input, whole.grad_out,
                             [&](const nn::AttentionInput& in, const nn::MicrobatchContext&) {
                               return testing::plain_attention(in, documents);
                             },
                             {});
  at::Tensor grad_sinks = c.sinks ? at::zeros_like(whole.input.sinks) : at::Tensor();
  std::mutex mutex;
  testing::run_ranks({.cp = c.ranks}, c.ranks, {mesh::Axis::kContext}, [&](testing::ThreadRank& self) {
    ContextParallel context = context_of(self, c, "allgather");
    const Results gathered = run_share(whole, context);
    context.rotate = "alltoall";
    const Results ring = run_share(whole, context);
    const at::Tensor positions = shard_microbatch(whole.microbatch, context).positions;
    const char* names[] = {"output", "grad q", "grad k", "grad v"};
    std::lock_guard lock(mutex);
    for (size_t i = 0; i < 4; ++i) {
      std::ostringstream what;
      what << names[i] << " of rank " << self.rank << ": " << c;
      expect_near(ring[i], oracle[i].index_select(2, positions), tolerance, what.str());
      expect_near(ring[i], gathered[i], tolerance, what.str() + ", ring and gather");
    }
    if (c.sinks) grad_sinks += ring[4];
  });
  if (c.sinks) expect_near(grad_sinks, oracle[4], tolerance, "grad sinks");
}

TEST(ContextTest, EveryMaskOnEveryRingIsExact) {
  at::manual_seed(1);
  titan::testing::Draw pick(5);
  for (int i = 0; i < 60; ++i) {
    const Case c{
        .ranks = static_cast<int>(pick({2, 3, 4, 8})),
        .balance = static_cast<LoadBalance>(pick({0, 1, 2, 2})),
        .rows = pick({1, 2}),
        .kv_heads = pick({1, 2}),
        .sharing = pick({1, 2}),
        .tokens = 48 * pick({1, 2, 5}),
        .head = pick({4, 8}),
        .v_head = pick({4, 8}),
        .mask = {.window = pick({0, 0, 3, 20, 70}), .chunk = pick({0, 0, 16, 35}), .documents = pick({0, 1}) == 1},
        .sinks = pick({0, 1}) == 1};
    expect_exact(c, 1e-12);
  }
}

TEST(ContextTest, BidirectionalOnEveryRingIsExact) {
  at::manual_seed(7);
  titan::testing::Draw pick(7);
  for (int i = 0; i < 20; ++i) {
    expect_exact({.ranks = static_cast<int>(pick({2, 3, 4})),
                  .balance = static_cast<LoadBalance>(pick({0, 1, 2})),
                  .sharing = pick({1, 2}),
                  .tokens = 24 * pick({1, 2}),
                  .v_head = pick({4, 8}),
                  .mask = {.chunk = pick({0, 0, 16}), .documents = pick({0, 1}) == 1, .causal = false},
                  .sinks = pick({0, 1}) == 1},
                 1e-12);
  }
}

TEST(ContextTest, LowerPrecisionsComeClose) {
  at::manual_seed(2);
  expect_exact({.ranks = 4, .sharing = 2, .tokens = 160, .type = at::kFloat}, 1e-5);
  kernels::testing::with_every_choice([] {
    const nn::AttentionMask masks[] = {{}, {.window = 70}, {.chunk = 35, .documents = true}, {.causal = false}};
    for (const nn::AttentionMask& mask : masks) {
      for (const LoadBalance balance : {LoadBalance::kHeadTail, LoadBalance::kWork}) {
        expect_exact({.ranks = 4,
                      .balance = balance,
                      .sharing = 2,
                      .tokens = 160,
                      .mask = mask,
                      .sinks = true,
                      .type = at::kBFloat16},
                     0.05);
      }
    }
  });
}

TEST(ContextTest, SharesMakeUpTheRow) {
  const Whole whole({.rows = 1, .tokens = 24});
  for (const bool balance : {true, false}) {
    at::Tensor seen = at::zeros({24}, at::kLong);
    testing::run_ranks({.cp = 3}, 3, {mesh::Axis::kContext}, [&](testing::ThreadRank& self) {
      const ContextParallel context =
          context_of(self, {.balance = balance ? LoadBalance::kHeadTail : LoadBalance::kNone}, "");
      const nn::MicrobatchContext share = shard_microbatch(whole.microbatch, context);
      EXPECT_EQ(share.whole_row, 24);
      EXPECT_TRUE(share.tokens.equal(whole.microbatch.tokens.index_select(1, share.positions)));
      EXPECT_TRUE(share.labels.equal(whole.microbatch.labels.index_select(1, share.positions)));
      const int64_t first = balance ? 4 * self.rank : 8 * self.rank;
      EXPECT_EQ(share.positions[0].item<int64_t>(), first);
      EXPECT_EQ(share.positions[7].item<int64_t>(), balance ? 23 - first : first + 7);
      seen.index_add_(0, share.positions, at::ones({8}, at::kLong));  // Ranks write different places.
      nn::MicrobatchContext odd = whole.microbatch;
      odd.tokens = odd.tokens.narrow(1, 0, 22);
      EXPECT_THROW(shard_microbatch(odd, context), c10::Error);
    });
    EXPECT_TRUE(seen.equal(at::ones({24}, at::kLong)));
  }
}

// The traffic that c10d sees is that of the header's closed form.
TEST(ContextTest, TrafficIsTheClosedForm) {
  at::manual_seed(3);
  const Case c{
      .ranks = 4, .rows = 2, .kv_heads = 2, .sharing = 2, .tokens = 64, .head = 8, .v_head = 4, .type = at::kBFloat16};
  const Whole whole(c);
  testing::run_ranks({.cp = 4}, 4, {mesh::Axis::kContext}, [&](testing::ThreadRank& self) {
    const int64_t block = c.rows * c.kv_heads * (c.tokens / 4) * (c.head + c.v_head);
    const int64_t bf16 = 2 * block, fp32 = 4 * block;
    for (const std::string rotate : {"allgather", "alltoall"}) {
      const comm::LedgerCounts before = self.ledger.counts();
      run_share(whole, context_of(self, c, rotate));
      comm::LedgerCounts expected{{"cp/all_gather", {2, 2 * 4 * bf16}}, {"cp/reduce_scatter", {1, 4 * fp32}}};
      if (rotate == "alltoall") {
        const comm::LedgerEntry turns{3 + 3 + 4, 6 * bf16 + 4 * fp32};
        expected = {{"cp/send", turns}, {"cp/recv", turns}};
      }
      EXPECT_EQ(comm::subtract(self.ledger.counts(), before), expected) << rotate;
    }
  });
}

std::vector<int64_t> flops_of_ranks(const Whole& whole, const Case& c) {
  std::vector<int64_t> flops(c.ranks);
  testing::run_ranks({.cp = c.ranks}, c.ranks, {mesh::Axis::kContext}, [&](testing::ThreadRank& self) {
    testing::FlopCounter counter;
    run_share(whole, context_of(self, c, "alltoall"));
    flops[self.rank] = counter.total();
  });
  return flops;
}

// Head-tail balance gives every rank the same work; without it the last rank has the most. The work is that of the
// row's causal half, since fully hidden blocks are not computed. FLOPs count a causal block as a whole one.
TEST(ContextTest, BalancedRanksComputeTheSame) {
  Case c{.ranks = 4, .rows = 1, .kv_heads = 1, .tokens = 256};
  const Whole whole(c);
  const int64_t per_score = 2 * 7 * c.head;  // Two products of a head's size forward, five backward.
  for (const bool balance : {true, false}) {
    c.balance = balance ? LoadBalance::kHeadTail : LoadBalance::kNone;
    const std::vector<int64_t> flops = flops_of_ranks(whole, c);
    std::vector<int64_t> expected;
    for (int64_t rank = 0; rank < c.ranks; ++rank) {
      const int64_t chunk = c.tokens / (balance ? 2 * c.ranks : c.ranks);
      expected.push_back(chunk * chunk * per_score * (balance ? 2 * c.ranks + 1 : rank + 1));
    }
    EXPECT_EQ(flops, expected) << balance;
  }
}

// Head-tail would leave the end of a long document, whose queries see the most keys, to one rank, so packed rows are
// dealt by their work.
TEST(ContextTest, PackedRowsAreEvenByWork) {
  Case c{.ranks = 4, .rows = 1, .kv_heads = 1, .tokens = 512, .mask = {.documents = true}};
  Whole whole(c);
  at::Tensor& documents = whole.microbatch.documents;
  documents = at::arange(c.tokens).div(32, "floor").unsqueeze(0);
  documents.narrow(1, 0, 256).zero_();
  const auto fullest = [&](LoadBalance balance) {
    c.balance = balance;
    const std::vector<int64_t> flops = flops_of_ranks(whole, c);
    const int64_t sum = std::accumulate(flops.begin(), flops.end(), int64_t{0});
    return static_cast<double>(c.ranks * *std::max_element(flops.begin(), flops.end())) / static_cast<double>(sum);
  };
  EXPECT_GT(fullest(LoadBalance::kHeadTail), 1.4);
  EXPECT_LT(fullest(LoadBalance::kWork), 1.1);
}

// Compares a long row with one rank's own attention. TITAN_LONG_ROW makes it longer (tests/numerics/long_context.py).
TEST(ContextTest, LongRow) {
  at::manual_seed(4);
  const char* const tokens = std::getenv("TITAN_LONG_ROW");
  const Case c{
      .ranks = 4, .rows = 1, .kv_heads = 1, .sharing = 2, .tokens = tokens != nullptr ? std::atoll(tokens) : 16384};
  const Whole whole(c);
  const Results one = run(whole.input, whole.grad_out, nn::attend, {});
  std::vector<double> seconds(c.ranks);
  std::mutex mutex;
  testing::run_ranks({.cp = c.ranks}, c.ranks, {mesh::Axis::kContext}, [&](testing::ThreadRank& self) {
    const ContextParallel context = context_of(self, c, "alltoall");
    const auto began = std::chrono::steady_clock::now();
    const Results share = run_share(whole, context);
    seconds[self.rank] = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    const at::Tensor positions = shard_microbatch(whole.microbatch, context).positions;
    std::lock_guard lock(mutex);
    for (size_t i = 0; i < 4; ++i) {
      expect_near(share[i], one[i].index_select(2, positions), 1e-11, std::to_string(c.tokens) + " tokens");
    }
  });
  std::printf("%lld tokens on %d ranks: %.1f s\n", static_cast<long long>(c.tokens), c.ranks, seconds[0]);
}

}  // namespace
}  // namespace titan::parallel
