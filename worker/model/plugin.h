#pragma once

#include <torch/version.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "worker/model/decoder/decoder.h"
#include "worker/model/hf_names.h"
#include "worker/model/model.h"

// Models from outside of this tree: a shared library that titan-rank loads when experimental.custom_import names it.
// Such a library is compiled against these headers and against nothing else: every symbol that it needs is in
// titan-rank. docs/howto/add-a-model.md shows one.
namespace titan::model {

struct PluginFamily {
  std::string name;                        // model.name of the jobs that train it.
  std::vector<models::ModelSpec> flavors;  // model.flavor; their `name` is filled in.
  absl::StatusOr<Model> (*build)(const models::ModelSpec& spec, const BuildOptions& options) = nullptr;
  std::optional<HfFamily> hf;  // Names of its Hugging Face weights; none: such folders can neither be read nor written.
};

// C++ has no stable binary interface, so both sides must come from the same headers and compiler.
struct PluginAbi {
  const char* compiler;  // Versions of Titan, LibTorch and the compiler.
  uint64_t layout;       // Sizes of the types that cross the border: headers that changed within a version.

  bool operator==(const PluginAbi& other) const {
    return std::string(compiler) == other.compiler && layout == other.layout;
  }
};

constexpr PluginAbi plugin_abi() {
  uint64_t layout = 0xcbf29ce484222325;
  for (const size_t size :
       {sizeof(models::ModelSpec), sizeof(models::MoeSpec), sizeof(BuildOptions), sizeof(ParallelOptions),
        sizeof(Model), sizeof(DecoderInits), sizeof(DecoderLayer), sizeof(nn::Parameter), sizeof(nn::Block),
        sizeof(nn::MicrobatchContext), sizeof(nn::Linear), sizeof(nn::GroupedAttention), sizeof(nn::LatentAttention),
        sizeof(nn::FeedForward), sizeof(nn::MixtureOfExperts), sizeof(nn::MoeOptions), sizeof(HfFamily), sizeof(HfName),
        sizeof(PluginFamily)}) {
    layout = (layout ^ size) * 0x100000001b3;
  }
  return {"titan " TITAN_VERSION ", torch " TORCH_VERSION ", " __VERSION__, layout};
}

// What a library says about itself, at an address that only C rules describe.
struct Plugin {
  PluginAbi abi;
  std::vector<PluginFamily> (*families)();
};

#define TITAN_MODEL_PLUGIN(families)                                                                   \
  extern "C" __attribute__((visibility("default"))) const titan::model::Plugin* titan_model_plugin() { \
    static const titan::model::Plugin plugin{titan::model::plugin_abi(), families};                    \
    return &plugin;                                                                                    \
  }

}  // namespace titan::model
