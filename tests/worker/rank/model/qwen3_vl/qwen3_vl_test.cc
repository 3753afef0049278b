// Tests Qwen3-VL split over tensor, expert and context axes: the same loss and gradients as on one rank, those of the
// vision tower included. qwen3_vl_model_oracle_test.py compares what one rank computes with transformers. Also tests
// how images become patches of a job.
#include "worker/rank/model/qwen3_vl/qwen3_vl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <mutex>

#include "common/plan/models/registry.h"
#include "tests/worker/rank/comm/thread_ranks.h"
#include "tests/worker/rank/model/parameter_part.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/model/qwen3_vl/image_adapter.h"
#include "worker/rank/model/qwen3_vl/inputs.h"
#include "worker/rank/model/vision/qwen3_vl.h"
#include "worker/rank/nn/loss.h"
#include "worker/rank/nn/rope.h"
#include "worker/rank/parallel/context.h"

namespace titan::testing {
namespace {

namespace vl = model::qwen3_vl;
using mesh::Axis;
using ::testing::HasSubstr;

constexpr int64_t kRows = 2, kTokens = 24, kImage = 45;

struct Task {
  models::ModelSpec text;
  models::Qwen3VlSpec spec;
  Weights weights;
  at::Tensor tokens, labels, documents, patches;
  vl::RowImages images;
  std::vector<models::PatchGrid> encoded;  // The tower runs on these.
};

models::Qwen3VlSpec small_vl() {
  models::Qwen3VlSpec spec;
  spec.vision = {.dim = 16,
                 .ffn_hidden = 20,
                 .n_layers = 3,
                 .n_heads = 2,
                 .patch_size = 2,
                 .position_side = 4,
                 .out_dim = 24,
                 .deepstack_layers = {0, 2}};
  spec.mrope_section = {2, 1, 1};
  spec.image_token = kImage;
  return spec;
}

models::ModelSpec small_text(const char* flavor, bool documents) {
  models::ModelSpec text = small_spec("qwen3", flavor);
  text.n_layers = 3;
  text.vocab_size = 48;
  if (documents) text.mask = models::Mask::kBlockCausal;
  return text;
}

model::Model build(const Task& task) {
  auto model = vl::build_model(task.text, task.spec, {.seq_len = kTokens});
  EXPECT_TRUE(model.ok()) << model.status();
  return *std::move(model);
}

Task make_task(const char* flavor, bool documents, bool with_images = true) {
  Task task{.text = small_text(flavor, documents), .spec = small_vl()};
  torch::manual_seed(5);
  task.tokens = at::randint(kImage, {kRows, kTokens}, at::kLong);
  task.labels = at::randint(kImage, {kRows, kTokens}, at::kLong);
  task.labels.masked_fill_(at::rand({kRows, kTokens}).lt(0.2), nn::kIgnoreIndex);
  if (documents) task.documents = draw_documents(kRows, kTokens);
  task.images.images_of_row = {0, 0};
  if (with_images) {  // Two in the first row, across the ranks' shares, and one in the second.
    task.images = {.grids = {{4, 6}, {2, 4}, {6, 4}}, .images_of_row = {2, 1}};
    task.tokens[0].narrow(0, 3, 6).fill_(kImage);
    task.tokens[0].narrow(0, 10, 2).fill_(kImage);
    task.tokens[1].narrow(0, 15, 6).fill_(kImage);
  }
  task.encoded = with_images ? task.images.grids : std::vector<models::PatchGrid>{{2, 2}};
  int64_t patches = 0;
  for (const models::PatchGrid& grid : task.encoded) patches += grid.patches();
  task.patches = at::randn({1, patches, task.spec.vision.patch_values()}, at::kDouble);
  task.weights = draw_weights(build(task), task.text, 5);
  return task;
}

struct Totals {
  double loss = 0;
  std::map<std::string, at::Tensor> gradients;  // Gradients of whole parameters.
};

// Runs a rank's share of the microbatch block by block, as the engine does: each has a detached input and a separate
// graph, which is made again before its backward pass.
void run_part(const model::Model& model, const Task& task, const nn::MicrobatchContext& context, bool count_loss,
              const std::function<bool(const nn::Parameter&)>& count, std::mutex& mutex, Totals& totals) {
  set_weights(model, task.weights, at::kDouble);
  std::vector<at::Tensor> inputs{model.input(context)};
  {
    const at::NoGradGuard no_grad;
    for (const auto& block : model.blocks) inputs.push_back(block->forward(inputs.back(), context));
  }
  at::Tensor gradient;
  for (size_t index = model.blocks.size(); index-- > 0;) {
    nn::Block& block = *model.blocks[index];
    const at::Tensor input = inputs[index].detach().requires_grad_(index > 0);
    std::vector<at::Tensor> leaves;
    std::vector<nn::Parameter*> parameters;
    for (nn::Parameter& parameter : block.parameters()) parameters.push_back(&parameter);
    for (nn::Parameter* parameter : block.shared_parameters()) parameters.push_back(parameter);
    for (const nn::Parameter* parameter : parameters) leaves.push_back(parameter->weight);
    if (index > 0) leaves.push_back(input);
    at::Tensor output = block.forward(input, context);
    if (!gradient.defined()) {
      output = model.loss(output, context.labels);
      const std::lock_guard<std::mutex> lock(mutex);
      if (count_loss) totals.loss += output.item<double>();
    }
    auto gradients = torch::autograd::grad({output}, leaves, {gradient}, std::nullopt, false, /*allow_unused=*/true);
    if (index > 0) gradient = gradients.back();
    const std::lock_guard<std::mutex> lock(mutex);
    for (size_t i = 0; i < parameters.size(); ++i) {
      const nn::Parameter& p = *parameters[i];
      if (!gradients[i].defined() || !count(p)) continue;
      at::Tensor& whole = totals.gradients[p.fqn];
      if (!whole.defined()) whole = at::zeros(p.global_shape, at::kDouble);
      part_of(whole, p).add_(gradients[i]);
    }
  }
}

nn::MicrobatchContext context_of(const Task& task, const parallel::ContextParallel* context = nullptr) {
  nn::MicrobatchContext share{.tokens = task.tokens, .labels = task.labels, .documents = task.documents};
  if (context != nullptr) share = parallel::shard_microbatch(share, *context);
  share.tensors[vl::kPatches] = task.patches;
  share.extension = std::make_shared<model::Qwen3VlImages>(
      model::pack_qwen3_vl_images(task.encoded, task.spec.vision, at::kCPU, at::kDouble));
  const absl::Status added = vl::add_places(task.text, task.spec, task.tokens, task.images, at::kDouble, share);
  EXPECT_TRUE(added.ok()) << added;
  return share;
}

Totals run_whole(const Task& task) {
  Totals totals;
  std::mutex mutex;
  const model::Model model = build(task);
  run_part(
      model, task, context_of(task), true, [](const auto&) { return true; }, mutex, totals);
  return totals;
}

struct Split {
  std::string what;
  mesh::Degrees degrees;
  int world;
  bool sequence = true, loss_parallel = true, async = false;
  std::string rotate = "allgather";
};

Totals run_split(const Task& task, const Split& split) {
  Totals totals;
  std::mutex mutex;
  run_ranks(split.degrees, split.world, every_axis(), [&](ThreadRank& self) {
    const mesh::Mesh& mesh = self.mesh->mesh();
    model::Model model = build(task);
    const absl::Status done = model.parallelize(model, {.mesh = self.mesh.get(),
                                                        .sequence_parallel = split.sequence,
                                                        .loss_parallel = split.loss_parallel,
                                                        .async_tensor_parallel = split.async,
                                                        .rotate_method = split.rotate});
    ASSERT_TRUE(done.ok()) << done;
    const parallel::ContextParallel context{.group = &self.mesh->group(Axis::kContext)};
    const bool first_tensor_rank = mesh.index(self.rank, Axis::kTensor) == 0;
    const bool experts_on_tensor_ranks = mesh.size(Axis::kExpert) > 1 && mesh.size(Axis::kExpertTensor) == 1;
    run_part(
        model, task, context_of(task, &context), first_tensor_rank,
        [&](const nn::Parameter& p) {
          if (p.expert && experts_on_tensor_ranks) return true;  // Each tensor rank has other tokens.
          return first_tensor_rank || p.on_tensor_axis != nn::TensorAxisPlacement::kReplicate;
        },
        mutex, totals);
  });
  return totals;
}

void expect_same(const Task& task, const std::vector<Split>& splits) {
  const Totals want = run_whole(task);
  for (const Split& split : splits) {
    SCOPED_TRACE(split.what);
    const Totals got = run_split(task, split);
    EXPECT_NEAR(got.loss / want.loss, 1, 1e-12);
    ASSERT_EQ(got.gradients.size(), want.gradients.size());
    for (const auto& [name, gradient] : want.gradients)
      EXPECT_LT(relative_error(got.gradients.at(name), gradient), 1e-10) << name;
  }
}

TEST(Qwen3VlSplitTest, ComputesTheSameAsOneRank) {
  at::set_num_threads(1);
  const std::vector<Split> dense{{"tp2", {.tp = 2}, 2},
                                 {"tp2 without sequence parallelism", {.tp = 2}, 2, false, false},
                                 {"tp2 overlapped", {.tp = 2}, 2, true, true, true},
                                 {"cp2", {.cp = 2}, 2},
                                 {"tp2 cp2 around a ring", {.cp = 2, .tp = 2}, 4, true, true, false, "alltoall"}};
  expect_same(make_task("debugmodel", /*documents=*/true), dense);
  expect_same(make_task("debugmodel_moe", /*documents=*/false),
              {{"tp2 ep2 etp1", {.tp = 2, .ep = 2, .etp = 1}, 2}, {"cp2 ep2", {.cp = 2, .ep = 2}, 2}});
}

// Ranks that share the tower's parameters must all run it, so a microbatch without images does too.
TEST(Qwen3VlSplitTest, WithoutImagesTheTowersGradientsAreZero) {
  const Task task = make_task("debugmodel", /*documents=*/false, /*with_images=*/false);
  const Totals whole = run_whole(task);
  int64_t of_tower = 0;
  for (const auto& [name, gradient] : whole.gradients) {
    const bool tower = name.starts_with("visual.");
    of_tower += tower ? 1 : 0;
    EXPECT_EQ(gradient.count_nonzero().item<int64_t>() == 0, tower) << name;
  }
  EXPECT_EQ(of_tower, 3 * 12 + 2 * 6 + 6 + 3);
  expect_same(task, {{"tp2", {.tp = 2}, 2}});
}

// Stages of a pipeline exchange what passes between blocks after the entry blocks, so all of it has one shape.
TEST(Qwen3VlSplitTest, EdgesAfterTheEntryBlocksHaveOneShape) {
  const Task task = make_task("debugmodel", /*documents=*/false);
  const model::Model model = build(task);
  set_weights(model, task.weights, at::kDouble);
  const nn::MicrobatchContext context = context_of(task);
  at::Tensor x = model.input(context);
  for (size_t index = 0; index + 1 < model.blocks.size(); ++index) {
    x = model.blocks[index]->forward(x, context);
    const bool edge =
        x.sizes() == at::IntArrayRef({model.edge_rows(context), model.edge_length(context), task.text.dim});
    EXPECT_EQ(edge, index + 1 >= model.entry_blocks) << model.blocks[index]->name();
  }
}

// Tokens with one position on all axes turn as in the language model alone, in every type.
TEST(Qwen3VlPositionsTest, TextTurnsAsWithoutImages) {
  const Task task = make_task("debugmodel", /*documents=*/false, /*with_images=*/false);
  for (const at::ScalarType type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    nn::MicrobatchContext context{.tokens = task.tokens};
    ASSERT_TRUE(vl::add_places(task.text, task.spec, task.tokens, task.images, type, context).ok());
    nn::Rope rope({.head_dim = task.text.head_dim,
                   .max_seq_len = kTokens,
                   .theta = task.text.rope_theta,
                   .scaling = {.enabled = false},
                   .pairs = nn::RopePairs::kRotateHalf});
    rope.fill(at::kCPU, type);
    const at::Tensor heads = at::randn({kRows, kTokens, 3, task.text.head_dim}).to(type);
    EXPECT_TRUE(nn::apply_rope_rows(heads, context.tensor(vl::kTokenRotation)).equal(rope.apply(heads))) << type;
  }
}

TEST(Qwen3VlBuildTest, NamesNumbersThatDoNotFit) {
  Task task = make_task("debugmodel", /*documents=*/false);
  const auto refusal = [](const models::ModelSpec& text, const models::Qwen3VlSpec& spec) {
    const auto status = vl::build_model(text, spec, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  models::Qwen3VlSpec spec = task.spec;
  spec.vision.out_dim = 16;
  EXPECT_THAT(refusal(task.text, spec), HasSubstr("out_dim: 16 is not the text's dim 24"));
  models::ModelSpec text = task.text;
  text.n_layers = 1;
  EXPECT_THAT(refusal(text, task.spec), HasSubstr("deepstack_layers: 2 of them for n_layers 1 of the text"));
  spec = task.spec;
  spec.mrope_section[2] = 0;
  EXPECT_THAT(refusal(task.text, spec), HasSubstr("mrope_section[2]: 0 is not above 0"));
  EXPECT_THAT(refusal(small_spec("llama3", "8B"), task.spec), HasSubstr("rotates halves"));
}

// The numbers of patches of images by a job's limit: whole squares, enlarged towards the processor's smallest area,
// but never above the limit, unless they are too narrow for it.
TEST(Qwen3VlAdapterTest, ImagesKeepTheLimitOfTheJob) {
  const auto adapter = vl::image_adapter(*models::find("qwen3_vl", "debugmodel"));
  const auto grid = [&](int64_t most, int width, int height) {
    config::JobConfig config;
    config.data.max_patches_per_image = most;
    EXPECT_TRUE(adapter->use_keys(config).ok());
    const auto cut = adapter->cut(
        {.width = width, .height = height, .pixels = std::vector<uint8_t>(static_cast<size_t>(3 * width * height))});
    EXPECT_TRUE(cut.ok()) << cut.status();
    EXPECT_EQ(static_cast<int64_t>(cut->patches.size()), cut->grid.patches() * adapter->numbers().values);
    return cut->grid;
  };
  using models::PatchGrid;
  EXPECT_EQ(grid(1024, 64, 64), (PatchGrid{16, 16}));    // The processor's smallest area.
  EXPECT_EQ(grid(1024, 640, 480), (PatchGrid{26, 36}));  // Below the limit.
  EXPECT_EQ(grid(64, 64, 64), (PatchGrid{8, 8}));
  EXPECT_EQ(grid(64, 12, 15), (PatchGrid{8, 6}));  // Towards a half of the limit.
  for (const int64_t most : {4, 24, 64, 100}) {
    for (const int side : {1, 9, 33, 100, 130}) {
      const PatchGrid one = grid(most, side, 40);
      EXPECT_LE(one.patches(), most) << most << " " << side;
      EXPECT_TRUE(one.height % 2 == 0 && one.width % 2 == 0 && one.patches() > 0) << most << " " << side;
    }
  }
}

TEST(Qwen3VlAdapterTest, WhatDoesNotFitIsNamed) {
  const auto adapter = vl::image_adapter(*models::find("qwen3_vl", "debugmodel"));
  EXPECT_TRUE(adapter->check({.tokens = {3, 5, 4}}).ok());
  EXPECT_THAT(std::string(adapter->check({.tokens = {3, 6, 4}}).message()), HasSubstr("the token of videos, 6"));
  const std::string folder = ::testing::TempDir() + "processor." + std::to_string(::getpid());
  std::filesystem::create_directories(folder);
  EXPECT_TRUE(adapter->use_assets(folder).ok());
  std::ofstream(folder + "/preprocessor_config.json") << R"({"patch_size": 14, "merge_size": 2})";
  EXPECT_THAT(std::string(adapter->use_assets(folder).message()),
              HasSubstr("preprocessor_config.json: patch_size is 14, but the vision tower has 16"));
  std::ofstream(folder + "/preprocessor_config.json") << "{";
  EXPECT_EQ(adapter->use_assets(folder).code(), absl::StatusCode::kInvalidArgument);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace titan::testing
