#include "worker/rank/optim/adam_state.h"

#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "common/plan/memory/state_blocks.h"
#include "worker/rank/kernels/choice.h"
#include "worker/rank/kernels/cpu/low_bit_adam.h"
#include "worker/rank/nn/own_kernels.h"
#include "worker/rank/nn/random.h"
#include "worker/rank/random/random_math.h"

namespace titan::optim {
namespace {

using kernels::KeptMoment;

std::vector<int64_t> whole_shape(const Slot& slot) {
  return slot.shape.empty() ? slot.value.sizes().vec() : slot.shape;
}

std::shared_ptr<const StateForm> form_of(std::shared_ptr<const BlockCodes> codes) {
  if (codes == nullptr) return nullptr;
  return std::make_shared<StateForm>(
      StateForm{.shape = codes->shape(),
                .numbers = [codes](const at::Tensor& kept) { return codes->numbers(kept); },
                .kept = [codes](const at::Tensor& numbers) { return codes->bytes(numbers); }});
}

// A run of rows of the piece that are equally far apart in the whole parameter.
struct Plane {
  int64_t first_row = 0, rows = 0;  // Rows of the piece, with all leading dims as one.
  RowLayout place;
};

// Splits the piece by its leading dims. Without places one plane suffices.
std::vector<Plane> planes_of(const Slot& slot, bool with_places) {
  const at::IntArrayRef piece = slot.value.sizes();
  const int64_t columns = piece.empty() ? 1 : piece.back();
  const int64_t rows = columns == 0 ? 0 : slot.value.numel() / columns;
  if (!with_places) return {{0, rows, {}}};
  const std::vector<int64_t> whole = whole_shape(slot);
  std::vector<int64_t> offset = slot.offset;
  offset.resize(whole.size());
  const size_t dims = whole.size();
  if (dims < 2) return {{0, rows, {.first = dims == 0 ? 0 : offset[0], .stride = 0}}};
  const int64_t each = piece[dims - 2];
  std::vector<Plane> planes;
  for (int64_t plane = 0; each > 0 && plane < rows / each; ++plane) {
    // This is the place of the plane's first element, from its index in each leading dim.
    int64_t rest = plane, first = offset[dims - 2] * whole[dims - 1] + offset[dims - 1];
    int64_t size = whole[dims - 2] * whole[dims - 1];
    for (size_t d = dims - 2; d-- > 0;) {
      first += (offset[d] + rest % piece[d]) * size;
      rest /= piece[d];
      size *= whole[d];
    }
    planes.push_back({plane * each, each, {.first = first, .stride = whole[dims - 1]}});
  }
  return planes;
}

KeptMoment moment_of(const MomentFormat& form, int which, const at::Tensor& kept) {
  KeptMoment moment{.numbers = kept.data_ptr()};
  if (const auto& codes = form.codes[which]; codes != nullptr) {
    moment.scales = codes->scales(kept).data_ptr<float>();
    moment.map = codes->map();
  }
  return moment;
}

// Returns the kernel's arguments for a slot, except for the numbers that SmallStep has as tensors.
kernels::LowBitAdam arguments_of(const OptimizerOptions& options, const Slot& slot, const MomentFormat& form,
                                 const SmallStep& step) {
  kernels::LowBitAdam args{
      .columns = slot.value.dim() == 0 ? 1 : slot.value.size(-1),
      .type = slot.value.scalar_type() == at::kBFloat16 ? kernels::Dtype::kBf16 : kernels::Dtype::kF32,
      .form = form.type == at::kByte       ? KeptMoment::Form::kCodes
              : form.type == at::kBFloat16 ? KeptMoment::Form::kBf16
                                           : KeptMoment::Form::kF32,
      .learning_rate = step.learning_rate,
      .beta1 = options.beta1,
      .beta2 = options.beta2,
      .eps = options.eps,
      .weight_decay = options.weight_decay,
      .decoupled = options.name == "AdamW",
      .stochastic = options.stochastic_rounding,
      .random_key = nn::stream_key(options.seed, slot.fqn),
      .threads = at::get_num_threads()};
  if (form.codes[0] != nullptr) args.first_column = form.codes[0]->first_column();
  return args;
}

// Calls run(args) for each run of rows.
template <typename Run>
void for_planes(kernels::LowBitAdam args, const OptimizerOptions& options, const Slot& slot, const MomentFormat& form,
                const SlotState& state, const Run& run) {
  const KeptMoment average = moment_of(form, 0, state.tensors[0].value);
  const KeptMoment square = moment_of(form, 1, state.tensors[1].value);
  const auto at_row = [&](const KeptMoment& moment, int64_t row) {
    KeptMoment there = moment;
    there.numbers =
        static_cast<char*>(moment.numbers) + row * args.columns * static_cast<int64_t>(c10::elementSize(form.type));
    if (moment.scales != nullptr) there.scales += row * memory::blocks_of_row(args.first_column, args.columns);
    return there;
  };
  for (const Plane& plane : planes_of(slot, options.stochastic_rounding)) {
    const int64_t skipped = plane.first_row * args.columns * static_cast<int64_t>(slot.value.element_size());
    args.rows = plane.rows;
    args.value = static_cast<char*>(slot.value.data_ptr()) + skipped;
    args.gradient = static_cast<const char*>(slot.grad.const_data_ptr()) + skipped;
    args.average = at_row(average, plane.first_row);
    args.square = at_row(square, plane.first_row);
    args.first_index = plane.place.first;
    args.index_stride = plane.place.stride;
    TORCH_INTERNAL_ASSERT(run(args));
  }
}

float scalar_on_cpu(const at::Tensor& tensor, float otherwise) {
  return tensor.defined() ? *tensor.const_data_ptr<float>() : otherwise;
}

void step_on_cpu(kernels::Level level, const OptimizerOptions& options, const Slot& slot, const MomentFormat& form,
                 const SlotState& state, const SmallStep& step) {
  if (scalar_on_cpu(step.skip, 0) != 0) return;
  const auto number = static_cast<double>(*step.step.const_data_ptr<float>());
  kernels::LowBitAdam args = arguments_of(options, slot, form, step);
  args.correction1 = 1 - std::pow(options.beta1, number);
  args.correction2 = 1 - std::pow(options.beta2, number);
  args.gradient_factor = 1 / scalar_on_cpu(step.divisor, 1);
  args.random_step = static_cast<uint32_t>(number);
  for_planes(args, options, slot, form, state,
             [&](const kernels::LowBitAdam& plane) { return kernels::low_bit_adam(level, plane); });
}

const float* device_scalar(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.const_data_ptr<float>() : nullptr;
}

// Runs the step without reading numbers on the host.
void step_on_device(const kernels::DeviceKernels& device, const OptimizerOptions& options, const Slot& slot,
                    const MomentFormat& form, const SlotState& state, const SmallStep& step) {
  const at::Tensor scratch = at::empty({kernels::kLowBitAdamScratch}, slot.value.options().dtype(at::kFloat));
  const kernels::DeviceStep where{.step = device_scalar(step.step),
                                  .divisor = device_scalar(step.divisor),
                                  .skip = device_scalar(step.skip),
                                  .scratch = scratch.data_ptr<float>()};
  for_planes(arguments_of(options, slot, form, step), options, slot, form, state,
             [&](const kernels::LowBitAdam& plane) { return device.run(plane, where); });
}

// Does the same with LibTorch's operations, some rows at a time. The host reads no number.
class ByOperations {
 public:
  ByOperations(const OptimizerOptions& options, const Slot& slot, const MomentFormat& form, SlotState& state,
               const SmallStep& step)
      : options_(options), slot_(slot), form_(form), step_(step) {
    columns_ = slot.value.dim() == 0 ? 1 : slot.value.size(-1);
    values_ = slot.value.view({-1, columns_});
    gradients_ = slot.grad.view({-1, columns_});
    for (int i : {0, 1}) {
      kept_[i] = state.tensors[i].value;
      if (form.codes[i] == nullptr) kept_[i] = kept_[i].view({-1, columns_});
    }
    const at::Tensor number = step.step.to(at::kDouble);
    step_size_ = at::pow(options.beta1, number).neg_().add_(1).reciprocal_().mul_(step.learning_rate);
    root_ = at::pow(options.beta2, number).neg_().add_(1).sqrt_();
    if (options.stochastic_rounding) key_ = nn::stream_key(options.seed, slot.fqn);
  }

  void run() {
    const int64_t most = std::max<int64_t>(1, (int64_t{1} << 22) / columns_);
    for (const Plane& plane : planes_of(slot_, options_.stochastic_rounding)) {
      for (int64_t row = 0; row < plane.rows; row += most) {
        RowLayout place = plane.place;
        place.first += row * place.stride;
        move(plane.first_row + row, std::min(most, plane.rows - row), place);
      }
    }
  }

 private:
  void move(int64_t first, int64_t count, const RowLayout& place) {
    const at::Tensor value = values_.narrow(0, first, count), old = value.to(at::kFloat);
    at::Tensor gradient = gradients_.narrow(0, first, count).to(at::kFloat);
    if (step_.divisor.defined()) gradient = gradient.div(step_.divisor);
    const bool decoupled = options_.name == "AdamW";
    if (!decoupled && options_.weight_decay != 0) gradient = gradient.add(old, options_.weight_decay);
    const at::Tensor average = read(0, first, count).lerp(gradient, 1 - options_.beta1);
    const at::Tensor square =
        read(1, first, count).mul(options_.beta2).addcmul_(gradient, gradient, 1 - options_.beta2);
    const at::Tensor denominator = square.sqrt().div_(root_).add_(options_.eps);
    const at::Tensor kept = decoupled ? old.mul(1 - step_.learning_rate * options_.weight_decay) : old;
    const at::Tensor exact = kept.sub(average.div(denominator).mul_(step_size_));
    put(value, options_.stochastic_rounding ? stochastic_round(exact, key_, step_.step, place) : exact);
    write(0, first, average);
    write(1, first, square);
  }

  at::Tensor read(int which, int64_t first, int64_t count) const {
    if (form_.codes[which] != nullptr) return form_.codes[which]->numbers_of(kept_[which], first, count);
    return kept_[which].narrow(0, first, count).to(at::kFloat);
  }

  void write(int which, int64_t first, const at::Tensor& numbers) {
    const int64_t count = numbers.size(0);
    if (form_.codes[which] == nullptr) return put(kept_[which].narrow(0, first, count), numbers);
    const auto [codes, scales] = form_.codes[which]->codes_of(numbers);
    put(form_.codes[which]->codes(kept_[which]).narrow(0, first, count), codes);
    put(form_.codes[which]->scales(kept_[which]).narrow(0, first, count), scales);
  }

  // Writes unless the step is skipped.
  void put(const at::Tensor& to, const at::Tensor& from) const {
    to.copy_(step_.skip.defined() ? at::where(step_.skip.ne(0), to, from.to(to.scalar_type())) : from);
  }

  const OptimizerOptions& options_;
  const Slot& slot_;
  const MomentFormat& form_;
  const SmallStep& step_;
  int64_t columns_ = 0;
  at::Tensor values_, gradients_, kept_[2];
  at::Tensor step_size_, root_;
  uint64_t key_ = 0;
};

}  // namespace

MomentFormat moment_format(const Slot& slot, const std::string& state_dtype) {
  MomentFormat form{.type = slot.value.scalar_type()};
  if (state_dtype == "auto") return form;
  TORCH_CHECK(form.type == at::kFloat || form.type == at::kBFloat16, "optimizer.state_dtype: ", slot.fqn, " is ",
              form.type, "; only float32 and bfloat16 parameters can keep moments in another type");
  form.type = state_dtype == "bfloat16" ? at::kBFloat16 : at::kFloat;
  if (state_dtype != "8bit" || !memory::has_8bit_states(whole_shape(slot))) return form;
  form.type = at::kByte;
  const int64_t first_column = slot.offset.empty() ? 0 : slot.offset.back();
  for (const int i : {0, 1}) {
    form.codes[i] =
        std::make_shared<BlockCodes>(slot.value.sizes(), first_column, /*is_signed=*/i == 0, slot.value.device());
  }
  return form;
}

SlotState make_moments(const Slot& slot, const MomentFormat& form) {
  SlotState state;
  for (const int i : {0, 1}) {
    const auto& codes = form.codes[i];
    state.tensors.push_back({i == 0 ? "exp_avg" : "exp_avg_sq",
                             codes == nullptr ? at::zeros_like(slot.value, form.type) : codes->zeros(),
                             form_of(codes)});
  }
  return state;
}

void low_bit_adam(const OptimizerOptions& options, const Slot& slot, const MomentFormat& form, SlotState& state,
                  const SmallStep& step) {
  TORCH_CHECK(slot.value.is_contiguous() && slot.grad.is_contiguous(), slot.fqn,
              ": value and gradient must be contiguous");
  TORCH_CHECK(!options.stochastic_rounding || slot.value.scalar_type() == at::kBFloat16, slot.fqn,
              ": only bfloat16 values can be rounded stochastically");
  const kernels::DeviceKernels* device = nn::device_kernels_at(slot.value, kernels::TrainingPart::kOptimizer);
  if (device != nullptr) return step_on_device(*device, options, slot, form, state, step);
  const std::optional<kernels::Level> level = kernels::chosen_level();
  if (slot.value.is_cpu() && level) return step_on_cpu(*level, options, slot, form, state, step);
  ByOperations(options, slot, form, state, step).run();
}

namespace {

constexpr int64_t kWord = 0xffffffff;  // Words are held in int64, because LibTorch cannot multiply uint32.

at::Tensor upper(const at::Tensor& product) { return product.bitwise_right_shift(32).bitwise_and(kWord); }

// Returns the word of each index of a stream, in the order of worker/rank/nn/random.h's chunks.
at::Tensor words(const at::Tensor& index, uint64_t key, const at::Tensor& step) {
  const at::Tensor counter = index.bitwise_right_shift(6).mul(16).add_(index.bitwise_and(15));
  std::array<at::Tensor, 4> word = {counter.bitwise_and(kWord), upper(counter), step.to(at::kLong).expand_as(index),
                                    at::zeros_like(index)};
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  for (int round = 0; round < 10; ++round) {
    const at::Tensor a = word[0].mul(int64_t{0xD2511F53}), b = word[2].mul(int64_t{0xCD9E8D57});
    word = {upper(b).bitwise_xor_(word[1]).bitwise_xor_(int64_t{k0}), b.bitwise_and(kWord),
            upper(a).bitwise_xor_(word[3]).bitwise_xor_(int64_t{k1}), a.bitwise_and(kWord)};
    k0 += random::kPhiloxKey0;
    k1 += random::kPhiloxKey1;
  }
  const at::Tensor which = index.bitwise_right_shift(4).bitwise_and(3);
  at::Tensor result = word[0];
  for (int w = 1; w < 4; ++w) result = at::where(which.eq(w), word[w], result);
  return result;
}

}  // namespace

at::Tensor stochastic_round(const at::Tensor& exact, uint64_t key, const at::Tensor& step, const RowLayout& place) {
  const auto whole = exact.options().dtype(at::kLong);
  const at::Tensor index = at::arange(exact.size(0), whole)
                               .mul_(place.stride)
                               .add_(place.first)
                               .unsqueeze(1)
                               .add(at::arange(exact.size(1), whole));
  const at::Tensor half = words(index, key, step).bitwise_right_shift(16).to(at::kInt);
  const at::Tensor moved = exact.view(at::kInt).add(half).bitwise_and(static_cast<int>(0xffff0000)).view(at::kFloat);
  return at::where(exact.isfinite(), moved, exact).to(at::kBFloat16);
}

}  // namespace titan::optim
