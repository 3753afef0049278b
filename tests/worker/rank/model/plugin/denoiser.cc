// A model from outside of Titan's tree that is not a language model: it learns the velocity of a rectified flow from
// noise to points on a circle (arXiv 2209.03003). The example of docs/howto/add-a-model.md; plugin_test.py trains it.
#include <ATen/CPUGeneratorImpl.h>

#include "absl/strings/str_cat.h"
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/plugin.h"

namespace {

using namespace titan;

constexpr int64_t kDim = 32, kHidden = 64;

// Rows that follow from their number alone, so that no mesh changes them: "point" and "noise" [rows, 1, 2], "time"
// [rows, 1, 1].
class Points : public data::BatchSource {
 public:
  explicit Points(const model::DataShare& share) : share_(share) {}

  absl::StatusOr<data::Batch> next() override {
    const int64_t first = row_ + share_.dp_rank * share_.local_batch;
    row_ += share_.dp_size * share_.local_batch;
    std::vector<at::Tensor> rows;
    for (int64_t row = first; row < first + share_.local_batch; ++row) {
      rows.push_back(at::rand({4}, at::detail::createCPUGenerator(static_cast<uint64_t>(row)), at::kDouble));
    }
    const at::Tensor draws = at::stack(rows).unsqueeze(1), angle = draws.narrow(2, 0, 1) * 6.2832;
    return data::Batch{{"point", at::cat({angle.cos(), angle.sin()}, 2)},
                       {"noise", draws.narrow(2, 1, 2) * 4 - 2},
                       {"time", draws.narrow(2, 3, 1)}};
  }
  nlohmann::json state() const override { return {{"row", row_}}; }
  absl::Status restore(const nlohmann::json& state) override {
    row_ = state.value("row", int64_t{0});
    return absl::OkStatus();
  }

 private:
  const model::DataShare share_;
  int64_t row_ = 0;
};

class Flow : public model::Objective {
 public:
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_training(const config::JobConfig&,
                                                                   const model::DataShare& share) override {
    return std::make_unique<Points>(share);
  }
  absl::StatusOr<std::unique_ptr<data::BatchSource>> open_validation(const config::JobConfig& config,
                                                                     const model::DataShare& share) override {
    return open_training(config, share);
  }
  data::Batch example(const config::JobConfig&, int64_t rows) const override {
    return *Points({.local_batch = rows}).next();
  }
  model::Microbatch microbatch(const data::Batch& batch, const model::MicrobatchOptions& options) const override {
    const at::Tensor &point = batch.at("point"), &noise = batch.at("noise"), &time = batch.at("time");
    nn::MicrobatchContext context;
    context.tensors["place"] = at::cat({(1 - time) * point + time * noise, time}, 2).to(options.device);
    context.tensors["velocity"] = (noise - point).to(options.device);
    return {context, point.numel()};  // The loss is the mean over all coordinates.
  }
  const char* unit() const override { return "point"; }
  int64_t units_of_training_row(const config::JobConfig&) const override { return 1; }
  int64_t units_of_validation_row(const config::JobConfig&) const override { return 1; }
};

class Projection : public nn::Block {
 public:
  Projection(const char* name, int64_t from, int64_t to)
      : Block(name), linear(declare(), absl::StrCat(name, ".weight"), from, to, model::truncated(0.2)) {}
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext&) override {
    return linear.forward(input.to(linear.weight().weight.scalar_type()));
  }
  nn::Linear linear;
};

class Layer : public nn::Block {
 public:
  explicit Layer(const std::string& name)
      : Block(name),
        norm(declare(), name + ".norm.weight", kDim, 1e-5),
        feed_forward(declare(), name + ".feed_forward", kDim, kHidden, model::truncated(0.2), model::truncated(0.2)) {}
  at::Tensor forward(const at::Tensor& input, const nn::MicrobatchContext&) override {
    return input + feed_forward.forward(norm.forward(input));
  }
  nn::RmsNorm norm;
  nn::FeedForward feed_forward;
};

absl::StatusOr<model::Model> build(const models::ModelSpec&, const model::BuildOptions&) {
  model::Model model;
  model.blocks.push_back(std::make_unique<Projection>("in", 3, kDim));
  model.blocks.push_back(std::make_unique<Layer>("layers.0"));
  model.blocks.push_back(std::make_unique<Layer>("layers.1"));
  model.blocks.push_back(std::make_unique<Projection>("out", kDim, 2));
  model.input = [](const nn::MicrobatchContext& context) { return context.tensor("place"); };
  model.edge_length = [](const nn::MicrobatchContext&) { return int64_t{1}; };
  model.loss = [](const at::Tensor& output, const nn::MicrobatchContext& context) {
    return (output.to(at::kDouble) - context.tensor("velocity")).square().sum();
  };
  return model;
}

std::vector<model::PluginFamily> families() {
  models::ModelSpec spec;
  spec.flavor = "tiny";
  spec.dim = kDim;
  constexpr int64_t kLayerSize = kDim + 3 * kDim * kHidden;
  spec.other = models::OtherModel{.blocks = {"in", "layers.0", "layers.1", "out"},
                                  .parameters = kDim * (3 + 2) + 2 * kLayerSize,
                                  .flops_per_unit = 6 * (kDim * (3 + 2) + 2 * 3 * kDim * kHidden)};
  return {{.name = "denoiser",
           .flavors = {spec},
           .build = build,
           .objective = [](const models::ModelSpec&) -> std::unique_ptr<model::Objective> {
             return std::make_unique<Flow>();
           }}};
}

}  // namespace

TITAN_MODEL_PLUGIN(families)
