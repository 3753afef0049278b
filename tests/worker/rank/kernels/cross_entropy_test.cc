#include "worker/rank/kernels/cpu/cross_entropy.h"

#include "tests/worker/rank/kernels/simulated_kernels.h"

namespace titan::kernels::testing {
namespace {

constexpr int64_t kIgnored = -100;

struct LossCase {
  int64_t tokens;
  std::vector<int64_t> chunks;  // Number of ids in each chunk.
  Dtype type;
  double scale = 3;
  int64_t padding = -1;  // Between rows; -1: some.
};

std::vector<LossCase> loss_cases() {
  std::vector<LossCase> cases;
  for (const Dtype type : kBothTypes) {
    cases.push_back({0, {5}, type});
    cases.push_back({1, {1}, type});
    cases.push_back({3, {7, 16, 1}, type});
    cases.push_back({4, {100, 33}, type});
    cases.push_back({2, {9001, 4096}, type});
    cases.push_back({3, {0, 40, 0}, type, 1e30});  // One id has all the probability.
    cases.push_back({3, {40, 40}, type, 1e-30});
    cases.push_back({4, {8, 4200, 16}, type, 3, 8});
  }
  return cases;
}

// Chunks of logits [tokens, ids + padding] of one case, processed one after the other as a head does.
struct Head {
  explicit Head(const LossCase& c, uint64_t seed = 1)
      : c(c), random(seed), maximum(c.tokens), sum(c.tokens), label_logit(c.tokens), labels(c.tokens) {
    for (const int64_t ids : c.chunks) {
      first_ids.push_back(vocabulary);
      strides.push_back(ids + (c.padding < 0 ? random.pick(0, 3) : c.padding));
      logits.push_back(
          std::make_unique<Numbers>(c.type, random.normals(c.tokens * strides.back(), c.scale), random.edge()));
      vocabulary += ids;
    }
    for (int64_t token = 0; token < c.tokens; ++token) {
      labels[token] = token % 3 == 2 ? kIgnored : random.pick(0, vocabulary - 1);
    }
  }

  std::vector<double> row(int64_t token) const {
    std::vector<double> all;
    for (size_t chunk = 0; chunk < logits.size(); ++chunk) {
      for (int64_t i = 0; i < c.chunks[chunk]; ++i) all.push_back(logits[chunk]->get(token * strides[chunk] + i));
    }
    return all;
  }

  bool forward(const Computer& by) const {
    bool done = true;
    for (size_t chunk = 0; chunk < logits.size(); ++chunk) {
      done &= by.run(softmax_chunk, {.tokens = c.tokens,
                                     .vocabulary = c.chunks[chunk],
                                     .first_id = first_ids[chunk],
                                     .type = c.type,
                                     .logits = logits[chunk]->data(),
                                     .stride = strides[chunk],
                                     .labels = labels.data(),
                                     .first = chunk == 0,
                                     .maximum = maximum.data(),
                                     .sum = sum.data(),
                                     .label_logit = label_logit.data()});
    }
    return done;
  }
  // Overwrites the logits with their gradients.
  bool backward(const Computer& by, float scale) const {
    bool done = true;
    for (size_t chunk = 0; chunk < logits.size(); ++chunk) {
      CrossEntropyGradient args{.tokens = c.tokens,
                                .vocabulary = c.chunks[chunk],
                                .first_id = first_ids[chunk],
                                .type = c.type,
                                .logits = logits[chunk]->data(),
                                .stride = strides[chunk],
                                .gradient = logits[chunk]->data(),
                                .gradient_stride = strides[chunk],
                                .labels = labels.data(),
                                .ignored = kIgnored,
                                .maximum = maximum.data(),
                                .sum = sum.data(),
                                .scale = scale,
                                .threads = by.threads};
      if (by.device == nullptr) {
        done &= cross_entropy_gradient(*by.level, args);
      } else {
        args.scale = static_cast<float>(kNan);  // The kernel must not read it.
        done &= by.device->run(args, &scale);
      }
    }
    return done;
  }
  double loss(const Computer& by) const {
    const CrossEntropyLoss args{.tokens = c.tokens,
                                .labels = labels.data(),
                                .ignored = kIgnored,
                                .maximum = maximum.data(),
                                .sum = sum.data(),
                                .label_logit = label_logit.data()};
    float loss = 0;
    if (by.device != nullptr) return by.device->run(args, &loss) ? static_cast<double>(loss) : kNan;
    return cross_entropy_loss(args);
  }

  LossCase c;
  Random random;
  int64_t vocabulary = 0;
  std::vector<int64_t> first_ids, strides;
  std::vector<std::unique_ptr<Numbers>> logits;
  Buffer<float> maximum, sum, label_logit;
  Buffer<int64_t> labels;
};

struct RowTruth {
  double maximum, sum;
};
RowTruth truth_of(const std::vector<double>& row) {
  const double maximum = row.empty() ? -kInfinity : *std::max_element(row.begin(), row.end());
  double sum = 0;
  for (const double logit : row) sum += std::exp(logit - maximum);
  return {maximum, sum};
}

TEST(CrossEntropyTest, MatchesFp64ChunkByChunk) {
  for (const LossCase& c : loss_cases()) {
    SCOPED_TRACE(::testing::Message() << c.tokens << " tokens, " << c.chunks.size() << " chunks, first "
                                      << c.chunks.front() << ", " << name(c.type) << ", scale " << c.scale);
    for_each_computer([&](const Computer& by) {
      const Head head(c);
      std::vector<std::vector<double>> rows(c.tokens);
      for (int64_t token = 0; token < c.tokens; ++token) rows[token] = head.row(token);
      ASSERT_TRUE(head.forward(by));
      double loss = 0, magnitude = 0;
      for (int64_t token = 0; token < c.tokens; ++token) {
        const RowTruth truth = truth_of(rows[token]);
        ASSERT_EQ(head.maximum[token], truth.maximum);
        ASSERT_NEAR(head.sum[token], truth.sum, 1e-6 * truth.sum);
        if (head.labels[token] == kIgnored) continue;
        const double logit = rows[token][head.labels[token]];
        ASSERT_EQ(head.label_logit[token], logit);
        loss += std::log(truth.sum) + truth.maximum - logit;
        magnitude += 1 + std::abs(truth.maximum - logit);
      }
      ASSERT_NEAR(head.loss(by), loss, 1e-6 * magnitude);

      const float scale = 0.37F;
      ASSERT_TRUE(head.backward(by, scale));
      for (int64_t token = 0; token < c.tokens; ++token) {
        const RowTruth truth = truth_of(rows[token]);
        const std::vector<double> gradients = head.row(token);
        for (int64_t id = 0; id < head.vocabulary; ++id) {
          const double softmax = std::exp(rows[token][id] - truth.maximum) / truth.sum;
          const double gradient = (softmax - (id == head.labels[token] ? 1 : 0)) * scale;
          ASSERT_TRUE(
              is_close(gradients[id], head.labels[token] == kIgnored ? 0 : gradient, rounding(c.type), 2e-6 * scale))
              << gradients[id] << ", " << gradient;
        }
      }
    });
  }
}

// Two ranks that each hold a part of the vocabulary merge their results as the header says.
TEST(CrossEntropyTest, MergesPartsOfTheVocabulary) {
  for (const Level level : levels_here()) {
    const Head whole({6, {50, 30}, Dtype::kF32});
    ASSERT_TRUE(whole.forward({level, 1, nullptr}));
    Buffer<float> maximum(6), sum(6), label_logit(6);
    std::vector<RowTruth> parts[2];
    std::vector<double> logits(6);
    for (const size_t rank : {0, 1}) {
      ASSERT_TRUE(softmax_chunk(level, {.tokens = 6,
                                        .vocabulary = whole.c.chunks[rank],
                                        .first_id = whole.first_ids[rank],
                                        .type = Dtype::kF32,
                                        .logits = whole.logits[rank]->data(),
                                        .stride = whole.strides[rank],
                                        .labels = whole.labels.data(),
                                        .first = true,
                                        .maximum = maximum.data(),
                                        .sum = sum.data(),
                                        .label_logit = label_logit.data()}));
      for (int64_t token = 0; token < 6; ++token) {
        parts[rank].push_back({maximum[token], sum[token]});
        logits[token] += label_logit[token];
      }
    }
    for (int64_t token = 0; token < 6; ++token) {
      const RowTruth &a = parts[0][token], &b = parts[1][token];
      const double largest = std::max(a.maximum, b.maximum);
      EXPECT_EQ(largest, whole.maximum[token]);
      EXPECT_NEAR(a.sum * std::exp(a.maximum - largest) + b.sum * std::exp(b.maximum - largest), whole.sum[token],
                  1e-6 * whole.sum[token]);
      if (whole.labels[token] != kIgnored) {
        EXPECT_EQ(logits[token], whole.label_logit[token]);
      }
    }
  }
}

TEST(CrossEntropyTest, HandlesMinusInfinityAndPropagatesNan) {
  for_each_computer([](const Computer& by) {
    const Head head({4, {20, 20}, Dtype::kBf16});
    const auto set = [&](int64_t token, int64_t chunk, int64_t id, double value) {
      head.logits[chunk]->set(token * head.strides[chunk] + id, value);
    };
    for (int64_t id = 0; id < 20; ++id) set(0, 0, id, -kInfinity);  // A first chunk that is fully masked.
    set(1, 1, 3, kNan);
    for (int64_t id = 0; id < 20; ++id) set(2, 0, id, kNan);
    set(3, 0, 17, kInfinity);
    head.labels[0] = 25;
    const RowTruth truth = truth_of(head.row(0));
    ASSERT_TRUE(head.forward(by));
    EXPECT_EQ(head.maximum[0], truth.maximum);
    EXPECT_NEAR(head.sum[0], truth.sum, 1e-6 * truth.sum);
    for (const int64_t token : {1, 2, 3}) EXPECT_TRUE(std::isnan(head.sum[token]));
    ASSERT_TRUE(head.backward(by, 1));
    EXPECT_EQ(head.row(0)[5], 0);
    EXPECT_TRUE(std::isnan(head.row(1)[0]));
  });
}

}  // namespace
}  // namespace titan::kernels::testing
