// Computes what a rank holds above its resting state before each piece of its work: blocks with microbatches that wait
// for the backward pass, gathered weights, gradients that are not reduced yet, and messages between stages.

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "tests/numerics/mesh_table/closed_form.h"
#include "tests/numerics/mesh_table/messages.h"
#include "worker/rank/runtime/engine/pairs.h"
#include "worker/rank/runtime/step/parallel_setup.h"

namespace titan::testing {
namespace {

using mesh::Axis;
using pipeline::Action;
using pipeline::ComputationType;

class Held {
 public:
  explicit Held(const RankShare& share)
      : share_(share),
        plan_(share.plan),
        place_(share.mesh.index(share.rank, Axis::kPipeline)),
        always_(share.parallelism.fsdp_reshard_after_forward == "always"),
        together_(runtime::overlaps_pairs(share.job.config) && runtime::pairs_can_overlap(plan_.schedule)) {}

  std::vector<int64_t> result() {
    for (run_ = 0; run_ < share_.runs; ++run_) run();
    return std::move(held_);
  }

 private:
  using Place = std::pair<int, int64_t>;  // Stage and microbatch of the step.

  void run() {
    Messages messages(plan_.schedule, place_);
    for (size_t i = 0; i < plan_.schedule.steps[place_].size(); ++i) {
      messages.begin_step(i);
      const std::vector<Action>& actions = plan_.schedule.steps[place_][i].actions;
      const size_t side_by_side = together_ && actions.size() == 2 ? 2 : 1;
      for (size_t first = 0; first < actions.size(); first += side_by_side) {
        int64_t inputs = 0;  // Received, not used yet.
        for (size_t one = first; one < first + side_by_side; ++one) {
          held_.push_back(total((messages.count() + inputs) * edge_bytes()));
          const int64_t before = messages.count();
          messages.take_input(actions[one]);
          inputs += before > messages.count() ? 1 : 0;
        }
        for (size_t one = first; one < first + side_by_side; ++one) compute(actions[one]);
        for (size_t one = first; one < first + side_by_side; ++one) messages.give_output(actions[one]);
      }
    }
  }

  int64_t edge_bytes() const { return share_.edge_tokens * share_.spec.dim * share_.bytes; }

  void compute(const Action& action) {
    const Place place{action.stage, run_ * plan_.schedule.microbatches + action.microbatch};
    switch (action.work) {
      case ComputationType::kForward:
        waiting_.insert(place);
        gathered_.insert(action.stage);
        break;
      case ComputationType::kBackward:
        ++backward_passes_;
        waiting_.erase(place);
        summed_.insert(action.stage);
        ++backwards_;
        break;
      case ComputationType::kInputGradient:
        waiting_.erase(place);
        halved_.insert(place);
        break;
      case ComputationType::kWeightGradient:
        halved_.erase(place);
        summed_.insert(action.stage);
        break;
      case ComputationType::kReduce:
        if (run_ + 1 == share_.runs) reduced_.insert(action.stage);
        break;
    }
    if (share_.model.embeds_tokens() && action.stage == 0 && action.work != ComputationType::kForward)
      embedding_summed_ = true;
  }

  using Known = std::map<Place, int64_t>;

  using BlockBytes = int64_t (TableModel::*)(const RankShare&, const std::string&, int64_t) const;

  int64_t stage_bytes(BlockBytes of_block, int stage, int64_t microbatch, Known& known) {
    const auto [place, is_new] = known.try_emplace({stage, microbatch}, 0);
    if (!is_new) return place->second;
    for (const std::string& block : plan_.split[stage])
      place->second += (share_.model.*of_block)(share_, block, microbatch);
    return place->second;
  }

  int64_t total(int64_t in_flight) {
    int64_t sum = in_flight;
    for (const auto& [stage, microbatch] : waiting_) {
      sum += stage_bytes(&TableModel::bytes_for_backward, stage, microbatch, for_backward_);
    }
    for (const auto& [stage, microbatch] : halved_) {
      sum += stage_bytes(&TableModel::bytes_for_weights, stage, microbatch, for_weights_);
    }
    return sum + weights() + gradients();
  }

  bool is_sharded(const Unit& unit) const { return share_.shard_ranks(unit.parts.front()) > 1; }
  bool is_offloaded() const { return share_.job.config.training.enable_cpu_offload; }

  int64_t gathered_bytes(const std::string& block) const {
    int64_t elements = 0;
    for (const Unit& unit : share_.units_of(share_.parts_of(block))) {
      if (!is_sharded(unit) && !is_offloaded()) continue;
      const Part& first = unit.parts.front();
      // A unit of one matrix that is sharded by rows is gathered in place, including its padding.
      const bool alone = unit.parts.size() == 1 && share_.shard_dim(first) == 0;
      for (const Part& part : unit.parts) {
        elements += alone ? share_.shard_ranks(part) * share_.padded(part) : part.numel();
      }
    }
    return elements * share_.bytes;
  }

  // Returns the blocks with gathered weights. A tied matrix is gathered for both the embedding and the head.
  std::set<std::string> gathered_blocks() const {
    std::set<std::string> names;
    if (always_) return names;
    if (share_.pipeline > 1) {
      for (const int stage : gathered_) names.insert(plan_.split[stage].begin(), plan_.split[stage].end());
    } else {
      const std::vector<std::string>& all = plan_.split[0];
      const std::string& policy = share_.parallelism.fsdp_reshard_after_forward;
      const bool from_ranks = share_.mesh.size(Axis::kFsdp) > 1 || share_.mesh.size(Axis::kExpertFsdp) > 1;
      if (policy == "default" && !from_ranks) {
        if (!gathered_.empty()) names.insert(all.begin(), all.end());  // Copies, made once per step.
      } else if (!waiting_.empty()) {
        names.insert(policy == "never" ? all.begin() : all.end() - 2, all.end());
      }
    }
    if (share_.spec.tied_embeddings && names.count("output") > 0) names.insert("tok_embeddings");
    return names;
  }

  int64_t weights() const {
    int64_t sum = 0;
    for (const std::string& block : gathered_blocks()) sum += gathered_bytes(block);
    return sum;
  }

  int64_t whole_bytes(const std::string& block) const {
    int64_t elements = 0;
    for (const Unit& unit : share_.units_of(share_.parts_of(block))) {
      if (!is_sharded(unit)) continue;
      for (const Part& part : unit.parts) elements += part.numel();
    }
    return elements * share_.bytes;
  }

  // Returns the bytes of summed whole gradients that wait for their reduction, and of early shards.
  int64_t gradients() const {
    if (share_.pipeline == 1) {
      const bool waits = share_.spec.tied_embeddings && run_ > 0 && run_ < share_.runs;
      return (waits ? whole_bytes("tok_embeddings") : 0) + early_shards();
    }
    if (always_) return halved_embeddings();
    std::set<std::string> names;
    const int last = plan_.schedule.stages - 1;
    for (const int stage : summed_) {
      if (reduced_.count(stage) > 0) continue;
      names.insert(plan_.split[stage].begin(), plan_.split[stage].end());
    }
    names.erase("tok_embeddings");
    const bool tied = share_.spec.tied_embeddings;
    // The embedding's gradient is computed in the first half of the backward pass. A tied one waits for both stages.
    const bool first_here = plan_.schedule.rank_of(0) == place_, last_here = plan_.schedule.rank_of(last) == place_;
    bool summed = first_here && embedding_summed_, reduced = !first_here || reduced_.count(0) > 0;
    if (tied && last_here) {
      summed |= summed_.count(last) > 0;
      reduced &= reduced_.count(last) > 0;
    }
    if (summed && !reduced) names.insert("tok_embeddings");
    int64_t sum = 0;
    for (const std::string& block : names) sum += whole_bytes(block);
    return sum;
  }

  // Early steps free their gradients, which are thus not part of the resting state: they exist from the first backward
  // pass to the last.
  int64_t early_shards() const {
    const config::JobConfig& config = share_.job.config;
    if (!config.optimizer.early_step_in_backward || config.training.enable_cpu_offload) return 0;
    if (backward_passes_ == 0 || backward_passes_ == share_.runs * plan_.schedule.microbatches) return 0;
    int64_t elements = 0;
    for (const std::string& block : share_.blocks()) {
      for (const Part& part : share_.parts_of(block)) elements += share_.padded(part);
    }
    return elements * share_.bytes;
  }

  // A tied matrix's gradient is reduced once per step. If weights are updated early, shards come and go within a step.
  int64_t gradients_between_runs() const {
    int64_t sum = share_.spec.tied_embeddings ? whole_bytes("tok_embeddings") : 0;
    if (!share_.job.config.optimizer.early_step_in_backward || is_offloaded()) return sum;
    for (const std::string& block : share_.blocks()) {
      for (const Unit& unit : share_.units_of(share_.parts_of(block))) {
        if (share_.is_tied(block) && is_sharded(unit)) continue;
        for (const Part& part : unit.parts) sum += share_.padded(part) * share_.bytes;
      }
    }
    return sum;
  }

  // If each microbatch's gradients are reduced, an embedding's gradient waits for the second half.
  int64_t halved_embeddings() const {
    int64_t sum = 0;
    for (const auto& [stage, microbatch] : halved_) {
      if (stage == 0 && share_.model.embeds_tokens())
        sum += share_.parts_of("tok_embeddings").front().numel() * share_.bytes;
    }
    return sum;
  }

  const RankShare& share_;
  const pipeline::PipelinePlan& plan_;
  const int place_;  // This rank's index on the pipeline axis.
  const bool always_;
  const bool together_;  // The halves of a pair run together.
  int64_t run_ = 0;
  int64_t backwards_ = 0;  // Whole passes so far.
  std::set<Place> waiting_, halved_;
  std::set<int> gathered_, summed_, reduced_;  // Stages.
  bool embedding_summed_ = false;
  int64_t backward_passes_ = 0;
  Known for_backward_, for_weights_;
  std::vector<int64_t> held_;
};

}  // namespace

std::vector<int64_t> resident_bytes_of(const RankShare& share) { return Held(share).result(); }

}  // namespace titan::testing
