#pragma once

#include <torch/version.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/plan/models/model_spec.h"
#include "plugin_headers.h"  // The build writes it.
#include "worker/rank/model/decoder/decoder.h"
#include "worker/rank/model/hf_names.h"
#include "worker/rank/model/model.h"
#include "worker/rank/model/objective.h"
#include "worker/rank/plugin/abi.h"

// Models from outside this tree: shared libraries that titan-rank loads when experimental.custom_import names them.
// Such a library is compiled against these headers only, because titan-rank has every symbol that it needs.
// docs/howto/add-a-model.md shows one.
namespace titan::model {

struct PluginFamily {
  std::string name;                        // model.name of the jobs that train it.
  std::vector<models::ModelSpec> flavors;  // One per value of model.flavor. load_plugin() fills in their `name`.
  absl::StatusOr<Model> (*build)(const models::ModelSpec& spec, const BuildOptions& options) = nullptr;
  std::optional<HfFamily> hf;  // Names of its Hugging Face weights. Required for reading and writing such folders.
  // Makes what the models are trained for. Null: they are language models.
  std::unique_ptr<Objective> (*objective)(const models::ModelSpec& spec) = nullptr;
};

// Describes a library's models.
struct Plugin {
  plugin::PluginHeader head;
  std::vector<PluginFamily> (*families)();
};
inline constexpr uint32_t kPluginForm = 0x7174'0003;

#define TITAN_MODEL_PLUGIN(families)                                                                               \
  extern "C" __attribute__((visibility("default"))) const titan::model::Plugin* titan_model_plugin() {             \
    static constinit const titan::model::Plugin said{{titan::model::kPluginForm, TITAN_PLUGIN_ABI(TORCH_VERSION)}, \
                                                     families};                                                    \
    return &said;                                                                                                  \
  }

}  // namespace titan::model
