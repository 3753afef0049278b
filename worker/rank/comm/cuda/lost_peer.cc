#include "worker/rank/comm/cuda/lost_peer.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "common/rank_protocol/launch.h"

namespace titan::comm {
namespace {

// Process-wide, because the watchdog and the end of the process are.
std::terminate_handler handler_before = nullptr;
std::atomic<bool> breaks_groups{false};
std::mutex last_words_mutex;
std::function<void(const std::string& words)> last_words;
constexpr std::chrono::seconds kTimeToLeave{20};

// The watchdog's text continues with several lines of advice.
std::string first_line(const c10::Error& error) {
  const std::string text = error.what_without_backtrace();
  return text.substr(0, text.find('\n'));
}

void say_last_words(const std::string& words) {
  const std::lock_guard<std::mutex> lock(last_words_mutex);
  if (last_words) last_words(words);
  last_words = {};
}

[[noreturn]] void end_process() {
  try {
    if (const std::exception_ptr uncaught = std::current_exception()) std::rethrow_exception(uncaught);
  } catch (const c10::DistError& error) {
    if (breaks_groups) std::this_thread::sleep_for(kTimeToLeave);
    const std::string text = first_line(error);
    const bool own = text.find("CUDA error") != std::string::npos;
    if (!own) say_last_words(text);
    std::fprintf(stderr, "titan-rank: %s: %s\n", own ? "DEVICE" : "PEER_LOST", text.c_str());
    std::fflush(nullptr);
    std::_Exit(own ? rank_protocol::kExitInternal : rank_protocol::kExitPeerLost);
  } catch (...) {
  }
  if (handler_before != nullptr) handler_before();
  std::abort();
}

}  // namespace

void report_lost_peers() {
  const std::terminate_handler before = std::set_terminate(end_process);
  if (before != end_process) handler_before = before;
}

void expect_broken_groups() { breaks_groups = true; }

void before_lost_peer_ends(std::function<void(const std::string& words)> call) {
  const std::lock_guard<std::mutex> lock(last_words_mutex);
  last_words = std::move(call);
}

}  // namespace titan::comm
