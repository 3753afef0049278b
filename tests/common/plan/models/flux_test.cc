// Tests Flux's closed forms against torchtitan's own counts.
#include "common/plan/models/flux.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/match.h"
#include "common/plan/hf_config/flux.h"

namespace titan::models {
namespace {

using ::testing::HasSubstr;

FluxSpec flavor(const std::string& name) {
  for (const FluxSpec& spec : flux_sizes()) {
    if (spec.flavor == name) return spec;
  }
  ADD_FAILURE() << name;
  return {};
}

// torchtitan's models, built and counted; the guidance of the released model adds 256 * dim + dim^2 and two biases.
TEST(FluxTest, CountsAreTorchtitans) {
  for (const auto& [name, count, tensors] : {std::tuple("flux-dev", 11'891'178'560, 776),
                                             {"flux-schnell", 11'891'178'560, 776},
                                             {"flux-debug", 258'286'144, 80}}) {
    const FluxSpec spec = flavor(name);
    EXPECT_TRUE(check(spec).ok()) << check(spec);
    EXPECT_EQ(parameter_count(spec), count) << name;
    EXPECT_EQ(parameters(spec).size(), static_cast<size_t>(tensors)) << name;
  }
  FluxSpec guided = flavor("flux-dev");
  guided.guidance_embed = true;
  EXPECT_EQ(parameters(guided).size(), 780u);
  EXPECT_EQ(parameter_count(guided), 11'901'408'320);
}

// A matrix multiplies the tokens of its stream, or one vector for each sample.
TEST(FluxTest, FlopsOfBlocksAreThoseOfTheirMatrices) {
  constexpr int64_t kTxt = 20, kImg = 36;
  for (const FluxSpec& spec : flux_sizes()) {
    std::map<std::string, double> want;
    for (const ParameterSpec& tensor : parameters(spec)) {
      if (tensor.shape.size() != 2) continue;
      const std::string& name = tensor.fqn;
      const bool of_txt =
          name.starts_with("txt_in") || absl::StrContains(name, "txt_attn") || absl::StrContains(name, "txt_mlp");
      const bool of_img = name.starts_with("img_in") || absl::StrContains(name, "img_attn") ||
                          absl::StrContains(name, "img_mlp") || name == "final_layer.linear.weight";
      const int64_t rows = of_txt ? kTxt : of_img ? kImg : absl::StrContains(name, ".linear") ? kTxt + kImg : 1;
      want[flux_block_of(name)] += 2.0 * static_cast<double>(rows * tensor.numel());
    }
    const std::vector<double> flops = block_flops(spec, kTxt, kImg);
    const std::vector<std::string> names = block_names(spec);
    ASSERT_EQ(flops.size(), names.size());
    for (size_t i = 0; i < names.size(); ++i) {
      const bool attends = i > 0 && i + 1 < names.size();
      const double attention = attends ? 4.0 * (kTxt + kImg) * (kTxt + kImg) * static_cast<double>(spec.dim) : 0;
      EXPECT_EQ(flops[i], want[names[i]] + attention) << spec.flavor << " " << names[i];
    }
  }
}

TEST(FluxTest, BlocksHoldAllParameters) {
  for (const FluxSpec& spec : flux_sizes()) {
    std::vector<std::string> names;
    int64_t sum = 0;
    for (const BlockSize& block : block_sizes(spec)) {
      names.push_back(block.name);
      sum += block.params;
    }
    EXPECT_EQ(names, block_names(spec));
    EXPECT_EQ(sum, parameter_count(spec));
    std::set<std::string> distinct;
    for (const ParameterSpec& tensor : parameters(spec)) EXPECT_TRUE(distinct.insert(tensor.fqn).second) << tensor.fqn;
  }
  EXPECT_EQ(flux_block_of("guidance_in.in_layer.weight"), "embed");
  EXPECT_EQ(flux_block_of("double_blocks.10.img_attn.qkv.weight"), "double_blocks.10");
  EXPECT_EQ(flux_block_of("single_blocks.3.linear1.bias"), "single_blocks.3");
  EXPECT_EQ(flux_block_of("final_layer.linear.weight"), "final_layer");
}

TEST(FluxTest, FlopsAreTorchtitans) {
  const FluxSpec spec = flavor("flux-dev");
  EXPECT_EQ(flops_per_sample(spec, 256, 256), 512 * 39'534'619'008);
  EXPECT_EQ(flops_per_sample(spec, 512, 0), 512 * 39'534'619'008);
}

TEST(FluxTest, RefusesNumbersThatDoNotFit) {
  const auto refusal = [](auto change) {
    FluxSpec spec = flavor("flux-debug");
    change(spec);
    const absl::Status status = check(spec);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_EQ(refusal([](FluxSpec& s) { s.n_heads = 7; }),
            "model flux, flavor flux-debug: n_heads 7 does not divide dim 1536");
  EXPECT_THAT(refusal([](FluxSpec& s) {
                s.axes_dim = {16, 56, 54};
              }),
              HasSubstr("the sum of axes_dim is 126, a head of dim / n_heads has 128 channels"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.axes_dim = {17, 55, 56}; }), HasSubstr("axes_dim has 17"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.axes_dim = {0, 64, 64}; }), HasSubstr("axes_dim has 0"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.dim = 0; }), HasSubstr("dim is 0, it must be positive"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.txt_width = -1; }), HasSubstr("txt_width is -1"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.time_channels = 255; }), HasSubstr("time_channels is 255"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.n_single_blocks = -1; }), HasSubstr("n_single_blocks -1"));
  EXPECT_THAT(refusal([](FluxSpec& s) { s.rope_theta = 0; }), HasSubstr("rope_theta is 0"));
}

TEST(FluxTest, ContextRanksDivideTextAndImage) {
  EXPECT_TRUE(check_context(256, 1024, 4).ok());
  EXPECT_EQ(check_context(255, 1024, 4).message(),
            "parallelism.context_parallel_degree: 4 does not divide the 255 tokens of the text");
  EXPECT_EQ(check_context(256, 1022, 4).code(), absl::StatusCode::kInvalidArgument);
}

// Computed by hand, in elements of `dim` for each token; flux/memory_test.cc measures the same with an allocator.
TEST(FluxTest, ActivationsByHand) {
  const FluxSpec spec = flavor("flux-debug");
  const int64_t rows = 2, txt = 3, img = 5, n = rows * (txt + img), e = 2, dim = spec.dim;
  const auto blocks = block_activations(spec, {.rows = rows, .txt = txt, .img = img});
  ASSERT_EQ(blocks.size(), 6u);
  const int64_t attention = n * (dim * e + spec.n_heads * 4);
  const int64_t numbers = n * 4 * 2 * (1 + spec.n_heads);  // Statistics of the norms.
  EXPECT_EQ(blocks[1].input, (rows + n) * dim * e);
  // Norm and its modulation, twice; q, k and v, the values of both streams side by side, q and k rotated; attention's
  // result by stream, two projections for gates and one sum; the feed-forward. For each row silu(vec), and the parts
  // and scales of both streams.
  EXPECT_EQ(blocks[1].graph,
            n * dim * e * (4 + 4 + 2 + 4 + 8) + attention + numbers + n * 4 * 2 + rows * dim * e * (1 + 2 * 8));
  EXPECT_EQ(blocks[1].by_operation, attention);
  EXPECT_EQ(blocks[3].graph, n * dim * e * (2 + 7 + 2 + 5 + 1) + attention + numbers + rows * dim * e * (1 + 4));
  EXPECT_EQ(blocks[5].graph, rows * img * (2 * dim * e + 2 * 4) + rows * dim * e * 2);
  // Tensor ranks share what is inside, not what is between.
  const auto cut = block_activations(spec, {.rows = rows, .txt = txt, .img = img, .tensor_ranks = 4});
  EXPECT_EQ(cut[1].input, blocks[1].input);
  EXPECT_LT(cut[1].graph, blocks[1].graph);
  EXPECT_EQ(4 * cut[1].by_operation, blocks[1].by_operation);
  for (const BlockActivations& block : cut) EXPECT_LE(block.by_operation, block.graph);
}

TEST(FluxConfigTest, IsReadBack) {
  for (FluxSpec spec : flux_sizes()) {
    for (const bool guided : {false, true}) {
      spec.guidance_embed = guided;
      const nlohmann::json config = hf_config::flux_config(spec);
      const auto read = hf_config::read_flux(config);
      ASSERT_TRUE(read.ok()) << read.status();
      EXPECT_EQ(read->flavor, "config.json");
      EXPECT_EQ(hf_config::flux_config(*read), config);
      EXPECT_EQ(parameter_count(*read), parameter_count(spec));
    }
  }
}

// The released FLUX.1-dev and FLUX.1-schnell: keys that the class knows, some of them null.
TEST(FluxConfigTest, ReleasedConfigsPass) {
  const nlohmann::json released = nlohmann::json::parse(R"({"_class_name": "FluxTransformer2DModel",
      "_diffusers_version": "0.30.0.dev0", "_name_or_path": "../checkpoints/flux-dev/transformer", "attention_head_dim": 128,
      "guidance_embeds": true, "in_channels": 64, "joint_attention_dim": 4096, "num_attention_heads": 24, "num_layers": 19,
      "num_single_layers": 38, "patch_size": 1, "pooled_projection_dim": 768, "out_channels": null})");
  const auto spec = hf_config::read_flux(released);
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(parameter_count(*spec), 11'901'408'320);
  const auto defaults = hf_config::read_flux({{"_class_name", "FluxTransformer2DModel"}});
  ASSERT_TRUE(defaults.ok()) << defaults.status();
  EXPECT_EQ(parameter_count(*defaults), 11'891'178'560);
}

TEST(FluxConfigTest, RefusesOthersByKey) {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    nlohmann::json config = hf_config::flux_config(flavor("flux-debug"));
    config[key] = value;
    const auto read = hf_config::read_flux(config);
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(read.status().message());
  };
  EXPECT_THAT(refusal("_class_name", "UNet2DModel"), HasSubstr("_class_name is not \"FluxTransformer2DModel\""));
  EXPECT_THAT(refusal("_class_name", 3), HasSubstr("_class_name"));
  EXPECT_THAT(refusal("patch_size", 2), HasSubstr("patch_size is 2"));
  EXPECT_THAT(refusal("out_channels", 128), HasSubstr("out_channels is 128"));
  EXPECT_THAT(refusal("num_layers", "x"), HasSubstr("num_layers is \"x\""));
  EXPECT_THAT(refusal("axes_dims_rope", {16, 56}), HasSubstr("axes_dims_rope is [16,56]"));
  EXPECT_THAT(refusal("axes_dims_rope", {16, 56, 0.5}), HasSubstr("axes_dims_rope"));
  EXPECT_THAT(refusal("axes_dims_rope", 128), HasSubstr("axes_dims_rope"));
  EXPECT_THAT(refusal("attention_head_dim", 64), HasSubstr("the sum of axes_dim is 128"));
  EXPECT_THAT(refusal("num_attention_heads", 0), HasSubstr("must be positive"));
  EXPECT_FALSE(hf_config::read_flux(nullptr).ok());
  EXPECT_FALSE(hf_config::read_flux(nlohmann::json::array()).ok());
}

}  // namespace
}  // namespace titan::models
