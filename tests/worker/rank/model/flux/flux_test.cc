// Tests Flux's blocks. flux_oracle_test.py compares them with diffusers and torchtitan.
#include "worker/rank/model/flux/flux.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <unistd.h>

#include <limits>
#include <set>

#include "common/plan/hf_config/model_match.h"
#include "tests/testing/allocation_meter.h"
#include "tests/worker/rank/kernels/chosen_kernels.h"
#include "tests/worker/rank/model/flux/small_flux.h"
#include "tests/worker/rank/model/testing.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_folder.h"
#include "worker/rank/checkpoint/shards/shard.h"
#include "worker/rank/model/flux/blocks.h"
#include "worker/rank/model/flux/hf_names.h"
#include "worker/rank/nn/init.h"
#include "worker/rank/nn/meta_kernels.h"
#include "worker/rank/nn/saved_activations.h"

namespace titan::model::flux {
namespace {

using ::testing::HasSubstr;
using titan::testing::draw_flux_batch;
using titan::testing::draw_flux_weights;
using titan::testing::FluxBatch;
using titan::testing::FluxResults;
using titan::testing::relative_error;
using titan::testing::set_flux_weights;
using titan::testing::small_flux;
using titan::testing::train_flux;

TEST(FluxBlocksTest, ParametersAreThoseOfTheSpec) {
  for (models::FluxSpec spec : models::flux_sizes()) {
    for (const bool guided : {false, true}) {
      spec.guidance_embed = guided;
      const Blocks blocks = *build_blocks(spec);
      const std::vector<models::ParameterSpec> expected = models::parameters(spec);
      std::vector<std::string> names;
      size_t next = 0;
      for (const auto& block : blocks) {
        names.push_back(block->name());
        for (const nn::Parameter& parameter : block->parameters()) {
          ASSERT_LT(next, expected.size());
          EXPECT_EQ(parameter.fqn, expected[next].fqn);
          EXPECT_EQ(parameter.shape, expected[next].shape) << parameter.fqn;
          EXPECT_EQ(models::flux_block_of(parameter.fqn), block->name());
          ++next;
        }
      }
      EXPECT_EQ(next, expected.size());
      EXPECT_EQ(names, models::block_names(spec));
    }
  }
  models::FluxSpec odd = small_flux();
  odd.n_heads = 3;
  EXPECT_EQ(build_blocks(odd).status().code(), absl::StatusCode::kInvalidArgument);
}

// torchtitan's initial values. Nothing but the last layer then has a gradient.
TEST(FluxBlocksTest, FreshModelReturnsZeros) {
  at::set_num_threads(1);  // The sizes are too small to share.
  at::manual_seed(1);
  const models::FluxSpec spec = small_flux();
  const Blocks blocks = *build_blocks(spec);
  titan::testing::FluxWeights weights;
  for (const auto& block : blocks) {
    for (const nn::Parameter& parameter : block->parameters()) {
      at::Tensor& value = weights[parameter.fqn] = at::empty(parameter.shape, at::kFloat);
      nn::fill(parameter, 7, 0, value.numel(), value);
    }
  }
  set_flux_weights(blocks, weights, at::kDouble);
  const FluxResults results = train_flux(blocks, draw_flux_batch(spec, 2, 3, 4), at::kDouble);
  EXPECT_EQ(results.prediction.abs().max().item<double>(), 0);
  for (size_t i = 0; i < results.parameters.size(); ++i) {
    const std::string& name = results.parameters[i]->fqn;
    EXPECT_EQ(results.gradients[i].abs().max().item<double>() > 0, name.rfind("final_layer.linear", 0) == 0) << name;
  }
  const auto largest = [&](const char* name) { return weights.at(name).abs().max().item<double>(); };
  for (const auto& [name, bound] : {std::pair("double_blocks.0.img_attn.qkv.weight", std::sqrt(6.0 / (64 + 192))),
                                    {"single_blocks.1.linear1.weight", std::sqrt(6.0 / (64 + 448))},
                                    {"single_blocks.1.linear2.weight", std::sqrt(6.0 / (64 + 320))},
                                    {"double_blocks.1.txt_mlp.2.weight", std::sqrt(6.0 / (64 + 256))}}) {
    EXPECT_LE(largest(name), bound * (1 + 1e-6)) << name;
    EXPECT_GT(largest(name), bound * 0.98) << name;
  }
  EXPECT_NEAR(weights.at("vector_in.out_layer.weight").std().item<double>(), 0.02, 0.001);
  EXPECT_EQ(largest("double_blocks.0.img_attn.qkv.bias"), 0);
  EXPECT_TRUE(weights.at("single_blocks.0.norm.query_norm.weight").eq(1).all().item<bool>());
}

// bf16 stays close with each of Titan's and LibTorch's kernels, also where rows have different positions.
TEST(FluxBlocksTest, LowerPrecisionsComeClose) {
  at::set_num_threads(1);  // The sizes are too small to share.
  at::manual_seed(2);
  const models::FluxSpec spec = small_flux();
  const Blocks blocks = *build_blocks(spec);
  const auto weights = draw_flux_weights(spec);
  for (const bool rows_differ : {false, true}) {
    const FluxBatch batch = draw_flux_batch(spec, 2, 5, 9, rows_differ);
    set_flux_weights(blocks, weights, at::kDouble);
    const FluxResults exact = train_flux(blocks, batch, at::kDouble);
    const auto compare = [&](at::ScalarType type, double tolerance) {
      set_flux_weights(blocks, weights, type);
      const FluxResults close = train_flux(blocks, batch, type);
      EXPECT_EQ(close.prediction.scalar_type(), type);
      EXPECT_LT(relative_error(close.prediction, exact.prediction), tolerance);
      for (size_t i = 0; i < exact.gradients.size(); ++i) {
        EXPECT_LT(relative_error(close.gradients[i], exact.gradients[i]), 3 * tolerance) << exact.parameters[i]->fqn;
      }
    };
    compare(at::kFloat, 1e-5);
    kernels::testing::with_every_choice([&] { compare(at::kBFloat16, 0.03); });
  }
}

// A recomputed block gives the same bits, whichever activations of the first pass are saved.
TEST(FluxBlocksTest, RecomputationHasTheSameBits) {
  at::set_num_threads(1);  // The sizes are too small to share.
  at::manual_seed(3);
  const models::FluxSpec spec = small_flux();
  const Blocks blocks = *build_blocks(spec);
  set_flux_weights(blocks, draw_flux_weights(spec), at::kFloat);
  const FluxBatch batch = draw_flux_batch(spec, 2, 5, 9);
  at::Tensor x = batch.latents.to(at::kFloat);
  for (const auto& block : blocks) {
    std::vector<at::Tensor> leaves;
    for (const nn::Parameter& parameter : block->parameters()) leaves.push_back(parameter.weight);
    const auto run = [&] { return dynamic_cast<FluxBlock&>(*block).run(x, batch.inputs); };
    for (const bool keeps : {false, true}) {
      nn::SavedActivations saved;
      at::Tensor first, second;
      {
        const nn::SavedActivations::Scope scope(saved, [&](const nn::OpCall&) { return keeps; });
        first = run();
      }
      {
        const nn::SavedActivations::Scope scope(saved);
        second = run();
      }
      EXPECT_GE(saved.calls().size(), 2u);
      EXPECT_TRUE(second.equal(first)) << block->name();
      const at::Tensor grad = at::randn_like(first);
      const auto one = torch::autograd::grad({first}, leaves, {grad}),
                 other = torch::autograd::grad({second}, leaves, {grad});
      for (size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(other[i])) << block->parameters()[i].fqn;
    }
    x = run().detach();
  }
}

// Blocks hold between their passes what a planner predicts.
TEST(FluxBlocksTest, HoldsThePredictedActivations) {
  at::set_num_threads(1);  // The sizes are too small to share.
  at::manual_seed(4);
  const models::FluxSpec spec = small_flux();
  const int64_t rows = 2, txt = 24, img = 40;
  const Blocks blocks = *build_blocks(spec);
  set_flux_weights(blocks, draw_flux_weights(spec), at::kFloat);
  FluxBatch batch = draw_flux_batch(spec, rows, txt, img);
  batch.inputs.rotation = rotation_table(spec, batch.inputs.txt_ids, batch.inputs.img_ids, at::kFloat);
  const auto expected =
      models::block_activations(spec, {.rows = rows, .txt = txt, .img = img, .element_bytes = 4, .fused_norms = false});
  titan::testing::AllocationMeter meter;
  const titan::testing::AllocationMeter::Scope scope(meter);
  at::Tensor x = batch.latents;
  for (size_t i = 0; i < blocks.size(); ++i) {
    x = x.clone().requires_grad_();
    const int64_t before = meter.begin();
    const at::Tensor y = dynamic_cast<FluxBlock&>(*blocks[i]).run(x, batch.inputs);
    const auto held = static_cast<double>(meter.begin() - before - static_cast<int64_t>(y.nbytes()));
    EXPECT_NEAR(held, static_cast<double>(expected[i].graph), 256) << blocks[i]->name();
    x = y.detach();
  }
}

TEST(FluxBlocksTest, DryRunsHaveShapes) {
  nn::use_meta_kernels();
  const models::FluxSpec spec = small_flux();
  const Blocks blocks = *build_blocks(spec);
  for (const auto& block : blocks) {
    for (nn::Parameter& parameter : block->parameters()) {
      parameter.weight =
          at::empty(parameter.shape, at::TensorOptions(at::kBFloat16).device(at::kMeta)).requires_grad_();
    }
  }
  FluxBatch batch = draw_flux_batch(spec, 2, 3, 4);
  for (at::Tensor* tensor : {&batch.inputs.txt, &batch.inputs.y, &batch.inputs.timesteps, &batch.inputs.guidance,
                             &batch.inputs.txt_ids, &batch.inputs.img_ids, &batch.latents, &batch.grad_out}) {
    *tensor = tensor->to(at::kMeta);
  }
  const FluxResults results = train_flux(blocks, batch, at::kBFloat16);
  EXPECT_EQ(results.prediction.sizes(), batch.latents.sizes());
  EXPECT_EQ(results.grad_latents.sizes(), batch.latents.sizes());
  for (size_t i = 0; i < results.gradients.size(); ++i)
    EXPECT_EQ(results.gradients[i].sizes().vec(), results.parameters[i]->shape);
}

TEST(FluxInputsTest, MissingTensorsAreNamed) {
  const models::FluxSpec spec = small_flux();
  const Blocks blocks = *build_blocks(spec);
  set_flux_weights(blocks, draw_flux_weights(spec), at::kDouble);
  const FluxBatch batch = draw_flux_batch(spec, 2, 3, 4);
  const std::map<std::string, at::Tensor> all = {
      {kTxt, batch.inputs.txt},           {kPooled, batch.inputs.y},       {kTimesteps, batch.inputs.timesteps},
      {kGuidance, batch.inputs.guidance}, {kTxtIds, batch.inputs.txt_ids}, {kImgIds, batch.inputs.img_ids}};
  const auto refusal = [&](const std::map<std::string, at::Tensor>& tensors) -> std::string {
    try {
      titan::testing::run_flux(blocks, batch.latents, flux_inputs(tensors));
    } catch (const c10::Error& error) {
      return error.what_without_backtrace();
    }
    return "";
  };
  EXPECT_EQ(refusal(all), "");
  for (const auto& [name, tensor] : all) {
    std::map<std::string, at::Tensor> fewer = all;
    fewer.erase(name);
    EXPECT_THAT(refusal(fewer), HasSubstr("the microbatch has no tensor \"" + name + "\""));
  }
  std::map<std::string, at::Tensor> wrong = all;
  wrong[kImgIds] = all.at(kImgIds)[0];
  EXPECT_THAT(refusal(wrong), HasSubstr("\"img_ids\" is [4, 3], it must be [rows or 1, tokens, 3]"));
  wrong[kImgIds] = at::zeros({1, 5, 3});
  EXPECT_THAT(refusal(wrong), HasSubstr("3 tokens of text and 5 of the image"));
}

// Angles of positions that fp32 cannot multiply exactly are rounded once.
TEST(FluxInputsTest, RotationIsRoundedOnce) {
  const models::FluxSpec spec = small_flux();
  const at::Tensor txt_ids = at::zeros({1, 2, 3}), img_ids = at::tensor({0.0F, 3.0F, 1021.0F}).view({1, 1, 3});
  const at::Tensor exact = rotation_table(spec, txt_ids, img_ids, at::kDouble);
  ASSERT_EQ(exact.sizes(), (std::vector<int64_t>{1, 3, 8}));
  const at::Tensor angle = exact[0][2].angle();
  EXPECT_NEAR(angle[2].item<double>(), 3, 1e-12);  // Second axis, pair 0.
  EXPECT_NEAR(angle[3].item<double>(), 3 * std::pow(10000.0, -0.5), 1e-12);
  EXPECT_NEAR(angle[5].item<double>(), std::remainder(1021 * std::pow(10000.0, -0.25), 2 * M_PI), 1e-9);
  EXPECT_TRUE(exact[0][0].eq(1).all().item<bool>()) << "no position, no rotation";
  const at::Tensor rounded = rotation_table(spec, txt_ids, img_ids, at::kBFloat16);
  EXPECT_EQ(rounded.scalar_type(), at::kComplexFloat);
  EXPECT_TRUE(rounded.equal(exact.to(at::kComplexFloat)));
}

TEST(FluxInputsTest, TimesAreNotRounded) {
  const at::Tensor t = at::tensor({0.0F, 0.3141F, 1.0F});
  const at::Tensor got = timestep_embedding(t, 256);
  ASSERT_EQ(got.scalar_type(), at::kFloat);
  const at::Tensor angles =
      t.to(at::kDouble).unsqueeze(1) * 1000 * at::pow(10000.0, at::arange(128, at::kDouble) / -128);
  EXPECT_LT((got - at::cat({angles.cos(), angles.sin()}, 1)).abs().max().item<double>(), 1e-4);
}

class FluxNamesTest : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(storage::posix_files().make_folders(folder_).ok()); }
  void TearDown() override { storage::posix_files().remove_folder(folder_).IgnoreError(); }
  const std::string folder_ = storage::join_path(::testing::TempDir(), "flux." + std::to_string(::getpid()));
};

// Written under either name, every rank's rows of every parameter are read back, wherever they are cut.
TEST_F(FluxNamesTest, AnyRowsAreReadBack) {
  at::set_num_threads(1);  // The sizes are too small to share.
  at::manual_seed(5);
  const models::FluxSpec spec = small_flux();
  const auto weights = draw_flux_weights(spec);
  for (const WeightNames names : {WeightNames::kDiffusers, WeightNames::kReleased}) {
    const auto mapper = make_mapper(spec, names);
    std::vector<checkpoint::Staged> parts;
    for (const auto& [fqn, value] : weights) {
      const checkpoint::HfLayout layout = mapper->layouts(fqn)->front();
      const std::vector<at::Tensor> tensors = checkpoint::to_hf(layout, value);
      for (size_t i = 0; i < tensors.size(); ++i) {
        EXPECT_TRUE(mapper->knows(layout.keys.at(i))) << layout.keys[i];
        const std::vector<int64_t> shape = tensors[i].sizes().vec();
        EXPECT_EQ(shape, checkpoint::hf_shape(layout, value.sizes().vec(), i)) << layout.keys[i];
        parts.push_back({layout.keys[i], shape, std::vector<int64_t>(shape.size()), tensors[i].contiguous()});
      }
    }
    const std::string folder = storage::join_path(folder_, names == WeightNames::kReleased ? "released" : "diffusers");
    ASSERT_TRUE(storage::posix_files().make_folders(folder).ok());
    ASSERT_TRUE(checkpoint::write_tensors(storage::posix_files(), folder, "some.safetensors", parts).ok());
    const auto opened = checkpoint::HfFolder::open(storage::posix_files(), folder);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto reader = make_mapper(spec);  // Reads either.
    EXPECT_TRUE(checkpoint::check_keys(**opened, *reader).ok());
    for (const auto& [fqn, value] : weights) {
      for (const int64_t ranks : {1, 3, 5}) {
        at::Tensor got = at::full_like(value, std::numeric_limits<double>::quiet_NaN());
        const int64_t chunk = (value.size(0) + ranks - 1) / ranks;
        for (int64_t first = 0; first < value.size(0); first += chunk) {
          checkpoint::Box box = checkpoint::whole(value.sizes().vec());
          box.offset[0] = first;
          box.shape[0] = std::min(chunk, value.size(0) - first);
          const auto rows = checkpoint::read_parameter(**opened, *reader, fqn, value.sizes().vec(), box);
          ASSERT_TRUE(rows.ok()) << rows.status();
          got.narrow(0, first, box.shape[0]).copy_(*rows);
        }
        EXPECT_TRUE(got.equal(value)) << fqn << " in rows of " << chunk;
      }
    }
  }
}

TEST_F(FluxNamesTest, OtherModelsAreRefused) {
  const models::FluxSpec spec = small_flux(/*guidance=*/false);
  const auto mapper = make_mapper(spec);
  for (const char* fqn :
       {"guidance_in.in_layer.weight", "double_blocks.2.img_mod.lin.weight", "single_blocks.x.linear1.bias", "img_in",
        "double_blocks.0.img_attn.norm.query_norm.bias", ""}) {
    EXPECT_EQ(mapper->layouts(fqn).status().code(), absl::StatusCode::kNotFound) << fqn;
  }
  // Weights of a model that reads the guidance are those of another model.
  for (const char* key : {"time_text_embed.guidance_embedder.linear_1.weight", "guidance_in.in_layer.weight",
                          "transformer_blocks.2.norm1.linear.weight", "encoder.conv_in.weight"}) {
    EXPECT_FALSE(mapper->knows(key)) << key;
  }
  for (const char* key :
       {"transformer_blocks.1.attn.add_k_proj.bias", "double_blocks.0.txt_attn.norm.key_norm.scale",
        "double_blocks.0.txt_attn.norm.key_norm.weight", "single_transformer_blocks.0.proj_mlp.weight"}) {
    EXPECT_TRUE(mapper->knows(key)) << key;
  }
  EXPECT_TRUE(make_mapper(small_flux())->knows("time_text_embed.guidance_embedder.linear_1.weight"));
  EXPECT_TRUE(make_mapper(spec, WeightNames::kReleased)->config().is_null());
}

TEST_F(FluxNamesTest, PipelinesHaveTheTransformerBelow) {
  EXPECT_EQ(hf_config::weights_folder(storage::posix_files(), folder_), folder_);
  ASSERT_TRUE(
      storage::atomic_write(storage::posix_files(), storage::join_path(folder_, "model_index.json"), "{}").ok());
  EXPECT_EQ(hf_config::weights_folder(storage::posix_files(), folder_), storage::join_path(folder_, "transformer"));
}

}  // namespace
}  // namespace titan::model::flux
