#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <string>

#include "tests/worker/rank/kernels/simulated_kernels.h"
#include "worker/rank/kernels/choice.h"

namespace titan::kernels::testing {

// Runs the body with LibTorch's operations and with Titan's kernels of every level here; failures name the kernels.
inline void with_every_choice(const std::function<void()>& body) {
  std::vector<std::string> choices{"reference"};
  for (const Level level : levels_here()) choices.emplace_back(name(level));
  for (const std::string& choice : choices) {
    SCOPED_TRACE("kernels: " + choice);
    ASSERT_TRUE(choose(choice));
    body();
  }
  choose("reference");
}

// Runs the body of a row operation's test also with a GPU's kernels, on the host.
inline void with_every_row_kernel(const std::function<void()>& body) {
  with_every_choice(body);
  SCOPED_TRACE("kernels: a GPU's");
  static const SimulatedKernels kernels;
  choose_on_device(&kernels, {.model = true, .loss = true});
  body();
  choose_on_device(nullptr, {});
}

}  // namespace titan::kernels::testing
