#pragma once

#include <memory>
#include <string>

#include "titan/v1/worker.pb.h"

namespace titan::reconcile {

// The controller's end of a worker's stream. Thread-safe; nothing here blocks.
class Session {
 public:
  virtual ~Session() = default;
  // Queues a message. It is silently dropped once the stream is gone, since every command is repeated to the next
  // session.
  virtual void send(const v1::ControllerMessage& message) = 0;
  // Does the same for a message in two parts, which are merged. The second part is encoded already and shared by many
  // nodes.
  virtual void send(const v1::ControllerMessage& message, const std::shared_ptr<const std::string>& shared) {
    v1::ControllerMessage whole;
    if (whole.ParseFromString(message.SerializeAsString() + *shared)) send(whole);
  }
  // Ends the stream, because a newer session of the node took over.
  virtual void close(const std::string& why) = 0;
};

}  // namespace titan::reconcile
