#include "worker/rank/kernels/cpu/attention.h"

#include <gtest/gtest.h>

#include <numeric>

#include "tests/worker/rank/kernels/attention_emulated.h"
#include "tests/worker/rank/kernels/attention_oracle.h"
#include "worker/rank/kernels/cpu/attention_levels.h"

namespace titan::kernels {
namespace {

using testing::attention_truth;
using testing::AttentionProblem;
using testing::AttentionTruth;
using testing::Layout;

struct Body {
  std::string name;
  const AttentionLevel* level;
  // Largest allowed relative root mean square errors of o and of the gradients. One rounding to bf16 already causes up
  // to 2.3e-3.
  double out_error, grad_error;
};

constexpr double kFmaOut = 2.3e-3, kFmaGrad = 2.3e-3;
constexpr double kTilesOut = 2.5e-3, kTilesGrad = 6e-3;

// Returns all bodies that run here: this machine's levels, and the wide bodies on vectors and tiles that AVX2 emulates.
std::vector<Body> bodies() {
  std::vector<Body> all;
  for (const Level level : testing::levels_here()) {
    const std::string name(kernels::name(level));
    if (level == Level::kAvx2) all.push_back({name, &kAttentionAvx2, kFmaOut, kFmaGrad});
    if (level == Level::kAvx512) all.push_back({name, &kAttentionAvx512, kFmaOut, kFmaGrad});
    if (level == Level::kAmx) all.push_back({name, &kAttentionAmx, kTilesOut, kTilesGrad});
  }
  all.push_back({"emulated avx512", &testing::kAttentionEmulatedAvx512, kFmaOut, kFmaGrad});
  all.push_back({"emulated amx", &testing::kAttentionEmulatedAmx, kTilesOut, kTilesGrad});
  return all;
}

std::vector<double> doubles(const testing::Buffer<float>& buffer) {
  return {buffer.data(), buffer.data() + buffer.size()};
}

double root_mean_square(const std::vector<double>& values) {
  const double squares = std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
  return values.empty() ? 0 : std::sqrt(squares / static_cast<double>(values.size()));
}

// Checks the error as a whole and of each element, so that the others do not hide a single wrong row.
void expect_near(const char* what, const std::vector<double>& found, const std::vector<double>& truth, double error) {
  EXPECT_LE(testing::relative_rms(found, truth), error) << what;
  EXPECT_TRUE(testing::all_close(found, truth, 0x1p-7, 12 * error * root_mean_square(truth))) << what;
}

void expect_truth(const AttentionProblem& problem, const AttentionTruth& truth, const Body& body) {
  SCOPED_TRACE(body.name);
  ASSERT_TRUE(run_attention(*body.level, problem.forward()));
  expect_near("o", problem.o.all(), truth.o, body.out_error);
  EXPECT_TRUE(testing::all_close(doubles(problem.lse), truth.lse, 1e-6, 2e-4)) << "lse";
  problem.set_saved(truth);
  ASSERT_TRUE(run_attention(*body.level, problem.backward()));
  expect_near("grad_q", problem.grad_q.all(), truth.grad_q, body.grad_error);
  expect_near("grad_k", problem.grad_k.all(), truth.grad_k, body.grad_error);
  expect_near("grad_v", problem.grad_v.all(), truth.grad_v, body.grad_error);
  if (problem.shape.sinks != nullptr) {
    EXPECT_TRUE(testing::all_close(doubles(problem.grad_sinks), truth.grad_sinks, 1e-3, 1e-4)) << "grad_sinks";
  }
  for (const auto* out : {&problem.o, &problem.grad_q, &problem.grad_k, &problem.grad_v}) {
    EXPECT_EQ(out->touched_gaps(), 0);
  }
}

void expect_truth(const AttentionProblem& problem) {
  const AttentionTruth truth = attention_truth(problem);
  for (const Body& body : bodies()) expect_truth(problem, truth, body);
}

AttentionShape square(int64_t batch, int64_t heads, int64_t kv_heads, int64_t tokens, int64_t size, int64_t v_size) {
  return {.batch = batch,
          .heads = heads,
          .kv_heads = kv_heads,
          .queries = tokens,
          .keys = tokens,
          .size = size,
          .v_size = v_size,
          .scale = 1 / std::sqrt(static_cast<float>(size))};
}

std::vector<KeyRange> seen_in_row(const KeyRangeMask& mask, const AttentionShape& shape, int64_t first_query = 0,
                                  int64_t first_key = 0) {
  std::vector<KeyRange> seen(shape.queries);
  visible_keys(mask, first_query, shape.queries, first_key, shape.keys, seen.data());
  return seen;
}

// Returns documents of random lengths, many of them of one token.
std::vector<int64_t> random_documents(testing::Random& random, int64_t tokens) {
  std::vector<int64_t> starts;
  for (int64_t at = 0; at < tokens; at += random.pick(0, 2) == 0 ? 1 : random.pick(1, 1 + tokens / 2)) {
    starts.push_back(at);
  }
  return starts;
}

TEST(AttentionTest, CausalAtEveryHeadSize) {
  for (const auto& [size, v_size] : {std::pair{8, 8},
                                     {16, 16},
                                     {24, 16},
                                     {40, 72},
                                     {64, 64},
                                     {80, 96},
                                     {128, 128},
                                     {192, 128},
                                     {256, 256},
                                     {13, 7}}) {
    SCOPED_TRACE(::testing::Message() << size << " and " << v_size);
    const AttentionShape shape = square(1, 2, 1, 70, size, v_size);
    expect_truth({shape, seen_in_row({}, shape), Layout::kGaps, false, 1});
  }
}

// Rows may end inside tiles, strips and blocks, and may have no token or one.
TEST(AttentionTest, EveryLength) {
  for (const int64_t tokens : {0, 1, 2, 7, 15, 16, 17, 31, 32, 33, 63, 65, 95, 97, 127, 129, 200, 257, 300}) {
    SCOPED_TRACE(tokens);
    const AttentionShape shape = square(1, 1, 1, tokens, 16, 16);
    expect_truth({shape, seen_in_row({}, shape), Layout::kTokensFirst, tokens % 2 == 0, 2});
  }
}

TEST(AttentionTest, GroupedHeadsInEveryLayout) {
  for (const Layout layout : {Layout::kTokensFirst, Layout::kHeadsFirst, Layout::kGaps}) {
    for (const int64_t kv_heads : {1, 2, 6}) {
      const AttentionShape shape = square(2, 6, kv_heads, 50, 16, 24);
      expect_truth({shape, seen_in_row({}, shape), layout, true, 3});
    }
  }
}

// Masks combine documents, windows, chunks, and pieces of a row that see each other partly, fully or not at all.
TEST(AttentionTest, RandomMasks) {
  for (uint64_t seed = 0; seed < 60; ++seed) {
    testing::Random random(seed);
    AttentionShape shape = square(random.pick(1, 3), 4, random.pick(0, 1) == 0 ? 4 : 2, random.pick(1, 280),
                                  8 * random.pick(1, 6), 8 * random.pick(1, 6));
    shape.keys = random.pick(0, 2) == 0 ? random.pick(1, 280) : shape.queries;
    const int64_t row = shape.queries + shape.keys;
    KeyRangeMask mask;
    mask.causal = random.pick(0, 4) != 0;
    if (random.pick(0, 2) == 0) mask.window = random.pick(1, 100);
    if (random.pick(0, 2) == 0) mask.chunk = random.pick(1, 100);
    const int64_t first_query = random.pick(0, 1) * random.pick(0, shape.keys);
    std::vector<KeyRange> visible;
    const bool documents = random.pick(0, 2) != 0;
    for (int64_t b = 0; b < shape.batch; ++b) {
      const std::vector<int64_t> starts = random_documents(random, row);
      if (documents) mask.document_starts = starts.data(), mask.documents = static_cast<int64_t>(starts.size());
      const std::vector<KeyRange> seen = seen_in_row(mask, shape, first_query);
      visible.insert(visible.end(), seen.begin(), seen.end());
    }
    shape.visible_stride = shape.queries;
    SCOPED_TRACE(::testing::Message() << "seed " << seed << ": " << shape.queries << " queries, " << shape.keys
                                      << " keys, heads of " << shape.size << " and " << shape.v_size);
    const auto layout = static_cast<Layout>(random.pick(0, 2));
    expect_truth({shape, visible, layout, random.pick(0, 1) == 0, seed, 0.7});
  }
}

// Attention to an earlier part of the row, all of which is visible, merges with attention to a piece's own keys into
// the attention of the whole row.
TEST(AttentionTest, PiecesOfARowMerge) {
  for (const Body& body : bodies()) {
    SCOPED_TRACE(body.name);
    AttentionShape whole = square(1, 2, 2, 192, 32, 32);
    AttentionProblem all(whole, seen_in_row({}, whole), Layout::kTokensFirst, false, 5);
    const AttentionTruth truth = attention_truth(all);
    ASSERT_TRUE(run_attention(*body.level, all.forward()));
    // The last 96 queries with the first and the last 96 keys.
    std::vector<double> merged_lse, lse[2];
    std::vector<double> out[2];
    for (const int piece : {0, 1}) {
      AttentionForward args = all.forward();
      const std::vector<KeyRange> seen = seen_in_row({}, square(1, 2, 2, 96, 32, 32), 96, 96 * piece);
      args.shape.queries = args.shape.keys = 96;
      args.shape.visible = seen.data();
      args.q.data += 96 * args.q.token;
      args.k.data += 96 * piece * args.k.token;
      args.v.data += 96 * piece * args.v.token;
      const testing::HeadsBuffer o(1, 96, 2, 32, Layout::kTokensFirst, testing::Edge::kEnd);
      const testing::Buffer<float> piece_lse(2 * 96);
      args.o = o.out();
      args.lse = piece_lse.data();
      ASSERT_TRUE(run_attention(*body.level, args));
      out[piece] = o.all();
      lse[piece] = doubles(piece_lse);
    }
    std::vector<double> merged, expected;
    for (int64_t i = 0; i < 96 * 2 * 32; ++i) {
      const int64_t h = i / 32 % 2, t = i / 64;
      const double a = lse[0][h * 96 + t], b = lse[1][h * 96 + t];
      const double together = std::max(a, b) + std::log1p(std::exp(-std::abs(a - b)));
      EXPECT_NEAR(together, truth.lse[h * 192 + 96 + t], 2e-4);
      merged.push_back(out[0][i] * std::exp(a - together) + out[1][i] * std::exp(b - together));
      expected.push_back(truth.o[96 * 64 + i]);
    }
    expect_near("merged", merged, expected, body.out_error);
  }
}

// Gradients of pieces, computed with the whole row's results, add up to the row's gradients. The caller may pass delta.
TEST(AttentionTest, GradientsOfPiecesSumUp) {
  for (const Body& body : bodies()) {
    SCOPED_TRACE(body.name);
    const AttentionShape whole = square(1, 2, 1, 160, 32, 16);
    const AttentionProblem all(whole, seen_in_row({}, whole), Layout::kHeadsFirst, true, 6);
    const AttentionTruth truth = attention_truth(all);
    all.set_saved(truth);
    std::vector<double> grad_q(all.q.all().size());
    const testing::Buffer<float> delta(2 * 160);
    const std::vector<double> o = all.o.all(), grad_o = all.grad_o.all();
    for (int64_t i = 0; i < 2 * 160; ++i) {
      double sum = 0;
      for (int64_t j = 0; j < 16; ++j) sum += o[i * 16 + j] * grad_o[i * 16 + j];
      delta[i % 2 * 160 + i / 2] = static_cast<float>(sum);
    }
    for (const int64_t first_key : {0, 64}) {  // Keys [0, 64), then [64, 160).
      AttentionBackward args = all.backward();
      args.shape.keys = first_key == 0 ? 64 : 96;
      const std::vector<KeyRange> seen = seen_in_row({}, args.shape, 0, first_key);
      args.shape.visible = seen.data();
      args.delta = delta.data();
      args.o = {};
      for (Heads* heads : {&args.k, &args.v}) heads->data += first_key * heads->token;
      for (HeadsOut* heads : {&args.grad_k, &args.grad_v}) heads->data += first_key * heads->token;
      ASSERT_TRUE(run_attention(*body.level, args));
      const std::vector<double> part = all.grad_q.all();
      for (size_t i = 0; i < part.size(); ++i) grad_q[i] += part[i];
      EXPECT_TRUE(testing::all_close(doubles(all.grad_sinks), truth.grad_sinks, 1e-3, 1e-4)) << "grad_sinks";
    }
    expect_near("grad_q", grad_q, truth.grad_q, body.grad_error);
    expect_near("grad_k", all.grad_k.all(), truth.grad_k, body.grad_error);
    expect_near("grad_v", all.grad_v.all(), truth.grad_v, body.grad_error);
  }
}

TEST(AttentionTest, QueriesThatSeeNothing) {
  for (const bool with_sinks : {false, true}) {
    AttentionShape shape = square(1, 2, 2, 40, 16, 16);
    std::vector<KeyRange> seen = seen_in_row({}, shape);
    for (const int64_t query : {0, 3, 17, 39}) seen[query] = {};
    for (int64_t query = 20; query < 36; ++query) seen[query] = {5, 5};
    const AttentionProblem problem(shape, seen, Layout::kTokensFirst, with_sinks, 7);
    expect_truth(problem);
    for (const Body& body : bodies()) {
      ASSERT_TRUE(run_attention(*body.level, problem.forward()));
      ASSERT_TRUE(run_attention(*body.level, problem.backward()));
      EXPECT_EQ(problem.lse[3], with_sinks ? problem.sinks[0] : -testing::kInfinity);
      for (int64_t i = 0; i < 16; ++i) {
        EXPECT_EQ(problem.o.at(0, 3, 0, i), 0);
        EXPECT_EQ(problem.grad_q.at(0, 3, 0, i), 0);
      }
    }
  }
}

// Scores are in the thousands: one key gets all the weight, and the others' probabilities are too small for fp32.
TEST(AttentionTest, LargeScores) {
  AttentionShape shape = square(1, 2, 1, 150, 32, 32);
  const AttentionProblem problem(shape, seen_in_row({}, shape), Layout::kTokensFirst, false, 8);
  testing::Random random(8);
  for (const auto* heads : {&problem.q, &problem.k}) heads->fill(random, 40);
  const AttentionTruth truth = attention_truth(problem);
  for (const Body& body : bodies()) {
    SCOPED_TRACE(body.name);
    ASSERT_TRUE(run_attention(*body.level, problem.forward()));
    // fp32 holds a score of 5,000 to 3e-4, so the probabilities have that error, too.
    expect_near("o", problem.o.all(), truth.o, body.out_error);
    EXPECT_TRUE(testing::all_close(doubles(problem.lse), truth.lse, 1e-6, 2e-4)) << "lse";
  }
}

TEST(AttentionTest, DenormalsAndZeros) {
  AttentionShape shape = square(1, 1, 1, 70, 16, 16);
  const AttentionProblem problem(shape, seen_in_row({}, shape), Layout::kTokensFirst, false, 9);
  problem.q.for_each([](uint16_t& value) { value = 0x0003; });  // 2.8e-40
  problem.k.for_each([](uint16_t& value) { value = 0x8001; });
  problem.v.for_each([](uint16_t& value) { value = value == 0 ? 0 : 0x3f80; });
  for (const Body& body : bodies()) {
    SCOPED_TRACE(body.name);
    ASSERT_TRUE(run_attention(*body.level, problem.forward()));
    ASSERT_TRUE(run_attention(*body.level, problem.backward()));
    for (int64_t t = 0; t < 70; ++t) {
      EXPECT_NEAR(problem.lse[t], std::log(t + 1), 2e-4);
      EXPECT_EQ(problem.o.at(0, t, 0, 5), 0x3f80);
    }
  }
}

// A query that is not finite gets NaN, and changes no other query.
TEST(AttentionTest, NonFiniteQueriesAffectNoOthers) {
  AttentionShape shape = square(1, 1, 1, 70, 16, 16);
  const AttentionProblem problem(shape, seen_in_row({}, shape), Layout::kTokensFirst, false, 10);
  const AttentionTruth truth = attention_truth(problem);
  problem.q.at(0, 20, 0, 3) = 0x7f80;  // Infinity.
  problem.q.at(0, 40, 0, 3) = 0x7fc0;  // NaN.
  for (const Body& body : bodies()) {
    SCOPED_TRACE(body.name);
    ASSERT_TRUE(run_attention(*body.level, problem.forward()));
    std::vector<double> found = problem.o.all();
    for (const int64_t bad : {20, 40}) {
      for (int64_t i = 0; i < 16; ++i) {
        EXPECT_TRUE(std::isnan(found[bad * 16 + i])) << bad;
        found[bad * 16 + i] = truth.o[bad * 16 + i];
      }
    }
    expect_near("o", found, truth.o, body.out_error);
  }
}

// The bits do not depend on the number of threads, nor change on repetition.
TEST(AttentionTest, ThreadsDoNotChangeBits) {
  for (const Body& body : bodies()) {
    SCOPED_TRACE(body.name);
    const AttentionShape shape = square(2, 4, 2, 300, 16, 16);
    AttentionProblem problem(shape, seen_in_row({}, shape), Layout::kGaps, true, 11);
    std::vector<std::vector<double>> first;
    for (const int threads : {1, 2, 3, 1}) {
      problem.shape.threads = threads;
      ASSERT_TRUE(run_attention(*body.level, problem.forward()));
      ASSERT_TRUE(run_attention(*body.level, problem.backward()));
      const std::vector<std::vector<double>> all{problem.o.all(),      doubles(problem.lse),
                                                 problem.grad_q.all(), problem.grad_k.all(),
                                                 problem.grad_v.all(), doubles(problem.grad_sinks)};
      if (first.empty()) first = all;
      EXPECT_EQ(all, first) << threads;
    }
  }
}

TEST(AttentionTest, DeclinesBeforeItWrites) {
  for (const Level level : testing::levels_here()) {
    const AttentionShape good = square(1, 2, 2, 8, 16, 16);
    const AttentionProblem problem(good, seen_in_row({}, good), Layout::kTokensFirst, false, 12);
    const auto declined = [&](const std::function<void(AttentionShape&)>& spoil) {
      AttentionForward forward = problem.forward();
      AttentionBackward backward = problem.backward();
      spoil(forward.shape);
      spoil(backward.shape);
      return !attention_forward(level, forward) && !attention_backward(level, backward);
    };
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.size = 257; }));
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.v_size = 0; }));
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.kv_heads = 3; }));
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.scale = -1; }));
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.scale = std::nanf(""); }));
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.visible = nullptr; }));
    EXPECT_TRUE(declined([](AttentionShape& shape) { shape.threads = 0; }));
    problem.o.for_each([](uint16_t& value) { EXPECT_EQ(value, 0xA5A5); });
    problem.grad_k.for_each([](uint16_t& value) { EXPECT_EQ(value, 0xA5A5); });
    EXPECT_TRUE(attention_forward(level, problem.forward()));
    EXPECT_TRUE(attention_backward(level, problem.backward()));
  }
}

}  // namespace
}  // namespace titan::kernels
