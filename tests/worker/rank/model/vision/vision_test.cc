#include "common/plan/hf_config/vision.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <set>

#include "common/plan/models/registry.h"
#include "common/plan/models/vision.h"
#include "tests/testing/draw.h"
#include "worker/rank/model/vision/hf_names.h"
#include "worker/rank/model/vision/image_tokens.h"
#include "worker/rank/model/vision/positions.h"
#include "worker/rank/model/vision/siglip2.h"
#include "worker/rank/nn/init.h"
#include "worker/rank/nn/meta_kernels.h"

namespace titan::model {
namespace {

using torch::autograd::grad;

const models::VisionSpec kSpec{
    .dim = 24, .ffn_hidden = 40, .n_layers = 2, .n_heads = 3, .patch_size = 2, .position_side = 4, .out_dim = 16};

// A tower with random weights.
class TowerTest : public ::testing::Test {
 protected:
  TowerTest() {
    at::manual_seed(1);
    auto built = build_vision_tower(kSpec, [this](const nn::MicrobatchContext&) -> const Images& { return images_; });
    EXPECT_TRUE(built.ok()) << built.status();
    blocks_ = *std::move(built);
  }
  void set_weights(at::ScalarType type, at::Device device = at::kCPU) {
    for (const auto& block : blocks_) {
      for (nn::Parameter& parameter : block->parameters())
        parameter.weight = at::randn(parameter.shape, at::kDouble).mul_(0.3).to(device, type).requires_grad_();
    }
  }
  at::Tensor run(const at::Tensor& patches) {
    at::Tensor x = patches;
    for (const auto& block : blocks_) x = block->forward(x, {});
    return x;
  }
  at::Tensor patches(at::ScalarType type = at::kDouble) const {
    return at::randn({1, images_.patches(), kSpec.patch_values()}, at::kDouble).to(type);
  }
  std::vector<at::Tensor> leaves() {
    std::vector<at::Tensor> all;
    for (const auto& block : blocks_) {
      for (nn::Parameter& parameter : block->parameters()) all.push_back(parameter.weight);
    }
    return all;
  }

  Images images_ = pack_images({{2, 3}, {1, 1}, {5, 2}});
  std::vector<std::unique_ptr<nn::Block>> blocks_;
};

// The planner's list is what the blocks declare.
TEST_F(TowerTest, DeclaresTheListedParameters) {
  const std::vector<models::ParameterSpec> listed = models::parameters(kSpec);
  size_t next = 0;
  for (const auto& block : blocks_) {
    for (const nn::Parameter& parameter : block->parameters()) {
      ASSERT_LT(next, listed.size());
      EXPECT_EQ(parameter.fqn, listed[next].fqn);
      EXPECT_EQ(parameter.shape, listed[next].shape);
      EXPECT_EQ(block->name(), models::vision_block_of(parameter.fqn));
      ++next;
    }
  }
  EXPECT_EQ(next, listed.size());
}

// No parameter starts from memory that nobody wrote: biases are zero, and matrices have their distribution.
TEST_F(TowerTest, InitialValues) {
  for (const auto& block : blocks_) {
    for (const nn::Parameter& parameter : block->parameters()) {
      const at::Tensor value = at::full(parameter.shape, NAN);
      nn::fill(parameter, 7, 0, value.numel(), value);
      const bool norm = parameter.fqn.find("norm") != std::string::npos;
      const double std = value.std(/*unbiased=*/false).item<double>(), largest = value.abs().max().item<double>();
      SCOPED_TRACE(parameter.fqn);
      if (parameter.fqn.ends_with(".bias")) {
        EXPECT_TRUE(value.eq(0).all().item<bool>());
      } else if (norm) {
        EXPECT_TRUE(value.eq(1).all().item<bool>());
      } else if (parameter.fqn.ends_with("position_embedding.weight")) {
        EXPECT_NEAR(std, 1, 0.15);
      } else if (parameter.fqn.starts_with("projector.")) {
        const double bound = std::sqrt(6.0 / static_cast<double>(parameter.shape[0] + parameter.shape[1]));
        EXPECT_LE(largest, bound);
        EXPECT_NEAR(std, bound / std::sqrt(3.0), 0.15 * bound);
      } else {
        EXPECT_NEAR(std, 0.02, 0.003);
      }
    }
  }
}

// Images of one row do not influence each other, and the later patches of an image do influence the earlier ones.
TEST_F(TowerTest, PatchesSeeTheirWholeImageOnly) {
  set_weights(at::kDouble);
  const at::Tensor before = patches(), after = before.clone();
  after[0][5] += 1;  // The last patch of the first image, which has six.
  const at::Tensor moved = (run(after) - run(before)).abs().amax(2).squeeze(0);
  EXPECT_GT(moved.narrow(0, 0, 6).min().item<double>(), 1e-6);
  EXPECT_EQ(moved.narrow(0, 6, 11).max().item<double>(), 0);
}

TEST_F(TowerTest, Bfloat16ComesClose) {
  set_weights(at::kBFloat16);
  const at::Tensor pixels = patches(at::kFloat), low = run(pixels);  // Pixels come in fp32.
  EXPECT_EQ(low.scalar_type(), at::kBFloat16);
  for (const auto& block : blocks_) {
    for (nn::Parameter& parameter : block->parameters()) parameter.weight = parameter.weight.detach().to(at::kDouble);
  }
  const at::Tensor exact = run(pixels);
  EXPECT_LE((low - exact).abs().max().item<double>(), 0.05 * exact.abs().max().item<double>());
}

TEST_F(TowerTest, DryRunsHaveShapes) {
  nn::use_meta_kernels();
  set_weights(at::kFloat, at::kMeta);
  const at::Tensor out = run(patches(at::kFloat).to(at::kMeta));
  EXPECT_EQ(out.sizes(), (std::vector<int64_t>{1, 17, 16}));
  const auto gradients = grad({out}, leaves(), {at::empty_like(out)});
  for (size_t i = 0; i < gradients.size(); ++i) EXPECT_EQ(gradients[i].sizes(), leaves()[i].sizes());
  const at::Tensor tokens = at::zeros({2, 20}, at::TensorOptions(at::kLong).device(at::kMeta));
  const at::Tensor embedded = at::empty({2, 20, 16}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(place_images(embedded, tokens, out.squeeze(0)).sizes(), embedded.sizes());
}

TEST_F(TowerTest, ErrorsNameTheSizes) {
  set_weights(at::kFloat);
  try {
    run(at::zeros({1, 16, kSpec.patch_values()}));
    FAIL();
  } catch (const c10::Error& error) {
    EXPECT_NE(std::string(error.what()).find("got patches of the shape [1, 16, 12], need [1, 17, 12]"),
              std::string::npos)
        << error.what();
  }
  EXPECT_THROW(pack_images({}), c10::Error);
  EXPECT_THROW(pack_images({{2, 2}, {0, 3}}), c10::Error);
  models::VisionSpec bad = kSpec;
  bad.n_heads = 5;
  EXPECT_EQ(build_vision_tower(bad, {}).status().message(), "vision tower: n_heads: 5 does not divide dim 24");
  bad = kSpec;
  bad.out_dim = 0;
  EXPECT_FALSE(build_vision_tower(bad, {}).ok());
}

// Returns LibTorch's resized table, [grid.patches(), dim], for table [side, side, dim].
at::Tensor resize_by_torch(const at::Tensor& table, const models::PatchGrid& grid) {
  // LibTorch 2.11 resizes a single column wrongly on the CPU, but a single row rightly.
  if (grid.width == 1 && grid.height > 1) return resize_by_torch(table.transpose(0, 1), {grid.width, grid.height});
  const at::Tensor image = table.permute({2, 0, 1}).unsqueeze(0);
  return at::_upsample_bilinear2d_aa(image, {grid.height, grid.width}, /*align_corners=*/false)[0].flatten(1).t();
}

TEST(PositionsTest, MatchLibTorchsAntialiasedResize) {
  at::manual_seed(2);
  titan::testing::Draw pick(2);
  for (int i = 0; i < 40; ++i) {
    const int64_t side = pick({1, 2, 3, 5, 16}), dim = pick({1, 6});
    std::vector<models::PatchGrid> grids;
    for (int64_t images = pick({1, 2, 4}); images > 0; --images)
      grids.push_back({pick({1, 2, 7, 16, 40}), pick({1, 3, 5, 16, 33})});
    grids.push_back(grids.front());
    for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-13}, {at::kFloat, 2e-6}}) {
      const at::Tensor table = at::randn({side * side, dim}, type).requires_grad_();
      std::vector<at::Tensor> expected;
      for (const models::PatchGrid& grid : grids)
        expected.push_back(resize_by_torch(table.view({side, side, dim}), grid));
      const at::Tensor theirs = at::cat(expected), ours = resize_positions(table, grids);
      const at::Tensor weights = at::randn_like(theirs);
      EXPECT_LE((ours - theirs).abs().max().item<double>(), tolerance * (1 + theirs.abs().max().item<double>()));
      const at::Tensor of_ours = grad({ours}, {table}, {weights})[0], of_theirs = grad({theirs}, {table}, {weights})[0];
      EXPECT_LE((of_ours - of_theirs).abs().max().item<double>(),
                tolerance * (1 + of_theirs.abs().max().item<double>()));
    }
  }
}

TEST(PositionsTest, TheTablesOwnGridIsTheTable) {
  const at::Tensor table = at::randn({25, 3}, at::kBFloat16);
  EXPECT_TRUE(resize_positions(table, {{5, 5}}).equal(table));
}

constexpr int64_t kImage = 9;

TEST(PlaceImagesTest, ReplacesRowsInOrderWithGradients) {
  at::manual_seed(3);
  titan::testing::Draw pick(3);
  for (int i = 0; i < 30; ++i) {
    const int64_t rows = pick({1, 3}), length = pick({1, 8, 20}), dim = 4, unused = pick({1, 2});
    const at::Tensor tokens = at::where(at::rand({rows, length}).lt(0.4), kImage, at::randint(5, {rows, length}));
    const at::Tensor embedded = at::randn({rows, length, dim}, at::kDouble).requires_grad_();
    const at::Tensor places = tokens.eq(kImage).flatten().nonzero().squeeze(1);
    const at::Tensor visual = at::randn({places.size(0) + unused, dim}, at::kDouble).requires_grad_();
    const at::Tensor merged = place_images(embedded, image_rows(tokens, kImage, at::arange(places.size(0))), visual);
    const at::Tensor used = visual.narrow(0, 0, places.size(0));
    EXPECT_TRUE(merged.equal(embedded.flatten(0, 1).index_copy(0, places, used).view_as(embedded)));
    const at::Tensor weights = at::randn_like(merged);
    const auto gradients = grad({merged}, {embedded, visual}, {weights});
    EXPECT_TRUE(gradients[0].equal(weights.masked_fill(tokens.eq(kImage).unsqueeze(2), 0)));
    EXPECT_TRUE(gradients[1].narrow(0, 0, places.size(0)).equal(weights.flatten(0, 1).index_select(0, places)));
    EXPECT_TRUE(gradients[1].narrow(0, places.size(0), unused).eq(0).all().item<bool>());
  }
}

// Rows with the features of several layers (DeepStack) make wide results, in which tokens of the text have zeros.
TEST(PlaceImagesTest, LongerRowsBringMoreColumns) {
  const at::Tensor embedded = at::rand({1, 4, 2}, at::kDouble).requires_grad_();
  const at::Tensor visual = at::rand({3, 6}, at::kDouble).requires_grad_();
  const at::Tensor rows = at::tensor(std::vector<int64_t>{-1, 0, -1, 1}, at::kLong).view({1, 4});
  const at::Tensor placed = place_images(embedded, rows, visual);
  ASSERT_EQ(placed.sizes(), at::IntArrayRef({1, 4, 6}));
  EXPECT_TRUE(placed[0][1].equal(visual[0]) && placed[0][3].equal(visual[1]));
  EXPECT_TRUE(placed[0][2].narrow(0, 0, 2).equal(embedded[0][2]));
  EXPECT_TRUE(placed[0][2].narrow(0, 2, 4).eq(0).all().item<bool>());
  const auto gradients = grad({placed}, {embedded, visual}, {at::ones_like(placed)});
  EXPECT_TRUE(gradients[0].sum(2).equal(at::tensor({2, 0, 2, 0}, at::kDouble).view({1, 4})));
  EXPECT_TRUE(gradients[1].sum(1).equal(at::tensor({6, 6, 0}, at::kDouble)));
  EXPECT_THROW(place_images(embedded, rows, visual.narrow(1, 0, 5)), c10::Error);
}

TEST(PlaceImagesTest, UnequalNumbersAreNamed) {
  const at::Tensor tokens = at::tensor(std::vector<int64_t>{1, kImage, kImage, 2}, at::kLong).view({1, 4});
  for (const int64_t patches : {0, 1, 3}) {
    try {
      image_rows(tokens, kImage, at::arange(patches));
      FAIL() << patches;
    } catch (const c10::Error& error) {
      const std::string expected =
          "images: the batch has 2 image tokens (9), but " + std::to_string(patches) + " patches";
      EXPECT_NE(std::string(error.what()).find(expected), std::string::npos) << error.what();
    }
  }
  const at::Tensor rows = image_rows(tokens, kImage, at::arange(2));
  EXPECT_THROW(place_images(at::zeros({1, 4, 2}), rows, at::zeros({2, 3})), c10::Error);
  EXPECT_THROW(place_images(at::zeros({1, 5, 2}), rows, at::zeros({2, 2})), c10::Error);
  EXPECT_THROW(images_of({}), c10::Error);
}

// A rank without images runs the whole tower. The text is embedded as it is, and every parameter of the tower has a
// gradient of zero, so that ranks with images are not delayed or changed.
TEST_F(TowerTest, PlaceholderChangesNothing) {
  set_weights(at::kDouble);
  images_ = pack_images({{.height = 1, .width = 1}});
  models::ModelSpec text;
  text.dim = kSpec.out_dim;
  text.vocab_size = 12;
  MultimodalEmbedding embedding(text, {});
  nn::Parameter& table = embedding.tok_embeddings.weight();
  table.weight = at::randn(table.shape, at::kDouble).requires_grad_();
  nn::MicrobatchContext context;
  context.tokens = at::tensor({3, 4, 5, 6}, at::kLong).view({2, 2});
  context.tensors[kImageRows] = image_rows(context.tokens, kImage, at::arange(0));
  context.extension = std::make_shared<Images>(images_);
  const at::Tensor merged = embedding.forward(run(patches()), context);
  EXPECT_TRUE(merged.equal(at::embedding(table.weight, context.tokens)));
  for (const at::Tensor& gradient : grad({merged.sum()}, leaves())) EXPECT_TRUE(gradient.eq(0).all().item<bool>());
}

TEST(VisionHfNamesTest, CoverEveryParameterOnce) {
  const auto mapper = make_vision_hf_mapper(kSpec);
  std::set<std::string> keys;
  for (const models::ParameterSpec& tensor : models::parameters(kSpec)) {
    const auto layouts = mapper->layouts(tensor.fqn);
    ASSERT_TRUE(layouts.ok()) << layouts.status();
    ASSERT_EQ(layouts->size(), 1u);
    EXPECT_EQ(layouts->front().optional, tensor.fqn.starts_with("projector."));
    EXPECT_TRUE(keys.insert(layouts->front().keys[0]).second) << tensor.fqn;
    EXPECT_TRUE(mapper->knows(layouts->front().keys[0]));
  }
  for (const char* ignored : {"vision_model.head.probe", "text_model.head.weight", "logit_scale", "logit_bias"})
    EXPECT_TRUE(mapper->knows(ignored)) << ignored;
  EXPECT_FALSE(mapper->knows("vision_model.encoder.layers.2.mlp.fc1.weight")) << "a tower with more layers";
  EXPECT_EQ(mapper->layouts("encoder.layers.2.mlp.fc1.weight").status().code(), absl::StatusCode::kNotFound);
}

TEST(VisionHfNamesTest, ConfigReadsBack) {
  const auto read = hf_config::read_vision(vision_hf_config(kSpec));
  ASSERT_TRUE(read.ok()) << read.status();
  models::VisionSpec spec = read->spec;
  spec.out_dim = kSpec.out_dim;
  EXPECT_EQ(vision_hf_config(spec), vision_hf_config(kSpec));
  EXPECT_EQ(models::parameter_count(spec), models::parameter_count(kSpec));
}

}  // namespace
}  // namespace titan::model
