// Tests Adam with moments stored in bf16 or 8-bit codes, by Titan's kernel and by LibTorch's operations.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <random>
#include <string>

#include "common/plan/memory/state_blocks.h"
#include "nlohmann/json.hpp"
#include "tests/worker/rank/kernels/simulated_kernels.h"
#include "worker/rank/comm/communicator_splits.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/kernels/dynamic_map.h"
#include "worker/rank/optim/adam_state.h"

namespace titan::optim {
namespace {

// The parameter selects Titan's kernel, a device's (its body on the host), or LibTorch's operations.
class MomentFormatTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    at::manual_seed(3);
    const bool device = std::string(GetParam()) == "device";
    ASSERT_TRUE(kernels::choose(device ? "reference" : GetParam()));
    if (device) kernels::choose_on_device(&on_host_, {.optimizer = true});
  }
  void TearDown() override {
    kernels::choose("reference");
    kernels::choose_on_device(nullptr, {});
  }
  const kernels::testing::SimulatedKernels on_host_;
};
INSTANTIATE_TEST_SUITE_P(By, MomentFormatTest, ::testing::Values("auto", "device", "reference"));

OptimizerOptions options_with(const std::string& state_dtype, bool stochastic = false) {
  return {.name = "AdamW", .state_dtype = state_dtype, .stochastic_rounding = stochastic, .seed = 7};
}

at::Tensor numbers_of(const SlotState& state, int i) {
  const SlotState::Named& one = state.tensors[static_cast<size_t>(i)];
  return one.form == nullptr ? one.value.to(at::kFloat) : one.form->numbers(one.value);
}

bool same_bits(const SlotState& a, const SlotState& b) {
  return a.tensors[0].value.equal(b.tensors[0].value) && a.tensors[1].value.equal(b.tensors[1].value);
}

Gate gate_of(double divisor, bool skip) {
  return {at::scalar_tensor(divisor, at::kDouble), at::scalar_tensor(skip ? 1.0 : 0.0, at::kFloat)};
}

// Adam in float64, starting from given moments.
struct Wide {
  at::Tensor value, average, square;
  int steps = 0;

  explicit Wide(const at::Tensor& start)
      : value(start.to(at::kDouble)), average(at::zeros_like(value)), square(at::zeros_like(value)) {}
  void step(const OptimizerOptions& o, double rate, const at::Tensor& narrow) {
    ++steps;
    at::Tensor grad = narrow.to(at::kDouble);
    if (o.name == "AdamW") value = value * (1 - rate * o.weight_decay);
    if (o.name == "Adam") grad = grad + o.weight_decay * value;
    average = o.beta1 * average + (1 - o.beta1) * grad;
    square = o.beta2 * square + (1 - o.beta2) * grad * grad;
    value = value - rate * (average / (1 - std::pow(o.beta1, steps))) /
                        ((square / (1 - std::pow(o.beta2, steps))).sqrt() + o.eps);
  }
};

nlohmann::json bitsandbytes() {
  for (const std::string& argument : ::testing::internal::GetArgvs()) {
    if (argument.rfind("--adam8bit=", 0) == 0) return nlohmann::json::parse(std::ifstream(argument.substr(11)));
  }
  return {};
}

// Computes the same formula as make_adam8bit.py.
at::Tensor wave(int64_t rows, int64_t columns, int step) {
  at::Tensor all = at::empty({rows, columns}, at::kDouble);
  for (int64_t i = 0; i < all.numel(); ++i) {
    const auto number = static_cast<double>(i);
    all.data_ptr<double>()[i] = std::sin(0.37 * number + 1.3 * step + 0.001 * number * step) *
                                std::pow(10.0, -0.5 * static_cast<double>(i * 7 % 5));
  }
  return all.to(at::kFloat);
}

double largest(const at::Tensor& x) { return x.abs().max().item<double>(); }

TEST(DynamicMapTest, EqualsBitsandbytes) {
  const nlohmann::json golden = bitsandbytes();
  ASSERT_FALSE(golden.is_null()) << "run with --adam8bit=.../adam8bit.json";
  for (const bool is_signed : {false, true}) {
    const auto values = golden[is_signed ? "signed" : "unsigned"].get<std::vector<double>>();
    ASSERT_EQ(values.size(), 256u);
    for (size_t i = 0; i < 256; ++i) {
      EXPECT_NEAR(kernels::dynamic_map(is_signed).values[i], values[i], 3e-7 * std::abs(values[i])) << i;
    }
  }
}

// Compares five steps with bitsandbytes' 8-bit Adam and AdamW. They differ only for a block whose average of largest
// magnitude is negative: bitsandbytes stores 0.993 of it, Titan all of it.
TEST_P(MomentFormatTest, FollowsBitsandbytesForFiveSteps) {
  const nlohmann::json golden = bitsandbytes();
  ASSERT_FALSE(golden.is_null()) << "run with --adam8bit=.../adam8bit.json";
  const int64_t rows = golden["rows"], columns = golden["columns"];
  const double rate = golden["rate"];
  for (const char* name : {"AdamW", "Adam"}) {
    OptimizerOptions options = options_with("8bit");
    options.name = name;
    if (options.name == "Adam") options.weight_decay = 0;  // bitsandbytes applies AdamW's decay in both.
    const at::Tensor value = wave(rows, columns, 0).mul_(0.1), grad = at::empty_like(value);
    Wide exact(value);
    const auto optimizer = make_optimizer(options, {{"w", value, grad}});
    for (int step = 1; step <= golden["steps"]; ++step) {
      grad.copy_(wave(rows, columns, step).mul_(0.01));
      exact.step(options, rate, grad);
      optimizer->step(rate);
    }
    const auto every = [&](const at::Tensor& x) { return x.flatten().slice(0, 0, std::nullopt, golden["every"]); };
    const auto theirs = [&](const char* what) {
      return at::tensor(golden[name][what].get<std::vector<double>>(), at::kDouble);
    };
    const SlotState& state = optimizer->states()[0];
    const at::Tensor moved = every(value).to(at::kDouble), truth = every(exact.value);
    const double rms = (moved - truth).square().mean().sqrt().item<double>() / rate;
    const double their_rms = (theirs("value") - truth).square().mean().sqrt().item<double>() / rate;
    const double apart = largest(moved - theirs("value")) / rate;
    const double averages = largest(every(numbers_of(state, 0)).to(at::kDouble) - theirs("exp_avg"));
    const double squares = largest((every(numbers_of(state, 1)).to(at::kDouble) - theirs("exp_avg_sq")));
    std::printf("%s by %s: rms from fp64 %.4f rates (bitsandbytes %.4f), apart %.4f, averages %.2e, squares %.2e\n",
                name, GetParam(), rms, their_rms, apart, averages, squares);
    // Over all five steps the error is a hundredth of the weights' movement, and the moments differ by at most half a
    // step of a code.
    EXPECT_LT(rms, 0.06);
    EXPECT_LE(rms, their_rms);
    EXPECT_LT(apart, 2);
    EXPECT_LE(averages, 0.0142 * largest(numbers_of(state, 0)));
    EXPECT_LE(squares, 0.0071 * largest(numbers_of(state, 1)));
  }
}

struct Case {
  const char* state_dtype;
  at::ScalarType type;
  std::vector<int64_t> shape;
};

// Draws shapes of matrices, experts and vectors: with whole blocks, with tails, and too small for codes.
std::vector<Case> drawn_cases() {
  std::mt19937_64 random(5);
  const auto whole = [&](int64_t from, int64_t to) { return std::uniform_int_distribution<int64_t>(from, to)(random); };
  std::vector<Case> cases;
  for (const char* state_dtype : {"float32", "bfloat16", "8bit"}) {
    for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
      cases.push_back({state_dtype, type, {16, 256}});
      cases.push_back({state_dtype, type, {whole(10, 30), whole(400, 900)}});
      cases.push_back({state_dtype, type, {3, whole(4, 9), whole(400, 600)}});
      cases.push_back({state_dtype, type, {whole(1, 9000)}});
      cases.push_back({state_dtype, type, {whole(1, 15), whole(1, 250)}});
      cases.push_back({state_dtype, type, {}});
    }
  }
  return cases;
}

std::string text_of(const Case& c) {
  return std::string(c.state_dtype) + " of " + c10::toString(c.type) + " " + std::to_string(c.shape.size()) + " dims";
}

// Largest error of a stored number, relative to itself and to the largest number of its block.
struct StoredError {
  double own = 0, of_largest = 0;
};
StoredError error_of(const MomentFormat& form, bool is_signed) {
  if (form.type == at::kBFloat16) return {.own = 0x1p-8};
  if (form.type == at::kByte) return {.of_largest = is_signed ? 0.00704 : 0.00352};
  return {};
}

// Compares one step, from moments of any size, with fp64 of the same numbers. Vectors and small matrices store full
// numbers.
TEST_P(MomentFormatTest, StepsMatchFp64WithinTheFormatsError) {
  for (const Case& c : drawn_cases()) {
    SCOPED_TRACE(text_of(c));
    const at::Tensor value = at::randn(c.shape).to(c.type), grad = at::empty_like(value);
    const Slot slot{"w", value, grad};
    const MomentFormat form = moment_format(slot, c.state_dtype);
    const bool coded = std::string(c.state_dtype) == "8bit" && memory::has_8bit_states(c.shape);
    EXPECT_EQ(form.type, coded ? at::kByte : std::string(c.state_dtype) == "bfloat16" ? at::kBFloat16 : at::kFloat);
    const OptimizerOptions options = options_with(c.state_dtype);
    const auto optimizer = make_optimizer(options, {slot});
    grad.copy_(at::randn(c.shape));
    optimizer->step(1e-3);
    Wide exact(value);
    exact.average = numbers_of(optimizer->states()[0], 0).to(at::kDouble);
    exact.square = numbers_of(optimizer->states()[0], 1).to(at::kDouble);
    exact.steps = 1;
    grad.copy_(at::randn(c.shape));
    // The error of a sum in fp32 is proportional to the size of its addends.
    const at::Tensor added[2] = {exact.average.abs() + grad.abs(), exact.square + grad.square()};
    exact.step(options, 1e-3, grad.to(at::kDouble) / 1.5);
    optimizer->step(1e-3, gate_of(1.5, false));
    const at::Tensor found = value.to(at::kDouble);
    const double rounding = c.type == at::kBFloat16 ? 0x1p-8 : 2e-7;
    EXPECT_LE(largest((found - exact.value) / (exact.value.abs() * rounding + 1e-8)), 1);
    for (const int i : {0, 1}) {
      const at::Tensor truth = i == 0 ? exact.average : exact.square;
      const StoredError error = error_of(form, i == 0);
      const at::Tensor bound = truth.abs() * error.own + error.of_largest * largest(truth) + added[i] * 1e-6;
      EXPECT_LE(largest((numbers_of(optimizer->states()[0], i).to(at::kDouble) - truth) / bound), 1) << i;
    }
  }
}

// Titan's kernel and LibTorch's operations agree, except for a few numbers midway between two codes.
TEST(LowPrecisionStatesTest, KernelAndOperationsAgree) {
  for (const Case& c : drawn_cases()) {
    SCOPED_TRACE(text_of(c));
    at::manual_seed(8);
    const at::Tensor start = at::randn(c.shape).to(c.type);
    std::vector<at::Tensor> values;
    std::vector<std::unique_ptr<Optimizer>> both;
    std::vector<at::Tensor> grads;
    for (int i = 0; i < 2; ++i) {
      values.push_back(start.clone());
      grads.push_back(at::empty_like(start));
      both.push_back(
          make_optimizer(options_with(c.state_dtype, c.type == at::kBFloat16), {{"w", values[i], grads[i]}}));
    }
    for (int step = 0; step < 3; ++step) {
      const at::Tensor grad = at::randn(c.shape);
      for (const size_t i : {0, 1}) {
        kernels::choose(i == 0 ? "auto" : "reference");
        grads[i].copy_(grad);
        both[i]->step(1e-3, gate_of(1 + step, false));
      }
    }
    kernels::choose("reference");
    const double unlike = values[0].ne(values[1]).to(at::kDouble).mean().item<double>();
    // A difference of one code is a hundredth of a step of 1e-3.
    const double nearly = std::string(c.state_dtype) == "8bit" ? 5e-5 : 1e-6;
    EXPECT_LE(largest(values[0].to(at::kDouble) - values[1].to(at::kDouble)),
              c.type == at::kBFloat16 ? largest(start) * 0x1p-7 : nearly);
    if (c.type == at::kBFloat16 && start.numel() > 1000) {
      EXPECT_LT(unlike, 0.01);  // The same random bits.
    }
    for (const size_t i : {0, 1}) {
      const at::Tensor a = both[0]->states()[0].tensors[i].value, b = both[1]->states()[0].tensors[i].value;
      ASSERT_EQ(a.sizes(), b.sizes());
      if (a.scalar_type() == at::kByte) {
        EXPECT_LT(a.ne(b).to(at::kDouble).mean().item<double>(), 0.02);
      }
    }
  }
}

// Decoding and encoding give the same bytes for any codes, so a checkpoint may hold plain numbers.
TEST(LowPrecisionStatesTest, DecodedNumbersEncodeToTheSameBytes) {
  at::manual_seed(4);
  std::mt19937_64 random(6);
  for (int round = 0; round < 12; ++round) {
    const int64_t rows = std::uniform_int_distribution<int64_t>(1, 40)(random);
    const int64_t columns = std::uniform_int_distribution<int64_t>(1, 1100)(random);
    const int64_t first = std::uniform_int_distribution<int64_t>(0, 700)(random);
    for (const bool is_signed : {false, true}) {
      const BlockCodes codes({rows, columns}, first, is_signed, at::kCPU);
      // Scales reach from the smallest numbers to the largest, and some blocks are zeros.
      at::Tensor numbers = at::randn({rows, columns}) * at::pow(10, at::randint(-36, 30, {rows, 1}).to(at::kFloat));
      numbers = numbers * at::pow(10, at::randint(-6, 1, {rows, columns}).to(at::kFloat));
      numbers[0].zero_();
      const at::Tensor bytes = codes.bytes(is_signed ? numbers : numbers.abs());
      const at::Tensor decoded = codes.numbers(bytes), again = codes.bytes(decoded);
      EXPECT_TRUE(codes.numbers(again).equal(decoded));
      EXPECT_TRUE(codes.scales(again).equal(codes.scales(bytes)));
      // Below the smallest normal number, several codes stand for the same number.
      const at::Tensor plain = decoded.abs().gt(1e-37).logical_or(decoded.eq(0)).view({rows, columns});
      EXPECT_TRUE(codes.codes(again).masked_select(plain).equal(codes.codes(bytes).masked_select(plain)));
    }
  }
}

// A piece of a parameter that one rank of a mesh holds.
struct Piece {
  std::vector<int64_t> offset, size;
  at::Tensor of(at::Tensor whole) const {
    for (size_t d = 0; d < size.size(); ++d) whole = whole.narrow(static_cast<int64_t>(d), offset[d], size[d]);
    return whole;
  }
};

// Rows are cut over three ranks, columns over two at a multiple of 256, experts over two. Stochastic rounding and codes
// are those of one rank.
TEST_P(MomentFormatTest, DoesNotDependOnTheMesh) {
  struct Cut {
    std::vector<int64_t> shape;
    std::vector<Piece> pieces;
  };
  const std::vector<Cut> cuts = {
      {{20, 700}, {{{0, 0}, {7, 700}}, {{7, 0}, {7, 700}}, {{14, 0}, {6, 700}}, {{20, 0}, {0, 700}}}},
      {{9, 1000}, {{{0, 0}, {5, 512}}, {{5, 0}, {4, 512}}, {{0, 512}, {5, 488}}, {{5, 512}, {4, 488}}}},
      {{4, 6, 300}, {{{0, 0, 0}, {2, 3, 300}}, {{0, 3, 0}, {2, 3, 300}}, {{2, 0, 0}, {2, 6, 300}}}},
      {{5000}, {{{0}, {3000}}, {{3000}, {2000}}}},
  };
  for (const char* state_dtype : {"auto", "float32", "bfloat16", "8bit"}) {
    for (const Cut& cut : cuts) {
      const OptimizerOptions options = options_with(state_dtype, /*stochastic=*/true);
      const at::Tensor whole = at::randn(cut.shape).to(at::kBFloat16), grad = at::empty_like(whole);
      std::vector<Slot> slots;
      for (const Piece& piece : cut.pieces) {
        const at::Tensor part = piece.of(whole).contiguous().clone();
        slots.push_back({"w", part, at::empty_like(part), 0, cut.shape, piece.offset});
      }
      const auto together = make_optimizer(options, {{"w", whole, grad}}), apart = make_optimizer(options, slots);
      for (int step = 0; step < 3; ++step) {
        grad.copy_(at::randn(cut.shape));
        for (size_t i = 0; i < slots.size(); ++i) slots[i].grad.copy_(cut.pieces[i].of(grad));
        together->step(1e-2);
        apart->step(1e-2);
      }
      for (size_t i = 0; i < slots.size(); ++i) {
        EXPECT_TRUE(slots[i].value.equal(cut.pieces[i].of(whole))) << state_dtype << " value, piece " << i;
        for (const int m : {0, 1}) {
          EXPECT_TRUE(numbers_of(apart->states()[i], m).equal(cut.pieces[i].of(numbers_of(together->states()[0], m))))
              << state_dtype << " moment " << m << ", piece " << i;
        }
      }
    }
  }
}

// A step that a gate skips changes no bit, whatever the gradient is, and uses up no random number of the next step.
TEST_P(MomentFormatTest, AppliesTheGate) {
  for (const char* state_dtype : {"float32", "bfloat16", "8bit"}) {
    const OptimizerOptions options = options_with(state_dtype, /*stochastic=*/true);
    const at::Tensor start = at::randn({20, 300}).to(at::kBFloat16), gradient = at::randn({20, 300});
    std::vector<at::Tensor> values, states;
    for (const bool skips : {false, true}) {
      const at::Tensor value = start.clone(), grad = at::empty_like(value);
      const auto optimizer = make_optimizer(options, {{"w", value, grad}});
      const auto skip = [&] {
        const at::Tensor before = value.clone(), moment = optimizer->states()[0].tensors[0].value.clone();
        grad.fill_(std::numeric_limits<double>::quiet_NaN());
        optimizer->step(1e-2, gate_of(std::numeric_limits<double>::quiet_NaN(), true));
        EXPECT_TRUE(value.equal(before) && optimizer->states()[0].tensors[0].value.equal(moment));
      };
      for (int step = 0; step < 3; ++step) {
        if (skips) skip();
        grad.copy_(gradient);
        optimizer->step(1e-2, gate_of(2, false));
      }
      EXPECT_EQ(optimizer->step_count().item<float>(), 3);
      values.push_back(value);
      states.push_back(optimizer->states()[0].tensors[1].value);
    }
    EXPECT_TRUE(values[0].equal(values[1]) && states[0].equal(states[1])) << state_dtype;
  }
}

// A gradient becomes tiny next to a large one in its block. If its square were lost, a step would be its average
// divided by eps.
TEST_P(MomentFormatTest, KeepsSmallSquaresAboveZero) {
  const at::Tensor value = at::zeros({16, 256}), grad = at::zeros({16, 256});
  OptimizerOptions options = options_with("8bit");
  options.weight_decay = 0;
  const auto optimizer = make_optimizer(options, {{"w", value, grad}});
  for (int step = 0; step < 5; ++step) {
    grad.fill_(step == 0 ? 1e-4 : 1e-8);
    grad.select(1, 0).fill_(1);
    const at::Tensor before = value.clone();
    optimizer->step(1e-3);
    EXPECT_LE(largest(value - before), 2e-3) << step;
    EXPECT_TRUE(numbers_of(optimizer->states()[0], 1).gt(0).all().item<bool>());
  }
}

// Without a gate, a non-finite gradient stays visible: in its own number, and with codes in its whole block.
TEST_P(MomentFormatTest, NonFiniteGradientsAreVisible) {
  for (const double bad : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const at::Tensor value = at::ones({16, 512}), grad = at::randn({16, 512});
    grad[3][300] = bad;
    const auto optimizer = make_optimizer(options_with("8bit"), {{"w", value, grad}});
    optimizer->step(1e-3);
    for (const int i : {0, 1}) {
      const at::Tensor bads = numbers_of(optimizer->states()[0], i).isfinite().logical_not();
      EXPECT_EQ(bads.sum().item<int64_t>(), 256);
      EXPECT_TRUE(bads[3].narrow(0, 256, 256).all().item<bool>());
    }
    EXPECT_EQ(value.isfinite().logical_not().sum().item<int64_t>(), 1);
  }
}

// An optimizer continues bit for bit from the numbers of its states, in any storage format, and any format resumes from
// any other one.
TEST_P(MomentFormatTest, ResumesFromTheNumbersOfItsStates) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (const char* from : {"float32", "bfloat16", "8bit"}) {
      for (const char* to : {"float32", "bfloat16", "8bit"}) {
        const bool stochastic = type == at::kBFloat16;
        const at::Tensor a = at::randn({30, 300}).to(type), grad = at::randn({30, 300}).to(type);
        const auto first = make_optimizer(options_with(from, stochastic), {{"w", a, grad}});
        for (int step = 0; step < 3; ++step) first->step(1e-3);
        const at::Tensor b = a.clone(), other = grad.clone();
        const auto second = make_optimizer(options_with(to, stochastic), {{"w", b, other}});
        for (const size_t i : {0, 1}) {
          const at::Tensor numbers = numbers_of(first->states()[0], static_cast<int>(i));
          SlotState::Named& state = second->states()[0].tensors[i];
          state.value.copy_(state.form == nullptr ? numbers : state.form->kept(numbers));
          const at::Tensor apart = (numbers_of(second->states()[0], static_cast<int>(i)) - numbers).abs();
          const double of_largest = std::string(to) == "8bit" ? 0.0071 * largest(numbers) : 0;
          const double own = std::string(to) == "bfloat16" ? 0x1p-8 : 0;
          EXPECT_LE(largest(apart / (numbers.abs() * own + of_largest + 1e-30)), 1) << from << " to " << to;
        }
        second->step_count().copy_(first->step_count());
        if (std::string(from) != to) continue;
        EXPECT_TRUE(same_bits(first->states()[0], second->states()[0])) << from;
        first->step(1e-3);
        second->step(1e-3);
        EXPECT_TRUE(a.equal(b) && same_bits(first->states()[0], second->states()[0])) << from;
      }
    }
  }
}

// A bf16 number moves by less than half a step each time: rounding to nearest never moves it, while stochastic rounding
// follows fp32.
TEST_P(MomentFormatTest, StochasticRoundingKeepsSmallUpdates) {
  const at::Tensor ones = at::ones({64, 256}, at::kBFloat16), stuck = ones.clone(), grad = at::ones_like(ones);
  OptimizerOptions options = options_with("float32", /*stochastic=*/true);
  options.weight_decay = 0;
  const auto stochastic_adam = make_optimizer(options, {{"w", ones, grad}});
  options.stochastic_rounding = false;
  const auto nearest = make_optimizer(options, {{"w", stuck, grad}});
  for (int step = 0; step < 50; ++step) {
    stochastic_adam->step(2e-4);  // A twentieth of a step of bf16 below 1.
    nearest->step(2e-4);
  }
  EXPECT_TRUE(stuck.eq(1).all().item<bool>());
  const at::Tensor moved = ones.to(at::kDouble);
  // 50 steps of 2e-4. Stochastic rounding gives each number a deviation below sqrt(50 p (1 - p)) steps of 2^-8, with p
  // = 0.0512.
  EXPECT_NEAR(moved.mean().item<double>(), 1 - 50 * 2e-4, 4 * 0.0039 * std::sqrt(50 * 0.0512) / 128);
}

// Codes need a quarter and bf16 half of fp32's bytes, in addition to the scales and to tensors too small for codes.
TEST(LowPrecisionStatesTest, StatesHaveTheExpectedBytes) {
  const auto bytes = [](const char* state_dtype, std::vector<int64_t> shape) {
    const at::Tensor value = at::zeros(shape);
    return make_optimizer(options_with(state_dtype), {{"w", value, value.clone()}})->states()[0].bytes();
  };
  for (const char* state_dtype : {"auto", "float32"}) EXPECT_EQ(bytes(state_dtype, {64, 1024}), 2 * 4 * 65536);
  EXPECT_EQ(bytes("bfloat16", {64, 1024}), 2 * 2 * 65536);
  EXPECT_EQ(bytes("8bit", {64, 1024}), 2 * (65536 + 256 * 4));
  EXPECT_EQ(bytes("8bit", {65536}), 2 * 4 * 65536);
  EXPECT_EQ(bytes("8bit", {63, 65}), 2 * 4 * 63 * 65);
}

TEST(LowPrecisionStatesTest, RefusesIncompatibleOptions) {
  const at::Tensor narrow = at::zeros({4}, at::kBFloat16), plain = at::zeros({4}), wide = at::zeros({4}, at::kDouble);
  const auto make = [](const OptimizerOptions& options, const at::Tensor& value) {
    const auto optimizer = make_optimizer(options, {{"w", value, value.clone()}});
    optimizer->step(1e-3);
  };
  OptimizerOptions options = options_with("bfloat16");
  EXPECT_THROW(make(options, wide), c10::Error);
  options.implementation = "foreach";
  EXPECT_THROW(make(options, plain), c10::Error);
  make(options, narrow);  // Its moments are bf16 anyway.
  EXPECT_THROW(make(options_with("auto", /*stochastic=*/true), plain), c10::Error);
  make(options_with("auto", /*stochastic=*/true), narrow);
}

}  // namespace
}  // namespace titan::optim
