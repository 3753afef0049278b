#pragma once

#include <cstdint>

// The description that a plugin library gives of itself before any of its code is used.
namespace titan::plugin {

// Settings that must be equal on both sides, because C++ has no stable binary interface.
struct Abi {
  const char* titan;     // Titan's version.
  const char* torch;     // LibTorch's version; empty if unused.
  const char* compiler;  // Also the settings that change the standard library's types.
  const char* headers;   // A hash of the headers that a plugin is compiled against (deploy/plugin_headers.sh).
};

// The beginning of every description, in all versions of its format.
struct PluginHeader {
  uint32_t form;  // Version of the description's format.
  Abi abi;
};

// Names of the functions, with C linkage, that return a library's description.
inline constexpr char kModelSymbol[] = "titan_model_plugin";
inline constexpr char kDataSymbol[] = "titan_data_plugin";

}  // namespace titan::plugin

// Initializer of an Abi. A macro that both sides expand, because a library's inline functions resolve to those of the
// program that loads it. Include plugin_headers.h, which the build writes, before using it.
#define TITAN_PLUGIN_QUOTE_(x) #x
#define TITAN_PLUGIN_QUOTE(x) TITAN_PLUGIN_QUOTE_(x)
#ifdef _GLIBCXX_DEBUG
#define TITAN_PLUGIN_CONTAINERS ", debug containers"
#else
#define TITAN_PLUGIN_CONTAINERS ""
#endif
#define TITAN_PLUGIN_ABI(torch)                                                                             \
  {                                                                                                         \
    TITAN_VERSION, torch,                                                                                   \
        __VERSION__                                                                                         \
        ", C++ " TITAN_PLUGIN_QUOTE(__cplusplus) ", string ABI " TITAN_PLUGIN_QUOTE(_GLIBCXX_USE_CXX11_ABI) \
            TITAN_PLUGIN_CONTAINERS,                                                                        \
        TITAN_PLUGIN_HEADERS                                                                                \
  }
