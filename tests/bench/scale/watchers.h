#pragma once

// Many readers of WatchJobs in one process. All receive bytes; one in `read_one_in` also decodes them.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "grpcpp/channel.h"
#include "titan/v1/job.pb.h"

namespace titan::scale {

class Watchers {
 public:
  // Called for every change that a decoding watcher sees after its snapshot.
  using Seen = std::function<void(const v1::JobChange&)>;

  // `names`: the job that each watches; empty: all jobs. One in `read_one_in` decodes its messages. The first `stuck`
  // readers receive nothing after their first message.
  Watchers(const std::string& controller, int channels, const std::vector<std::string>& names, int read_one_in,
           Seen seen, int stuck = 0);
  ~Watchers();

  int64_t messages() const { return messages_; }
  // Returns whether each reader has its first message.
  bool all_began() const;
  // Readers with an ended stream.
  int ended() const { return ended_; }
  // Ended readers that the controller dropped because they were too slow.
  int dropped() const { return dropped_; }
  // Ended readers with a closed connection: the controller closes one that does not answer within the keepalive
  // timeout.
  int cut_off() const { return cut_off_; }
  // Times that a decoding reader saw a job return to an older revision.
  int64_t out_of_order() const { return out_of_order_; }
  // Returns the fewest jobs that a decoding reader with an open stream has seen.
  int64_t fewest_jobs() const;
  int size() const { return static_cast<int>(readers_.size()); }

 private:
  class Reader;

  const Seen seen_;
  std::atomic<int64_t> messages_ = 0, out_of_order_ = 0;
  std::atomic<int> ended_ = 0, dropped_ = 0, cut_off_ = 0;
  std::vector<std::unique_ptr<Reader>> readers_;
};

}  // namespace titan::scale
