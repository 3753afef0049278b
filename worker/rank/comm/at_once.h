#pragma once

#include <functional>
#include <thread>
#include <vector>

namespace titan::comm {

// Makes all calls at the same time, each on a thread of its own, and returns when all have ended. What they throw is
// lost.
inline void at_once(const std::vector<std::function<void()>>& calls) {
  std::vector<std::jthread> threads;
  for (const std::function<void()>& call : calls) {
    threads.emplace_back([&call] {
      try {
        call();
      } catch (...) {
      }
    });
  }
}

}  // namespace titan::comm
