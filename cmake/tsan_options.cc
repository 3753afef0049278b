// What every program of a ThreadSanitizer build has to know, also one that is started with an environment of its own.

// Debian's libraries are not instrumented; races within them are not told.
extern "C" const char* __tsan_default_options() { return "ignore_noninstrumented_modules=1"; }

// gRPC and Protobuf come from Debian: ThreadSanitizer does not see how they synchronise.
extern "C" const char* __tsan_default_suppressions() {
  return "race:^grpc::\n"
         "race:libgrpc.so\n"
         "race:libgrpc++.so\n"
         "race:libprotobuf.so\n"
         "called_from_lib:libgrpc.so\n"
         "called_from_lib:libgrpc++.so\n";
}
