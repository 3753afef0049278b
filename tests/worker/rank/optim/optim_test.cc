#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "worker/rank/optim/grad_norm.h"
#include "worker/rank/optim/optimizer.h"

namespace titan::optim {
namespace {

// Adam for one number, written out.
struct Reference {
  double value, average = 0, square = 0;
  int steps = 0;

  void step(const OptimizerOptions& o, double rate, double grad) {
    ++steps;
    if (o.name == "AdamW") value *= 1 - rate * o.weight_decay;
    if (o.name == "Adam") grad += o.weight_decay * value;
    average = o.beta1 * average + (1 - o.beta1) * grad;
    square = o.beta2 * square + (1 - o.beta2) * grad * grad;
    const double first = average / (1 - std::pow(o.beta1, steps)), second = square / (1 - std::pow(o.beta2, steps));
    value -= rate * first / (std::sqrt(second) + o.eps);
  }
};

class AdamTest : public ::testing::TestWithParam<std::tuple<const char*, const char*>> {};

// Compares every name and implementation with the formula, over steps with changing rates. One shard is empty.
TEST_P(AdamTest, FollowsTheFormula) {
  OptimizerOptions options;
  options.name = std::get<0>(GetParam());
  options.implementation = std::get<1>(GetParam());
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor flat = at::randn({40}, type), grad = at::empty({40}, type);
    std::vector<Slot> slots{{"a", flat.slice(0, 0, 30).view({5, 6}), grad.slice(0, 0, 30).view({5, 6})},
                            {"empty", flat.slice(0, 30, 30), grad.slice(0, 30, 30)},
                            {"b", flat.slice(0, 30, 40), grad.slice(0, 30, 40)}};
    std::vector<Reference> reference;
    for (int64_t i = 0; i < 40; ++i) reference.push_back({flat[i].item<double>()});
    const std::unique_ptr<Optimizer> optimizer = make_optimizer(options, slots);
    for (const double rate : {4e-4, 8e-4, 7e-4, 1e-4}) {
      grad.copy_(at::randn({40}, type));
      optimizer->step(rate);
      for (int64_t i = 0; i < 40; ++i) reference[static_cast<size_t>(i)].step(options, rate, grad[i].item<double>());
    }
    const double tolerance = type == at::kDouble ? 1e-14 : 1e-6;
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_NEAR(flat[i].item<double>(), reference[static_cast<size_t>(i)].value, tolerance) << i;
    }
    ASSERT_EQ(optimizer->states().size(), 3u);
    EXPECT_NEAR(optimizer->states()[2]["exp_avg_sq"][3].item<double>(), reference[33].square, tolerance);
    EXPECT_EQ(optimizer->states()[1]["exp_avg"].numel(), 0);
    EXPECT_EQ(optimizer->step_count().item<float>(), 4);
  }
}
INSTANTIATE_TEST_SUITE_P(All, AdamTest,
                         ::testing::Combine(::testing::Values("AdamW", "Adam"),
                                            ::testing::Values("fused", "foreach", "for-loop")));

// A gate's divisor applies before the formula, and a skipped step leaves no trace, not even in the count of steps.
TEST_P(AdamTest, AppliesTheGate) {
  OptimizerOptions options;
  options.name = std::get<0>(GetParam());
  options.implementation = std::get<1>(GetParam());
  for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor value = at::randn({40}, type), grad = at::empty({40}, type);
    std::vector<Reference> reference;
    for (int64_t i = 0; i < 40; ++i) reference.push_back({value[i].item<double>()});
    const auto optimizer =
        make_optimizer(options, {{"w", value, grad}, {"empty", value.narrow(0, 0, 0), grad.narrow(0, 0, 0)}});
    const auto gate = [](double divisor, bool skip) {
      return Gate{at::scalar_tensor(divisor, at::kDouble), at::scalar_tensor(skip ? 1.0 : 0.0, at::kFloat)};
    };
    grad.fill_(std::numeric_limits<double>::quiet_NaN());
    optimizer->step(1e-3, gate(std::numeric_limits<double>::quiet_NaN(), true));  // No state exists yet.
    for (const double divisor : {1.0, 3.7, 1e5}) {
      grad.copy_(at::randn({40}, type));
      const at::Tensor drawn = grad.clone();
      optimizer->step(1e-3, gate(divisor, false));
      for (int64_t i = 0; i < 40; ++i) {
        reference[static_cast<size_t>(i)].step(options, 1e-3, drawn[i].item<double>() / divisor);
      }
      grad.fill_(std::numeric_limits<double>::infinity());
      optimizer->step(1e-3, gate(std::numeric_limits<double>::infinity(), true));
    }
    const double tolerance = type == at::kDouble ? 1e-14 : 1e-6;
    for (int64_t i = 0; i < 40; ++i) {
      EXPECT_NEAR(value[i].item<double>(), reference[static_cast<size_t>(i)].value, tolerance) << i;
    }
    EXPECT_EQ(optimizer->step_count().item<float>(), 3);
  }
}

// A resumed optimizer continues bit for bit: its whole state is in states() and step_count().
TEST(OptimizerTest, StateIsComplete) {
  const at::Tensor start = at::randn({100});
  at::Tensor a = start.clone(), b = at::empty({100}), grad = at::randn({100}), other = grad.clone();
  const auto first = make_optimizer({}, {{"w", a, grad}});
  first->step(1e-3);
  b.copy_(a);
  const auto second = make_optimizer({}, {{"w", b, other}});
  for (const char* name : {"exp_avg", "exp_avg_sq"}) second->states()[0][name].copy_(first->states()[0][name]);
  second->step_count().copy_(first->step_count());
  first->step(1e-3);
  second->step(1e-3);
  EXPECT_TRUE(a.equal(b));
}

// Each slot follows its own group's options, and one counter serves all groups.
TEST(OptimizerTest, GroupsHaveSeparateOptions) {
  const std::vector<OptimizerOptions> groups = {
      {.name = "AdamW", .weight_decay = 0.3, .lr = 0.5},
      {.name = "Adam", .beta1 = 0.8, .beta2 = 0.9, .eps = 1e-3, .weight_decay = 0}};
  for (const char* implementation : {"fused", "foreach", "for-loop"}) {
    std::vector<Slot> slots, alone;
    std::vector<OptimizerOptions> options = groups;
    for (OptimizerOptions& one : options) one.implementation = implementation;
    for (size_t i = 0; i < 5; ++i) {
      slots.push_back({"w", at::randn({7}, at::kDouble), at::empty({7}, at::kDouble), i % 2});
      alone.push_back({"w", slots.back().value.clone(), slots.back().grad});
    }
    const auto together = make_grouped_optimizer(options, slots);
    std::vector<std::unique_ptr<Optimizer>> each;
    for (size_t i = 0; i < 5; ++i) {
      OptimizerOptions own = options[i % 2];
      own.lr = 1;
      each.push_back(make_optimizer(own, {alone[i]}));
    }
    for (int step = 0; step < 3; ++step) {
      for (const Slot& slot : slots) slot.grad.copy_(at::randn({7}, at::kDouble));
      if (step == 1) {  // The step runs in parts, as during a backward pass.
        together->begin_step();
        together->step_slots(0, 2, 1e-2);
        together->step_slots(2, 3, 1e-2);
      } else {
        together->step(1e-2);
      }
      for (size_t i = 0; i < 5; ++i) each[i]->step(1e-2 * groups[i % 2].lr);
    }
    for (size_t i = 0; i < 5; ++i) EXPECT_TRUE(slots[i].value.equal(alone[i].value)) << implementation << " " << i;
    EXPECT_EQ(together->step_count().item<float>(), 3);
  }
  EXPECT_THROW(make_grouped_optimizer(groups, {{"w", at::zeros({2}), at::zeros({2}), 2}}), c10::Error);
}

TEST(OptimizerTest, RefusesUnknownNames) {
  EXPECT_THROW(make_optimizer({.name = "SGD"}, {}), c10::Error);
  EXPECT_THROW(make_optimizer({.implementation = "fast"}, {}), c10::Error);
}

// The logged norm equals an fp64 norm, and its bits do not depend on the threads.
TEST(GradNormTest, SumsInDouble) {
  const at::Tensor big = at::randn({300, 1000}), small = at::randn({7}) * 1e-3, wide = at::randn({33}, at::kDouble);
  const at::Tensor view = at::randn({20, 30}).t(), half = at::randn({50, 1000}).to(at::kBFloat16);
  const double want = (big.to(at::kDouble).square().sum() + small.to(at::kDouble).square().sum() + wide.square().sum() +
                       view.to(at::kDouble).square().sum() + half.to(at::kDouble).square().sum())
                          .item<double>();
  const double got = sum_of_squares({big, small, wide, view, half, at::empty({0})}).item<double>();
  EXPECT_NEAR(got / want, 1, 1e-13);
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  EXPECT_EQ(sum_of_squares({big, small, wide, view, half}).item<double>(), got);
  at::set_num_threads(threads);
  EXPECT_EQ(sum_of_squares({}).item<double>(), 0);
  EXPECT_NEAR(sum_of_squares({at::full({4}, 1e30)}).item<double>() / 4e60, 1, 1e-6);  // fp32 squares would overflow.
}

TEST(GradNormTest, NonFiniteValuesPropagate) {
  at::Tensor bad = at::ones({9000});
  bad[8500] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(std::isnan(sum_of_squares({bad}).item<double>()));
  bad[8500] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(std::isinf(sum_of_squares({bad}).item<double>()));
}

TEST(GradNormTest, ClipsOnlyAboveTheLimit) {
  const auto divisor = [](double norm, double max_norm) {
    return clip_divisor(at::scalar_tensor(norm, at::kDouble), max_norm).item<double>();
  };
  EXPECT_EQ(divisor(0.5, 1.0), 1.0);
  EXPECT_DOUBLE_EQ(divisor(4.0, 1.0), 4.0 + 1e-6);
  EXPECT_DOUBLE_EQ(divisor(4.0, 0.5), 2 * (4.0 + 1e-6));
  EXPECT_EQ(divisor(1e9, 0), 1.0) << "0: no limit";
}

}  // namespace
}  // namespace titan::optim
