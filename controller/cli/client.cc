#include "controller/cli/client.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "common/base/status/status.h"
#include "common/base/text/quantities.h"
#include "common/service/rpc/address.h"
#include "common/service/rpc/connection_fault.h"
#include "common/service/rpc/credentials.h"
#include "common/service/rpc/error.h"
#include "controller/cli/terminal.h"

namespace titan::cli {
namespace {

constexpr absl::Duration kFirstPause = absl::Milliseconds(20);
constexpr absl::Duration kMaxPause = absl::Milliseconds(500);
constexpr absl::Duration kSayWaiting = absl::Seconds(1);
constexpr absl::Duration kLookTimeout = absl::Milliseconds(700);
constexpr absl::Duration kLookAgain = absl::Seconds(1);

// Without credentials, every call on the channel fails.
std::shared_ptr<grpc::Channel> connect(const std::string& address,
                                       const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 50);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 5'000);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetMaxReceiveMessageSize(64 << 20);
  return grpc::CreateCustomChannel(address, credentials, arguments);
}

absl::Status no_token_in_plaintext(absl::string_view address) {
  return absl::InvalidArgumentError(
      absl::StrCat("a token is not sent to ", address, " in plaintext: give --tls-ca, or no --token-file"));
}

}  // namespace

absl::Status to_status(const grpc::Status& status) {
  const absl::Status plain = rpc::from_grpc(status);
  std::string message(plain.message());
  for (const rpc::FieldViolation& violation : rpc::field_violations(plain)) {
    if (absl::StrContains(message, violation.description)) continue;
    absl::StrAppend(&message, "\n  ", violation.field, violation.field.empty() ? "" : ": ", violation.description);
  }
  absl::Status out(plain.code(), message);
  plain.ForEachPayload([&out](absl::string_view url, const absl::Cord& value) { out.SetPayload(url, value); });
  return out;
}

void ControllerClient::add_credentials(grpc::ClientContext& context) const {
  static const std::string user = [] {
    const char* name = std::getenv("USER");
    if (name == nullptr || *name == '\0') {
      const passwd* account = getpwuid(getuid());
      name = account != nullptr ? account->pw_name : "";
    }
    // A text that is not a valid header value would fail the call.
    const std::string text = name;
    return std::all_of(text.begin(), text.end(), [](char c) { return absl::ascii_isgraph(c); }) ? text : "";
  }();
  if (!user.empty()) context.AddMetadata("titan-user", user);
  if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
}

bool is_unanswered(const grpc::Status& status) {
  return status.error_code() == grpc::StatusCode::UNAVAILABLE || status.error_code() == grpc::StatusCode::CANCELLED;
}

ControllerClient::ControllerClient(std::string addresses, absl::Duration timeout, const Access& access)
    : addresses_(std::move(addresses)), timeout_(timeout), security_(access.security) {
  if (!access.token_file.empty()) {
    absl::StatusOr<std::string> token = read_token(access.token_file);
    refused_ = token.status();
    if (token.ok()) token_ = *std::move(token);
  }
  for (const absl::string_view address : absl::StrSplit(addresses_, ',')) {
    const auto credentials = rpc::channel_credentials(address, access.security);
    refused_.Update(credentials.status());
    if (!token_.empty() && !rpc::is_private(address, access.security)) refused_.Update(no_token_in_plaintext(address));
    const auto channel = connect(std::string(address), credentials.value_or(nullptr));
    members_.push_back({std::string(address), channel, v1::JobService::NewStub(channel),
                        v1::NodeService::NewStub(channel), v1::ClusterService::NewStub(channel),
                        v1::AuthService::NewStub(channel)});
  }
  looks_.resize(members_.size());
}

// Waits on the channel instead of sleeping: gRPC handles a connection attempt only while a caller waits for it, and
// gives up one that was silent for a while.
void ControllerClient::wait(absl::Duration pause) const {
  grpc::Channel& channel = *member().channel;
  if (channel.GetState(/*try_to_connect=*/true) == GRPC_CHANNEL_READY) return absl::SleepFor(pause);
  (void)channel.WaitForConnected(absl::ToChronoTime(absl::Now() + pause));
}

// Returns false for a stopped controller: its kernel accepts the connection, but no program answers on it.
bool ControllerClient::is_connected() const {
  return member().channel->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
}

// Returns the first fault that was found, or OK.
absl::Status ControllerClient::known_fault() const {
  const std::lock_guard lock(looks_mutex_);
  for (const Look& look : looks_) {
    if (!look.fault.ok()) return look.fault;
  }
  return absl::OkStatus();
}

absl::Status ControllerClient::fault(const grpc::Status& said) const {
  // A controller that answered can be reached, and gRPC itself reports a name that does not resolve.
  if (!rpc::reason(rpc::from_grpc(said)).empty() || absl::StrContains(said.error_message(), "DNS resolution"))
    return absl::OkStatus();
  const std::lock_guard lock(looks_mutex_);
  const size_t at = current_;
  if (Look& look = looks_[at]; absl::Now() >= look.next) {
    look.fault = rpc::connection_fault(members_[at].address, security_, std::min(kLookTimeout, timeout_));
    look.next = absl::Now() + kLookAgain;
  }
  const bool all = std::all_of(looks_.begin(), looks_.end(), [](const Look& look) { return !look.fault.ok(); });
  return all ? looks_[at].fault : absl::OkStatus();
}

absl::Status ControllerClient::no_controller_error(const grpc::Status& said) const {
  if (absl::Status plain = to_status(said); rpc::reason(plain) == kNotLeader) return plain;
  if (absl::Status fault = known_fault(); !fault.ok()) return fault;
  return rpc::error(absl::StatusCode::kUnavailable, kNoController,
                    absl::StrCat("no controller at ", addresses_, " (", said.error_message(), ")"),
                    {{"address", addresses_}});
}

absl::Status ControllerClient::no_answer(absl::Duration waited) const {
  const std::string within = absl::StrCat(" within ", rounded(waited));
  if (!is_connected())
    return no_controller_error({grpc::StatusCode::UNAVAILABLE, absl::StrCat("no connection was answered", within)});
  return absl::DeadlineExceededError(absl::StrCat("no answer from the controller at ", address(), within));
}

template <typename Response>
absl::StatusOr<Response> ControllerClient::call(
    const std::function<grpc::Status(grpc::ClientContext&, Response&)>& attempt) {
  TITAN_RETURN_IF_ERROR(check());
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + timeout_;
  // Status of the last try that no controller took.
  std::optional<grpc::Status> unanswered;
  bool said = false;
  for (absl::Duration pause = kFirstPause;; pause = std::min(pause * 2, kMaxPause)) {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(deadline));
    add_credentials(context);
    Response response;
    const grpc::Status status = attempt(context, response);
    if (status.ok()) return response;
    if (!is_unanswered(status)) {
      if (status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) return to_status(status);
      return unanswered && !is_connected() ? no_controller_error(*unanswered) : no_answer(timeout_);
    }
    unanswered = status;
    if (absl::Status wrong = fault(status); !wrong.ok()) return wrong;
    const absl::Time now = absl::Now();
    use_next_address();
    if (now + pause >= deadline) return no_controller_error(status);
    if (!said && now - start > kSayWaiting) {
      note(absl::StrCat("waiting for the controller at ", addresses_, " ..."));
      said = true;
    }
    wait(pause);
  }
}

// When an answer is lost, the resource is deleted nevertheless: if it existed before and the next try does not find it,
// the call succeeded.
template <typename Resource, typename Call>
absl::StatusOr<Resource> ControllerClient::call_to_delete(const Resource& before, Call attempt) {
  bool unanswered = false;
  return call<Resource>([&](grpc::ClientContext& context, Resource& resource) {
    grpc::Status status = attempt(context, resource);
    if (unanswered && status.error_code() == grpc::StatusCode::NOT_FOUND) {
      resource = before;
      return grpc::Status::OK;
    }
    unanswered = unanswered || is_unanswered(status);
    return status;
  });
}

absl::StatusOr<v1::Job> ControllerClient::create_job(const v1::CreateJobRequest& request) {
  return call<v1::Job>(
      [&](grpc::ClientContext& context, v1::Job& job) { return jobs().CreateJob(&context, request, &job); });
}

absl::StatusOr<v1::Job> ControllerClient::get_job(const std::string& name) {
  v1::GetJobRequest request;
  request.set_name(name);
  return call<v1::Job>(
      [&](grpc::ClientContext& context, v1::Job& job) { return jobs().GetJob(&context, request, &job); });
}

absl::StatusOr<v1::JobDiagnosis> ControllerClient::get_diagnosis(const std::string& name, int attempt) {
  v1::GetDiagnosisRequest request;
  request.set_name(name);
  request.set_attempt(attempt);
  return call<v1::JobDiagnosis>([&](grpc::ClientContext& context, v1::JobDiagnosis& diagnosis) {
    return jobs().GetDiagnosis(&context, request, &diagnosis);
  });
}

absl::StatusOr<v1::Job> ControllerClient::update_job(const v1::UpdateJobRequest& request) {
  return call<v1::Job>(
      [&](grpc::ClientContext& context, v1::Job& job) { return jobs().UpdateJob(&context, request, &job); });
}

absl::StatusOr<v1::Job> ControllerClient::cancel_job(const std::string& name, bool now) {
  v1::CancelJobRequest request;
  request.set_name(name);
  request.set_request_id(make_request_id());
  request.set_now(now);
  return call<v1::Job>(
      [&](grpc::ClientContext& context, v1::Job& job) { return jobs().CancelJob(&context, request, &job); });
}

absl::StatusOr<v1::Job> ControllerClient::delete_job(const std::string& name) {
  TITAN_ASSIGN_OR_RETURN(const v1::Job before, get_job(name));
  v1::DeleteJobRequest request;
  request.set_name(name);
  return call_to_delete(
      before, [&](grpc::ClientContext& context, v1::Job& job) { return jobs().DeleteJob(&context, request, &job); });
}

absl::StatusOr<v1::Job> ControllerClient::checkpoint_job(const std::string& name) {
  v1::CheckpointJobRequest request;
  request.set_name(name);
  return call<v1::Job>(
      [&](grpc::ClientContext& context, v1::Job& job) { return jobs().CheckpointJob(&context, request, &job); });
}

absl::StatusOr<v1::ListJobsResponse> ControllerClient::list_jobs(const v1::ListJobsRequest& request) {
  return call<v1::ListJobsResponse>([&](grpc::ClientContext& context, v1::ListJobsResponse& response) {
    return jobs().ListJobs(&context, request, &response);
  });
}

absl::StatusOr<v1::Node> ControllerClient::get_node(const std::string& name) {
  v1::GetNodeRequest request;
  request.set_name(name);
  return call<v1::Node>(
      [&](grpc::ClientContext& context, v1::Node& node) { return nodes().GetNode(&context, request, &node); });
}

absl::StatusOr<v1::ListNodesResponse> ControllerClient::list_nodes(const v1::ListNodesRequest& request) {
  return call<v1::ListNodesResponse>([&](grpc::ClientContext& context, v1::ListNodesResponse& response) {
    return nodes().ListNodes(&context, request, &response);
  });
}

absl::StatusOr<v1::Node> ControllerClient::drain_node(const std::string& name, const std::string& reason) {
  v1::DrainNodeRequest request;
  request.set_name(name);
  request.set_reason(reason);
  return call<v1::Node>(
      [&](grpc::ClientContext& context, v1::Node& node) { return nodes().DrainNode(&context, request, &node); });
}

absl::StatusOr<v1::Node> ControllerClient::cordon_node(const std::string& name, const std::string& reason) {
  v1::CordonNodeRequest request;
  request.set_name(name);
  request.set_reason(reason);
  return call<v1::Node>(
      [&](grpc::ClientContext& context, v1::Node& node) { return nodes().CordonNode(&context, request, &node); });
}

absl::StatusOr<v1::Node> ControllerClient::uncordon_node(const std::string& name) {
  v1::UncordonNodeRequest request;
  request.set_name(name);
  return call<v1::Node>(
      [&](grpc::ClientContext& context, v1::Node& node) { return nodes().UncordonNode(&context, request, &node); });
}

absl::StatusOr<v1::Node> ControllerClient::delete_node(const std::string& name, bool force) {
  TITAN_ASSIGN_OR_RETURN(const v1::Node before, get_node(name));
  v1::DeleteNodeRequest request;
  request.set_name(name);
  request.set_force(force);
  return call_to_delete(before, [&](grpc::ClientContext& context, v1::Node& node) {
    return nodes().DeleteNode(&context, request, &node);
  });
}

absl::StatusOr<v1::Node> ControllerClient::stop_unknown(const std::string& node, const std::string& job_uid,
                                                        absl::Duration grace) {
  v1::StopUnknownRequest request;
  request.set_name(node);
  request.set_job_uid(job_uid);
  request.set_grace_milliseconds(absl::ToInt64Milliseconds(grace));
  return call<v1::Node>(
      [&](grpc::ClientContext& context, v1::Node& answer) { return nodes().StopUnknown(&context, request, &answer); });
}

absl::StatusOr<v1::Cluster> ControllerClient::get_cluster() {
  return call<v1::Cluster>([&](grpc::ClientContext& context, v1::Cluster& answer) {
    return cluster().GetCluster(&context, v1::GetClusterRequest(), &answer);
  });
}

absl::StatusOr<v1::Token> ControllerClient::create_token(const v1::CreateTokenRequest& request) {
  return call<v1::Token>(
      [&](grpc::ClientContext& context, v1::Token& token) { return auth().CreateToken(&context, request, &token); });
}

absl::StatusOr<v1::ListTokensResponse> ControllerClient::list_tokens() {
  return call<v1::ListTokensResponse>([&](grpc::ClientContext& context, v1::ListTokensResponse& all) {
    return auth().ListTokens(&context, v1::ListTokensRequest(), &all);
  });
}

// A token that existed and is gone at the next try was revoked by a call whose answer was lost.
absl::StatusOr<v1::Token> ControllerClient::revoke_token(const std::string& id) {
  v1::Token before;
  before.set_id(id);
  TITAN_ASSIGN_OR_RETURN(const v1::ListTokensResponse all, list_tokens());
  for (const v1::Token& token : all.tokens()) {
    if (token.id() == id) before = token;
  }
  v1::RevokeTokenRequest request;
  request.set_id(id);
  return call_to_delete(before, [&](grpc::ClientContext& context, v1::Token& token) {
    return auth().RevokeToken(&context, request, &token);
  });
}

absl::StatusOr<v1::Diagnostics> ControllerClient::get_diagnostics() {
  return call<v1::Diagnostics>([&](grpc::ClientContext& context, v1::Diagnostics& answer) {
    return cluster().GetDiagnostics(&context, v1::GetDiagnosticsRequest(), &answer);
  });
}

absl::Status ControllerClient::check() const {
  TITAN_RETURN_IF_ERROR(rpc::split_addresses("--controller (or TITAN_CONTROLLER)", addresses_).status());
  return refused_;
}

std::string make_request_id() {
  std::random_device device;
  uint32_t word[4];
  for (uint32_t& w : word) w = device();
  word[1] = (word[1] & 0xFFFF0FFFU) | 0x00004000U;  // Version 4,
  word[2] = (word[2] & 0x3FFFFFFFU) | 0x80000000U;  // variant 1.
  return absl::StrFormat("%08x-%04x-%04x-%04x-%04x%08x", word[0], word[1] >> 16, word[1] & 0xFFFFU, word[2] >> 16,
                         word[2] & 0xFFFFU, word[3]);
}

std::string state_name(v1::Job::State state) { return v1::Job::State_Name(state); }

bool is_final(v1::Job::State state) {
  return state == v1::Job::SUCCEEDED || state == v1::Job::FAILED || state == v1::Job::CANCELLED;
}

}  // namespace titan::cli
