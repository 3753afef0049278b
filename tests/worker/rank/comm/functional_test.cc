#include "worker/rank/comm/functional.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/WrapDimUtils.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/worker/rank/comm/thread_ranks.h"

namespace titan::comm {
namespace {

using mesh::Axis;

// Returns small integers, which are exact in every type, including their sums over ranks.
at::Tensor random_integers(at::IntArrayRef shape, int64_t seed, at::ScalarType type) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randint(-4, 5, shape, generator, at::TensorOptions().dtype(at::kDouble)).to(type);
}

at::Tensor leaf(const at::Tensor& value) { return value.clone().set_requires_grad(true); }

at::Tensor gradient(const at::Tensor& output, const at::Tensor& input, const at::Tensor& seed) {
  return torch::autograd::grad({output}, {input}, {seed})[0];
}

struct Case {
  int64_t dim;
  at::ScalarType type;
};
const std::vector<Case> kCases = {{0, at::kDouble}, {1, at::kDouble}, {-1, at::kDouble},
                                  {0, at::kFloat},  {1, at::kFloat},  {1, at::kBFloat16}};

// Runs `body` on three ranks, in memory and over sockets.
void on_three_ranks(const std::function<void(testing::ThreadRank&)>& body) {
  for (const testing::Via via : {testing::Via::kMemory, testing::Via::kGloo}) {
    testing::run_ranks({.tp = 3}, 3, {Axis::kTensor}, body, via);
  }
}

// Runs `body` for each case: a shape with a dimension `dim` that three divides and others that it does not.
void for_each_case(const std::function<void(const Group&, int64_t dim, at::ScalarType, std::vector<int64_t>)>& body) {
  on_three_ranks([&](testing::ThreadRank& self) {
    for (const Case& item : kCases) {
      std::vector<int64_t> shape{2, 4, 5};
      shape[at::maybe_wrap_dim(item.dim, 3)] = 6;
      SCOPED_TRACE(::testing::Message() << "dim " << item.dim << ", " << c10::toString(item.type));
      body(self.mesh->group(Axis::kTensor), item.dim, item.type, shape);
    }
  });
}

// Returns the gradient of `rank`'s use of a gathered tensor, one number per element.
at::Tensor weights_of(int rank, at::IntArrayRef shape, at::ScalarType type) {
  return random_integers(shape, 100 + rank, type);
}

at::Tensor sum_of_weights(const Group& group, at::IntArrayRef shape, at::ScalarType type) {
  at::Tensor sum = weights_of(0, shape, type);
  for (int rank = 1; rank < group.size(); ++rank) sum += weights_of(rank, shape, type);
  return sum;
}

TEST(FunctionalTest, GatherSumsGradients) {
  for_each_case([](const Group& group, int64_t dim, at::ScalarType type, const std::vector<int64_t>& shape) {
    const at::Tensor whole = random_integers(shape, 1, type);
    const at::Tensor piece = leaf(whole.chunk(group.size(), dim)[group.rank()]);
    const at::Tensor gathered = gather(piece, dim, group);
    EXPECT_TRUE(gathered.equal(whole));
    EXPECT_TRUE(gathered.is_contiguous());
    EXPECT_TRUE(gradient(gathered, piece, weights_of(group.rank(), shape, type))
                    .equal(sum_of_weights(group, shape, type).chunk(group.size(), dim)[group.rank()]));
  });
}

TEST(FunctionalTest, GatherAlikeTakesItsPieceOfTheGradient) {
  for_each_case([](const Group& group, int64_t dim, at::ScalarType type, const std::vector<int64_t>& shape) {
    const at::Tensor whole = random_integers(shape, 2, type);
    const at::Tensor piece = leaf(whole.chunk(group.size(), dim)[group.rank()]);
    const at::Tensor gathered = gather_alike(piece, dim, group);
    EXPECT_TRUE(gathered.equal(whole));
    const at::Tensor seed = weights_of(0, shape, type);
    EXPECT_TRUE(gradient(gathered, piece, seed).equal(seed.chunk(group.size(), dim)[group.rank()]));
  });
}

TEST(FunctionalTest, ReduceScatterGathersGradients) {
  for_each_case([](const Group& group, int64_t dim, at::ScalarType type, const std::vector<int64_t>& shape) {
    const at::Tensor partial = leaf(weights_of(group.rank(), shape, type));
    const at::Tensor piece = reduce_scatter(partial, dim, group);
    EXPECT_TRUE(piece.equal(sum_of_weights(group, shape, type).chunk(group.size(), dim)[group.rank()]));
    const at::Tensor seed = random_integers(shape, 3, type);
    EXPECT_TRUE(gradient(piece, partial, seed.chunk(group.size(), dim)[group.rank()]).equal(seed));
  });
}

TEST(FunctionalTest, AllReduceKeepsItsInputAndTheGradient) {
  for_each_case([](const Group& group, int64_t, at::ScalarType type, const std::vector<int64_t>& shape) {
    const at::Tensor partial = leaf(weights_of(group.rank(), shape, type));
    const at::Tensor sum = all_reduce(partial, group);
    EXPECT_TRUE(sum.equal(sum_of_weights(group, shape, type)));
    EXPECT_TRUE(partial.equal(weights_of(group.rank(), shape, type)));
    const at::Tensor seed = random_integers(shape, 4, type);
    EXPECT_TRUE(gradient(sum, partial, seed).equal(seed));
  });
}

// fan_out() overwrites an incoming gradient only if no other tensor shares it.
TEST(FunctionalTest, FanOutSumsGradients) {
  for_each_case([](const Group& group, int64_t, at::ScalarType type, const std::vector<int64_t>& shape) {
    const at::Tensor whole = leaf(random_integers(shape, 5, type));
    const at::Tensor seed = weights_of(group.rank(), shape, type);
    const at::Tensor expected = sum_of_weights(group, shape, type);
    EXPECT_TRUE(fan_out(whole, group).equal(whole));
    EXPECT_TRUE(gradient(fan_out(whole, group), whole, seed).equal(expected));
    EXPECT_TRUE(seed.equal(weights_of(group.rank(), shape, type)));
    // One gradient tensor goes to both addends: the second one must not see the first one's sum.
    EXPECT_TRUE(gradient(fan_out(whole, group) + whole, whole, seed).equal(expected + seed));
    EXPECT_TRUE(gradient(fan_out(whole, group) * 2, whole, seed).equal(expected * 2));
  });
}

TEST(FunctionalTest, TakePieceGathersGradients) {
  for_each_case([](const Group& group, int64_t dim, at::ScalarType type, const std::vector<int64_t>& shape) {
    const at::Tensor whole = leaf(random_integers(shape, 6, type));
    const at::Tensor piece = take_piece(whole, dim, group);
    EXPECT_TRUE(piece.equal(whole.chunk(group.size(), dim)[group.rank()]));
    const at::Tensor seed = random_integers(shape, 7, type);
    EXPECT_TRUE(gradient(piece * 1, whole, seed.chunk(group.size(), dim)[group.rank()]).equal(seed));
  });
}

// Expects rank r to send rows(r, p) rows to rank p, and to get its own back.
void expect_exchange(const Group& group, const std::function<int64_t(int from, int to)>& rows, at::ScalarType type) {
  const int n = group.size();
  std::vector<int64_t> to, from;
  for (int peer = 0; peer < n; ++peer) {
    to.push_back(rows(group.rank(), peer));
    from.push_back(rows(peer, group.rank()));
  }
  const auto first = [&](int sender, int receiver) {
    int64_t row = 0;
    for (int earlier = 0; earlier < receiver; ++earlier) row += rows(sender, earlier);
    return row;
  };
  const auto sent = [&](int rank) { return random_integers({first(rank, n), 4}, 10 + rank, type); };
  const at::Tensor input = sent(group.rank());
  at::Tensor output = at::empty({std::accumulate(from.begin(), from.end(), int64_t{0}), 4}, input.options());
  group.all_to_all(output, input, from, to).wait();
  std::vector<at::Tensor> expected;
  for (int peer = 0; peer < n; ++peer) {
    expected.push_back(sent(peer).narrow(0, first(peer, group.rank()), rows(peer, group.rank())));
  }
  EXPECT_TRUE(output.equal(at::cat(expected)));
  at::Tensor back = at::empty_like(input);
  group.all_to_all(back, output, to, from).wait();
  EXPECT_TRUE(back.equal(input));
}

// Sizes may be uneven, zero between two ranks, zero for a whole rank, or zero everywhere.
TEST(GroupTest, AllToAllAndBack) {
  on_three_ranks([](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kTensor);
    for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
      expect_exchange(
          group, [](int from, int to) { return int64_t{2} * from + to; }, type);
      expect_exchange(
          group, [](int from, int to) { return int64_t{from} * to; }, type);
      expect_exchange(
          group, [](int, int) { return int64_t{0}; }, type);
    }
  });
}

// A group of one adds no node, no copy and no call.
TEST(FunctionalTest, GroupOfOneIsTheIdentity) {
  testing::run_ranks({}, 1, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kTensor);
    const at::Tensor x = leaf(random_integers({3, 2}, 8, at::kFloat));
    for (const at::Tensor& same : {gather(x, 1, group), gather_alike(x, 1, group), reduce_scatter(x, 1, group),
                                   all_reduce(x, group), fan_out(x, group), take_piece(x, 1, group)}) {
      EXPECT_TRUE(same.is_same(x));
    }
    EXPECT_TRUE(self.ledger.counts().empty());
  });
}

// The product of split matrices, x W1 W2 with columns of W1 and rows of W2, and its gradients equal the unsplit one in
// plain float64: with the sequence split between them and with whole activations.
TEST(FunctionalTest, SplitProductEqualsTheUnsplitOne) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const Group& group = self.mesh->group(Axis::kTensor);
    auto generator = at::make_generator<at::CPUGeneratorImpl>(11);
    const auto draw = [&](at::IntArrayRef shape) { return at::randn(shape, generator, at::kDouble); };
    const at::Tensor x = leaf(draw({2, 6, 3})), w1 = leaf(draw({3, 8})), w2 = leaf(draw({8, 3}));
    const at::Tensor seed = draw({2, 6, 3});
    const at::Tensor y = at::tanh(x.matmul(w1)).matmul(w2);
    const auto expected = torch::autograd::grad({y}, {x, w1, w2}, {seed});

    const at::Tensor own1 = leaf(w1.detach().chunk(2, 1)[self.rank]), own2 = leaf(w2.detach().chunk(2, 0)[self.rank]);
    const auto check = [&](const at::Tensor& input, const at::Tensor& output, const at::Tensor& whole_input,
                           const at::Tensor& whole_output, const at::Tensor& output_seed) {
      const auto own = torch::autograd::grad({output}, {input, own1, own2}, {output_seed});
      EXPECT_TRUE(output.allclose(whole_output, 0, 1e-13));
      EXPECT_TRUE(own[0].allclose(whole_input, 0, 1e-13));
      EXPECT_TRUE(own[1].allclose(expected[1].chunk(2, 1)[self.rank], 0, 1e-13));
      EXPECT_TRUE(own[2].allclose(expected[2].chunk(2, 0)[self.rank], 0, 1e-13));
    };
    const at::Tensor all = leaf(x.detach());
    check(all, all_reduce(at::tanh(fan_out(all, group).matmul(own1)).matmul(own2), group), expected[0], y, seed);
    const auto piece = [&](const at::Tensor& whole) { return whole.detach().chunk(2, 1)[self.rank]; };
    const at::Tensor part = leaf(piece(x));
    check(part, reduce_scatter(at::tanh(gather(part, 1, group).matmul(own1)).matmul(own2), 1, group),
          piece(expected[0]), piece(y), piece(seed));
  });
}

}  // namespace
}  // namespace titan::comm
