#pragma once

#include <memory>
#include <string>

#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

// The controller's end of a worker's stream. Thread-safe; nothing here blocks.
class Session {
 public:
  virtual ~Session() = default;
  // Queues a message; dropped without a word once the stream is gone, since every command is sent again to the next
  // session.
  virtual void send(const v1::ControllerMessage& message) = 0;
  // Likewise a message in two parts, which add up: the second, as bytes, is the same for many nodes and kept once.
  virtual void send(const v1::ControllerMessage& message, const std::shared_ptr<const std::string>& shared) {
    v1::ControllerMessage whole;
    if (whole.ParseFromString(message.SerializeAsString() + *shared)) send(whole);
  }
  // Ends the stream: a newer session of the node took over.
  virtual void close(const std::string& why) = 0;
};

}  // namespace titan::reconcile
