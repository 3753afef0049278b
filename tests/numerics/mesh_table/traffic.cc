// Counts what a rank sends in one step: calls and bytes of every collective, by axis.

#include "absl/strings/str_cat.h"
#include "tests/numerics/mesh_table/closed_form.h"

namespace titan::testing {
namespace {

using mesh::Axis;

class Traffic {
 public:
  explicit Traffic(const RankShare& share) : share_(share), whole_(share.tokens * share.spec.dim * share.bytes) {}

  comm::LedgerCounts result() {
    for (const int stage : share_.plan.schedule.stages_of(share_.mesh.index(share_.rank, Axis::kPipeline))) {
      transfers(stage);
    }
    const std::vector<std::string> names = share_.blocks();
    for (size_t i = 0; i < names.size(); ++i) block(names[i], /*is_near_end=*/i + 2 >= names.size());
    if (share_.has_one_tied_end()) tied_pair(/*has_head=*/names.back() == "output");
    return counts_;
  }

 private:
  void add(const char* group, const char* operation, int64_t calls, int64_t bytes) {
    if (calls == 0) return;
    comm::LedgerEntry& entry = counts_[absl::StrCat(group, "/", operation)];
    entry.calls += calls;
    entry.bytes += calls * bytes;
  }

  int64_t microbatches() const { return share_.microbatches; }
  int64_t tensor() const { return share_.tensor; }

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
    if (name == "tok_embeddings") return embedding();
    if (name == "output") return head();
    enter_and_leave(share_.passes(name), share_.scatter_passes(name, 0));
    if (share_.context > 1) attention(share_.attention_passes(name));
    if (share_.has_experts(name)) {
      mixture(name);
    } else {
      enter_and_leave(share_.passes(name), share_.scatter_passes(name, 1));
    }
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

  void embedding() {
    if (tensor() == 1) return;
    if (share_.sequence) {
      add("tp", "reduce_scatter", microbatches(), whole_);
      add("tp", "all_gather", microbatches(), whole_);
    } else {
      add("tp", "all_reduce", microbatches(), whole_);
    }
  }

  // Adds the traffic around a sub-block: an all-gather in each of `passes` forward passes and a reduce-scatter
  // backward, a reduce-scatter in each of `sums` forward passes and an all-gather backward. Without sequence
  // parallelism it is one all-reduce in each of `passes` forward passes and one backward.
  void enter_and_leave(int64_t passes, int64_t sums, bool can_overlap = true) {
    if (tensor() == 1) return;
    if (can_overlap && share_.asynchronous) {
      // Pieces are sent to and received from each other rank.
      for (const char* operation : {"send", "recv"}) {
        add("tp", operation, (passes + 1 + sums + 1) * microbatches() * (tensor() - 1), whole_ / tensor());
      }
    } else if (share_.sequence) {
      add("tp", "all_gather", (passes + 1) * microbatches(), whole_);
      add("tp", "reduce_scatter", (sums + 1) * microbatches(), whole_);
    } else {
      add("tp", "all_reduce", (passes + 1) * microbatches(), whole_);
    }
  }

  void attention(int64_t passes) {
    const models::ModelSpec& spec = share_.spec;
    const int64_t heads = (spec.attention == models::Attention::kLatent ? spec.n_heads : spec.n_kv_heads) / tensor();
    const int64_t block = share_.tokens * heads * (spec.head_dim + spec.v_head_dim) * share_.bytes;
    const int64_t n = share_.context;
    if (share_.parallelism.context_parallel_rotate_method == "alltoall") {
      for (const char* operation : {"send", "recv"}) {
        add("cp", operation, microbatches() * (passes * (n - 1) + (n - 1) + n), block);
      }
    } else {
      add("cp", "all_gather", microbatches() * (passes + 1), n * block);
      add("cp", "reduce_scatter", microbatches(), n * block);
    }
  }

  void mixture(const std::string& name) {
    const models::MoeSpec& moe = *share_.spec.moe;
    const int64_t passes = share_.passes(name);
    if (share_.expert > 1) {
      const int64_t exchanges = share_.exchange_passes(name), row = share_.spec.dim * share_.bytes;
      int64_t rows = microbatches() * share_.routed_tokens * moe.top_k;
      for (int64_t i = 0; i < microbatches(); ++i) rows += share_.received(name, i);
      comm::LedgerEntry& entry = counts_["ep/all_to_all"];
      entry.calls += microbatches() * (3 * exchanges + 2);
      entry.bytes += exchanges * microbatches() * 8 * moe.num_experts;
      entry.bytes += (exchanges + 1) * rows * row;
    }
    if (!share_.apart) {
      enter_and_leave(passes, share_.scatter_passes(name, 1), /*can_overlap=*/false);
    } else if (moe.num_shared_experts > 0) {
      enter_and_leave(passes, share_.scatter_passes(name, 1));
    } else if (!share_.sequence) {
      add("tp", "all_gather", (passes + 1) * microbatches(), whole_);
    }
  }

  void head() {
    if (tensor() == 1) return;
    const int64_t tokens = share_.tokens;
    if (share_.asynchronous) {
      for (const char* operation : {"send", "recv"}) {
        add("tp", operation, microbatches() * 2 * (tensor() - 1), whole_ / tensor());
      }
    } else if (share_.sequence) {
      add("tp", "all_gather", microbatches(), whole_);
      add("tp", "reduce_scatter", microbatches(), whole_);
    } else {
      add("tp", "all_reduce", microbatches(), whole_);
    }
    if (share_.parallelism.disable_loss_parallel) {
      add("tp", "all_gather", microbatches(), tokens * share_.spec.vocab_size * share_.bytes);
    } else {
      add("tp", "all_reduce", microbatches(), tokens * share_.bytes);      // Maxima.
      add("tp", "all_reduce", microbatches(), 2 * tokens * share_.bytes);  // Sums and labels' logits.
    }
  }

  const RankShare& share_;
  const int64_t whole_;  // Bytes of one microbatch's activations, whole on the tensor axis.
  comm::LedgerCounts counts_;
};

}  // namespace

comm::LedgerCounts traffic_of(const RankShare& share) { return Traffic(share).result(); }

}  // namespace titan::testing
