// Flux in the table: latents, captions' encodings and times, and its double and single blocks on one rank.

#include "common/plan/models/flux.h"

#include <algorithm>
#include <initializer_list>
#include <stdexcept>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/plan/config/model_kind.h"
#include "common/plan/memory/flux_blocks.h"
#include "tests/numerics/mesh_table/rank_share.h"
#include "worker/rank/model/flux/inputs.h"

namespace titan::testing {
namespace {

using model::flux::FluxInputs;

at::ScalarType type_of(const config::JobConfig& config) {
  return config.training.dtype == "float64" ? at::kDouble : at::kFloat;
}

int64_t side_of(const config::JobConfig& config) { return config.training.img_size / config::kPixelsPerToken; }

// Gives blocks ready-made encodings, so that the table needs no encoders.
class EncodedImages final : public model::Objective {
 public:
  EncodedImages(const models::FluxSpec& spec, const config::JobConfig& config)
      : spec_(spec), side_(side_of(config)), type_(type_of(config)) {}

  model::Microbatch microbatch(const data::Batch& batch, const model::MicrobatchOptions& options) const override {
    namespace flux = model::flux;
    FluxInputs inputs{
        .txt = batch.at(flux::kTxt), .y = batch.at(flux::kPooled), .timesteps = batch.at(flux::kTimesteps)};
    inputs.txt_ids = at::zeros({1, inputs.txt.size(1), 3});
    const at::Tensor places = at::arange(side_ * side_);
    inputs.img_ids = at::stack({at::zeros_like(places), places.div(side_, "floor"), places.remainder(side_)}, 1)
                         .to(at::kFloat)
                         .unsqueeze(0);
    at::Tensor latents = batch.at(flux::kLatents), target = batch.at(flux::kTarget);
    if (const comm::Group* group = options.context.group; group != nullptr && group->size() > 1) {
      inputs = flux::context_share(inputs, *group);
      latents = flux::context_share(latents, *group);
      target = flux::context_share(target, *group);
    }
    inputs.rotation = flux::rotation_table(spec_, inputs.txt_ids, inputs.img_ids, type_);
    model::Microbatch made;
    made.context.tensors = {
        {flux::kTxt, inputs.txt},        {flux::kPooled, inputs.y},       {flux::kTimesteps, inputs.timesteps},
        {flux::kTxtIds, inputs.txt_ids}, {flux::kImgIds, inputs.img_ids}, {flux::kRotation, inputs.rotation},
        {flux::kLatents, latents},       {flux::kTarget, target}};
    made.loss_terms = target.numel();
    return made;
  }

  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig&,
                                                                   const model::DataShare&) override {
    throw std::logic_error("the table makes its rows itself");
  }
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                     const model::DataShare& share) override {
    return open_training(config, share);
  }
  data::Batch example(const config::JobConfig&, int64_t) const override { return {}; }
  const char* unit() const override { return "token"; }
  int64_t units_of_training_row(const config::JobConfig&) const override { return 1; }
  int64_t units_of_validation_row(const config::JobConfig&) const override { return 1; }

 private:
  const models::FluxSpec spec_;
  const int64_t side_;
  const at::ScalarType type_;
};

// Returns numbers between -1 and 1 that depend only on their place, the step and `seed`.
at::Tensor numbers(std::vector<int64_t> shape, int step, int64_t seed, at::ScalarType type) {
  const int64_t count = c10::multiply_integers(shape);
  const at::Tensor places = at::arange(count, at::kDouble) + static_cast<double>(1000 * step + 77 * seed);
  return at::sin(places * places * 0.37).view(shape).to(type);
}

// Tokens of one microbatch on a rank.
struct FluxTokens {
  explicit FluxTokens(const RankShare& share)
      : rows(share.rows),
        txt(share.rows * share.job.config.encoder.max_t5_encoding_len / share.context),
        img(share.rows * side_of(share.job.config) * side_of(share.job.config) / share.context) {}

  // Returns the tokens that a layer with this parameter reads. Modulations read one vector for each row.
  int64_t of(const std::string& fqn) const {
    if (absl::StartsWith(fqn, "img_in") || absl::StrContains(fqn, ".img_attn") || absl::StrContains(fqn, ".img_mlp") ||
        absl::StartsWith(fqn, "final_layer.linear")) {
      return img;
    }
    if (absl::StartsWith(fqn, "txt_in") || absl::StrContains(fqn, ".txt_attn") || absl::StrContains(fqn, ".txt_mlp"))
      return txt;
    return absl::StrContains(fqn, ".linear") ? txt + img : rows;
  }

  const int64_t rows, txt, img;
};

bool has_one_of(const std::string& name, std::initializer_list<const char*> parts) {
  return std::any_of(parts.begin(), parts.end(), [&](const char* part) { return absl::StrContains(name, part); });
}

class FluxTable final : public TableModel {
 public:
  data::Batch rows_of_step(const MeshJob& job, int step, int64_t first, int64_t count) const override {
    namespace flux = model::flux;
    const models::FluxSpec& spec = *job.spec.flux;
    const int64_t rows = job.global_batch, txt = job.config.encoder.max_t5_encoding_len,
                  img = side_of(job.config) * side_of(job.config);
    const at::ScalarType type = type_of(job.config);
    const data::Batch all{{flux::kTxt, numbers({rows, txt, spec.txt_width}, step, 1, type)},
                          {flux::kPooled, numbers({rows, spec.vec_width}, step, 2, type)},
                          {flux::kTimesteps, numbers({rows}, step, 3, at::kFloat).abs()},
                          {flux::kLatents, numbers({rows, img, spec.in_channels}, step, 4, type)},
                          {flux::kTarget, numbers({rows, img, spec.in_channels}, step, 5, type)}};
    return all.narrow(first, count);
  }
  int64_t loss_terms(const MeshJob& job, int step) const override {
    return rows_of_step(job, step, 0, job.global_batch).at(model::flux::kTarget).numel();
  }
  std::unique_ptr<model::Objective> objective(const MeshJob& job) const override {
    return std::make_unique<EncodedImages>(*job.spec.flux, job.config);
  }

  // A fresh Flux has modulations and a last layer of zeros, through which no gradient passes.
  at::Tensor added_to_start(const MeshJob& job, const std::vector<int64_t>& shape) const override {
    return 0.2 * numbers(shape, 0, 6, type_of(job.config));
  }

  int64_t tokens(const RankShare& share) const override {
    const FluxTokens tokens(share);
    return tokens.txt + tokens.img;
  }
  // Tensor ranks hold whole activations, and the vector travels with them.
  int64_t edge_tokens(const RankShare& share) const override { return share.rows + tokens(share); }

  Part cut(const RankShare& share, const models::ParameterSpec& whole) const override {
    Part part{whole.fqn, whole.shape};
    if (share.tensor == 1) return part;
    const bool is_weight = absl::EndsWith(whole.fqn, ".weight");
    if (has_one_of(whole.fqn, {"_attn.qkv.", "_mlp.0.", ".linear1."})) {
      part.shape[0] /= share.tensor;
    } else if (is_weight && has_one_of(whole.fqn, {"_mod.lin", "modulation.lin", "adaLN_modulation"})) {
      part.shape[0] /= share.tensor;
    } else if (is_weight && has_one_of(whole.fqn, {"_attn.proj.", "_mlp.2.", ".linear2."})) {
      part.shape[1] /= share.tensor;
    } else {
      part.partial = absl::EndsWith(whole.fqn, "_norm.weight");  // Each rank norms other heads.
    }
    return part;
  }
  bool embeds_tokens() const override { return false; }

  void add_traffic(const RankShare& share, const std::string& block, TrafficCounts& traffic) const override {
    if (share.is_layer(block)) add_context_attention(share, attention_passes(share, block), traffic);
    if (share.tensor == 1) return;
    const FluxTokens tokens(share);
    const int64_t dim = share.spec.dim, mlp = share.spec.ffn_hidden, passes = share.passes(block);
    if (absl::StartsWith(block, "double_blocks.")) {
      for (const int64_t n : {tokens.img, tokens.txt}) {
        modulation(share, passes, 6 * dim, traffic);
        exchange(share, passes, n * 3 * dim, traffic);
        sums(share, 2 * passes + 2, n * dim, traffic);
      }
    } else if (absl::StartsWith(block, "single_blocks.")) {
      const int64_t n = tokens.txt + tokens.img;
      modulation(share, passes, 3 * dim, traffic);
      exchange(share, passes, n * (3 * dim + mlp), traffic);
      exchange(share, passes, n * (dim + mlp), traffic);
      sums(share, passes + 1, n * dim, traffic);
    } else if (block == "final_layer") {
      modulation(share, passes, 2 * dim, traffic);
    }
  }

  // A product runs in each forward pass and costs twice as much in the backward pass, but the model's inputs need no
  // gradients.
  int64_t product_flops(const RankShare& share) const override {
    const FluxTokens tokens(share);
    int64_t sum = 0;
    for (const std::string& block : share.blocks()) {
      for (const Part& part : share.parts_of(block)) {
        if (!part.is_matrix()) continue;
        const bool reads_input = has_one_of(part.fqn, {"img_in.", "txt_in.", "time_in.in_", "vector_in.in_"});
        sum +=
            (2 * share.passes(block) + (reads_input ? 2 : 4)) * share.microbatches * tokens.of(part.fqn) * part.numel();
      }
    }
    return sum;
  }

  // Every query sees all keys. Forward: the scores and their product with the values. Backward: the scores again, and
  // the gradients of queries, keys, weights and values.
  int64_t attention_flops(const RankShare& share) const override {
    const int64_t of_row = tokens(share) / share.rows;
    const int64_t scores = share.rows * of_row * (of_row * share.context);
    int64_t sum = 0;
    for (const std::string& block : share.blocks()) {
      if (!share.is_layer(block)) continue;
      sum += (2 * attention_passes(share, block) + 5) * 2 * scores * share.microbatches * share.spec.dim / share.tensor;
    }
    return sum;
  }

  // The closed form of memory estimates. The first block's inputs are the microbatch's, and the last one's graph has
  // the loss's errors.
  int64_t bytes_for_backward(const RankShare& share, const std::string& block, int64_t) const override {
    config::JobConfig config = share.job.config;
    config.resources.device = "cpu";
    const memory::BlockMemory memory = memory_of(share, config, block);
    if (share.passes(block) == 1) return memory.input + memory.graph;
    return memory.input + (by_operation(share) ? kept_of(share, config, block).by_operation : 0);
  }
  int64_t bytes_for_weights(const RankShare& share, const std::string& block, int64_t) const override {
    return memory_of(share, share.job.config, block).for_weights;
  }

 private:
  static bool by_operation(const RankShare& share) {
    const auto& ac = share.job.config.activation_checkpoint;
    return ac.mode == "selective" && ac.selective_ac_option == "op";
  }
  // Recomputation by operation saves attention's result, and no product, since all have biases.
  static int64_t attention_passes(const RankShare& share, const std::string& block) {
    return by_operation(share) ? 1 : share.passes(block);
  }
  static size_t place_of(const RankShare& share, const std::string& block) {
    const std::vector<std::string> names = models::block_names(*share.spec.flux);
    return static_cast<size_t>(std::find(names.begin(), names.end(), block) - names.begin());
  }
  static memory::BlockMemory memory_of(const RankShare& share, const config::JobConfig& config,
                                       const std::string& block) {
    return memory::flux_block_memory(config, *share.spec.flux).at(place_of(share, block));
  }
  static models::BlockActivations kept_of(const RankShare& share, const config::JobConfig& config,
                                          const std::string& block) {
    return memory::block_activations(config, share.spec).at(place_of(share, block));
  }

  // Each rank has a part of the outputs, which all gather; each needs the gradient of the whole input.
  static void modulation(const RankShare& share, int64_t passes, int64_t width, TrafficCounts& traffic) {
    traffic.add("tp", "all_gather", passes * share.microbatches, share.rows * width * share.bytes);
    sums(share, 1, share.rows * share.spec.dim, traffic);
  }
  // Adds the conversion between a matrix's consecutive columns and those of a rank's heads, in both directions.
  static void exchange(const RankShare& share, int64_t passes, int64_t elements, TrafficCounts& traffic) {
    traffic.add("tp", "all_to_all", (passes + 1) * share.microbatches, elements / share.tensor * share.bytes);
  }
  static void sums(const RankShare& share, int64_t calls, int64_t elements, TrafficCounts& traffic) {
    traffic.add("tp", "all_reduce", calls * share.microbatches, elements * share.bytes);
  }
};

}  // namespace

const TableModel& flux_table_model() {
  static const FluxTable model;
  return model;
}

}  // namespace titan::testing
