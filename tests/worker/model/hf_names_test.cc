// Hugging Face names of every flavor. hf_names_oracle_test.py holds them against transformers and torchtitan.

#include <gtest/gtest.h>

#include <map>
#include <set>

#include "common/models/registry.h"
#include "common/models/sizes.h"
#include "worker/model/hf_mapper.h"

namespace titan::model {
namespace {

using checkpoint::HfLayout;

std::unique_ptr<checkpoint::HfMapper> mapper_of(const std::string& name, const std::string& flavor) {
  return make_hf_mapper(models::find(name, flavor).value()).value();
}

HfLayout first(const checkpoint::HfMapper& mapper, const std::string& fqn) { return mapper.layouts(fqn).value().at(0); }

TEST(HfNamesTest, EveryParameterOfEveryFlavorHasAPlaceOfItsOwn) {
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : models::flavors(name)) {
      const models::ModelSpec spec = *models::find(name, flavor);
      const auto mapper = make_hf_mapper(spec);
      ASSERT_TRUE(mapper.ok()) << mapper.status();
      std::set<std::pair<std::string, int64_t>> taken;  // Tensor and part of it.
      for (const models::Tensor& tensor : models::parameters(spec)) {
        const auto layouts = (*mapper)->layouts(tensor.fqn);
        ASSERT_TRUE(layouts.ok()) << layouts.status();
        ASSERT_FALSE(layouts->empty()) << name << " " << flavor << " " << tensor.fqn;
        const HfLayout& layout = layouts->front();
        EXPECT_EQ(layout.keys.size(), layout.stacked ? tensor.shape[0] : 1u) << tensor.fqn;
        for (const std::string& key : layout.keys) {
          EXPECT_TRUE(taken.emplace(key, layout.part).second) << key;
          EXPECT_TRUE((*mapper)->knows(key)) << key;
        }
      }
    }
  }
}

TEST(HfNamesTest, LayoutsOfTheFamilies) {
  const auto llama = mapper_of("llama3", "8B");
  EXPECT_EQ(first(*llama, "layers.31.feed_forward.w3.weight").keys.at(0), "model.layers.31.mlp.up_proj.weight");
  EXPECT_EQ(first(*llama, "layers.0.attention.wq.weight").permute_heads, 32);
  EXPECT_EQ(first(*llama, "layers.0.attention.wk.weight").permute_heads, 8);
  EXPECT_EQ(first(*llama, "layers.0.attention.wv.weight").permute_heads, 0);

  const auto deepseek = mapper_of("deepseek_v3", "671B");
  const HfLayout up = first(*deepseek, "layers.3.moe.experts.w3");
  EXPECT_TRUE(up.stacked);
  EXPECT_EQ(up.keys.at(255), "model.layers.3.mlp.experts.255.up_proj.weight");
  EXPECT_EQ(first(*deepseek, "layers.60.moe.expert_bias").keys.at(0),
            "model.layers.60.mlp.gate.e_score_correction_bias");
  EXPECT_FALSE(first(*deepseek, "layers.60.moe.expert_bias").optional);
  EXPECT_TRUE(first(*mapper_of("deepseek_v3", "16B"), "layers.1.moe.expert_bias").optional)
      << "DeepSeek V2 has no such bias";

  const auto llama4 = mapper_of("llama4", "17bx16e");
  const HfLayout gate = first(*llama4, "layers.0.moe.experts.w1"), fused = first(*llama4, "layers.0.moe.experts.w3");
  EXPECT_EQ(gate.keys, fused.keys);
  EXPECT_EQ(gate.keys.at(0), "language_model.model.layers.0.feed_forward.experts.gate_up_proj");
  EXPECT_TRUE(gate.transposed && gate.parts == 2 && gate.part == 0 && fused.part == 1);
  EXPECT_TRUE(llama4->layouts("layers.0.moe.expert_bias")->empty()) << "dropped";

  const auto gpt_oss = mapper_of("gpt_oss", "20b");
  const auto mlp1 = *gpt_oss->layouts("layers.0.moe.experts.mlp1_weight");
  ASSERT_EQ(mlp1.size(), 2u);
  EXPECT_TRUE(mlp1[0].transposed && !mlp1[1].transposed);
  EXPECT_EQ(mlp1[1].keys.at(0), "model.layers.0.mlp.experts.gate_up_proj_blocks");
}

TEST(HfNamesTest, WhatAModelDoesNotHaveIsNotFound) {
  const auto dense = mapper_of("llama3", "debugmodel");
  for (const char* fqn : {"layers.6.attention.wq.weight", "layers.x.attention.wq.weight", "layers.0", "layers.",
                          "layers.0.moe.experts.w1", "attention.wq.weight", ""}) {
    EXPECT_EQ(dense->layouts(fqn).status().code(), absl::StatusCode::kNotFound) << fqn;
  }
  const auto deepseek = mapper_of("deepseek_v3", "debugmodel");
  EXPECT_EQ(deepseek->layouts("layers.0.moe.experts.w1").status().code(), absl::StatusCode::kNotFound)
      << "the first layer is dense";
  EXPECT_EQ(deepseek->layouts("layers.1.attention.wq_a.weight").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(mapper_of("qwen3", "0.6B")->layouts("output.weight").status().code(), absl::StatusCode::kNotFound)
      << "tied";
  models::ModelSpec unknown = *models::find("llama3", "debugmodel");
  unknown.name = "nothing";
  EXPECT_EQ(make_hf_mapper(unknown).status().code(), absl::StatusCode::kUnimplemented);
}

// Tensors that carry no weight are known; those of another model are not, so that loading them is an error.
TEST(HfNamesTest, StrangeTensorsAreTold) {
  EXPECT_TRUE(mapper_of("llama3", "debugmodel")->knows("model.layers.5.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(mapper_of("llama3", "debugmodel")->knows("model.layers.6.mlp.up_proj.weight"));
  EXPECT_FALSE(mapper_of("llama3", "debugmodel")->knows("model.layers.0.self_attn.q_norm.weight"));
  EXPECT_TRUE(mapper_of("qwen3", "0.6B")->knows("lm_head.weight"));
  EXPECT_TRUE(mapper_of("llama4", "17bx16e")->knows("vision_model.patch_embedding.linear.weight"));
  EXPECT_TRUE(mapper_of("llama4", "17bx16e")->knows("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(mapper_of("deepseek_v3", "671B")->knows("model.layers.61.eh_proj.weight"));
  EXPECT_FALSE(mapper_of("deepseek_v3", "671B")->knows("model.layers.62.eh_proj.weight"));
}

// A plug-in's layers may hold what no spec of ours counts.
TEST(HfNamesTest, AFamilyOfOnesOwn) {
  const HfFamily family{
      .name = "own",
      .names = [](const models::ModelSpec&) -> HfNames {
        return {{"tok_embeddings.weight", "embed.weight"}, {"layers.{}.mixer.weight", "blocks.{}.mix"}};
      },
      .config = [](const models::ModelSpec&, int64_t) -> nlohmann::json {
        return {{"model_type", "own"}};
      }};
  models::ModelSpec spec = *models::find("llama3", "debugmodel");
  const auto mapper = make_hf_mapper(family, spec);
  EXPECT_EQ(first(*mapper, "layers.5.mixer.weight").keys.at(0), "blocks.5.mix");
  EXPECT_EQ(mapper->layouts("layers.6.mixer.weight").status().code(), absl::StatusCode::kNotFound);
  EXPECT_TRUE(mapper->knows("blocks.0.mix"));
  EXPECT_FALSE(mapper->knows("blocks.6.mix"));
}

// Sequences no longer than the original ones are not stretched, and transformers must not stretch them either.
TEST(HfNamesTest, TheLengthOfTrainingDecidesAboutYarn) {
  const models::ModelSpec spec = *models::find("deepseek_v3", "671B");
  EXPECT_FALSE((*make_hf_mapper(spec, 4096))->config().contains("rope_scaling"));
  EXPECT_EQ((*make_hf_mapper(spec, 8192))->config()["rope_scaling"]["factor"], 40);
  EXPECT_EQ((*make_hf_mapper(spec))->config()["max_position_embeddings"], 163840);
}

}  // namespace
}  // namespace titan::model
