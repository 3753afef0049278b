#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>

#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/parallel/tiny_decoder.h"
#include "worker/rank/parallel/tensor.h"

namespace titan::parallel {
namespace {

using mesh::Axis;

// Observes all of LibTorch's allocations on the CPU, and remembers the largest one of each thread.
class WatchingAllocator final : public c10::Allocator {
 public:
  explicit WatchingAllocator(c10::Allocator* inner) : inner_(inner) {}
  c10::DataPtr allocate(size_t bytes) override {
    largest() = std::max(largest(), bytes);
    return inner_->allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override { return inner_->raw_deleter(); }  // oneDNN in LibTorch needs it.
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
  static size_t& largest() {
    thread_local size_t bytes = 0;
    return bytes;
  }

 private:
  c10::Allocator* inner_;
};

void watch_allocations() {
  static auto* allocator = [] {
    auto* watching = new WatchingAllocator(c10::GetCPUAllocator());
    c10::SetCPUAllocator(watching, /*priority=*/1);
    return watching;
  }();
  (void)allocator;
}

struct Batch {
  at::Tensor logits;  // Float64, [2, T, V]
  at::Tensor labels;
};

Batch draw(int64_t length, int64_t vocabulary, double spread) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(length + vocabulary);
  Batch batch{at::randn({2, length, vocabulary}, generator, at::kDouble) * spread,
              at::randint(vocabulary, {2, length}, generator, at::kLong)};
  batch.labels.select(1, 0).fill_(nn::kIgnoreIndex);
  return batch;
}

// Compares loss and gradient of a part of the columns with those of whole rows in float64, each from the logits in
// `type`.
void expect_whole_loss(const comm::Group& group, const Batch& batch, at::ScalarType type, double tolerance) {
  SCOPED_TRACE(::testing::Message() << batch.logits.size(2) << " columns, " << c10::toString(type));
  const auto part = [&](const at::Tensor& whole) { return whole.chunk(group.size(), 2)[group.rank()]; };
  const at::Tensor whole = batch.logits.to(type).to(at::kDouble).set_requires_grad(true);
  const at::Tensor expected = nn::cross_entropy_sum(whole, batch.labels) / 3;
  const at::Tensor expected_gradient = part(torch::autograd::grad({expected}, {whole})[0]);

  const at::Tensor own = part(whole.detach()).contiguous().to(type).set_requires_grad(true);
  const at::Tensor before = own.detach().clone();
  const at::Tensor loss = vocabulary_parallel_loss(group)(own, batch.labels) / 3;
  EXPECT_EQ(loss.scalar_type(), nn::accumulate_type(type));
  EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, std::min(tolerance, 1e-6));
  const at::Tensor gradient = torch::autograd::grad({loss}, {own})[0];
  EXPECT_EQ(gradient.scalar_type(), type);
  EXPECT_LE((gradient.to(at::kDouble) - expected_gradient).abs().max().item<double>(), tolerance);
  EXPECT_TRUE(own.equal(before)) << "logits that the caller still holds were overwritten";
}

TEST(VocabularyParallelLossTest, EqualsTheWholeLoss) {
  kernels::testing::with_every_row_kernel([] {
    testing::run_ranks({.tp = 4}, 4, {Axis::kTensor}, [](testing::ThreadRank& self) {
      const comm::Group& group = self.mesh->group(Axis::kTensor);
      for (const Batch& batch : {draw(5, 16, 1.0), draw(7, 64, 300.0)}) {
        expect_whole_loss(group, batch, at::kDouble, 1e-14);
        expect_whole_loss(group, batch, at::kFloat, 2e-6);
        expect_whole_loss(group, batch, at::kBFloat16, 8e-3);
      }
    });
  });
}

// The logits have more elements than are widened at a time.
TEST(VocabularyParallelLossTest, EqualsTheWholeLossInSeveralChunks) {
  kernels::testing::with_every_choice([] {
    testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
      const Batch batch = draw(130, int64_t{1} << 15, 3.0);
      expect_whole_loss(self.mesh->group(Axis::kTensor), batch, at::kFloat, 2e-6);
      expect_whole_loss(self.mesh->group(Axis::kTensor), batch, at::kBFloat16, 8e-3);
    });
  });
}

// If every label is ignored, the loss and its gradient are zero.
TEST(VocabularyParallelLossTest, AllIgnored) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const at::Tensor logits = at::randn({1, 3, 4}).set_requires_grad(true);
    const at::Tensor labels = at::full({1, 3}, nn::kIgnoreIndex, at::kLong);
    const at::Tensor loss = vocabulary_parallel_loss(self.mesh->group(Axis::kTensor))(logits, labels);
    EXPECT_EQ(loss.item<float>(), 0);
    EXPECT_TRUE(torch::autograd::grad({loss}, {logits})[0].equal(at::zeros({1, 3, 4})));
  });
}

TEST(VocabularyParallelLossTest, LabelOutsideIsAnError) {
  testing::run_ranks({.tp = 2}, 2, {Axis::kTensor}, [](testing::ThreadRank& self) {
    const at::Tensor labels = at::full({1, 3}, 8, at::kLong);
    EXPECT_THROW(vocabulary_parallel_loss(self.mesh->group(Axis::kTensor))(at::zeros({1, 3, 4}), labels), c10::Error);
  });
}

// In head, loss and backward pass on a part of the vocabulary, nothing as large as the whole vocabulary's logits is
// ever allocated, and the logits' gradient reuses the logits' memory.
TEST(VocabularyParallelLossTest, NothingHoldsTheWholeVocabulary) {
  watch_allocations();
  testing::run_ranks({.tp = 4}, 4, {Axis::kTensor}, [](testing::ThreadRank& self) {
    constexpr int64_t kLength = 64, kVocabulary = 4096, kDim = 8;
    constexpr size_t kPart = kLength * kVocabulary / 4 * sizeof(float);
    const comm::Group& group = self.mesh->group(Axis::kTensor);
    nn::Parameter weight{"output.weight", {kVocabulary, kDim}, {}, {}};
    nn::Linear output(
        [&](const std::string&, const std::vector<int64_t>&, nn::Init) -> nn::Parameter& { return weight; }, weight.fqn,
        kDim, kVocabulary, {});
    split_head(output, {.group = &group}, /*loss_parallel=*/true);
    weight.weight = testing::part_of(testing::whole_value(weight, at::kFloat), weight).set_requires_grad(true);
    const at::Tensor x = at::randn({1, kLength / 4, kDim}).set_requires_grad(true);
    const at::Tensor labels = at::arange(kLength, at::kLong).view({1, kLength}) * 60;

    WatchingAllocator::largest() = 0;
    at::Tensor logits = output.forward(x);
    const at::Tensor loss = vocabulary_parallel_loss(group)(logits, labels);
    logits.reset();
    EXPECT_LE(WatchingAllocator::largest(), kPart + 4096);
    WatchingAllocator::largest() = 0;
    (void)torch::autograd::grad({loss}, {x, weight.weight});
    EXPECT_LE(WatchingAllocator::largest(), kPart / 4) << "the gradient of the logits has separate memory";
  });
}

// From a head's input, with a few of a rank's columns at a time, loss and both gradients equal those of the whole head
// in float64, whether every rank has all rows or its share of them.
TEST(VocabularyParallelLossTest, ByPartsEqualsTheWholeHead) {
  kernels::testing::with_every_row_kernel([] {
    testing::run_ranks({.tp = 4}, 4, {Axis::kTensor}, [](testing::ThreadRank& self) {
      constexpr int64_t kLength = 20, kVocabulary = 1200, kDim = 24;
      const comm::Group& group = self.mesh->group(Axis::kTensor);
      auto generator = at::make_generator<at::CPUGeneratorImpl>(3);
      const auto draw = [&](at::IntArrayRef shape) {  // Numbers that bf16 holds exactly.
        return at::randn(shape, generator, at::kDouble).to(at::kBFloat16).to(at::kDouble);
      };
      const at::Tensor x = draw({2, kLength, kDim}), weight = draw({kVocabulary, kDim}) * 0.5;
      at::Tensor labels = at::randint(kVocabulary, {2, kLength}, generator, at::kLong);
      labels.select(1, 1).fill_(nn::kIgnoreIndex);
      labels.select(1, 2).fill_(200);  // Below the second rank's columns: not ignored there.
      const at::Tensor whole_x = x.clone().requires_grad_(), whole_weight = weight.clone().requires_grad_();
      const at::Tensor expected = nn::cross_entropy_sum(at::matmul(whole_x, whole_weight.t()), labels);
      const auto truth = torch::autograd::grad({expected}, {whole_x, whole_weight});
      for (const bool sequence : {false, true}) {
        for (const auto& [type, bound] : {std::pair{at::kDouble, 1e-13}, {at::kFloat, 1e-5}, {at::kBFloat16, 0.04}}) {
          SCOPED_TRACE(::testing::Message() << c10::toString(type) << (sequence ? ", rows dealt" : ""));
          const auto own_rows = [&](const at::Tensor& all) {
            return sequence ? all.chunk(group.size(), 1)[group.rank()] : all;
          };
          const auto leaf = [type = type](const at::Tensor& part) {
            return part.to(type, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
          };
          const at::Tensor own_x = leaf(own_rows(x));
          nn::Parameter parameter{"output.weight", {kVocabulary / 4, kDim}, {}, {}};
          parameter.weight = leaf(weight.chunk(group.size())[group.rank()]);
          const auto by_parts = vocabulary_parallel_loss_by_parts({.group = &group, .sequence = sequence});
          const at::Tensor loss = by_parts(own_x, parameter, labels, /*columns=*/64);
          EXPECT_NEAR(loss.item<double>() / expected.item<double>(), 1, bound);
          const auto gradients = torch::autograd::grad({loss}, {own_x, parameter.weight});
          const at::Tensor exact[] = {own_rows(truth[0]), truth[1].chunk(group.size())[group.rank()]};
          for (int i = 0; i < 2; ++i) {
            const double error = (gradients[i].to(at::kDouble) - exact[i]).abs().max().item<double>();
            EXPECT_LE(error, bound * exact[i].abs().max().item<double>()) << i;
          }
        }
      }
    });
  });
}

}  // namespace
}  // namespace titan::parallel
