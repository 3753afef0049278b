#include "tests/numerics/mesh_table/closed_form.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/config/pipeline.h"
#include "common/mesh/mesh.h"
#include "common/models/sizes.h"
#include "worker/runtime/parallel_setup.h"

namespace titan::testing {
namespace {

using mesh::Axis;

bool ends_with_any(const std::string& name, std::initializer_list<const char*> endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const char* one) { return absl::EndsWith(name, one); });
}

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// One parameter as a rank computes with it: shapes after the tensor and expert axes.
struct Part {
  std::string fqn;
  std::vector<int64_t> shape;
  bool expert = false;
  bool partial = false;  // The tensor ranks hold it whole and their gradients are summed.

  int64_t numel() const { return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()); }
};

// Written from the plan of torchtitan.md: not from what the layers say about themselves.
class Account {
 public:
  Account(const MeshJob& job, int rank, const std::vector<RankRecord>& records)
      : job_(job),
        spec_(job.spec),
        parallelism_(job.config.parallelism),
        records_(records),
        mesh_(runtime::make_mesh(job.config.parallelism, job.world).value()),
        rank_(rank),
        plan_(config::pipeline_plan(job.config, job.spec.n_layers).value()) {
    tensor_ = mesh_.size(Axis::kTensor);
    context_ = mesh_.size(Axis::kContext);
    expert_ = mesh_.size(Axis::kExpert);
    pipeline_ = mesh_.size(Axis::kPipeline);
    sequence_ = parallelism_.enable_sequence_parallel;
    bytes_ = job.config.training.dtype == "float64" ? 8 : 4;
    apart_ = expert_ > 1 && tensor_ > 1 && mesh_.size(Axis::kExpertTensor) == 1;
    const int64_t rows = job.global_batch / mesh_.size(Axis::kBatch);
    rows_ = pipeline_ > 1 ? parallelism_.pipeline_parallel_microbatch_size : job.config.training.local_batch_size;
    microbatches_ = rows / rows_;
    tokens_ = rows_ * job.config.training.seq_len / context_;
  }

  ClosedForm result() {
    std::vector<std::string> names;
    for (const int stage : plan_.schedule.stages_of(mesh_.index(rank_, Axis::kPipeline))) {
      transfers(stage);
      const auto& blocks = plan_.split[stage];
      names.insert(names.end(), blocks.begin(), blocks.end());
    }
    int layer = 0;
    for (size_t i = 0; i < names.size(); ++i) {
      const bool is_layer = absl::StartsWith(names[i], "layers.");
      const int passes = is_layer && is_recomputed(layer++) ? 2 : 1;
      block(names[i], passes, i + 2 >= names.size());
    }
    tied_pair(names);
    return form_;
  }

 private:
  void add(const char* group, const char* operation, int64_t calls, int64_t bytes) {
    if (calls == 0) return;
    comm::LedgerEntry& entry = form_.traffic[absl::StrCat(group, "/", operation)];
    entry.calls += calls;
    entry.bytes += calls * bytes;
  }

  bool by_operation() const {
    const auto& ac = job_.config.activation_checkpoint;
    return ac.mode == "selective" && ac.selective_ac_option == "op";
  }

  // How often each product of a layer runs forward when the first, third, ... are kept. Those of the router's shape are
  // neither kept nor counted. What a kept reduce-scatter sums is not computed again either.
  std::map<std::string, int64_t> product_passes(const std::vector<Part>& parts, int64_t passes) const {
    constexpr const char* kOrder[] = {"wq.weight",    "wq_a.weight", "wq_b.weight",  "wk.weight",
                                      "wkv_a.weight", "wv.weight",   "wkv_b.weight", "wo.weight",
                                      ".w1.weight",   ".w3.weight",  ".w2.weight"};
    std::map<std::string, int64_t> result;
    for (const Part& part : parts) result[part.fqn] = passes;
    if (passes == 1 || !by_operation()) return result;
    int64_t count = 0;
    for (const char* ending : kOrder) {
      for (const Part& part : parts) {
        if (part.expert || part.shape.size() != 2 || !absl::EndsWith(part.fqn, ending)) continue;
        const bool in_mixture = absl::StrContains(part.fqn, ".moe.");
        const bool scattered =
            tensor_ > 1 && sequence_ && ends_with_any(part.fqn, {"wo.weight", ".w2.weight"}) && (!in_mixture || apart_);
        if (++count % 2 == 1 || scattered) result[part.fqn] = 1;
      }
    }
    return result;
  }

  bool is_recomputed(int layer) const {
    const auto& ac = job_.config.activation_checkpoint;
    if (ac.mode == "full") return true;
    if (by_operation()) return true;
    if (ac.mode != "selective") return false;
    const int every = std::stoi(ac.selective_ac_option);
    return every == 0 || (layer + 1) % every == 0;
  }

  // Activations of one microbatch, whole on the tensor axis.
  int64_t activation_bytes() const { return tokens_ * spec_.dim * bytes_; }

  // Between stages of different ranks.
  void transfers(int stage) {
    const pipeline::Schedule& schedule = plan_.schedule;
    const int64_t bytes = activation_bytes() / (sequence_ ? tensor_ : 1);
    for (const int other : {stage - 1, stage + 1}) {
      if (other < 0 || other >= schedule.stages || schedule.rank_of(other) == schedule.rank_of(stage)) continue;
      add("pp", "send", microbatches_, bytes);
      add("pp", "recv", microbatches_, bytes);
    }
  }

  // The parameters of one block, cut for this rank.
  std::vector<Part> parts_of(const std::string& block) const {
    std::vector<Part> parts;
    for (const models::Tensor& tensor : models::parameters(spec_)) {
      const bool in_layer = absl::StartsWith(tensor.fqn, block + ".");
      const bool in_head = block == "output" && (tensor.fqn == "norm.weight" || tensor.fqn == "output.weight");
      if (in_layer || in_head) parts.push_back(cut(tensor));
    }
    return parts;
  }

  Part cut(const models::Tensor& tensor) const {
    Part part{tensor.fqn, tensor.shape, tensor.role == models::Role::kExpert};
    if (part.expert) part.shape[0] /= expert_;
    if (tensor_ == 1) return part;
    const std::string& name = part.fqn;
    if (part.expert) {
      if (apart_) return part;
      if (ends_with_any(name, {".w1", ".w3", "mlp1_weight", "mlp1_bias"})) part.shape[1] /= tensor_;
      if (ends_with_any(name, {".w2", "mlp2_weight"})) part.shape[2] /= tensor_;
      // mlp2_bias is whole: each rank adds its share of it, and computes its whole gradient.
    } else if (ends_with_any(name,
                             {"wq.weight", "wk.weight", "wv.weight", "wq.bias", "wk.bias", "wv.bias", "sinks",
                              "wq_b.weight", "wkv_b.weight", ".w1.weight", ".w3.weight", "tok_embeddings.weight"}) ||
               name == "output.weight") {
      part.shape[0] /= tensor_;
    } else if (ends_with_any(name, {"wo.weight", ".w2.weight"})) {
      part.shape[1] /= tensor_;
    } else if (ends_with_any(name, {"q_norm.weight", "k_norm.weight", "kv_norm.weight", "wq_a.weight", "wkv_a.weight",
                                    "router.gate.weight", "router.gate.bias"})) {
      part.partial = true;  // Computed alike, but what follows belongs to this rank's heads or experts.
    } else {
      part.partial = sequence_;  // Norms between sub-blocks, wo's bias.
    }
    return part;
  }

  void block(const std::string& name, int passes, bool is_near_end) {
    const std::vector<Part> parts = parts_of(name);
    for (const Part& part : parts) weights(part);
    shard_units(name, parts, is_near_end);
    if (name == "tok_embeddings") return embedding();
    if (name == "output") return head();
    attention(name, passes);
    const int64_t layer = std::stoll(name.substr(7));
    if (spec_.layer_has_experts(layer)) {
      mixture(name, passes);
    } else {
      sub_block_collectives(passes);
    }
    const std::map<std::string, int64_t> runs = product_passes(parts, passes);
    for (const Part& part : parts) {
      if (part.shape.size() == 2 && !part.expert) product(part, runs.at(part.fqn));
    }
  }

  int64_t shard_ranks(const Part& part) const {
    return mesh_.size(part.expert && expert_ > 1 ? Axis::kExpertFsdp : Axis::kFsdp);
  }
  int64_t shard_dim(const Part& part) const {
    return part.expert && expert_ > 1 && shard_ranks(part) > part.shape[0] ? 1 : 0;
  }

  // This rank's rows under FSDP.
  void weights(const Part& part) {
    const int64_t ranks = shard_ranks(part), rows = part.shape[shard_dim(part)], chunk = ceil_div(rows, ranks);
    const int64_t index = mesh_.index(rank_, part.expert && expert_ > 1 ? Axis::kExpertFsdp : Axis::kFsdp);
    const int64_t own = std::min(chunk * (index + 1), rows) - std::min(chunk * index, rows);
    const int64_t bytes = part.numel() / rows * own * bytes_;
    form_.parameter_bytes += bytes;
    form_.optimizer_bytes += 2 * bytes;
  }

  // Elements of one rank's padded piece.
  int64_t padded(const Part& part) const {
    const int64_t rows = part.shape[shard_dim(part)];
    return ceil_div(rows, shard_ranks(part)) * (part.numel() / rows);
  }

  // Parameters that travel together.
  void shard_units(const std::string& name, const std::vector<Part>& parts, bool is_near_end) {
    std::vector<Part> dense, experts;
    for (const Part& part : parts) (part.expert && expert_ > 1 ? experts : dense).push_back(part);
    int64_t total = 0;
    size_t heaviest = 0;
    for (size_t i = 0; i < dense.size(); ++i) {
      total += dense[i].numel();
      if (dense[i].numel() > dense[heaviest].numel()) heaviest = i;
    }
    if (dense.size() > 1 && 2 * dense[heaviest].numel() > total) {
      unit(name, {dense[heaviest]}, is_near_end);
      dense.erase(dense.begin() + static_cast<int64_t>(heaviest));
    }
    if (!dense.empty()) unit(name, dense, is_near_end);
    if (!experts.empty()) unit(name, experts, is_near_end);
  }

  // How often a unit is gathered in one step.
  int64_t gathers(const std::string& name, bool is_near_end, bool is_shared) const {
    const std::string& policy = parallelism_.fsdp_reshard_after_forward;
    const bool is_embedding = name == "tok_embeddings";
    if (policy == "always") return microbatches_ * (is_shared ? 3 : is_embedding ? 1 : 2);
    if (pipeline_ > 1) return 1;
    if (policy == "never" || is_near_end || is_embedding) return microbatches_;
    return 2 * microbatches_;
  }

  void unit(const std::string& name, const std::vector<Part>& parts, bool is_near_end) {
    const bool is_shared = is_tied(name) && pipeline_ == 1;
    const int64_t ranks = shard_ranks(parts.front());
    int64_t elements = 0, partial = 0;
    for (const Part& part : parts) {
      elements += padded(part);
      if (part.partial) partial += padded(part);
    }
    if (ranks > 1) {
      const char* group = parts.front().expert && expert_ > 1 ? "efsdp" : "fsdp";
      const bool once = is_shared || (pipeline_ > 1 && parallelism_.fsdp_reshard_after_forward != "always");
      add(group, "all_gather", gathers(name, is_near_end, is_shared), ranks * elements * bytes_);
      add(group, "reduce_scatter", once ? 1 : microbatches_, ranks * elements * bytes_);
    }
    if (partial > 0) add("tp", "all_reduce", 1, partial * bytes_);
    if (mesh_.size(Axis::kReplicate) > 1) add("dp_replicate", "all_reduce", 1, elements * bytes_);
  }

  bool is_tied(const std::string& name) const { return spec_.tied_embeddings && name == "tok_embeddings"; }

  // The pipeline's two ends hold a tied matrix each, and add their gradients.
  void tied_pair(const std::vector<std::string>& names) {
    if (!spec_.tied_embeddings || pipeline_ == 1) return;
    const auto has = [&](const char* name) { return std::find(names.begin(), names.end(), name) != names.end(); };
    if (has("tok_embeddings") == has("output")) return;
    const Part matrix = parts_of("tok_embeddings").front();
    add("pp", "send", 1, padded(matrix) * bytes_);
    add("pp", "recv", 1, padded(matrix) * bytes_);
    if (has("tok_embeddings")) return;
    weights(matrix);
    unit("output.tied", {matrix}, true);
  }

  void embedding() {
    if (tensor_ == 1) return;
    if (sequence_) {
      add("tp", "reduce_scatter", microbatches_, activation_bytes());
      add("tp", "all_gather", microbatches_, activation_bytes());
    } else {
      add("tp", "all_reduce", microbatches_, activation_bytes());
    }
  }

  // Into and out of a sub-block, forward `passes` times and backward.
  void sub_block_collectives(int64_t passes, bool can_overlap = true) {
    if (tensor_ == 1) return;
    if (can_overlap && parallelism_.enable_async_tensor_parallel) {
      // Gathering and scattering by pieces: to and from each other rank, twice.
      for (const char* operation : {"send", "recv"}) {
        add("tp", operation, (passes + 1) * microbatches_ * 2 * (tensor_ - 1), activation_bytes() / tensor_);
      }
      return;
    }
    if (sequence_) {
      add("tp", "all_gather", (passes + 1) * microbatches_, activation_bytes());
      add("tp", "reduce_scatter", (by_operation() ? 2 : passes + 1) * microbatches_, activation_bytes());
    } else {
      add("tp", "all_reduce", (passes + 1) * microbatches_, activation_bytes());
    }
  }

  void attention(const std::string&, int64_t passes) {
    sub_block_collectives(passes);
    if (context_ == 1) return;
    if (by_operation()) passes = 1;  // Its result is kept.
    const int64_t heads = (spec_.attention == models::Attention::kLatent ? spec_.n_heads : spec_.n_kv_heads) / tensor_;
    const int64_t block = tokens_ * heads * (spec_.head_dim + spec_.v_head_dim) * bytes_;
    const int64_t n = context_;
    if (parallelism_.context_parallel_rotate_method == "alltoall") {
      for (const char* operation : {"send", "recv"}) {
        add("cp", operation, microbatches_ * (passes * (n - 1) + (n - 1) + n), block);
      }
    } else {
      add("cp", "all_gather", microbatches_ * (passes + 1), n * block);
      add("cp", "reduce_scatter", microbatches_, n * block);
    }
  }

  // Rows that the experts of this rank receive in a step, over all microbatches.
  int64_t received(const std::string& layer) const {
    const std::string moe = layer + ".moe";
    const int64_t each = spec_.moe->num_experts / expert_;
    const int64_t first = each * mesh_.index(rank_, Axis::kExpert);
    int64_t rows = 0;
    for (const int other : mesh_.group(rank_, Axis::kExpert)) {
      const std::vector<int64_t>& counts = records_[other].routed.at(moe);
      rows += std::accumulate(counts.begin() + first, counts.begin() + first + each, int64_t{0});
    }
    return rows;
  }

  void mixture(const std::string& name, int64_t passes) {
    const models::MoeSpec& moe = *spec_.moe;
    const int64_t routed_here = microbatches_ * tokens_ / (apart_ ? tensor_ : 1);
    const int64_t arrived = received(name);
    if (expert_ > 1) {
      const int64_t row = spec_.dim * bytes_;
      comm::LedgerEntry& entry = form_.traffic["ep/all_to_all"];
      const int64_t exchanges = by_operation() ? 1 : passes;  // The rows that came are kept.
      entry.calls += microbatches_ * (3 * exchanges + 2);
      entry.bytes += exchanges * microbatches_ * 8 * moe.num_experts;
      entry.bytes += (exchanges + 1) * (routed_here * moe.top_k + arrived) * row;
    }
    if (!apart_) {
      sub_block_collectives(passes, /*can_overlap=*/false);
    } else if (sequence_) {
      if (moe.num_shared_experts > 0) sub_block_collectives(passes);
    } else if (moe.num_shared_experts > 0) {
      sub_block_collectives(passes);
    } else {
      add("tp", "all_gather", (passes + 1) * microbatches_, activation_bytes());
    }
    const int64_t cut = apart_ ? 1 : tensor_;
    form_.product_flops += (2 * passes + 4) * arrived * 3 * spec_.dim * (moe.hidden / cut);
  }

  // x [tokens, in] W^T: once for each forward pass, and twice as much in the backward pass.
  void product(const Part& part, int64_t passes) {
    const bool gate = absl::StrContains(part.fqn, "router.gate");
    if (gate && apart_) return add_product(part, tokens_ / tensor_, passes);
    add_product(part, tokens_, passes);
  }
  void add_product(const Part& part, int64_t tokens, int64_t passes) {
    form_.product_flops += (2 * passes + 4) * microbatches_ * tokens * part.numel();
  }

  void head() {
    const std::vector<Part> parts = parts_of(spec_.tied_embeddings ? "tok_embeddings" : "output");
    for (const Part& part : parts) {
      if (part.shape.size() == 2) add_product(part, tokens_, 1);
    }
    if (tensor_ == 1) return;
    if (parallelism_.enable_async_tensor_parallel) {
      for (const char* operation : {"send", "recv"}) {
        add("tp", operation, microbatches_ * 2 * (tensor_ - 1), activation_bytes() / tensor_);
      }
    } else if (sequence_) {
      add("tp", "all_gather", microbatches_, activation_bytes());
      add("tp", "reduce_scatter", microbatches_, activation_bytes());
    } else {
      add("tp", "all_reduce", microbatches_, activation_bytes());
    }
    if (parallelism_.disable_loss_parallel) {
      add("tp", "all_gather", microbatches_, tokens_ * spec_.vocab_size * bytes_);
    } else {
      add("tp", "all_reduce", microbatches_, tokens_ * bytes_);      // Maxima.
      add("tp", "all_reduce", microbatches_, 2 * tokens_ * bytes_);  // Sums and labels' logits.
    }
  }

  const MeshJob& job_;
  const models::ModelSpec& spec_;
  const config::Parallelism& parallelism_;
  const std::vector<RankRecord>& records_;
  const mesh::Mesh mesh_;
  const int rank_;
  const pipeline::Plan plan_;
  int64_t tensor_, context_, expert_, pipeline_;
  bool sequence_;
  bool apart_;  // Tensor ranks route different tokens.
  int64_t bytes_;
  int64_t rows_, microbatches_, tokens_;  // Of one microbatch, their number, tokens of one microbatch here.
  ClosedForm form_;
};

}  // namespace

ClosedForm closed_form(const MeshJob& job, int rank, const std::vector<RankRecord>& records) {
  return Account(job, rank, records).result();
}

}  // namespace titan::testing
