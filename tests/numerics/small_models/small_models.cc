// A model library (docs/howto/add-a-model.md) with a small model of every family, for tests that train them as
// processes:
//   --experimental.custom_import .../libsmall_models.so --model.name small_qwen3_moe --model.flavor small
// Flavor "packed": attention inside documents; "shallow" and "shallow_packed": fewer layers. Vocabulary and end of
// document are those of the test tokenizer.
#include "absl/strings/match.h"
#include "tests/numerics/small_models/small_specs.h"
#include "worker/rank/model/families.h"
#include "worker/rank/model/plugin.h"

namespace {

using namespace titan;

models::ModelSpec flavor(const std::string& family, const std::string& name) {
  models::ModelSpec spec = testing::small_spec(absl::EndsWith(name, "packed") ? family + "_packed" : family);
  if (absl::StartsWith(name, "shallow")) spec = testing::shallow(spec);
  spec.flavor = name;
  spec.vocab_size = 2048;
  spec.max_seq_len = 2048;
  spec.eos_id = 1;
  return spec;
}

model::PluginFamily family(const std::string& name) {
  model::PluginFamily family{.name = "small_" + name};
  for (const char* one : {"small", "packed", "shallow", "shallow_packed"}) family.flavors.push_back(flavor(name, one));
  if (name == "llama3") {
    family.build = model::llama3::build;
    family.hf = model::llama3::hf();
  } else if (name == "qwen3" || name == "qwen3_moe") {
    family.build = model::qwen3::build;
    family.hf = model::qwen3::hf();
  } else if (name == "deepseek_v3") {
    family.build = model::deepseek_v3::build;
    family.hf = model::deepseek_v3::hf();
  } else if (name == "gpt_oss") {
    family.build = model::gpt_oss::build;
    family.hf = model::gpt_oss::hf();
  } else {
    family.build = model::llama4::build;
    family.hf = model::llama4::hf();
  }
  family.hf->name = family.name;
  return family;
}

std::vector<model::PluginFamily> families() {
  std::vector<model::PluginFamily> all;
  for (const std::string& name : testing::small_families()) all.push_back(family(name));
  return all;
}

}  // namespace

TITAN_MODEL_PLUGIN(families)
