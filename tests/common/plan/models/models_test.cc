#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "absl/strings/str_replace.h"
#include "common/plan/models/registry.h"
#include "common/plan/models/repository.h"
#include "common/plan/models/sizes.h"
#include "common/plan/models/spec_checks.h"

namespace titan::models {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

ModelSpec spec(const std::string& name, const std::string& flavor) {
  const auto found = find(name, flavor);
  EXPECT_TRUE(found.ok()) << found.status();
  return found.value_or(ModelSpec{});
}

struct Expected {
  const char* name;
  const char* flavor;
  int64_t params, reported, flops_2048, flops_8192;
};

// torchtitan 0.2.2's counts on the meta device (models_oracle_test compares every tensor with the package).
constexpr Expected kExpected[] = {
    {"llama3", "debugmodel", 6163712, 6163712, 71585280, 184831488},
    {"llama3", "debugmodel_flex_attn", 6163712, 6163712, 71585280, 184831488},
    {"llama3", "debugmodel_varlen_attn", 6163712, 6163712, 71585280, 184831488},
    {"llama3", "8B", 8030261248, 8030261248, 48250773504, 57914449920},
    {"llama3", "8B_flex", 8030261248, 8030261248, 48250773504, 57914449920},
    {"llama3", "8B_varlen", 8030261248, 8030261248, 48250773504, 57914449920},
    {"llama3", "70B", 70553706496, 70553706496, 433124327424, 481442709504},
    {"llama3", "405B", 405853388800, 405853388800, 2473246556160, 2625449459712},
    {"llama4", "debugmodel", 15017216, 15017216, 75161088, 188407296},
    {"llama4", "17bx16e", 107769861120, 107769861120, 102870251520, 120989644800},
    {"llama4", "17bx128e", 400711848960, 400711848960, 102941030400, 121060423680},
    {"llama4", "debugmodel_irope", 15017216, 15017216, 75161088, 188407296},
    {"llama4", "17bx16e_irope", 107769861120, 107769861120, 102870251520, 120989644800},
    {"llama4", "17bx128e_irope", 400711848960, 400711848960, 102941030400, 121060423680},
    {"deepseek_v3", "debugmodel", 33014016, 33014016, 542934528, 1675396608},
    {"deepseek_v3", "debugmodel_flex_attn", 33014016, 33014016, 542934528, 1675396608},
    {"deepseek_v3", "16B", 15706484224, 15706484224, 16407303168, 21503382528},
    {"deepseek_v3", "236B", 235741434880, 235741434880, 155308062720, 245905029120},
    {"deepseek_v3", "671B", 671026404352, 671026404352, 250455926784, 342562842624},
    {"qwen3", "debugmodel", 31987968, 31463680, 591435264, 1799394816},
    {"qwen3", "0.6B", 596049920, 440467456, 4052090880, 8279949312},
    {"qwen3", "1.7B", 1720574976, 1409410048, 9865746432, 14093604864},
    {"qwen3", "4B", 4022468096, 3633511936, 25424950272, 36296586240},
    {"qwen3", "8B", 8190735360, 8190735360, 49034311680, 59905947648},
    {"qwen3", "14B", 14768307200, 14768307200, 88975534080, 104075028480},
    {"qwen3", "32B", 32762123264, 32762123264, 204790167552, 243444873216},
    {"qwen3", "debugmodel_moe", 315758848, 315758848, 708613632, 1916573184},
    {"qwen3", "30B-A3B", 30532122624, 30532122624, 23083044864, 37578559488},
    {"qwen3", "235B-A22B", 235093634560, 235093634560, 148335301632, 205109400576},
    {"gpt_oss", "debugmodel", 183397920, 183397920, 981255360, 2189214912},
    {"gpt_oss", "20b", 20914757184, 20914757184, 24065762688, 31313520000},
    {"gpt_oss", "120b", 116829156672, 116829156672, 34420975488, 45292611456},
};

// Families that torchtitan lacks, as transformers' classes count them.
struct Counted {
  const char *name, *flavor;
  int64_t params;
};
constexpr Counted kCounted[] = {
    {"mistral", "debugmodel", 1213568}, {"mistral", "7B", 7248023552},      {"mistral", "7B_v0.1", 7241732096},
    {"mistral", "12B", 12247782400},    {"mistral", "24B", 23572403200},    {"mixtral", "debugmodel", 1510528},
    {"mixtral", "8x7B", 46702792704},   {"mixtral", "8x22B", 140620634112}, {"qwen2", "debugmodel", 854144},
    {"qwen2", "0.5B", 494032768},       {"qwen2", "1.5B", 1543714304},      {"qwen2", "3B", 3085938688},
    {"qwen2", "7B", 7615616512},        {"qwen2", "14B", 14770033664},      {"qwen2", "32B", 32763876352},
    {"qwen2", "72B", 72706203648},      {"smollm3", "debugmodel", 853120},  {"smollm3", "3B", 3075098624},
    {"phi3", "debugmodel", 1115264},    {"phi3", "mini-4k", 3821079552},    {"phi3", "medium-4k", 13960238080},
    {"phi3", "phi-4", 14659507200},     {"olmo2", "debugmodel", 1116032},   {"olmo2", "1B", 1484916736},
    {"olmo2", "7B", 7298617344},        {"olmo2", "13B", 13716198400},      {"olmo2", "32B", 32234279936},
    {"glm4", "debugmodel", 1166592},    {"glm4", "9B", 9400279040},         {"gemma2", "debugmodel", 952448},
    {"gemma2", "2B", 2614341888},       {"gemma2", "9B", 9241705984},       {"gemma2", "27B", 27227128320},
    {"gemma3", "debugmodel", 1470416},  {"gemma3", "270M", 268098176},      {"gemma3", "1B", 999885952},
    {"gemma3", "4B", 3880263168},       {"gemma3", "12B", 11766034176},     {"gemma3", "27B", 27009346304},
    {"granite", "debugmodel", 853120},  {"granite", "2B", 2533531648},      {"granite", "8B", 8170848256},
};

TEST(ModelsTest, CountsMatchTransformers) {
  for (const Counted& counted : kCounted)
    EXPECT_EQ(parameter_count(spec(counted.name, counted.flavor)), counted.params)
        << counted.name << " " << counted.flavor;
}

TEST(ModelsTest, CountsMatchTorchtitan) {
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(std::string(expected.name) + " " + expected.flavor);
    const ModelSpec model = spec(expected.name, expected.flavor);
    EXPECT_EQ(parameter_count(model), expected.params);
    EXPECT_EQ(reported_parameter_count(model), expected.reported);
    EXPECT_EQ(flops_per_token(model, 2048), expected.flops_2048);
    EXPECT_EQ(flops_per_token(model, 8192), expected.flops_8192);
  }
}

// The tables above have every flavor except the six that only Titan has, the five of Flux (flux_test.cc), two with
// SigLIP 2 (vision_spec_test.cc) and the four of Qwen3-VL (qwen3_vl_test.cc).
TEST(ModelsTest, EveryFlavorIsPinned) {
  size_t flavors_found = 0;
  for (const std::string& name : names()) flavors_found += flavors(name).size();
  EXPECT_EQ(flavors_found, std::size(kExpected) + std::size(kCounted) + 6 + 5 + 2 + 4);
}

// The tied sizes of Llama 3.2, as Hugging Face counts them.
TEST(ModelsTest, TiedLlamas) {
  EXPECT_EQ(parameter_count(spec("llama3", "1B")), 1235814400);
  EXPECT_EQ(parameter_count(spec("llama3", "3B")), 3212749824);
}

// Every fourth layer has no positions and no chunked attention; the released weights start at another layer.
TEST(ModelsTest, ReleasedLlama4PutsItsGlobalLayersLast) {
  const ModelSpec trained = spec("llama4", "17bx16e_irope"), released = spec("llama4", "17bx16e_released");
  EXPECT_EQ(parameter_count(trained), parameter_count(released));
  for (const int64_t layer : {0, 3, 4, 7}) {
    EXPECT_EQ(trained.layer_has_positions(layer), layer % 4 != 0);
    EXPECT_EQ(released.layer_has_positions(layer), layer % 4 != 3);
    EXPECT_EQ(released.layer_chunk(layer), layer % 4 != 3 ? 8192 : 0);
  }
  EXPECT_TRUE(released.rotated_qk_norm);
  EXPECT_FALSE(spec("llama4", "17bx128e_released").rotated_qk_norm);
  EXPECT_TRUE(spec("llama4", "17bx16e").layer_has_positions(0));
  EXPECT_EQ(spec("gpt_oss", "20b").layer_window(2), 128);
  EXPECT_EQ(spec("gpt_oss", "20b").layer_window(3), 0);
}

TEST(ModelsTest, BenchFlavor) {
  const ModelSpec bench = spec("llama3", "bench");
  EXPECT_EQ(bench.dim, 1024);
  EXPECT_EQ(bench.n_layers, 8);
  EXPECT_EQ(bench.head_dim, 64);
  EXPECT_EQ(bench.n_kv_heads, 8);
  EXPECT_EQ(bench.ffn_hidden, 2816);
  EXPECT_EQ(bench.vocab_size, 2048);
  const int64_t layer = 1024 * 1024 * 2 + 1024 * 512 * 2 + 3 * 1024 * 2816 + 2 * 1024;
  EXPECT_EQ(parameter_count(bench), 8 * layer + 2 * 2048 * 1024 + 1024);
}

TEST(ModelsTest, FeedForwardWidths) {
  EXPECT_EQ(spec("llama3", "debugmodel").ffn_hidden, 768);
  EXPECT_EQ(spec("llama3", "8B").ffn_hidden, 14336);
  EXPECT_EQ(spec("llama3", "70B").ffn_hidden, 28672);
  EXPECT_EQ(spec("llama3", "405B").ffn_hidden, 53248);
  EXPECT_EQ(llama_ffn_hidden(2048, 1.5, 1024), 8192);  // The value of Llama 3.2 1B.
}

TEST(ModelsTest, BlocksAddUpToTheModel) {
  for (const Expected& expected : kExpected) {
    SCOPED_TRACE(std::string(expected.name) + " " + expected.flavor);
    const ModelSpec model = spec(expected.name, expected.flavor);
    const std::vector<BlockSize> blocks = block_sizes(model);
    ASSERT_EQ(blocks.size(), static_cast<size_t>(model.n_layers) + 2);
    EXPECT_EQ(blocks.front().name, "tok_embeddings");
    EXPECT_EQ(blocks[1].name, "layers.0");
    EXPECT_EQ(blocks.back().name, "output");
    int64_t experts = 0;
    for (int64_t layer = 0; layer < model.n_layers; ++layer) {
      const BlockSize& block = blocks[layer + 1];
      EXPECT_EQ(block.expert_params > 0, model.layer_has_experts(layer)) << block.name;
      EXPECT_LE(block.active_params, block.params);
      experts += block.expert_params;
    }
    EXPECT_EQ(experts > 0, model.moe.has_value());
  }
}

TEST(ModelsTest, ExpertLayersFollowTheTable) {
  const ModelSpec maverick = spec("llama4", "17bx128e"), deepseek = spec("deepseek_v3", "671B");
  EXPECT_FALSE(maverick.layer_has_experts(0));
  EXPECT_TRUE(maverick.layer_has_experts(1));
  EXPECT_FALSE(deepseek.layer_has_experts(2));
  EXPECT_TRUE(deepseek.layer_has_experts(3));
  EXPECT_FALSE(spec("llama3", "8B").layer_has_experts(0));
}

TEST(ModelsTest, ActiveParametersNameTheSize) {
  const auto active = [](const ModelSpec& model) {
    int64_t sum = model.vocab_size * model.dim;
    for (const BlockSize& block : block_sizes(model)) sum += block.active_params;
    return static_cast<double>(sum) / 1e9;
  };
  EXPECT_NEAR(active(spec("qwen3", "30B-A3B")), 3.3, 0.1);
  EXPECT_NEAR(active(spec("qwen3", "235B-A22B")), 22, 0.5);
  EXPECT_NEAR(active(spec("llama4", "17bx128e")), 17, 0.5);
  EXPECT_NEAR(active(spec("deepseek_v3", "671B")), 37, 1);
}

TEST(ModelsTest, UnknownNamesGetTheNearest) {
  const auto message = [](const std::string& name, const std::string& flavor) {
    const auto found = find(name, flavor);
    EXPECT_EQ(found.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(found.status().message());
  };
  EXPECT_THAT(message("lama3", "8B"), AllOf(HasSubstr("model.name"), HasSubstr("\"lama3\""),
                                            HasSubstr("did you mean \"llama3\"?"), HasSubstr("deepseek_v3")));
  EXPECT_THAT(message("llama3", "8b"), AllOf(HasSubstr("model.flavor of llama3"), HasSubstr("did you mean \"8B\"?")));
  EXPECT_THAT(message("llama3", "debug"), HasSubstr("did you mean \"debugmodel\"?"));
  EXPECT_THAT(message("bert", "base"), AllOf(HasSubstr("known: llama3, llama4"), ::testing::Not(HasSubstr("did you"))));
}

TEST(ConsistencyTest, EveryFlavorIsConsistent) {
  for (const std::string& name : names()) {
    for (const std::string& flavor : flavors(name)) EXPECT_EQ(inconsistency(spec(name, flavor)), "") << flavor;
  }
}

TEST(ConsistencyTest, ContradictionsAreNamed) {
  const auto wrong = [](const char* name, const char* flavor, const std::function<void(ModelSpec&)>& change) {
    ModelSpec changed = spec(name, flavor);
    change(changed);
    return inconsistency(changed);
  };
  EXPECT_EQ(wrong("llama3", "8B", [](ModelSpec& s) { s.n_kv_heads = 5; }),
            "n_heads: 32 is not a multiple of n_kv_heads, 5");
  EXPECT_EQ(wrong("llama3", "8B", [](ModelSpec& s) { s.n_kv_heads = 0; }),
            "n_heads: 32 is not a multiple of n_kv_heads, 0");
  EXPECT_EQ(wrong("llama3", "8B", [](ModelSpec& s) { s.n_layers = 0; }), "n_layers: 0 is not above 0");
  EXPECT_EQ(wrong("llama3", "8B", [](ModelSpec& s) { s.head_dim = -1; }), "head_dim: -1 is not above 0");
  EXPECT_EQ(wrong("deepseek_v3", "671B", [](ModelSpec& s) { s.head_dim = 128; }),
            "head_dim: 128 is not qk_nope_head_dim + qk_rope_head_dim, 128 + 64");
  EXPECT_EQ(wrong("deepseek_v3", "671B", [](ModelSpec& s) { s.moe->top_k = 300; }),
            "moe.top_k: 300 is more than moe.num_experts, 256");
  EXPECT_EQ(wrong("deepseek_v3", "671B", [](ModelSpec& s) { s.moe->num_expert_groups = 7; }),
            "moe.num_experts: 256 is not a multiple of moe.num_expert_groups, 7");
  EXPECT_EQ(wrong("deepseek_v3", "671B", [](ModelSpec& s) { s.moe->num_limited_groups = 9; }),
            "moe.num_limited_groups: 9 is not from 1 to moe.num_expert_groups, 8");
  EXPECT_EQ(wrong("qwen3", "30B-A3B", [](ModelSpec& s) { s.moe->score_func = "relu"; }),
            "moe.score_func: \"relu\" is neither sigmoid nor softmax");
}

// Options of decoders that have no meaning, or that are not computed together, are named.
TEST(ConsistencyTest, OptionsOfDecodersAreChecked) {
  const auto wrong = [](const char* name, const char* flavor, const std::function<void(ModelSpec&)>& change) {
    ModelSpec changed = spec(name, flavor);
    change(changed);
    return inconsistency(changed);
  };
  const auto llama = [&](const std::function<void(ModelSpec&)>& change) { return wrong("llama3", "8B", change); };
  EXPECT_EQ(llama([](ModelSpec& s) { s.rotary_dim = 3; }),
            "rotary_dim: 3 is not an even number from 0 to head_dim, 128");
  EXPECT_EQ(llama([](ModelSpec& s) { s.rotary_dim = 130; }),
            "rotary_dim: 130 is not an even number from 0 to head_dim, 128");
  EXPECT_EQ(llama([](ModelSpec& s) { s.qk_norm_whole = true; }), "qk_norm_whole: it needs qk_norm");
  EXPECT_EQ(llama([](ModelSpec& s) { s.window_rope_theta = 1e4; }), "window_rope_theta: it needs a sliding_window");
  EXPECT_EQ(llama([](ModelSpec& s) { s.sliding_window = -1; }), "sliding_window: -1 is below 0");
  EXPECT_EQ(llama([](ModelSpec& s) { s.window_step = -2; }), "window_step: -2 is below 0");
  EXPECT_EQ(llama([](ModelSpec& s) { s.window_first_layer = -2; }), "window_first_layer: -2 is below 0");
  EXPECT_EQ(llama([](ModelSpec& s) { s.attention_softcap = -1; }), "attention_softcap: -1 is not 0 or above");
  EXPECT_EQ(llama([](ModelSpec& s) { s.logit_softcap = NAN; }), "logit_softcap: nan is not 0 or above");
  EXPECT_EQ(llama([](ModelSpec& s) { s.logit_divisor = 0; }), "logit_divisor: 0 is not above 0");
  EXPECT_EQ(llama([](ModelSpec& s) { s.residual_scale = -1; }), "residual_scale: -1 is not above 0");
  EXPECT_EQ(llama([](ModelSpec& s) { s.norm_offset = 0.5; }), "norm_offset: 0.5 is neither 0 nor 1");
  EXPECT_EQ(wrong("deepseek_v3", "671B", [](ModelSpec& s) { s.attention_softcap = 30; }),
            "attention_softcap: latent attention has no such option");
  EXPECT_EQ(wrong("qwen3", "30B-A3B", [](ModelSpec& s) { s.activation = Activation::kGeluTanh; }),
            "activation: experts compute silu only");
  EXPECT_EQ(wrong("qwen3", "30B-A3B",
                  [](ModelSpec& s) {
                    s.ffn_hidden = 0;
                    s.mlp_bias = true;
                  }),
            "mlp_bias: no layer has a dense feed-forward");
}

// Every number in a manifest identifies its model, except those that training may change.
TEST(IdentityTest, EveryNumberCounts) {
  const std::set<std::string> of_training = {"flavor", "max_seq_len", "mask",
                                             "eos_id", "depth_init",  "moe.load_balance_coeff"};
  const std::set<std::string> positions = {"rope_theta", "window_rope_theta", "rope_scaling", "yarn"};
  ModelSpec all = spec("deepseek_v3", "671B");
  all.rope_scaling = LlamaRopeScaling{};
  const nlohmann::json stored = to_json(all).flatten();
  EXPECT_EQ(stored.size(), 81u) << "a new member of a spec belongs into visit_members() and into this count";
  for (const auto& [pointer, value] : stored.items()) {
    nlohmann::json other = stored;
    if (value.is_null()) other[pointer] = 1;
    if (value.is_string()) other[pointer] = value.get<std::string>() + "!";
    if (value.is_boolean()) other[pointer] = !value.get<bool>();
    if (value.is_number()) other[pointer] = value.get<double>() + 1;
    const std::string name = absl::StrReplaceAll(pointer.substr(1), {{"/", "."}});
    const std::vector<SpecDifference> found = differences(other.unflatten(), all);
    ASSERT_EQ(found.size(), of_training.contains(name) ? 0u : 1u) << name;
    if (found.empty()) continue;
    EXPECT_EQ(found[0].name, name);
    EXPECT_EQ(found[0].positions, positions.contains(name.substr(0, name.find('.')))) << name;
    EXPECT_EQ(found[0].here, value.dump());
  }
}

TEST(RepositoryTest, EveryReleasedFlavorHasARepository) {
  for (const std::string& name : names()) {
    for (const std::string& flavor : flavors(name)) {
      const bool own = flavor.find("debug") != flavor.npos || flavor == "bench" || flavor == "flux-tiny";
      EXPECT_EQ(repository(name, flavor).empty(), own) << name << " " << flavor;
    }
  }
  EXPECT_EQ(tokenizer_advice("llama3", "8B"),
            "`titanctl assets get meta-llama/Llama-3.1-8B --assets tokenizer` downloads one");
  EXPECT_THAT(tokenizer_advice("somebodys", "own"), HasSubstr("get ORG/NAME --assets"));
}

TEST(IdentityTest, FlavorsThatDifferOnlyInMaskAreEqual) {
  EXPECT_TRUE(differences(to_json(spec("llama3", "8B")), spec("llama3", "8B_flex")).empty());
  EXPECT_FALSE(differences(to_json(spec("llama3", "debugmodel")), spec("llama3", "8B")).empty());
  // One model has experts, the other has none: the missing group is one difference.
  const auto found = differences(to_json(spec("qwen3", "8B")), spec("qwen3", "30B-A3B"));
  EXPECT_TRUE(std::any_of(found.begin(), found.end(), [](const SpecDifference& one) { return one.name == "moe"; }));
  EXPECT_EQ(label(to_json(spec("qwen3", "8B"))), "qwen3 8B");
}

// A member that a later version adds to a spec must not make older checkpoints look like another model's.
TEST(IdentityTest, MissingMemberHasItsDefault) {
  nlohmann::json stored = to_json(spec("llama3", "8B"));
  stored.erase("swiglu_limit");
  stored["of_a_later_version"] = 1;
  EXPECT_TRUE(differences(stored, spec("llama3", "8B")).empty());
  stored.erase("qk_norm");
  ModelSpec other = spec("llama3", "8B");
  other.qk_norm = true;
  EXPECT_EQ(differences(stored, other).size(), 1u);
  nlohmann::json experts = to_json(spec("qwen3", "30B-A3B"));
  experts["moe"].erase("gate_bias");
  EXPECT_TRUE(differences(experts, spec("qwen3", "30B-A3B")).empty());
}

}  // namespace
}  // namespace titan::models
