// Tests the Hugging Face names of every flavor. hf_names_oracle_test.py compares them with transformers and torchtitan.

#include "worker/rank/model/hf_names.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <map>
#include <random>
#include <set>

#include "common/io/storage/file.h"
#include "common/plan/hf_config/config_class.h"
#include "common/plan/hf_config/model_match.h"
#include "common/plan/hf_config/read.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/sizes.h"
#include "common/plan/models/spec_json.h"
#include "worker/rank/checkpoint/formats/hugging_face/hf_mapper.h"
#include "worker/rank/checkpoint/loading/model_check.h"

namespace titan::model {
namespace {

using checkpoint::HfLayout;

std::unique_ptr<checkpoint::HfMapper> mapper_of(const std::string& name, const std::string& flavor) {
  return make_hf_mapper(models::find(name, flavor).value()).value();
}

HfLayout first(const checkpoint::HfMapper& mapper, const std::string& fqn) { return mapper.layouts(fqn).value().at(0); }

TEST(HfNamesTest, EveryParameterHasADistinctPlace) {
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : models::flavors(name)) {
      const models::ModelSpec spec = *models::find(name, flavor);
      if (spec.flux) continue;  // Several tensors make one parameter: see flux_test.
      const auto mapper = make_hf_mapper(spec);
      ASSERT_TRUE(mapper.ok()) << mapper.status();
      std::set<std::pair<std::string, int64_t>> taken;  // Tensor, and the part or row of it.
      for (const models::ParameterSpec& tensor : models::parameters(spec)) {
        const auto layouts = (*mapper)->layouts(tensor.fqn);
        ASSERT_TRUE(layouts.ok()) << layouts.status();
        ASSERT_FALSE(layouts->empty()) << name << " " << flavor << " " << tensor.fqn;
        const HfLayout& layout = layouts->front();
        EXPECT_EQ(layout.keys.size(), layout.stacked ? tensor.shape[0] : 1u) << tensor.fqn;
        for (const std::string& key : layout.keys) {
          EXPECT_TRUE(taken.emplace(key, layout.part + layout.first_row).second) << key;
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
  const HfLayout second = first(*mapper_of("deepseek_v3", "16B"), "layers.1.moe.expert_bias");
  EXPECT_TRUE(second.optional && second.read_only) << "DeepSeek V2 has no such bias, and torchtitan writes it";

  const auto llama4 = mapper_of("llama4", "17bx16e");
  const HfLayout gate = first(*llama4, "layers.0.moe.experts.w1"), fused = first(*llama4, "layers.0.moe.experts.w3");
  EXPECT_EQ(gate.keys, fused.keys);
  EXPECT_EQ(gate.keys.at(0), "language_model.model.layers.0.feed_forward.experts.gate_up_proj");
  EXPECT_TRUE(gate.transposed && gate.parts == 2 && gate.part == 0 && fused.part == 1);
  EXPECT_TRUE(llama4->layouts("layers.0.moe.expert_bias")->empty()) << "dropped";

  // 40 heads of queries, 10 of keys and 10 of values, each 128 wide.
  const auto phi = mapper_of("phi3", "phi-4");
  const HfLayout values = first(*phi, "layers.3.attention.wv.weight");
  EXPECT_EQ(values.keys.at(0), "model.layers.3.self_attn.qkv_proj.weight");
  EXPECT_TRUE(values.first_row == 6400 && values.total_rows == 7680) << values.first_row;
  EXPECT_EQ(first(*phi, "layers.3.feed_forward.w3.weight").first_row, 17920);
  const auto glm = mapper_of("glm4", "9B");
  EXPECT_EQ(first(*glm, "layers.0.ffn_norm.weight").keys.at(0), "model.layers.0.post_attention_layernorm.weight");
  EXPECT_EQ(first(*glm, "layers.0.attention_post_norm.weight").keys.at(0),
            "model.layers.0.post_self_attn_layernorm.weight");
  EXPECT_EQ(first(*glm, "layers.0.attention.wq.weight").permute_heads, 0) << "its class rotates neighbours";
  EXPECT_EQ(glm->layouts("layers.0.attention.wo.bias").status().code(), absl::StatusCode::kNotFound);
  const auto gemma = *mapper_of("gemma3", "4B")->layouts("layers.1.ffn_post_norm.weight");
  EXPECT_EQ(gemma.at(1).keys.at(0), "language_model.model.layers.1.post_feedforward_layernorm.weight") << "the release";

  const auto gpt_oss = mapper_of("gpt_oss", "20b");
  const auto mlp1 = *gpt_oss->layouts("layers.0.moe.experts.mlp1_weight");
  ASSERT_EQ(mlp1.size(), 2u);
  EXPECT_TRUE(mlp1[0].transposed && !mlp1[1].transposed);
  EXPECT_EQ(mlp1[1].keys.at(0), "model.layers.0.mlp.experts.gate_up_proj_blocks");
}

// interop_families_test.py reads the same list from transformers' classes.
TEST(HfNamesTest, ClassesKeepSomeTensorsInFloat32) {
  const auto type = [](const std::string& family, const std::string& flavor, const std::string& fqn,
                       at::ScalarType wanted) {
    return checkpoint::stored_type(first(*mapper_of(family, flavor), fqn), wanted);
  };
  for (const at::ScalarType wanted : {at::kHalf, at::kBFloat16, at::kFloat}) {
    EXPECT_EQ(type("deepseek_v3", "671B", "layers.3.moe.expert_bias", wanted), at::kFloat);
    EXPECT_EQ(type("deepseek_v3", "671B", "layers.3.moe.router.gate.weight", wanted), at::kFloat);
    EXPECT_EQ(type("deepseek_v3", "16B", "layers.1.moe.router.gate.weight", wanted), at::kFloat);
    EXPECT_EQ(type("deepseek_v3", "671B", "layers.3.moe.experts.w1", wanted), wanted);
    EXPECT_EQ(type("qwen3", "30B-A3B", "layers.3.moe.router.gate.weight", wanted), wanted);
    EXPECT_EQ(type("gpt_oss", "20b", "layers.3.attention_norm.weight", wanted),
              wanted == at::kHalf ? at::kFloat : wanted);
    EXPECT_EQ(type("gpt_oss", "20b", "norm.weight", wanted), wanted == at::kHalf ? at::kFloat : wanted);
    EXPECT_EQ(type("gpt_oss", "20b", "layers.3.moe.router.gate.weight", wanted), wanted);
  }
}

TEST(HfNamesTest, ParametersOfOtherModelsAreNotFound) {
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

// Tensors that hold no weights are known. Those of another model are not, so that loading them is an error.
TEST(HfNamesTest, KnowsTensorsWithoutWeights) {
  EXPECT_TRUE(mapper_of("llama3", "debugmodel")->knows("model.layers.5.self_attn.rotary_emb.inv_freq"));
  EXPECT_FALSE(mapper_of("llama3", "debugmodel")->knows("model.layers.6.mlp.up_proj.weight"));
  EXPECT_FALSE(mapper_of("llama3", "debugmodel")->knows("model.layers.0.self_attn.q_norm.weight"));
  EXPECT_TRUE(mapper_of("qwen3", "0.6B")->knows("lm_head.weight"));
  EXPECT_TRUE(mapper_of("llama4", "17bx16e")->knows("vision_model.patch_embedding.linear.weight"));
  EXPECT_TRUE(mapper_of("llama4", "17bx16e")->knows("model.layers.0.self_attn.q_proj.weight"));
  EXPECT_TRUE(mapper_of("deepseek_v3", "671B")->knows("model.layers.61.eh_proj.weight"));
  EXPECT_FALSE(mapper_of("deepseek_v3", "671B")->knows("model.layers.62.eh_proj.weight"));
}

// A plug-in's layers may hold parameters that no spec of Titan counts.
TEST(HfNamesTest, CustomFamilyMapsItsNames) {
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

// Titan does not stretch sequences up to the original length, and transformers must not stretch them, either.
TEST(HfNamesTest, YarnDependsOnTheSequenceLength) {
  const models::ModelSpec spec = *models::find("deepseek_v3", "671B");
  EXPECT_FALSE((*make_hf_mapper(spec, 4096))->config().contains("rope_scaling"));
  EXPECT_EQ((*make_hf_mapper(spec, 8192))->config()["rope_scaling"]["factor"], 40);
  EXPECT_EQ((*make_hf_mapper(spec))->config()["max_position_embeddings"], 163840);
}

// Relevant parts of the releases' config.json, as several versions of transformers write it. Each must pass for its
// flavor, and fail with one wrong number.
struct Release {
  const char* family;
  const char* flavor;
  const char* config;
  const char* change;  // A JSON pointer into it, and a value that no such model has.
  const char* to;
  const char* complaint;
  const char* taken = "";  // A value that differs from the flavor's and that training takes over from the file.
};

constexpr Release kReleases[] = {
    {"llama3", "8B",
     R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false, "eos_token_id": [128001, 128008, 128009],
         "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 131072,
         "mlp_bias": false, "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
         "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 8.0,
         "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_type": "llama3"},
         "rope_theta": 500000.0, "tie_word_embeddings": false, "torch_dtype": "bfloat16", "vocab_size": 128256})",
     "/num_key_value_heads", "16", "num_key_value_heads 16, this model has 8"},
    // Llama 3: torchtitan's flavors load it, although they stretch positions as 3.1 does.
    {"llama3", "8B",
     R"({"model_type": "llama", "hidden_size": 4096, "intermediate_size": 14336, "max_position_embeddings": 8192,
         "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_scaling": null, "rope_theta": 500000.0,
         "vocab_size": 128256})",
     "/num_hidden_layers", "40", "num_hidden_layers 40, this model has 32", "rope_scaling null, this model has {"},
    // The form of transformers 5.
    {"llama3", "1B",
     R"({"model_type": "llama", "hidden_size": 2048, "head_dim": 64, "intermediate_size": 8192, "num_hidden_layers": 16,
         "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_parameters": {"factor": 32.0, "high_freq_factor": 4.0,
         "low_freq_factor": 1.0, "original_max_position_embeddings": 8192, "rope_theta": 500000.0, "rope_type": "llama3"},
         "tie_word_embeddings": true, "vocab_size": 128256})",
     "/rope_parameters/rope_type", "\"dynamic\"", "rope_parameters is "},
    {"llama4", "17bx16e_released",
     R"({"architectures": ["Llama4ForConditionalGeneration"], "model_type": "llama4", "tie_word_embeddings": false,
         "text_config": {"attention_bias": false, "attention_chunk_size": 8192, "attn_scale": 0.1,
         "attn_temperature_tuning": 4, "floor_scale": 8192, "head_dim": 128, "hidden_act": "silu", "hidden_size": 5120,
         "interleave_moe_layer_step": 1, "intermediate_size": 8192, "intermediate_size_mlp": 16384,
         "max_position_embeddings": 10485760, "model_type": "llama4_text", "no_rope_layers": [], "num_attention_heads": 40,
         "num_experts_per_tok": 1, "num_hidden_layers": 48, "num_key_value_heads": 8, "num_local_experts": 16,
         "rms_norm_eps": 1e-05, "rope_scaling": {"factor": 16.0, "high_freq_factor": 1.0, "low_freq_factor": 1.0,
         "original_max_position_embeddings": 8192, "rope_type": "llama3"}, "rope_theta": 500000.0, "use_qk_norm": true,
         "vocab_size": 202048}, "vision_config": {"hidden_size": 1408}})",
     "/text_config/use_qk_norm", "false", "use_qk_norm false, this model has true"},
    {"deepseek_v3", "671B",
     R"({"attention_bias": false, "aux_loss_alpha": 0.001, "ep_size": 1, "first_k_dense_replace": 3, "hidden_act": "silu",
         "hidden_size": 7168, "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
         "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
         "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true, "num_attention_heads": 128,
         "num_experts_per_tok": 8, "num_hidden_layers": 61, "num_key_value_heads": 128, "num_nextn_predict_layers": 1,
         "q_lora_rank": 1536, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "rms_norm_eps": 1e-06,
         "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0, "mscale_all_dim": 1.0,
         "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 2.5,
         "scoring_func": "sigmoid", "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
         "v_head_dim": 128, "vocab_size": 129280})",
     "/routed_scaling_factor", "1.0", "routed_scaling_factor 1.0, this model has 2.5",
     "rms_norm_eps 1e-06, this model has 1e-05; rope_scaling {"},
    {"deepseek_v3", "16B",
     R"({"first_k_dense_replace": 1, "hidden_size": 2048, "intermediate_size": 10944, "kv_lora_rank": 512,
         "max_position_embeddings": 163840, "model_type": "deepseek_v2", "moe_intermediate_size": 1408,
         "num_attention_heads": 16, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
         "n_group": 1, "n_routed_experts": 64, "n_shared_experts": 2, "norm_topk_prob": false, "num_experts_per_tok": 6,
         "num_hidden_layers": 27, "num_key_value_heads": 16, "q_lora_rank": null, "rms_norm_eps": 1e-06,
         "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 0.707, "mscale_all_dim": 0.707,
         "original_max_position_embeddings": 4096, "type": "yarn"}, "rope_theta": 10000, "routed_scaling_factor": 1.0,
         "scoring_func": "softmax", "topk_group": 1, "topk_method": "greedy", "vocab_size": 102400})",
     "/num_experts_per_tok", "8", "num_experts_per_tok 8, this model has 6", "\"mscale\":0.707"},
    {"qwen3", "0.6B",
     R"({"attention_bias": false, "head_dim": 128, "hidden_act": "silu", "hidden_size": 1024, "intermediate_size": 3072,
         "max_position_embeddings": 40960, "max_window_layers": 28, "model_type": "qwen3", "num_attention_heads": 16,
         "num_hidden_layers": 28, "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null,
         "rope_theta": 1000000, "sliding_window": null, "tie_word_embeddings": true, "use_sliding_window": false,
         "vocab_size": 151936})",
     "/tie_word_embeddings", "false", "tie_word_embeddings false, this model has true"},
    {"qwen3", "30B-A3B",
     R"({"decoder_sparse_step": 1, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "mlp_only_layers": [],
         "model_type": "qwen3_moe", "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
         "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4,
         "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "tie_word_embeddings": false, "vocab_size": 151936})",
     "/model_type", "\"qwen3\"", "decoder_sparse_step is 1: Titan does not compute it for qwen3"},
    {"gpt_oss", "20b",
     R"({"attention_bias": true, "experts_per_token": 4, "head_dim": 64, "hidden_act": "silu", "hidden_size": 2880,
         "initial_context_length": 4096, "intermediate_size": 2880, "model_type": "gpt_oss", "num_attention_heads": 64,
         "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 8, "num_local_experts": 32,
         "quantization_config": {"quant_method": "mxfp4"}, "rms_norm_eps": 1e-05, "rope_scaling": {"beta_fast": 32.0,
         "beta_slow": 1.0, "factor": 32.0, "original_max_position_embeddings": 4096, "rope_type": "yarn",
         "truncate": false}, "rope_theta": 150000, "sliding_window": 128, "swiglu_limit": 7.0,
         "tie_word_embeddings": false, "vocab_size": 201088})",
     "/sliding_window", "4096", "sliding_window 4096, this model has 128"}};

TEST(HfNamesTest, ReleasedConfigsPassAndDifferencesAreNamed) {
  const std::string folder = ::testing::TempDir() + "configs." + std::to_string(::getpid());
  storage::Files& files = storage::posix_files();
  ASSERT_TRUE(files.make_folders(folder).ok());
  for (const Release& release : kReleases) {
    SCOPED_TRACE(std::string(release.family) + " " + release.flavor);
    std::string taken;
    const auto check = [&](const nlohmann::json& config) {
      EXPECT_TRUE(storage::atomic_write(files, folder + "/config.json", config.dump()).ok());
      taken.clear();
      const auto spec =
          checkpoint::with_numbers_of_hf(files, folder, *models::find(release.family, release.flavor), taken);
      return checkpoint::check_hf_config(files, folder, *make_hf_mapper(*spec, 4096).value());
    };
    nlohmann::json config = nlohmann::json::parse(release.config);
    const auto passed = check(config);
    ASSERT_TRUE(passed.ok()) << passed.status();
    EXPECT_TRUE(passed->empty()) << passed->front();
    EXPECT_EQ(taken.empty(), *release.taken == '\0') << taken;
    EXPECT_THAT(taken, ::testing::HasSubstr(release.taken));
    config[nlohmann::json::json_pointer(release.change)] = nlohmann::json::parse(release.to);
    const absl::Status refused = check(config).status();
    EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr(release.complaint));
  }
  ASSERT_TRUE(files.remove_folder(folder).ok());
}

// An import accepts the config.json of an export.
TEST(HfNamesTest, ExportedConfigsPass) {
  const std::string folder = ::testing::TempDir() + "exported." + std::to_string(::getpid());
  storage::Files& files = storage::posix_files();
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : {models::flavors(name).front(), models::flavors(name).back()}) {
      const auto mapper = mapper_of(name, flavor);
      ASSERT_TRUE(files.make_folders(folder).ok());
      ASSERT_TRUE(storage::atomic_write(files, folder + "/config.json", mapper->config().dump()).ok());
      const auto passed = checkpoint::check_hf_config(files, folder, *mapper);
      ASSERT_TRUE(passed.ok()) << passed.status();
      if (name == "deepseek_v3") {  // The flavor has torchtitan's epsilon.
        EXPECT_THAT(*passed,
                    ::testing::ElementsAre(::testing::HasSubstr("rms_norm_eps 1e-05: transformers uses 1e-06")));
      } else {
        EXPECT_TRUE(passed->empty()) << passed->front();
      }
    }
  }
  ASSERT_TRUE(files.remove_folder(folder).ok());
}

// A model needs no flavor: its config.json describes it fully.
TEST(HfNamesTest, ConfigDescribesTheWholeModel) {
  for (const std::string& name : models::names()) {
    for (const std::string& flavor : models::flavors(name)) {
      const models::ModelSpec spec = *models::find(name, flavor);
      if (spec.flux || spec.vision) continue;  // diffusers' config.json, and two in one: see plan_test and vision_test.
      SCOPED_TRACE(name + " " + flavor);
      for (const int64_t seq_len : {0, 2048}) {  // DeepSeek's positions are stretched for the second.
        const nlohmann::json config = make_hf_mapper(*models::find(name, flavor), seq_len).value()->config();
        const auto read = hf_config::read_model(config);
        ASSERT_TRUE(read.ok()) << read.status();
        EXPECT_EQ(make_hf_mapper(read->spec).value()->config(), config);
        // titanctl compares a folder with the flavor.
        const models::ModelSpec flavor_spec = *models::find(name, flavor);
        EXPECT_EQ(hf_config::model_type_of(flavor_spec), read->model_type);
        for (const auto& one : hf_config::compare(*read, {.spec = flavor_spec, .model_type = read->model_type}))
          EXPECT_TRUE(one.takeable) << one.key << " " << one.there << " " << one.here;
      }
    }
  }
}

// Draws a value for a key of a configuration class, of the type of its default.
nlohmann::json drawn(std::mt19937& random, const std::string& key, const nlohmann::json& usual, int64_t layers) {
  const auto draw = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  if (key == "layer_types") {
    const int64_t first = draw(0, layers), step = draw(1, 4);
    nlohmann::json types = nlohmann::json::array();
    for (int64_t layer = 0; layer < layers; ++layer)
      types.push_back(layer >= first && (layer + 1) % step != 0 ? "sliding_attention" : "full_attention");
    return types;
  }
  if (key == "sliding_window") return draw(1, 64);
  if (key == "max_window_layers") return draw(0, layers);
  if (key == "head_dim") return 2 * draw(4, 32);
  if (key == "partial_rotary_factor") return 0.25 * static_cast<double>(draw(2, 4));
  if (usual.is_boolean()) return draw(0, 1) == 1;
  if (usual.is_number_integer()) return draw(2, 12);
  if (usual.is_number_float() || key.ends_with("softcapping"))
    return std::exp(0.1 * static_cast<double>(draw(-20, 20)));
  return usual;
}

// A job may give a family numbers that its class of transformers does not have. Such a model has no config.json.
TEST(HfNamesTest, NumbersWithoutAKeyAreRefused) {
  models::ModelSpec spec = *models::find("llama3", "debugmodel");
  spec.n_layers = 3;
  spec.rope_scaling.reset();
  EXPECT_TRUE(make_hf_mapper(spec).ok()) << make_hf_mapper(spec).status();
  spec.norm_placement = models::NormPlacement::kPost;
  const absl::Status refused = make_hf_mapper(spec).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), ::testing::HasSubstr("norm_placement is \"post\""));
}

// An export of a model says what its config.json said, for any numbers.
TEST(HfNamesTest, RandomConfigsComeBack) {
  std::mt19937 random(::testing::UnitTest::GetInstance()->random_seed());
  for (const auto& [type, config_class] : hf_config::config_classes()) {
    SCOPED_TRACE(type);
    int read_ones = 0;
    for (int round = 0; round < 40; ++round) {
      nlohmann::json config = {{"model_type", type}, {"vocab_size", 200}, {"num_experts_per_tok", 2}};
      if (!config_class.computed.contains("num_experts_per_tok")) config.erase("num_experts_per_tok");
      const auto layers = std::uniform_int_distribution<int64_t>(2, 13)(random);
      config["num_hidden_layers"] = layers;
      for (const auto& [key, usual] : config_class.computed.items()) {
        if (config.contains(key) || random() % 2 == 0) continue;
        config[key] = drawn(random, key, usual, layers);
      }
      config["hidden_size"] =
          32 * config.value("num_attention_heads", config_class.computed["num_attention_heads"].get<int64_t>());
      const auto read = hf_config::read_model(config);
      if (!read.ok()) continue;  // Numbers that do not go together.
      ++read_ones;
      const nlohmann::json exported = make_hf_mapper(read->spec).value()->config();
      const auto again = hf_config::read_model(exported);
      ASSERT_TRUE(again.ok()) << again.status() << exported;
      EXPECT_EQ(models::to_json(again->spec), models::to_json(read->spec)) << config;
      EXPECT_EQ(make_hf_mapper(again->spec).value()->config(), exported);
    }
    EXPECT_GE(read_ones, 3);
  }
}

TEST(HfNamesTest, ReleasedConfigGivesItsModel) {
  const std::string folder = ::testing::TempDir() + "released." + std::to_string(::getpid());
  storage::Files& files = storage::posix_files();
  ASSERT_TRUE(files.make_folders(folder).ok());
  for (const Release& release : kReleases) {
    SCOPED_TRACE(std::string(release.family) + " " + release.flavor);
    const nlohmann::json config = nlohmann::json::parse(release.config);
    ASSERT_TRUE(storage::atomic_write(files, folder + "/config.json", release.config).ok());
    const auto read = hf_config::read_model(config);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(read->spec.name, release.family);
    const auto passed = checkpoint::check_hf_config(files, folder, *make_hf_mapper(read->spec).value());
    ASSERT_TRUE(passed.ok()) << passed.status();
    EXPECT_TRUE(passed->empty()) << passed->front();
  }
  ASSERT_TRUE(files.remove_folder(folder).ok());
}

// Missing members get the defaults of transformers' class, not the values of a similar flavor.
TEST(HfNamesTest, MissingMembersGetTheClassDefaults) {
  const auto without = [](const char* family, const char* flavor, std::vector<const char*> keys) {
    nlohmann::json config = mapper_of(family, flavor)->config();
    for (const char* key : keys) EXPECT_EQ(config.erase(key), 1u) << key;
    return hf_config::read_model(config).value().spec;
  };
  const models::ModelSpec llama = without("llama3", "8B", {"rope_theta", "rms_norm_eps"});
  EXPECT_EQ(llama.rope_theta, 1e4);
  EXPECT_EQ(llama.norm_eps, 1e-6);
  EXPECT_EQ(without("llama3", "8B", {"rope_theta"}).norm_eps, models::find("llama3", "8B")->norm_eps);
  const models::ModelSpec qwen = without("qwen3", "0.6B", {"head_dim", "rope_theta"});
  EXPECT_EQ(qwen.head_dim, 128);  // For a model with 16 heads, 1,024 wide.
  EXPECT_EQ(qwen.rope_theta, 1e4);
  const models::ModelSpec experts = without("qwen3", "30B-A3B", {"head_dim", "norm_topk_prob"});
  EXPECT_EQ(experts.head_dim, experts.dim / experts.n_heads);
  EXPECT_FALSE(experts.moe->route_norm);
  EXPECT_EQ(without("gpt_oss", "20b", {"head_dim", "rope_theta"}).rope_theta, 1.5e5);
}

TEST(HfNamesTest, RefusesUnsupportedConfigsByKey) {
  const nlohmann::json llama = mapper_of("llama3", "8B")->config();
  const auto refusal = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json config = llama;
    config[nlohmann::json::json_pointer(pointer)] = value;
    return std::string(hf_config::read_model(config).status().message());
  };
  EXPECT_THAT(refusal("/model_type", "mamba"), ::testing::HasSubstr("model_type is \"mamba\"; deepseek_v2"));
  EXPECT_THAT(refusal("/model_type", 5), ::testing::HasSubstr("model_type is 5; a text"));
  EXPECT_THAT(refusal("/hidden_act", "gelu"), ::testing::HasSubstr("hidden_act is \"gelu\"; only \"silu\""));
  EXPECT_THAT(refusal("/attention_scale", 2), ::testing::HasSubstr("attention_scale is 2: Titan does not compute it"));
  EXPECT_THAT(refusal("/hidden_size", -4), ::testing::HasSubstr("hidden_size is -4"));
  EXPECT_THAT(refusal("/hidden_size", "x"), ::testing::HasSubstr("hidden_size is \"x\""));
  EXPECT_THAT(refusal("/rope_scaling", {{"rope_type", "dynamic"}, {"factor", 2}}),
              ::testing::HasSubstr("rope_scaling"));
  EXPECT_THAT(refusal("/rope_scaling/factor", "x"), ::testing::HasSubstr("factor is \"x\""));
  EXPECT_FALSE(hf_config::read_model(nullptr).ok());
  EXPECT_FALSE(hf_config::read_model(nlohmann::json::array()).ok());
}

}  // namespace
}  // namespace titan::model
