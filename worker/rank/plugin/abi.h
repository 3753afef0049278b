#pragma once

#include <cstdint>

// What a library of a user's says about itself before anything of it is used.
namespace titan::plugin {

// What both sides must have been compiled with, since C++ has no stable binary interface.
struct Abi {
  const char* titan;     // Versions; of LibTorch nothing where none is used.
  const char* torch;     //
  const char* compiler;  // And what changes the standard library's types.
  const char* headers;   // A hash of all that Titan's headers say (deploy/plugin_headers.sh).
};

// How each description begins, in all forms of it.
struct Head {
  uint32_t form;  // Of the description.
  Abi abi;
};

// The functions that give them, at addresses that only C rules describe.
inline constexpr char kModelSymbol[] = "titan_model_plugin";
inline constexpr char kDataSymbol[] = "titan_data_plugin";

}  // namespace titan::plugin

// An Abi, written out in both sides: a library's inline functions are those of the program that loads it. Who uses it
// includes plugin_headers.h, which the build writes.
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
