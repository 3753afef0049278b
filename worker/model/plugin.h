#pragma once

#include <torch/version.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/models/model_spec.h"
#include "plugin_headers.h"  // Written by the build.
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

// What both sides must have been compiled with, since C++ has no stable binary interface.
struct PluginAbi {
  const char* titan;     // Versions.
  const char* torch;     //
  const char* compiler;  // And what changes the standard library's types.
  const char* headers;   // A hash of all that Titan's headers say (deploy/plugin_headers.sh).
};

// Written out in both sides: a library's inline functions are those of the program that loads it.
#define TITAN_PLUGIN_QUOTE_(x) #x
#define TITAN_PLUGIN_QUOTE(x) TITAN_PLUGIN_QUOTE_(x)
#ifdef _GLIBCXX_DEBUG
#define TITAN_PLUGIN_CONTAINERS ", debug containers"
#else
#define TITAN_PLUGIN_CONTAINERS ""
#endif
#define TITAN_PLUGIN_ABI                                                                                    \
  {                                                                                                         \
    TITAN_VERSION, TORCH_VERSION,                                                                           \
        __VERSION__                                                                                         \
        ", C++ " TITAN_PLUGIN_QUOTE(__cplusplus) ", string ABI " TITAN_PLUGIN_QUOTE(_GLIBCXX_USE_CXX11_ABI) \
            TITAN_PLUGIN_CONTAINERS,                                                                        \
        TITAN_PLUGIN_HEADERS                                                                                \
  }

// What a library says about itself, at an address that only C rules describe.
struct Plugin {
  uint32_t form;  // Of this struct: kPluginForm. First in all forms.
  PluginAbi abi;
  std::vector<PluginFamily> (*families)();
};
inline constexpr uint32_t kPluginForm = 0x7174'0002;

#define TITAN_MODEL_PLUGIN(families)                                                                           \
  extern "C" __attribute__((visibility("default"))) const titan::model::Plugin* titan_model_plugin() {         \
    static constinit const titan::model::Plugin plugin{titan::model::kPluginForm, TITAN_PLUGIN_ABI, families}; \
    return &plugin;                                                                                            \
  }

}  // namespace titan::model
