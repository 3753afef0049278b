#include "worker/rank/comm/backend_aborts.h"

#include <c10/util/Type.h>

#include <cstdlib>
#include <exception>
#include <mutex>
#include <typeinfo>
#include <utility>

#include "worker/rank/comm/group.h"

namespace titan::comm {
namespace {

// Process-wide, because the terminate handler is.
std::terminate_handler handler_before = nullptr;
// Held while the callback runs: two of Gloo's threads may fail the same way, and the end of one must not interrupt the
// other. Recursive, because an exception in the callback ends this thread again.
std::recursive_mutex last_words_mutex;
std::function<void(const std::string& words)> last_words;

// Gloo's check of a message's position and length fails with these names in its text. Compares the name of the type,
// because Gloo's headers cannot be included (gloo.cc).
bool is_wrong_length(const std::exception& error) {
  return c10::demangle(typeid(error).name()) == "gloo::EnforceNotMet" &&
         std::string(error.what()).find("op.preamble") != std::string::npos;
}

void say_last_words(const std::exception& error) {
  if (!is_wrong_length(error)) return;
  const std::function<void(const std::string& words)> say = std::exchange(last_words, {});
  if (say) say(std::string("another rank sends more than this rank expects") + kNotTheSame + ": " + error.what());
}

[[noreturn]] void end_process() {
  std::unique_lock<std::recursive_mutex> lock(last_words_mutex);
  try {
    if (const std::exception_ptr uncaught = std::current_exception()) std::rethrow_exception(uncaught);
  } catch (const std::exception& error) {
    say_last_words(error);
  } catch (...) {
  }
  lock.unlock();
  if (handler_before != nullptr) handler_before();
  std::abort();
}

}  // namespace

void before_gloo_aborts(std::function<void(const std::string& words)> call) {
  {
    const std::lock_guard<std::recursive_mutex> lock(last_words_mutex);
    last_words = std::move(call);
  }
  const std::terminate_handler before = std::set_terminate(end_process);
  if (before != end_process) handler_before = before;
}

}  // namespace titan::comm
