#pragma once

#include <vector>

#include "google/protobuf/descriptor.h"
#include "titan/v1/auth.pb.h"
#include "titan/v1/cluster.pb.h"
#include "titan/v1/job.pb.h"
#include "titan/v1/node.pb.h"
#include "titan/v1/worker.pb.h"

namespace titan::api {

// Descriptors of all services of titan.v1.
inline std::vector<const google::protobuf::ServiceDescriptor*> services() {
  std::vector<const google::protobuf::ServiceDescriptor*> all;
  for (const google::protobuf::FileDescriptor* file :
       {v1::Token::descriptor()->file(), v1::Cluster::descriptor()->file(), v1::Job::descriptor()->file(),
        v1::Node::descriptor()->file(), v1::WorkerMessage::descriptor()->file()}) {
    for (int i = 0; i < file->service_count(); ++i) all.push_back(file->service(i));
  }
  return all;
}

}  // namespace titan::api
