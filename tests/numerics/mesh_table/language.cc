#include "tests/numerics/mesh_table/language.h"

#include <algorithm>
#include <initializer_list>

#include "absl/strings/match.h"
#include "common/plan/models/sizes.h"
#include "worker/rank/data/loader/batch.h"
#include "worker/rank/model/language/objective.h"
#include "worker/rank/nn/loss.h"

namespace titan::testing {
namespace {

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* one) { return absl::EndsWith(name, one); });
}

// Whether the parameter is the norm of queries or keys of grouped attention.
bool is_head_norm(const std::string& name) { return ends_with_any(name, {".q_norm.weight", ".k_norm.weight"}); }

class LanguageTable final : public TableModel {
 public:
  // Some labels are ignored, some tokens end documents.
  data::Batch rows_of_step(const MeshJob& job, int step, int64_t first, int64_t count) const override {
    const at::Tensor tokens = tokens_of_step(job, step).narrow(0, first, count);
    const int64_t length = tokens.size(1);
    const at::Tensor labels = tokens.slice(1, 1).clone();
    labels.masked_fill_(labels.eq(3), nn::kIgnoreIndex);
    return {{data::kTokens, tokens.slice(1, 0, length - 1).contiguous()}, {data::kLabels, labels}};
  }
  int64_t loss_terms(const MeshJob& job, int step) const override {
    return nn::count_valid(rows_of_step(job, step, 0, job.global_batch).at(data::kLabels)).item<int64_t>();
  }
  std::unique_ptr<model::Objective> objective(const MeshJob& job) const override {
    return std::make_unique<model::LanguageObjective>(job.spec);
  }

  int64_t tokens(const RankShare& share) const override {
    return share.rows * share.job.config.training.seq_len / share.context;
  }
  int64_t edge_tokens(const RankShare& share) const override {
    return tokens(share) / (share.sequence ? share.tensor : 1);
  }
  Part cut(const RankShare& share, const models::ParameterSpec& whole) const override {
    const std::string& name = whole.fqn;
    Part part{name, whole.shape, whole.role == models::ParameterRole::kExpert};
    const int64_t tensor = share.tensor;
    if (part.expert) part.shape[0] /= share.expert;
    if (tensor == 1) return part;
    if (part.expert) {
      if (share.apart) return part;
      if (ends_with_any(name, {".w1", ".w3", "mlp1_weight", "mlp1_bias"})) part.shape[1] /= tensor;
      if (ends_with_any(name, {".w2", "mlp2_weight"})) part.shape[2] /= tensor;
      // mlp2_bias is whole: each rank adds its share of it, and computes its whole gradient.
    } else if (ends_with_any(name, {"wq.weight", "wk.weight", "wv.weight", "wq.bias", "wk.bias", "wv.bias", "sinks",
                                    "wq_b.weight", "wkv_b.weight", ".w1.weight", ".w3.weight", ".w1.bias", ".w3.bias",
                                    "tok_embeddings.weight"}) ||
               name == "output.weight" || (share.spec.qk_norm_whole && is_head_norm(name))) {
      part.shape[0] /= tensor;
    } else if (ends_with_any(name, {"wo.weight", ".w2.weight"})) {
      part.shape[1] /= tensor;
    } else if (ends_with_any(name, {"q_norm.weight", "k_norm.weight", "kv_norm.weight", "wq_a.weight", "wkv_a.weight",
                                    "router.gate.weight", "router.gate.bias"})) {
      part.partial = true;  // Equal on all ranks, but the next layer uses only this rank's part.
    } else {
      part.partial = share.sequence;  // Norms between sub-blocks, biases of wo and w2.
    }
    return part;
  }

  bool embeds_tokens() const override { return true; }

  void add_traffic(const RankShare& share, const std::string& block, TrafficCounts& traffic) const override {
    add_language_traffic(share, block, traffic);
  }
  int64_t product_flops(const RankShare& share) const override { return language_product_flops(share); }
  int64_t attention_flops(const RankShare& share) const override { return language_attention_flops(share); }
  int64_t bytes_for_backward(const RankShare& share, const std::string& block, int64_t microbatch) const override {
    return language_bytes_for_backward(share, block, microbatch);
  }
  int64_t bytes_for_weights(const RankShare& share, const std::string& block, int64_t microbatch) const override {
    return language_bytes_for_weights(share, block, microbatch);
  }
};

}  // namespace

at::Tensor tokens_of_step(const MeshJob& job, int step) {
  const int64_t length = job.config.training.seq_len + 1;
  const at::Tensor places = at::arange(job.global_batch * length, at::kLong).view({job.global_batch, length});
  return (places * 7919 + 31 * step + places.div(13, "floor")).remainder(job.spec.vocab_size);
}

const TableModel& language_table_model() {
  static const LanguageTable model;
  return model;
}

const TableModel& table_model(const models::ModelSpec& spec) {
  if (spec.flux) return flux_table_model();
  return spec.vision ? vlm_table_model() : language_table_model();
}

}  // namespace titan::testing
