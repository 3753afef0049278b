#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "titan/v1/cluster.grpc.pb.h"
#include "titan/v1/job.grpc.pb.h"
#include "titan/v1/node.grpc.pb.h"

namespace titan::cli {

// Reason of the error of a call that found nobody.
inline constexpr char kNoController[] = "NO_CONTROLLER";

// The controller's services over one channel. Every call has a deadline; a call that finds nobody is repeated until
// then (each request is idempotent: CreateJob and CancelJob by their request_id, the others by nature).
class Client {
 public:
  // `address`: HOST:PORT or unix:PATH. `timeout`: for one call with its repetitions.
  Client(std::string address, absl::Duration timeout);

  absl::StatusOr<v1::Job> create_job(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::Job> get_job(const std::string& name);
  absl::StatusOr<v1::Job> cancel_job(const std::string& name, bool now);
  absl::StatusOr<v1::Job> delete_job(const std::string& name);
  absl::StatusOr<v1::Job> checkpoint_job(const std::string& name);
  absl::StatusOr<v1::ListJobsResponse> list_jobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Node> get_node(const std::string& name);
  absl::StatusOr<v1::ListNodesResponse> list_nodes(const v1::ListNodesRequest& request);
  absl::StatusOr<v1::Node> cordon_node(const std::string& name, const std::string& reason);
  absl::StatusOr<v1::Node> drain_node(const std::string& name, const std::string& reason);
  absl::StatusOr<v1::Node> uncordon_node(const std::string& name);
  absl::StatusOr<v1::Node> stop_unknown(const std::string& node, const std::string& job_uid, absl::Duration grace);

  absl::StatusOr<v1::Cluster> get_cluster();

  // For streams, which have no deadline.
  v1::JobService::Stub& jobs() { return *jobs_; }
  v1::ClusterService::Stub& cluster() { return *cluster_; }
  const std::string& address() const { return address_; }
  absl::Duration timeout() const { return timeout_; }

  // Whether the address has a form that can be connected to. Errors: InvalidArgument. Every call checks it.
  absl::Status check() const;

  // Waits for a usable connection, at most `timeout`. Errors: Unavailable.
  absl::Status wait_until_reachable();

 private:
  template <typename Response>
  absl::StatusOr<Response> call(const std::function<grpc::Status(grpc::ClientContext&, Response&)>& attempt);

  std::string address_;
  absl::Duration timeout_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::JobService::Stub> jobs_;
  std::unique_ptr<v1::NodeService::Stub> nodes_;
  std::unique_ptr<v1::ClusterService::Stub> cluster_;
};

// A failed call as Status: the same code; field violations that the message does not already hold follow on lines of
// their own.
absl::Status to_status(const grpc::Status& status);

// A random UUID (version 4).
std::string make_request_id();

// "projects/default/jobs/x" -> "x"; other projects keep their full name.
std::string short_name(const std::string& name);

// QUEUED, RUNNING, ... and whether nothing will change any more.
std::string state_name(v1::Job::State state);
bool is_final(v1::Job::State state);

}  // namespace titan::cli
