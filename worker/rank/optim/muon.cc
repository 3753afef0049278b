#include "worker/rank/optim/muon.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "worker/rank/optim/adam.h"
#include "worker/rank/optim/newton_schulz.h"

namespace titan::optim {
namespace {

bool takes_muon(const OptimizerOptions& options) { return options.name == "Muon"; }

double scale_of(const OptimizerOptions& options, const std::array<int64_t, 3>& shape) {
  const auto rows = static_cast<double>(shape[1]), columns = static_cast<double>(shape[2]);
  if (options.adjust_lr == "original") return std::sqrt(std::max(1.0, rows / columns));
  TORCH_CHECK(options.adjust_lr == "match_rms_adamw", "optimizer.adjust_lr: \"", options.adjust_lr,
              "\" is not one of match_rms_adamw, original");
  return 0.2 * std::sqrt(std::max(rows, columns));
}

// Returns the part `box` of a tensor that is itself the part `held` of the same parameter.
at::Tensor part_of(at::Tensor tensor, const MatrixBox& held, const MatrixBox& box) {
  for (size_t dim = 0; dim < 3; ++dim)
    tensor = tensor.narrow(static_cast<int64_t>(dim), box.offset[dim] - held.offset[dim], box.size[dim]);
  return tensor;
}

// Visits the pieces to, or from, every other rank, each with its part of a flat buffer.
template <typename Visit>
void for_each_piece(const std::vector<std::vector<MatrixPiece>>& pieces, int self, const at::Tensor& buffer,
                    Visit&& visit) {
  int64_t begin = 0;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    if (static_cast<int>(rank) == self) continue;
    for (const MatrixPiece& piece : pieces[rank]) {
      visit(piece, buffer.narrow(0, begin, piece.box.elements()).view(piece.box.size));
      begin += piece.box.elements();
    }
  }
}

std::vector<int64_t> splits_of(const std::vector<std::vector<MatrixPiece>>& pieces, int self) {
  std::vector<int64_t> splits;
  for (size_t rank = 0; rank < pieces.size(); ++rank) {
    int64_t sum = 0;
    for (const MatrixPiece& piece : pieces[rank]) sum += piece.box.elements();
    splits.push_back(static_cast<int>(rank) == self ? 0 : sum);
  }
  return splits;
}

// This rank's part of a parameter that Muon updates: [matrices, rows, columns].
struct Held {
  size_t slot = 0;
  MatrixBox box;
  at::Tensor value, update;  // The update replaces the gradient.
};

// An exchange of a round in progress.
struct AsyncExchange {
  at::Tensor sent, received;
  comm::Pending pending;
};

class Muon : public Optimizer {
 public:
  Muon(std::vector<OptimizerOptions> groups, std::vector<Slot> slots, MatrixMesh mesh)
      : groups_(std::move(groups)), slots_(std::move(slots)), mesh_(std::move(mesh)) {
    const int ranks = mesh_.group == nullptr ? 1 : mesh_.group->size();
    self_ = mesh_.group == nullptr ? 0 : mesh_.group->rank();
    std::vector<Slot> others;
    for (size_t i = 0; i < slots_.size(); ++i) {
      TORCH_CHECK(slots_[i].group < groups_.size(), slots_[i].fqn, ": its group does not exist");
      if (takes_muon(groups_[slots_[i].group])) {
        add(i);
      } else {
        others.push_back(slots_[i]);
      }
    }
    adam_ = make_adam(groups_, std::move(others));
    collect_states();
    for (const size_t i : matrices_) parameters_.push_back(mesh_.parameters[i]);
    runs_ = deal_matrices(parameters_, ranks);
    rounds_ = plan_rounds(parameters_, runs_, ranks, self_, mesh_.round_elements);
  }

  void step(double learning_rate, const Gate& gate) override {
    at::NoGradGuard no_grad;
    adam_->step(learning_rate, gate);
    open(gate);
    for (const Held& one : held_) begin_update(one, learning_rate);
    exchange(learning_rate);
    skip_ = skip_there_ = divisor_ = at::Tensor();
  }

  void begin_step() override { adam_->begin_step(); }
  void step_slots(size_t, size_t, double) override {
    TORCH_CHECK(false, "optimizer.early_step_in_backward does not work with Muon");
  }
  std::vector<SlotState>& states() override { return states_; }
  at::Tensor& step_count() override { return adam_->step_count(); }
  void set_seed(uint64_t seed) override { adam_->set_seed(seed); }

 private:
  void add(size_t index) {
    const Slot& slot = slots_[index];
    if (mesh_.parameters.empty()) mesh_.parameters.resize(slots_.size());
    MatrixParameter& parameter = mesh_.parameters[index];
    if (parameter.held.empty() && mesh_.group == nullptr) parameter = whole(slot.value);
    TORCH_CHECK(!parameter.held.empty(), slot.fqn, ": Muon updates only matrices, and this is not one");
    const MatrixBox& box = parameter.held[static_cast<size_t>(self_)];
    TORCH_CHECK(box.elements() == slot.value.numel(), slot.fqn, ": the slot has ", slot.value.numel(),
                " numbers, but this rank's part has ", box.elements(), " numbers");
    scale_of(groups_[slot.group], parameter.shape);
    type_ = slot.value.scalar_type() == at::kDouble ? at::kDouble : at::kBFloat16;
    matrices_.push_back(index);
    held_.push_back({index, box, slot.value.view(box.size), slot.grad.view(box.size)});
  }

  static MatrixParameter whole(const at::Tensor& value) {
    const bool many = value.dim() == 3;
    TORCH_CHECK(many || value.dim() == 2, "Muon updates only matrices, not a tensor of ", value.dim(), " dimensions");
    const std::array<int64_t, 3> shape = {many ? value.size(0) : 1, value.size(-2), value.size(-1)};
    return {shape, {{{}, shape}}};
  }

  void collect_states() {
    size_t other = 0;
    for (const Slot& slot : slots_) {
      if (takes_muon(groups_[slot.group])) {
        states_.push_back({{{"momentum_buffer", at::zeros_like(slot.value)}}});
      } else {
        states_.push_back(adam_->states()[other++]);
      }
    }
  }

  const OptimizerOptions& options_of(const Held& one) const { return groups_[slots_[one.slot].group]; }

  // Copies the gate to the device of the shards and to the device that computes matrices. An offloaded shard is on the
  // host.
  void open(const Gate& gate) {
    if (!gate.skip.defined() || held_.empty()) return;
    const at::Device here = held_.front().value.device();
    divisor_ = gate.divisor.to(here);
    skip_ = gate.skip.to(here).ne(0);
    skip_there_ = gate.skip.to(mesh_.device).ne(0);
  }

  // Computes momentum, the matrices to make orthogonal, and weight decay. A skipped step's gradient may be infinite or
  // NaN, so it is discarded, not multiplied by 0.
  void begin_update(const Held& one, double learning_rate) {
    if (one.value.numel() == 0) return;
    const OptimizerOptions& options = options_of(one);
    at::Tensor grad = one.update, momentum = states_[one.slot].tensors[0].value.view(one.box.size);
    if (skip_.defined()) grad.div_(divisor_);
    at::Tensor next = momentum.lerp(grad, 1 - options.momentum);
    if (skip_.defined()) {
      momentum.copy_(at::where(skip_, momentum, next));
    } else {
      momentum.copy_(next);
    }
    options.nesterov ? grad.lerp_(next, options.momentum) : grad.copy_(next);

    const double kept = 1 - learning_rate * options.lr * options.weight_decay;
    if (kept == 1) return;
    at::Tensor value = one.value;
    if (!skip_.defined()) {
      value.mul_(kept);
    } else {
      const auto number = at::TensorOptions().dtype(at::kDouble).device(value.device());
      value.mul_(at::where(skip_, at::ones({}, number), at::full({}, kept, number)));
    }
  }

  void exchange(double learning_rate) {
    std::optional<AsyncExchange> arriving, returning;
    if (!rounds_.empty()) arriving = begin_gather(rounds_[0]);
    for (size_t i = 0; i < rounds_.size(); ++i) {
      AsyncExchange here = *std::exchange(arriving, std::nullopt);
      if (i + 1 < rounds_.size()) arriving = begin_gather(rounds_[i + 1]);
      std::vector<at::Tensor> matrices = assemble(rounds_[i], here);
      here = {};
      for (size_t k = 0; k < matrices.size(); ++k) {
        const size_t parameter = runs_[rounds_[i].runs[k]].parameter;
        matrices[k] = newton_schulz(std::move(matrices[k]), options_of(held_[parameter]).ns_steps);
      }
      if (returning) finish_return(rounds_[i - 1], *returning, learning_rate);
      returning = begin_return(rounds_[i], matrices, learning_rate);
    }
    if (returning) finish_return(rounds_.back(), *returning, learning_rate);
  }

  at::Tensor buffer(int64_t elements) const {
    return at::empty({elements}, at::TensorOptions().dtype(type_).device(mesh_.device));
  }

  AsyncExchange start_exchange(const MatrixExchange& exchange, AsyncExchange flight) {
    if (!exchange.travels) return flight;
    flight.received = buffer(exchange.elements_in(self_));
    flight.pending = mesh_.group->all_to_all(flight.received, flight.sent, splits_of(exchange.from, self_),
                                             splits_of(exchange.to, self_));
    return flight;
  }

  AsyncExchange begin_gather(const MatrixRound& round) {
    AsyncExchange flight{.sent = buffer(round.gather.elements_out(self_))};
    for_each_piece(round.gather.to, self_, flight.sent, [&](const MatrixPiece& piece, at::Tensor place) {
      const Held& one = held_[runs_[piece.run].parameter];
      place.copy_(part_of(one.update, one.box, piece.box));
    });
    return start_exchange(round.gather, std::move(flight));
  }

  // Returns the whole matrices of this rank's runs.
  std::vector<at::Tensor> assemble(const MatrixRound& round, AsyncExchange& flight) {
    std::vector<at::Tensor> matrices;
    for (const size_t run : round.runs) {
      const auto& shape = parameters_[runs_[run].parameter].shape;
      matrices.push_back(buffer(runs_[run].count * shape[1] * shape[2]).view({runs_[run].count, shape[1], shape[2]}));
    }
    for (const MatrixPiece& piece : round.gather.from[self_]) {
      const Held& one = held_[runs_[piece.run].parameter];
      place_in(round, matrices, piece).copy_(part_of(one.update, one.box, piece.box));
    }
    flight.pending.wait();
    for_each_piece(round.gather.from, self_, flight.received, [&](const MatrixPiece& piece, const at::Tensor& part) {
      place_in(round, matrices, piece).copy_(part);
    });
    return matrices;
  }

  // Returns the part of a run's matrices that a piece fills.
  at::Tensor place_in(const MatrixRound& round, const std::vector<at::Tensor>& matrices, const MatrixPiece& piece) {
    const auto found = std::lower_bound(round.runs.begin(), round.runs.end(), piece.run);
    const MatrixRun& run = runs_[piece.run];
    const auto& shape = parameters_[run.parameter].shape;
    return part_of(matrices[static_cast<size_t>(found - round.runs.begin())],
                   {{run.first, 0, 0}, {run.count, shape[1], shape[2]}}, piece.box);
  }

  AsyncExchange begin_return(const MatrixRound& round, const std::vector<at::Tensor>& matrices, double learning_rate) {
    if (skip_there_.defined()) {
      for (at::Tensor one : matrices) one.masked_fill_(skip_there_, 0);
    }
    AsyncExchange flight{.sent = buffer(round.back.elements_out(self_))};
    for_each_piece(round.back.to, self_, flight.sent,
                   [&](const MatrixPiece& piece, at::Tensor place) { place.copy_(place_in(round, matrices, piece)); });
    flight = start_exchange(round.back, std::move(flight));
    for (const MatrixPiece& piece : round.back.to[self_]) apply(piece, place_in(round, matrices, piece), learning_rate);
    return flight;
  }

  void finish_return(const MatrixRound& round, AsyncExchange& flight, double learning_rate) {
    flight.pending.wait();
    for_each_piece(round.back.from, self_, flight.received,
                   [&](const MatrixPiece& piece, const at::Tensor& part) { apply(piece, part, learning_rate); });
  }

  void apply(const MatrixPiece& piece, const at::Tensor& orthogonal, double learning_rate) {
    const Held& one = held_[runs_[piece.run].parameter];
    const OptimizerOptions& options = options_of(one);
    const double rate = learning_rate * options.lr * scale_of(options, parameters_[runs_[piece.run].parameter].shape);
    part_of(one.value, one.box, piece.box).add_(orthogonal.to(one.value.device()), -rate);
  }

  const std::vector<OptimizerOptions> groups_;
  const std::vector<Slot> slots_;
  MatrixMesh mesh_;
  int self_ = 0;
  at::ScalarType type_ = at::kBFloat16;
  std::unique_ptr<Optimizer> adam_;
  std::vector<SlotState> states_;
  std::vector<size_t> matrices_;  // Slots that Muon updates.
  std::vector<Held> held_;        // One per entry of matrices_. parameters_ and runs_ use the same indices.
  std::vector<MatrixParameter> parameters_;
  std::vector<MatrixRun> runs_;
  std::vector<MatrixRound> rounds_;
  at::Tensor divisor_, skip_, skip_there_;  // Gate of the current step. Undefined without one.
};

}  // namespace

std::unique_ptr<Optimizer> make_muon(std::vector<OptimizerOptions> groups, std::vector<Slot> slots, MatrixMesh mesh) {
  return std::make_unique<Muon>(std::move(groups), std::move(slots), std::move(mesh));
}

}  // namespace titan::optim
