#include "worker/rank/parallel/tensor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tests/testing/flop_counter.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/parallel/tiny_decoder.h"
#include "worker/rank/nn/matmul_autograd.h"
#include "worker/rank/nn/meta_kernels.h"

namespace titan::parallel {
namespace {

using comm::LedgerCounts;
using mesh::Axis;
using testing::TinyDecoder;
using testing::TinyOptions;

struct Mode {
  const char* name;
  bool sequence, overlap, loss_parallel;
};
const Mode kModes[] = {{"sequence", true, false, true},           {"sequence, whole logits", true, false, false},
                       {"whole activations", false, false, true}, {"whole activations and logits", false, false, false},
                       {"overlapped", true, true, true},          {"overlapped, whole logits", true, true, false}};
const TinyOptions kKinds[] = {
    {.name = "grouped"},
    {.name = "grouped, biases, head norms, sinks", .biases = true, .head_norms = true, .sinks = true},
    {.name = "latent", .latent = true},
    {.name = "latent, low-rank queries", .latent = true, .low_rank_queries = true}};

nn::MicrobatchContext microbatch(int64_t batch, int64_t length) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(batch * 100 + length);
  nn::MicrobatchContext context;
  context.tokens = at::randint(TinyDecoder::kVocabulary, {batch, length}, generator, at::kLong);
  context.labels = at::randint(TinyDecoder::kVocabulary, {batch, length}, generator, at::kLong);
  context.labels.select(1, 2).fill_(nn::kIgnoreIndex);
  return context;
}

struct Result {
  at::Tensor loss;
  std::vector<at::Tensor> gradients;  // Gradients of the parameters, in their order.
};

Result run(TinyDecoder& decoder, const nn::MicrobatchContext& context, const nn::Loss& loss_of) {
  std::vector<at::Tensor> weights;
  for (nn::Parameter& parameter : decoder.parameters()) weights.push_back(parameter.weight);
  const at::Tensor loss = loss_of(decoder.forward(context.tokens, context), context.labels);
  return {loss.detach(), torch::autograd::grad({loss}, weights)};
}

nn::Loss loss_for(const Mode& mode, const comm::Group& group) {
  return mode.loss_parallel ? vocabulary_parallel_loss(group) : nn::Loss(nn::cross_entropy_sum);
}

void expect_close(const at::Tensor& actual, const at::Tensor& expected, double tolerance, const std::string& what) {
  ASSERT_EQ(actual.sizes(), expected.sizes()) << what;
  const at::Tensor error = (actual.to(at::kDouble) - expected.to(at::kDouble)).abs().max();
  const double scale = std::max(1.0, expected.to(at::kDouble).abs().max().item<double>());
  EXPECT_LE(error.item<double>(), tolerance * scale) << what;
}

// Compares loss and every parameter's gradient with those of the whole decoder, for every mode, on `tp` ranks.
void check_all(int tp, at::ScalarType type, double tolerance) {
  testing::run_ranks({.tp = tp}, tp, {Axis::kTensor}, [&](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    for (const TinyOptions& kind : kKinds) {
      for (const int64_t batch : {1, 3}) {
        const nn::MicrobatchContext context = microbatch(batch, 8);
        TinyDecoder whole(kind);
        fill(whole, type);
        const Result expected = run(whole, context, nn::cross_entropy_sum);
        for (const Mode& mode : kModes) {
          SCOPED_TRACE(::testing::Message() << kind.name << ", " << mode.name << ", batch " << batch);
          TinyDecoder decoder(kind);
          decoder.split({.group = &group, .sequence = mode.sequence, .overlap = mode.overlap}, mode.loss_parallel);
          fill(decoder, type);
          Result own = run(decoder, context, loss_for(mode, group));
          expect_close(own.loss, expected.loss, tolerance, "loss");
          for (size_t i = 0; i < own.gradients.size(); ++i) {
            const nn::Parameter& parameter = decoder.parameters()[i];
            at::Tensor gradient = own.gradients[i].contiguous();
            if (parameter.on_tensor_axis == nn::TensorAxisPlacement::kPartial) group.all_reduce(gradient).wait();
            expect_close(gradient, testing::part_of(expected.gradients[i], parameter), tolerance, parameter.fqn);
          }
        }
      }
    }
  });
}

TEST(TensorParallelTest, TwoRanksEqualOneInFloat64) { check_all(2, at::kDouble, 1e-12); }
TEST(TensorParallelTest, FourRanksEqualOneInFloat64) { check_all(4, at::kDouble, 1e-12); }
TEST(TensorParallelTest, FourRanksEqualOneInFloat32) { check_all(4, at::kFloat, 1e-5); }

// Expects the overlapped products to give the bits of the collectives: losses and gradients, in every type.
void expect_same_bits(testing::Via via) {
  const auto body = [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    for (const TinyOptions& kind : kKinds) {
      for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(::testing::Message() << kind.name << ", " << c10::toString(type));
        const nn::MicrobatchContext context = microbatch(2, 64);
        Result results[2];
        for (const bool overlap : {false, true}) {
          TinyDecoder decoder(kind);
          decoder.split({.group = &group, .overlap = overlap}, true);
          fill(decoder, type);
          results[overlap] = run(decoder, context, vocabulary_parallel_loss(group));
        }
        EXPECT_TRUE(results[0].loss.equal(results[1].loss));
        TinyDecoder names(kind);
        for (size_t i = 0; i < results[0].gradients.size(); ++i) {
          EXPECT_TRUE(results[0].gradients[i].equal(results[1].gradients[i])) << names.parameters()[i].fqn;
        }
      }
    }
  };
  testing::run_ranks({.tp = 4}, 4, {Axis::kTensor}, body, via);
}

TEST(TensorParallelTest, OverlapChangesNoBit) { expect_same_bits(testing::Via::kMemory); }
TEST(TensorParallelTest, OverlapChangesNoBitOverGloo) { expect_same_bits(testing::Via::kGloo); }
TEST(TensorParallelTest, OverlapChangesNoBitInSharedMemory) { expect_same_bits(testing::Via::kSharedMemory); }

// Traffic of a sub-block's passes over the axis, in closed form: with the sequence split, one all-gather and one
// reduce-scatter in each direction; without, one all-reduce; with overlap, pieces instead.
struct Traffic {
  LedgerCounts forward, backward;
};

Traffic expected_traffic(const Mode& mode, int tp, int64_t whole_bytes) {
  const LedgerCounts sum{{"tp/all_reduce", {1, whole_bytes}}};
  if (!mode.sequence) return {sum, sum};
  if (mode.overlap) {
    const comm::LedgerEntry pieces{2 * (tp - 1), 2 * (tp - 1) * (whole_bytes / tp)};
    const LedgerCounts swaps{{"tp/send", pieces}, {"tp/recv", pieces}};
    return {swaps, swaps};
  }
  const LedgerCounts both{{"tp/all_gather", {1, whole_bytes}}, {"tp/reduce_scatter", {1, whole_bytes}}};
  return {both, both};
}

TEST(TensorParallelTest, SubBlockTrafficMatchesTheClosedForm) {
  constexpr int kRanks = 4;
  constexpr int64_t kBatch = 2, kLength = 8;
  testing::run_ranks({.tp = kRanks}, kRanks, {Axis::kTensor}, [&](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const nn::MicrobatchContext context = microbatch(kBatch, kLength);
    for (const TinyOptions& kind : kKinds) {
      for (const Mode& mode : kModes) {
        SCOPED_TRACE(::testing::Message() << kind.name << ", " << mode.name);
        TinyDecoder decoder(kind);
        decoder.split({.group = &group, .sequence = mode.sequence, .overlap = mode.overlap}, mode.loss_parallel);
        fill(decoder, at::kFloat);
        const int64_t own_length = mode.sequence ? kLength / kRanks : kLength;
        const at::Tensor x = at::ones({kBatch, own_length, TinyDecoder::kDim}).set_requires_grad(true);
        const auto check = [&](const std::function<at::Tensor()>& forward) {
          const LedgerCounts before = self.ledger.counts();
          const at::Tensor y = forward();
          const LedgerCounts between = self.ledger.counts();
          (void)torch::autograd::grad({y.sum()}, {x});
          const Traffic expected = expected_traffic(mode, kRanks, kBatch * kLength * TinyDecoder::kDim * 4);
          EXPECT_EQ(subtract(between, before), expected.forward);
          EXPECT_EQ(subtract(self.ledger.counts(), between), expected.backward);
        };
        check([&] { return decoder.attention->forward(x, context); });
        check([&] { return decoder.feed_forward.forward(x); });
      }
    }
  });
}

// The two ends send the embedding's sum forward, the head's input, and the loss's three numbers per token.
TEST(TensorParallelTest, TrafficOfBothEndsMatchesTheClosedForm) {
  constexpr int kRanks = 2;
  constexpr int64_t kBatch = 2, kLength = 8, kTokens = kBatch * kLength;
  constexpr int64_t kActivation = kTokens * TinyDecoder::kDim * 8, kLogits = kTokens * TinyDecoder::kVocabulary * 8;
  testing::run_ranks({.tp = kRanks}, kRanks, {Axis::kTensor}, [&](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const nn::MicrobatchContext context = microbatch(kBatch, kLength);
    for (const Mode& mode : kModes) {
      SCOPED_TRACE(mode.name);
      TinyDecoder decoder(kKinds[0]);
      decoder.split({.group = &group, .sequence = mode.sequence, .overlap = mode.overlap}, mode.loss_parallel);
      fill(decoder, at::kDouble);
      LedgerCounts last = self.ledger.counts();
      const auto since = [&] {
        const LedgerCounts now = self.ledger.counts();
        return subtract(now, std::exchange(last, now));
      };
      const at::Tensor x = decoder.embedding.forward(context.tokens);
      EXPECT_EQ(since(), (mode.sequence ? LedgerCounts{{"tp/reduce_scatter", {1, kActivation}}}
                                        : LedgerCounts{{"tp/all_reduce", {1, kActivation}}}));
      const at::Tensor logits = decoder.output.forward(x);
      LedgerCounts head;
      if (mode.overlap) head = {{"tp/send", {1, kActivation / 2}}, {"tp/recv", {1, kActivation / 2}}};
      if (mode.sequence && !mode.overlap) head = {{"tp/all_gather", {1, kActivation}}};
      if (!mode.loss_parallel) {
        comm::LedgerEntry& gathered = head["tp/all_gather"];
        gathered = {gathered.calls + 1, gathered.bytes + kLogits};
      }
      EXPECT_EQ(since(), head);
      const at::Tensor loss = loss_for(mode, group)(logits, context.labels);
      EXPECT_EQ(since(), (mode.loss_parallel ? LedgerCounts{{"tp/all_reduce", {2, 3 * kTokens * 8}}} : LedgerCounts{}));
      const at::Tensor gradient = torch::autograd::grad({loss}, {x})[0];
      LedgerCounts back{{"tp/all_reduce", {1, kActivation}}};
      if (mode.sequence) back = {{"tp/reduce_scatter", {1, kActivation}}};
      if (mode.overlap) back = {{"tp/send", {1, kActivation / 2}}, {"tp/recv", {1, kActivation / 2}}};
      EXPECT_EQ(since(), back);
      (void)torch::autograd::grad({x}, {decoder.embedding.weight().weight}, {gradient});
      EXPECT_EQ(since(), (mode.sequence ? LedgerCounts{{"tp/all_gather", {1, kActivation}}} : LedgerCounts{}));
    }
  });
}

// Every rank multiplies only its share. Only the projections to the latents of latent attention are the same on all
// ranks, forward and for both gradients.
TEST(TensorParallelTest, ProductsAreDividedByTheRanks) {
  constexpr int kRanks = 4;
  testing::run_ranks({.tp = kRanks}, kRanks, {Axis::kTensor}, [&](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const nn::MicrobatchContext context = microbatch(2, 8);
    for (const TinyOptions& kind : kKinds) {
      TinyDecoder whole(kind);
      fill(whole, at::kFloat);
      testing::FlopCounter counter;
      run(whole, context, nn::cross_entropy_sum);
      ASSERT_GT(counter.total(), 0);
      int64_t alike = 0;
      if (kind.latent) {
        const int64_t width =
            TinyDecoder::kKvRank + TinyDecoder::kRope + (kind.low_rank_queries ? TinyDecoder::kQueryRank : 0);
        alike = 3 * 2 * context.tokens.numel() * TinyDecoder::kDim * width;
      }
      const int64_t expected = (counter.total() - alike) / kRanks + alike;
      for (const Mode& mode : kModes) {
        SCOPED_TRACE(::testing::Message() << kind.name << ", " << mode.name);
        TinyDecoder decoder(kind);
        decoder.split({.group = &group, .sequence = mode.sequence, .overlap = mode.overlap}, mode.loss_parallel);
        fill(decoder, at::kFloat);
        counter.reset();
        run(decoder, context, loss_for(mode, group));
        EXPECT_EQ(counter.total(), expected);
      }
    }
  });
}

// A split backward pass leaves the overlapped products' weight gradients for later, and they stay the same.
TEST(TensorParallelTest, OverlappedProductsDeferWeightGradients) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const nn::MicrobatchContext context = microbatch(3, 8);
    TinyDecoder decoder(kKinds[1]);
    decoder.split({.group = &group, .overlap = true}, true);
    fill(decoder, at::kDouble);
    const Result at_once = run(decoder, context, vocabulary_parallel_loss(group));

    nn::DeferredGradients deferred;
    std::vector<at::Tensor> weights;
    for (nn::Parameter& parameter : decoder.parameters()) {
      parameter.deferred = &deferred;
      weights.push_back(parameter.weight);
    }
    nn::GradientQueue queue;
    const at::Tensor loss = vocabulary_parallel_loss(group)(decoder.forward(context.tokens, context), context.labels);
    deferred.open(queue);
    std::vector<at::Tensor> gradients =
        torch::autograd::grad({loss}, weights, {}, std::nullopt, /*create_graph=*/false, /*allow_unused=*/true);
    deferred.close();
    EXPECT_EQ(queue.size(), 8U);  // wq, wk, wv, wo, w1, w2, w3, output
    for (nn::DeferredGradient& late : queue) {
      for (size_t i = 0; i < gradients.size(); ++i) {
        if (late.parameter != &decoder.parameters()[i]) continue;
        EXPECT_FALSE(gradients[i].defined());
        gradients[i] = late.compute();
      }
    }
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(gradients[i].equal(at_once.gradients[i])) << decoder.parameters()[i].fqn;
    }
  });
}

// The storage of weights may be freed between the passes and refilled for the backward pass.
TEST(TensorParallelTest, OverlappedProductsReadRefilledWeights) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const nn::MicrobatchContext context = microbatch(2, 8);
    TinyDecoder decoder(kKinds[0]);
    decoder.split({.group = &group, .overlap = true}, true);
    fill(decoder, at::kDouble);
    const Result reference = run(decoder, context, vocabulary_parallel_loss(group));
    std::vector<at::Tensor> weights, values;
    for (nn::Parameter& parameter : decoder.parameters()) {
      weights.push_back(parameter.weight);
      values.push_back(parameter.weight.detach().clone());
    }
    const at::Tensor loss = vocabulary_parallel_loss(group)(decoder.forward(context.tokens, context), context.labels);
    for (const at::Tensor& weight : weights) {
      self.device->resize_storage(*weight.storage().unsafeGetStorageImpl(), 0);
    }
    for (size_t i = 0; i < weights.size(); ++i) {
      self.device->resize_storage(*weights[i].storage().unsafeGetStorageImpl(),
                                  static_cast<int64_t>(values[i].nbytes()));
      weights[i].variable_data().copy_(values[i]);
    }
    const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, weights);
    for (size_t i = 0; i < gradients.size(); ++i) EXPECT_TRUE(gradients[i].equal(reference.gradients[i]));
  });
}

// A dry run needs only shapes: they pass through every mode without values, except through attention, whose rotation
// has no meta kernel outside of Python.
TEST(TensorParallelTest, RunsOnMetaTensors) {
  nn::use_meta_kernels();
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const at::Tensor ids = at::empty({2, 8}, at::TensorOptions().dtype(at::kLong).device(at::kMeta));
    for (const Mode& mode : kModes) {
      if (!mode.loss_parallel) continue;
      SCOPED_TRACE(mode.name);
      TinyDecoder decoder(kKinds[0]);
      decoder.split({.group = &group, .sequence = mode.sequence, .overlap = mode.overlap}, true);
      for (nn::Parameter& parameter : decoder.parameters()) {
        parameter.weight = at::empty(parameter.shape, at::TensorOptions().device(at::kMeta)).set_requires_grad(true);
      }
      const at::Tensor x = decoder.feed_forward.forward(decoder.norm.forward(decoder.embedding.forward(ids)));
      EXPECT_EQ(x.size(1), mode.sequence ? 4 : 8);
      const at::Tensor loss = vocabulary_parallel_loss(group)(decoder.output.forward(x), ids);
      const std::vector<at::Tensor> weights{decoder.embedding.weight().weight, decoder.feed_forward.w1.weight().weight,
                                            decoder.feed_forward.w2.weight().weight, decoder.output.weight().weight};
      const std::vector<at::Tensor> gradients = torch::autograd::grad({loss}, weights);
      for (size_t i = 0; i < weights.size(); ++i) EXPECT_EQ(gradients[i].sizes(), weights[i].sizes());
    }
  });
}

// A head may read the embedding's matrix: it is split once, and both uses add to one gradient.
TEST(TensorParallelTest, TiedHeadIsSplitOnce) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const nn::MicrobatchContext context = microbatch(2, 8);
    Result results[2];
    std::deque<nn::Parameter> matrices;
    for (const bool is_split : {false, true}) {
      nn::Parameter& matrix = matrices.emplace_back(nn::Parameter{"tok_embeddings.weight", {24, 16}, {}, {}});
      const nn::Declare use = [&](const std::string&, const std::vector<int64_t>&, nn::Init) -> nn::Parameter& {
        return matrix;
      };
      nn::Embedding embedding(use, matrix.fqn, 24, 16, {});
      nn::Linear head(use, "output.weight", 16, 24, {});
      if (is_split) {
        split_embedding(embedding, {.group = &group});
        split_head(head, {.group = &group}, /*loss_parallel=*/true);
        EXPECT_THAT(matrix.shape, ::testing::ElementsAre(12, 16));
      }
      matrix.weight = testing::part_of(testing::whole_value(matrix, at::kDouble), matrix).set_requires_grad(true);
      const nn::Loss loss_of = is_split ? vocabulary_parallel_loss(group) : nn::Loss(nn::cross_entropy_sum);
      const at::Tensor loss = loss_of(head.forward(embedding.forward(context.tokens)), context.labels);
      results[is_split] = {loss.detach(), torch::autograd::grad({loss}, {matrix.weight})};
    }
    expect_close(results[1].loss, results[0].loss, 1e-12, "loss");
    expect_close(results[1].gradients[0], testing::part_of(results[0].gradients[0], matrices[1]), 1e-12, "gradient");
  });
}

// Sharding, saving and initialization rely on the description that a parameter has after the split.
TEST(SplitTest, ShapesAndOffsets) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    nn::Parameter parameter{"w", {6, 4}, {}, {}};
    split(parameter, 1, self.mesh->group(Axis::kTensor));
    EXPECT_THAT(parameter.shape, ::testing::ElementsAre(6, 2));
    EXPECT_THAT(parameter.global_shape, ::testing::ElementsAre(6, 4));
    EXPECT_THAT(parameter.offset, ::testing::ElementsAre(0, 2 * self.rank));
    EXPECT_EQ(parameter.on_tensor_axis, nn::TensorAxisPlacement::kShard);
  });
}

// The error names the numbers that do not divide.
TEST(SplitTest, RefusesIndivisibleSizes) {
  testing::run_ranks({.tp = 3}, 3, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    const auto message = [&](const std::function<void(TinyDecoder&)>& attempt) -> std::string {
      TinyDecoder decoder(kKinds[0]);
      try {
        attempt(decoder);
      } catch (const std::exception& error) {
        return comm::describe(error);
      }
      return "nothing was refused";
    };
    EXPECT_EQ(message([&](TinyDecoder& it) { split_attention(*it.grouped, {.group = &group}); }),
              "parallelism.tensor_parallel_degree 3 must divide 8 query heads of attention.wq.weight");
    EXPECT_EQ(message([&](TinyDecoder& it) { split_feed_forward(it.feed_forward, {.group = &group}); }),
              "feed_forward.w1.weight: dimension 0 of size 20 is not divisible by the 3 ranks of tp");
    EXPECT_THAT(
        message([&](TinyDecoder& it) { split_norm(it.norm, {.group = &group, .sequence = false, .overlap = true}); }),
        ::testing::HasSubstr("enable_async_tensor_parallel needs parallelism.enable_sequence_parallel"));
  });
  testing::run_ranks({.tp = 8}, 8, {Axis::kTensor}, [](testing::ThreadRank& self) {
    TinyDecoder decoder(kKinds[0]);
    try {
      split_attention(*decoder.grouped, {.group = &self.mesh->group(Axis::kTensor)});
      FAIL() << "four key-value heads on eight ranks";
    } catch (const std::exception& error) {
      EXPECT_EQ(comm::describe(error),
                "parallelism.tensor_parallel_degree 8 must divide 4 key-value heads of attention.wk.weight");
    }
  });
}

}  // namespace
}  // namespace titan::parallel
