// Counts what a rank sends in one step: calls and bytes of every collective, by axis.

#include "absl/strings/str_cat.h"
#include "tests/numerics/mesh_table/closed_form.h"

namespace titan::testing {
namespace {

using mesh::Axis;

class Traffic {
 public:
  explicit Traffic(const RankShare& share) : share_(share) {}

  comm::LedgerCounts result() {
    for (const int stage : share_.plan.schedule.stages_of(share_.mesh.index(share_.rank, Axis::kPipeline))) {
      transfers(stage);
    }
    const std::vector<std::string> names = share_.blocks();
    for (size_t i = 0; i < names.size(); ++i) block(names[i], /*is_near_end=*/i + 2 >= names.size());
    if (share_.has_one_tied_end()) tied_pair(/*has_head=*/names.back() == "output");
    return counts_.counts();
  }

 private:
  void add(const char* group, const char* operation, int64_t calls, int64_t bytes) {
    counts_.add(group, operation, calls, bytes);
  }

  int64_t microbatches() const { return share_.microbatches; }

  // Adds the messages between stages of different ranks.
  void transfers(int stage) {
    const pipeline::Schedule& schedule = share_.plan.schedule;
    const int64_t bytes = share_.edge_tokens * share_.spec.dim * share_.bytes;
    for (const int other : {stage - 1, stage + 1}) {
      if (other < 0 || other >= schedule.stages || schedule.rank_of(other) == schedule.rank_of(stage)) continue;
      add("pp", "send", microbatches(), bytes);
      add("pp", "recv", microbatches(), bytes);
    }
  }

  void block(const std::string& name, bool is_near_end) {
    for (const Unit& one : share_.units_of(share_.parts_of(name))) unit(name, one, is_near_end);
    share_.model.add_traffic(share_, name, counts_);
  }

  // Returns how often a unit is gathered in one step.
  int64_t gathers(const std::string& name, bool is_near_end, bool is_shared) const {
    const std::string& policy = share_.parallelism.fsdp_reshard_after_forward;
    const bool is_embedding = name == "tok_embeddings";
    if (policy == "always") return microbatches() * (is_shared ? 3 : is_embedding ? 1 : 2);
    if (share_.pipeline > 1) return 1;
    if (policy == "never" || is_near_end || is_embedding) return microbatches();
    return 2 * microbatches();
  }

  void unit(const std::string& name, const Unit& one, bool is_near_end) {
    const bool is_shared = share_.is_tied(name) && share_.pipeline == 1;
    const int64_t ranks = share_.shard_ranks(one.parts.front());
    int64_t elements = 0, partial = 0;
    for (const Part& part : one.parts) {
      elements += share_.padded(part);
      if (part.partial) partial += share_.padded(part);
    }
    if (ranks > 1) {
      const char* group = one.experts ? "efsdp" : "fsdp";
      const bool once = is_shared || (share_.pipeline > 1 && share_.parallelism.fsdp_reshard_after_forward != "always");
      add(group, "all_gather", gathers(name, is_near_end, is_shared), ranks * elements * share_.bytes);
      add(group, "reduce_scatter", once ? 1 : microbatches(), ranks * elements * share_.bytes);
    }
    if (partial > 0) add("tp", "all_reduce", 1, partial * share_.bytes);
    if (share_.mesh.size(Axis::kReplicate) > 1) add("dp_replicate", "all_reduce", 1, elements * share_.bytes);
  }

  // The pipeline's two ends add their gradients of a tied matrix.
  void tied_pair(bool has_head) {
    const Part matrix = share_.parts_of("tok_embeddings").front();
    add("pp", "send", 1, share_.padded(matrix) * share_.bytes);
    add("pp", "recv", 1, share_.padded(matrix) * share_.bytes);
    if (has_head) unit("output.tied", {{matrix}}, true);
  }

  const RankShare& share_;
  TrafficCounts counts_;
};

}  // namespace

void TrafficCounts::add(const char* group, const char* operation, int64_t calls, int64_t bytes) {
  add_sum(group, operation, calls, calls * bytes);
}

void TrafficCounts::add_sum(const char* group, const char* operation, int64_t calls, int64_t bytes) {
  if (calls == 0) return;
  comm::LedgerEntry& entry = counts_[absl::StrCat(group, "/", operation)];
  entry.calls += calls;
  entry.bytes += bytes;
}

void add_context_attention(const RankShare& share, int64_t passes, TrafficCounts& traffic) {
  const models::ModelSpec& spec = share.spec;
  const int64_t heads = (spec.attention == models::Attention::kLatent ? spec.n_heads : spec.n_kv_heads) / share.tensor;
  const int64_t block = share.tokens * heads * (spec.head_dim + spec.v_head_dim) * share.bytes;
  const int64_t n = share.context, microbatches = share.microbatches;
  if (n == 1) return;
  if (share.parallelism.context_parallel_rotate_method == "alltoall") {
    for (const char* operation : {"send", "recv"}) {
      traffic.add("cp", operation, microbatches * (passes * (n - 1) + (n - 1) + n), block);
    }
  } else {
    traffic.add("cp", "all_gather", microbatches * (passes + 1), n * block);
    traffic.add("cp", "reduce_scatter", microbatches, n * block);
  }
}

comm::LedgerCounts traffic_of(const RankShare& share) { return Traffic(share).result(); }

}  // namespace titan::testing
