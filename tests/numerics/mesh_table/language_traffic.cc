// Counts what a decoder's blocks send in one step, apart from weights and gradients.

#include "tests/numerics/mesh_table/language.h"

namespace titan::testing {
namespace {

class LanguageTraffic {
 public:
  LanguageTraffic(const RankShare& share, TrafficCounts& counts)
      : share_(share), counts_(counts), whole_(share.tokens * share.spec.dim * share.bytes) {}

  void block(const std::string& name) {
    if (name == "tok_embeddings") return embedding();
    if (name == "output") return head();
    enter_and_leave(share_.passes(name), share_.scatter_passes(name, 0));
    if (share_.spec.qk_norm_whole) whole_norms(share_.passes(name));
    add_context_attention(share_, share_.attention_passes(name), counts_);
    if (share_.has_experts(name)) {
      mixture(name);
    } else {
      enter_and_leave(share_.passes(name), share_.scatter_passes(name, 1));
    }
  }

 private:
  void add(const char* group, const char* operation, int64_t calls, int64_t bytes) {
    counts_.add(group, operation, calls, bytes);
  }
  int64_t microbatches() const { return share_.microbatches; }
  int64_t tensor() const { return share_.tensor; }

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

  // Norms over all heads add up one number per token for the queries and one for the keys, in both directions.
  void whole_norms(int64_t passes) {
    if (tensor() == 1) return;
    add("tp", "all_reduce", 2 * (passes + 1) * microbatches(), share_.tokens * share_.bytes);
  }

  void mixture(const std::string& name) {
    const models::MoeSpec& moe = *share_.spec.moe;
    const int64_t passes = share_.passes(name);
    if (share_.expert > 1) {
      const int64_t exchanges = share_.exchange_passes(name), row = share_.spec.dim * share_.bytes;
      int64_t rows = microbatches() * share_.routed_tokens * moe.top_k;
      for (int64_t i = 0; i < microbatches(); ++i) rows += share_.received(name, i);
      counts_.add_sum("ep", "all_to_all", microbatches() * (3 * exchanges + 2),
                      exchanges * microbatches() * 8 * moe.num_experts + (exchanges + 1) * rows * row);
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
  TrafficCounts& counts_;
  const int64_t whole_;  // Bytes of one microbatch's activations, whole on the tensor axis.
};

}  // namespace

void add_language_traffic(const RankShare& share, const std::string& block, TrafficCounts& traffic) {
  LanguageTraffic(share, traffic).block(block);
}

}  // namespace titan::testing
