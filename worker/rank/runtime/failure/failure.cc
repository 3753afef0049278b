#include "worker/rank/runtime/failure/failure.h"

#include <c10/util/Exception.h>

#include <new>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "worker/rank/checkpoint/shards/model_mismatch.h"
#include "worker/rank/comm/group.h"

namespace titan::runtime {

using namespace rank_protocol;  // Exit codes.

const char* Failure::error_class() const {
  switch (exit_code_) {
    case kExitUsage:
    case kExitBadConfig:
    case kExitUserError:
      return "user";
    case kExitPeerLost:
      return "peer";
    case kExitFenced:
      return "fenced";
    default:
      return "infra";
  }
}

void check(const absl::Status& status, ExitCode exit_code, const char* reason) {
  if (status.ok()) return;
  const std::string message(status.message());
  switch (status.code()) {
    case absl::StatusCode::kFailedPrecondition:
      if (absl::StrContains(message, "fenced")) throw Failure(kExitFenced, "FENCED", message);
      if (absl::StrContains(message, checkpoint::kModelMismatch) ||
          absl::StrContains(message, checkpoint::kDoesNotFit)) {
        throw Failure(exit_code, "MODEL_MISMATCH", absl::StrReplaceAll(message, {{checkpoint::kModelMismatch, ""}}));
      }
      break;
    case absl::StatusCode::kPermissionDenied:
      // The next attempt would be refused as well. A storage error is worth another attempt.
      if (exit_code != kExitStorage) break;
      throw Failure(kExitUserError, reason,
                    absl::StrCat(message,
                                 "; the job's user lacks the permission. If a group shares the folder, all "
                                 "its jobs need a umask that keeps the group's permissions (job.umask)"));
    case absl::StatusCode::kResourceExhausted:
      throw Failure(kExitStorage, "DISK_FULL", message);
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      // Reading data waits for a disk or a hub, not for a rank.
      if (absl::StrContains(reason, "DATA")) throw Failure(kExitStorage, reason, message);
      throw Failure(kExitPeerLost, kPeerLost, message);
    default:
      break;
  }
  throw Failure(exit_code, reason, message);
}

namespace {

// Distinguishes a rank that is gone from one that stalls or has diverged.
const char* lost_reason(const std::string& words) { return comm::is_timeout(words) ? kCollectiveTimeout : kPeerLost; }

}  // namespace

Failure current_failure() {
  try {
    throw;
  } catch (const Failure& failure) {
    return failure;
  } catch (const comm::PeerLost& lost) {
    return {kExitPeerLost, lost_reason(lost.what()), lost.what()};
  } catch (const c10::DistError& error) {
    return {kExitPeerLost, lost_reason(comm::describe(error)), comm::describe(error)};
  } catch (const c10::OutOfMemoryError& error) {
    return {kExitOutOfMemory, "OUT_OF_MEMORY", comm::describe(error)};
  } catch (const std::bad_alloc&) {
    return {kExitOutOfMemory, "OUT_OF_MEMORY", "the process ran out of memory"};
  } catch (const std::exception& error) {
    const std::string message = comm::describe(error);
    // LibTorch's CPU allocator reports a failed allocation as a plain error.
    if (absl::StrContains(message, "can't allocate memory")) return {kExitOutOfMemory, "OUT_OF_MEMORY", message};
    const char* reason = comm::is_disagreement(message) ? kCollectiveMismatch : "INTERNAL";
    return Failure(kExitInternal, reason, message).with_details(error.what());
  } catch (...) {
    return {kExitInternal, "INTERNAL", "an exception of unknown type"};
  }
}

}  // namespace titan::runtime
