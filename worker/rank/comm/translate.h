#pragma once

#include <exception>
#include <string>

#include "worker/rank/comm/group.h"

namespace titan::comm {

// Whether one of Gloo's exceptions says that a connection broke, could not be made or gave no sign in time. Told by the
// name of its type, since Gloo's headers cannot be used (gloo.cc).
bool is_lost_connection(const std::exception& error);

inline const std::string& words(const std::string& what) { return what; }

// Runs `issue`. What says that another rank is gone becomes PeerLost with the collective's name. Everything else (no
// memory, a tensor of the wrong shape) is this rank's own failure and stays what it is.
template <typename What, typename Issue>
auto translate(const What& what, Issue&& issue) {
  try {
    return issue();
  } catch (const c10::DistError& error) {
    throw PeerLost(words(what) + ": " + describe(error));
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (c10::Error& error) {
    error.add_context("in " + words(what));
    throw;
  } catch (const std::exception& error) {
    if (is_lost_connection(error)) throw PeerLost(words(what) + ": " + describe(error));
    throw;
  }
}

}  // namespace titan::comm
