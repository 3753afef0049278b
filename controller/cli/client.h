#pragma once

// Calls the services of the leading controller, and reads lists to their end.

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "controller/cli/globals.h"
#include "controller/cli/job_names.h"
#include "grpcpp/grpcpp.h"
#include "titan/v1/auth.grpc.pb.h"
#include "titan/v1/cluster.grpc.pb.h"
#include "titan/v1/job.grpc.pb.h"
#include "titan/v1/node.grpc.pb.h"

namespace titan::cli {

// Error reasons: no controller was reached; a controller was reached that stands by.
inline constexpr char kNoController[] = "NO_CONTROLLER";
inline constexpr char kNotLeader[] = "NOT_LEADER";

// Calls the services of the controller that leads at one of several addresses. Every call has a deadline; a call that
// reaches no controller is repeated until then (each request is idempotent: CreateJob and CancelJob by their
// request_id, the others by nature). The error is then Unavailable if there was no connection, DeadlineExceeded if
// there was no answer.
class ControllerClient {
 public:
  // `addresses`: HOST:PORT or unix:PATH, or several with commas between. `timeout`: for one call with its retries.
  ControllerClient(std::string addresses, absl::Duration timeout, const Access& access = {});

  absl::StatusOr<v1::Job> create_job(const v1::CreateJobRequest& request);
  absl::StatusOr<v1::Job> get_job(const std::string& name);
  absl::StatusOr<v1::Job> update_job(const v1::UpdateJobRequest& request);
  absl::StatusOr<v1::Job> cancel_job(const std::string& name, bool now);
  absl::StatusOr<v1::Job> delete_job(const std::string& name);
  absl::StatusOr<v1::Job> checkpoint_job(const std::string& name);
  absl::StatusOr<v1::JobDiagnosis> get_diagnosis(const std::string& name, int attempt);
  absl::StatusOr<v1::ListJobsResponse> list_jobs(const v1::ListJobsRequest& request);
  absl::StatusOr<v1::Node> get_node(const std::string& name);
  absl::StatusOr<v1::ListNodesResponse> list_nodes(const v1::ListNodesRequest& request);
  absl::StatusOr<v1::Node> cordon_node(const std::string& name, const std::string& reason);
  absl::StatusOr<v1::Node> drain_node(const std::string& name, const std::string& reason);
  absl::StatusOr<v1::Node> uncordon_node(const std::string& name);
  absl::StatusOr<v1::Node> delete_node(const std::string& name, bool force = false);
  absl::StatusOr<v1::Node> stop_unknown(const std::string& node, const std::string& job_uid, absl::Duration grace);

  absl::StatusOr<v1::Cluster> get_cluster();
  absl::StatusOr<v1::Diagnostics> get_diagnostics();

  absl::StatusOr<v1::Token> create_token(const v1::CreateTokenRequest& request);
  absl::StatusOr<v1::ListTokensResponse> list_tokens();
  absl::StatusOr<v1::Token> revoke_token(const std::string& id);

  // Adds the caller's identity to a call: the token, and $USER, else the account's name, which is only a claim.
  void add_credentials(grpc::ClientContext& context) const;

  // Return the stubs for streams, which have no deadline.
  v1::JobService::Stub& jobs() { return *member().jobs; }
  v1::ClusterService::Stub& cluster() { return *member().cluster; }
  // Returns the address in use.
  const std::string& address() const { return member().address; }
  absl::Duration timeout() const { return timeout_; }

  // Checks that the addresses can be connected to with these security settings. Errors: InvalidArgument; those of
  // reading the token. Every call checks it.
  absl::Status check() const;
  // Makes the next call use the next address; call this after Unavailable.
  void use_next_address() const { current_ = (current_ + 1) % members_.size(); }
  // Waits for `pause` before the next try, or only until a missing connection is made.
  void wait(absl::Duration pause) const;
  // Returns the error after a silence of `waited`: Unavailable without a connection, else DeadlineExceeded.
  absl::Status no_answer(absl::Duration waited) const;
  // Returns an error that explains why waiting does not help after `said`, for example when only one end speaks TLS
  // (rpc::connection_fault); OK while one of the addresses may still answer. Takes less than a second.
  absl::Status fault(const grpc::Status& said) const;

 private:
  struct Member {
    std::string address;
    std::shared_ptr<grpc::Channel> channel;
    std::unique_ptr<v1::JobService::Stub> jobs;
    std::unique_ptr<v1::NodeService::Stub> nodes;
    std::unique_ptr<v1::ClusterService::Stub> cluster;
    std::unique_ptr<v1::AuthService::Stub> auth;
  };
  // Result of the last check of a member's address.
  struct Look {
    absl::Time next = absl::InfinitePast();
    absl::Status fault;
  };
  const Member& member() const { return members_[current_]; }
  v1::NodeService::Stub& nodes() { return *member().nodes; }
  v1::AuthService::Stub& auth() { return *member().auth; }
  bool is_connected() const;
  // Returns the error for a call that no controller accepted, with the message of the last try.
  absl::Status no_controller_error(const grpc::Status& said) const;
  absl::Status known_fault() const;
  template <typename Response>
  absl::StatusOr<Response> call(const std::function<grpc::Status(grpc::ClientContext&, Response&)>& attempt);
  template <typename Resource, typename Call>
  absl::StatusOr<Resource> call_to_delete(const Resource& before, Call attempt);

  const std::string addresses_;
  const absl::Duration timeout_;
  const rpc::Security security_;
  // Why the token, or a channel to one of the addresses, cannot be used.
  absl::Status refused_;
  std::string token_;  // Empty: none.
  std::vector<Member> members_;
  mutable std::atomic<size_t> current_{0};
  mutable std::mutex looks_mutex_;
  mutable std::vector<Look> looks_;  // One for each member.
};

// Returns whether no controller accepted the call, so that it may be repeated. A controller that ends cancels calls
// that it has not accepted yet. Do not use it for a call that was cancelled here.
bool is_unanswered(const grpc::Status& status);

// Converts a failed call's status, with the same code. Field violations that the message lacks follow on separate
// lines.
absl::Status to_status(const grpc::Status& status);

// Returns a random UUID (version 4).
std::string make_request_id();

// Return a state's name, such as "QUEUED", and whether a job stays in it.
std::string state_name(v1::Job::State state);
bool is_final(v1::Job::State state);

// Reads a list to its end and passes each page to `take`. Errors: that of the page that could not be read.
template <typename Request, typename List, typename Take>
absl::Status each_page(Request request, const List& list, const Take& take) {
  do {
    const auto page = list(request);
    if (!page.ok()) return page.status();
    take(*page);
    request.set_page_token(page->next_page_token());
  } while (!request.page_token().empty());
  return absl::OkStatus();
}

}  // namespace titan::cli
