// Defaults for every program of a ThreadSanitizer build, which also apply to programs started with another environment.

// Debian's libraries are not instrumented; races within them are not reported.
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

// gRPC and Protobuf come from Debian, so ThreadSanitizer does not see how they synchronize.
extern "C" const char* __tsan_default_suppressions() {
  return "race:^grpc::\n"
         "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libprotobuf.so\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n";
}
