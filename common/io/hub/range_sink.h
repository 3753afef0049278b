#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/io/hub/client.h"

namespace titan::hub {

// Looks at whether what comes is what was asked for, and hands it on. A server that knows no ranges sends the whole
// file: what is not asked for is left out, and nothing behind it is waited for. Errors: Unavailable for another range
// or commit, or too many bytes.
class RangeSink : public http::Sink {
 public:
  RangeSink(http::Range asked, RangeEnd end, std::string commit, const Client::Taker& taker)
      : asked_(asked), end_(end), commit_(std::move(commit)), taker_(taker) {}

  absl::Status begin(const http::Answer& answer) override;
  absl::Status take(std::string_view bytes) override;
  absl::Status idle() override { return taker_.idle(); }

  // Up to here nothing more has to be asked for; where the range began while nothing came.
  int64_t reached() const { return reached_; }
  // What the transfer's status means: OK once all came. Unavailable when it went well and not all came.
  absl::Status end(const absl::Status& transfer) const;

 private:
  absl::Status begin_whole(const http::Answer& answer);

  http::Range asked_;
  RangeEnd end_;
  std::string commit_;
  const Client::Taker& taker_;
  int64_t at_ = 0;  // Where the next byte of the answer lies.
  int64_t reached_ = asked_.begin;
  bool whole_ = false;  // The answer is the file.
  bool enough_ = false;
};

}  // namespace titan::hub
