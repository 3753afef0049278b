#include "common/service/rpc/error.h"

#include "google/rpc/status.pb.h"
#include "gtest/gtest.h"

namespace titan::rpc {
namespace {

TEST(ErrorTest, CrossesTheWireUnchanged) {
  const absl::Status sent =
      error(absl::StatusCode::kFailedPrecondition, "DUMP_FOLDER_IN_USE", "folder /d belongs to a", {{"job", "a"}});
  const absl::Status received = from_grpc(to_grpc(sent));
  EXPECT_EQ(received.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(received.message(), "folder /d belongs to a");
  EXPECT_EQ(reason(received), "DUMP_FOLDER_IN_USE");
  EXPECT_EQ(metadata(received).at(0).second, "a");
}

TEST(ErrorTest, BadRequestNamesEachField) {
  const absl::Status received = from_grpc(to_grpc(bad_request("SPEC_INVALID", {{"a", "is 1"}, {"b", "is 2"}})));
  EXPECT_EQ(received.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(received.message(), "a: is 1\nb: is 2");
  ASSERT_EQ(field_violations(received).size(), 2u);
  EXPECT_EQ(field_violations(received)[1].field, "b");
  EXPECT_EQ(reason(received), "SPEC_INVALID");
}

// Programs rely on a reason: a status without one gets the name of its code.
TEST(ErrorTest, EveryErrorHasAReasonAndEachDetailOnce) {
  const grpc::Status wire = to_grpc(absl::NotFoundError("gone"));
  EXPECT_EQ(reason(from_grpc(wire)), "NOT_FOUND");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(to_grpc(bad_request("R", {{"a", "b"}})).error_details()));
  EXPECT_EQ(details.details_size(), 2);
}

TEST(ErrorTest, OkStaysOk) {
  EXPECT_TRUE(to_grpc(absl::OkStatus()).ok());
  EXPECT_TRUE(from_grpc(grpc::Status::OK).ok());
}

}  // namespace
}  // namespace titan::rpc
