#pragma once

// Many readers of WatchJobs in one process. They take bytes; one in so many reads them.

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
  // Called for every change that a reading watcher sees after its snapshot.
  using Seen = std::function<void(const v1::JobChange&)>;

  // `names`: what each watches; empty: all jobs. One in `read_one_in` reads what it gets. A reader that is `stuck`
  // takes nothing after its first message.
  Watchers(const std::string& controller, int channels, const std::vector<std::string>& names, int read_one_in,
           Seen seen, int stuck = 0);
  ~Watchers();

  int64_t messages() const { return messages_; }
  // Whether each has its first message.
  bool all_began() const;
  // Those whose stream has ended.
  int ended() const { return ended_; }
  // Those of them that were told that they fell behind.
  int behind() const { return behind_; }
  // Those of them whose connection was given up, as that of a process is that answers nothing for the keepalive's time.
  int cut_off() const { return cut_off_; }
  // Of the readers: a job went back to an older revision.
  int64_t out_of_order() const { return out_of_order_; }
  // The fewest jobs that a reader whose stream goes on has seen.
  int64_t fewest_jobs() const;
  int size() const { return static_cast<int>(readers_.size()); }

 private:
  class Reader;

  const Seen seen_;
  std::atomic<int64_t> messages_ = 0, out_of_order_ = 0;
  std::atomic<int> ended_ = 0, behind_ = 0, cut_off_ = 0;
  std::vector<std::unique_ptr<Reader>> readers_;
};

}  // namespace titan::scale
