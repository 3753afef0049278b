#pragma once

#include <cstdint>
#include <vector>

#include "plugin_headers.h"  // Written by the build.
#include "worker/rank/data/plugin/dataset.h"
#include "worker/rank/plugin/abi.h"

// The datasets of a library that experimental.custom_import names; it may bring models too
// (worker/rank/model/plugin.h).
namespace titan::data {

// What a library says about its datasets.
struct DataPlugin {
  plugin::PluginHeader head;
  std::vector<PluginDataset> (*datasets)();
};
inline constexpr uint32_t kDataPluginForm = 0x7174'd001;

#define TITAN_DATA_PLUGIN(datasets)                                                                           \
  extern "C" __attribute__((visibility("default"))) const titan::data::DataPlugin* titan_data_plugin() {      \
    static constinit const titan::data::DataPlugin said{{titan::data::kDataPluginForm, TITAN_PLUGIN_ABI("")}, \
                                                        datasets};                                            \
    return &said;                                                                                             \
  }

}  // namespace titan::data
