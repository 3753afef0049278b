#pragma once

#include <cstdint>

namespace titan::cli {

// Where a reader of events is. Events of one transaction share its revision, and a stream may break between two of
// them: a revision is complete only when a later one is seen. Until then a new stream begins before it, and what was
// seen of it is passed over.
class EventCursor {
 public:
  explicit EventCursor(int64_t after) : complete_(after), current_(after) {}

  // A new stream begins; the revision after which it is to be asked for events.
  int64_t resume() {
    to_skip_ = seen_;
    ++streams_;
    return complete_;
  }

  // The controller does not know that revision, and its newest is `newest`: its store was set back. False for the
  // revision that the reader itself began with.
  bool set_back(int64_t newest) {
    if (streams_ < 2) return false;
    complete_ = current_ = newest;
    seen_ = to_skip_ = 0;
    return true;
  }

  // The stream's next event. False when it was seen before.
  bool is_new(int64_t revision) {
    if (revision != current_) {
      complete_ = current_;
      current_ = revision;
      seen_ = to_skip_ = 0;
    }
    if (to_skip_ > 0) {
      --to_skip_;
      return false;
    }
    ++seen_;
    return true;
  }

 private:
  int64_t complete_;  // All its events were seen.
  int64_t current_;   // Of the newest event seen.
  int64_t seen_ = 0;  // Events of `current_`.
  int streams_ = 0;
  int64_t to_skip_ = 0;  // Of them, not sent again yet.
};

}  // namespace titan::cli
