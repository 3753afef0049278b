#include "worker/rank/optim/adam.h"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <optional>
#include <utility>

#include "worker/rank/optim/adam_state.h"

namespace titan::optim {
namespace {

enum class Implementation { kFused, kForeach, kForLoop };

bool decoupled(const OptimizerOptions& options) { return options.name == "AdamW"; }

// Adam and AdamW with torch.optim's three implementations, which differ only in rounding. One step counter serves all
// slots, because they always step together.
class Adam : public Optimizer {
 public:
  Adam(std::vector<OptimizerOptions> groups, Implementation implementation, std::vector<Slot> slots)
      : groups_(std::move(groups)), implementation_(implementation), slots_(std::move(slots)) {
    step_ = at::zeros({}, at::kFloat);
    for (const Slot& slot : slots_) {
      TORCH_CHECK(slot.value.sizes() == slot.grad.sizes() && slot.value.scalar_type() == slot.grad.scalar_type(),
                  slot.fqn, ": value and gradient differ in shape or type");
      TORCH_CHECK(slot.group < groups_.size(), slot.fqn, ": group ", slot.group,
                  " is out of range; number of groups: ", groups_.size());
      const OptimizerOptions& options = groups_[slot.group];
      forms_.push_back(moment_format(slot, options.state_dtype));
      states_.push_back(make_moments(slot, forms_.back()));
      TORCH_CHECK(implementation_ == Implementation::kFused || !is_small(states_.size() - 1), slot.fqn,
                  ": optimizer.state_dtype = \"", options.state_dtype, "\" or stochastic rounding requires ",
                  "optimizer.implementation = \"fused\"");
      if (!holds_elements(slot)) continue;
      grads_.push_back(slot.grad);
      step_ = step_.to(slot.value.device());
    }
  }

  void step(double learning_rate, const Gate& gate) override {
    at::NoGradGuard no_grad;
    const OpenedGate passage = open(gate);
    if (passage.closed) return;
    begin_step();
    if (passage.skip) step_.sub_(*passage.skip);
    update(0, slots_.size(), learning_rate, passage);
  }

  void begin_step() override {
    at::NoGradGuard no_grad;
    step_.add_(1);
  }

  void step_slots(size_t first, size_t count, double learning_rate) override {
    at::NoGradGuard no_grad;
    update(first, count, learning_rate, {});
  }

  std::vector<SlotState>& states() override { return states_; }
  at::Tensor& step_count() override { return step_; }
  void set_seed(uint64_t seed) override {
    for (OptimizerOptions& options : groups_) options.seed = seed;
  }

 private:
  // Tensors of some slots of one group.
  struct Work {
    std::vector<at::Tensor> values, grads, averages, squares;
  };
  struct Correction {
    double step_size;
    double root;
  };
  // An opened gate. The fused kernels read `divisor` and `skip`. For the others the host has read the gate and divided
  // the gradients.
  struct OpenedGate {
    bool closed = false;  // Nothing is updated.
    std::optional<at::Tensor> divisor, skip;
  };

  // False if this rank holds nothing of a parameter.
  static bool holds_elements(const Slot& slot) { return slot.value.numel() > 0; }
  // A dry run skips the step: its tensors have no numbers, and Adam communicates nothing.
  static bool is_stepped(const Slot& slot) { return holds_elements(slot) && !slot.value.is_meta(); }
  // Whether the slot needs low_bit_adam(): LibTorch's implementations store moments in the value's type and round
  // to the nearest.
  bool is_small(size_t i) const {
    return forms_[i].type != slots_[i].value.scalar_type() || groups_[slots_[i].group].stochastic_rounding;
  }

  // Fused kernels read the gate on the device. The other implementations read it on the host, as they do the step's
  // number. For float64 the host reads it too, because a fused kernel would use the divisor in float32.
  OpenedGate open(const Gate& gate) {
    if (!gate.skip.defined()) return {};
    const bool wide = !grads_.empty() && grads_.front().scalar_type() == at::kDouble;
    if (implementation_ == Implementation::kFused && !wide) {
      return {.divisor = gate.divisor.to(step_.device(), at::kFloat), .skip = gate.skip.to(step_.device())};
    }
    const at::Tensor known = at::stack({gate.divisor, gate.skip.to(at::kDouble)}).cpu();
    const double divisor = known.const_data_ptr<double>()[0];
    const bool closed = known.const_data_ptr<double>()[1] != 0;
    if (!closed && divisor > 1 && !grads_.empty()) at::_foreach_div_(grads_, divisor);
    return {.closed = closed};
  }

  void update(size_t first, size_t count, double learning_rate, const OpenedGate& passage) {
    std::vector<Work> works(groups_.size());
    for (size_t i = first; i < first + count; ++i) {
      if (!is_stepped(slots_[i])) continue;
      if (is_small(i)) {
        step_small(i, learning_rate, passage);
        continue;
      }
      Work& work = works[slots_[i].group];
      work.values.push_back(slots_[i].value);
      work.grads.push_back(slots_[i].grad);
      work.averages.push_back(states_[i].tensors[0].value);
      work.squares.push_back(states_[i].tensors[1].value);
    }
    for (size_t group = 0; group < groups_.size(); ++group) {
      const OptimizerOptions& options = groups_[group];
      if (!works[group].values.empty()) update(works[group], options, learning_rate * options.lr, passage);
    }
  }

  void step_small(size_t i, double learning_rate, const OpenedGate& passage) {
    const OptimizerOptions& options = groups_[slots_[i].group];
    const SmallStep step{.learning_rate = learning_rate * options.lr,
                         .step = step_,
                         .divisor = passage.divisor.value_or(at::Tensor()),
                         .skip = passage.skip.value_or(at::Tensor())};
    low_bit_adam(options, slots_[i], forms_[i], states_[i], step);
  }

  void update(Work& work, const OptimizerOptions& options, double learning_rate, const OpenedGate& passage) {
    switch (implementation_) {
      case Implementation::kFused:
        return step_fused(work, options, learning_rate, passage);
      case Implementation::kForeach:
        return step_foreach(work, options, learning_rate);
      case Implementation::kForLoop:
        return step_each(work, options, learning_rate);
    }
  }

  Correction correction(const OptimizerOptions& options, double learning_rate) const {
    const double step = step_.item<double>();
    return {learning_rate / (1 - std::pow(options.beta1, step)), std::sqrt(1 - std::pow(options.beta2, step))};
  }

  void step_fused(Work& work, const OptimizerOptions& o, double learning_rate, const OpenedGate& passage) {
    const std::vector<at::Tensor> steps(work.values.size(), step_);
    if (decoupled(o)) {
      at::_fused_adamw_(work.values, work.grads, work.averages, work.squares, {}, steps, learning_rate, o.beta1,
                        o.beta2, o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, passage.divisor,
                        passage.skip);
    } else {
      at::_fused_adam_(work.values, work.grads, work.averages, work.squares, {}, steps, learning_rate, o.beta1, o.beta2,
                       o.weight_decay, o.eps, /*amsgrad=*/false, /*maximize=*/false, passage.divisor, passage.skip);
    }
  }

  void step_foreach(Work& work, const OptimizerOptions& options, double learning_rate) {
    std::vector<at::Tensor> grads = work.grads;
    if (options.weight_decay != 0) {
      if (decoupled(options)) {
        at::_foreach_mul_(work.values, 1 - learning_rate * options.weight_decay);
      } else {
        grads = at::_foreach_add(work.grads, work.values, options.weight_decay);
      }
    }
    at::_foreach_lerp_(work.averages, grads, 1 - options.beta1);
    at::_foreach_mul_(work.squares, options.beta2);
    at::_foreach_addcmul_(work.squares, grads, grads, 1 - options.beta2);
    const Correction fix = correction(options, learning_rate);
    std::vector<at::Tensor> denominators = at::_foreach_sqrt(work.squares);
    at::_foreach_div_(denominators, fix.root);
    at::_foreach_add_(denominators, options.eps);
    at::_foreach_addcdiv_(work.values, work.averages, denominators, -fix.step_size);
  }

  void step_each(Work& work, const OptimizerOptions& options, double learning_rate) {
    const Correction fix = correction(options, learning_rate);
    for (size_t i = 0; i < work.values.size(); ++i) {
      at::Tensor grad = work.grads[i];
      if (options.weight_decay != 0) {
        if (decoupled(options)) {
          work.values[i].mul_(1 - learning_rate * options.weight_decay);
        } else {
          grad = grad.add(work.values[i], options.weight_decay);
        }
      }
      work.averages[i].lerp_(grad, 1 - options.beta1);
      work.squares[i].mul_(options.beta2).addcmul_(grad, grad, 1 - options.beta2);
      const at::Tensor denominator = work.squares[i].sqrt().div_(fix.root).add_(options.eps);
      work.values[i].addcdiv_(work.averages[i], denominator, -fix.step_size);
    }
  }

  std::vector<OptimizerOptions> groups_;
  Implementation implementation_;
  std::vector<Slot> slots_;
  std::vector<SlotState> states_;
  std::vector<MomentFormat> forms_;
  std::vector<at::Tensor> grads_;  // Gradients of the slots that have elements.
  at::Tensor step_;
};

Implementation parse_implementation(const std::string& name) {
  if (name == "fused") return Implementation::kFused;
  if (name == "foreach") return Implementation::kForeach;
  TORCH_CHECK(name == "for-loop", "optimizer.implementation: \"", name, "\" is not one of fused, foreach, for-loop");
  return Implementation::kForLoop;
}

}  // namespace

std::unique_ptr<Optimizer> make_adam(std::vector<OptimizerOptions> groups, std::vector<Slot> slots) {
  const Implementation implementation = parse_implementation(groups.front().implementation);
  return std::make_unique<Adam>(std::move(groups), implementation, std::move(slots));
}

}  // namespace titan::optim
